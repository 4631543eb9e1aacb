"""Tests that docs/how-it-works.md and its pictures show what a new run on the sample data gives."""

import importlib.util
import json
import math
import re
from itertools import zip_longest
from pathlib import Path

import pytest

from opdkit import Run

DOCS = Path(__file__).parent.parent / "docs"
NUMBER = re.compile(r"-?\d[\d,]*(?:\.\d+)?")
_spec = importlib.util.spec_from_file_location("walk", DOCS / "walk.py")
assert _spec
assert _spec.loader
walk = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(walk)


def is_near(one: str, other: str) -> bool:
    """Return whether two numbers are close: another processor rounds differently, and training amplifies this."""
    return math.isclose(float(one.replace(",", "")), float(other.replace(",", "")), rel_tol=0.05, abs_tol=0.02)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("walk") / "tutorial"
    walk.make_run(folder)
    return folder


@pytest.mark.slow
def test_the_page_and_the_pictures_are_those_of_a_run(run: Path) -> None:
    for name, text in walk.write(run).items():
        stored = (DOCS / name).read_text(encoding="utf-8")
        assert NUMBER.split(stored) == NUMBER.split(text), f"{name}: run python docs/walk.py"
        numbers = list(zip_longest(NUMBER.findall(stored), NUMBER.findall(text)))
        assert [pair for pair in numbers if not is_near(*pair)] == [], f"{name}: run python docs/walk.py"


@pytest.mark.slow
def test_the_tutorial_describes_what_its_commands_show(run: Path) -> None:
    tutorial = " ".join((DOCS / "tutorial.md").read_text(encoding="utf-8").split())
    turns = list(Run(run).table("turns"))
    found = sum(turn["trainable"] for turn in turns)
    assert f"Here {len(turns)} turns were found, of which {found} can be judged." in tutorial
    assert "tie" not in {verdict["reward_status"] for verdict in Run(run).table("verdicts")}
    assert f"opdkit show runs/tutorial {walk.TURN} --logprobs" in tutorial
    logged, written = Run(run).show(walk.TURN)["targets"]
    (marked,) = [token for token in logged["tokens"] if token["advantage"] < -1]
    assert (marked["text"], marked["likely"]["teacher"][0][0]) == ("8", "3")
    assert "30 C" in "".join(token["text"] for token in written["tokens"])
    for turn in Run(run).turns(worst=2):  # orders, looked up with the wrong argument
        (call,) = turn["messages"][turn["message_index"]]["tool_calls"]
        assert list(json.loads(call["arguments"])) == ["id"]
        assert "order_id" in turn["verdict"]["hint"]


def test_numbers_that_differ_are_seen() -> None:
    assert is_near("0.97", "0.975")
    assert is_near("5,700", "5,800")
    assert not is_near("0.97", "0.9")
    assert not is_near("-8.65", "8.65")
