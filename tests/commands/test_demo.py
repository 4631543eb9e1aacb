"""Tests of what `opdkit demo` promises, on its tables.

The demo is run here unless OPDKIT_DEMO_RUN names the directory of a demo that has just been run.
"""

import io
import json
import os
import re
import shutil
import subprocess
import sys
import threading
from collections import Counter
from itertools import cycle
from pathlib import Path

import httpx
import pyarrow.dataset
import pytest
from rich.console import Console
from sample_world import DATA, NAMES, asked_order, is_true_of_call, labels

from opdkit.cli import app
from opdkit.commands import demo
from opdkit.commands.report.collect import collect
from opdkit.commands.review.api import Api
from opdkit.commands.review.server import ReviewServer
from opdkit.config.shard import parse_shard
from opdkit.store.plans import stage_dir
from opdkit.store.reading import read_all
from opdkit.store.reviews import read_reviews_in_force
from opdkit.store.tables import TABLES

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if given := os.environ.get("OPDKIT_DEMO_RUN"):
        return Path(given)
    directory = tmp_path_factory.mktemp("demo") / "run"
    done = subprocess.run([sys.executable, "-m", "opdkit", "demo", str(directory)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return directory


def test_a_task_of_a_slurm_array_does_all_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Here each stage reads all parts of the one before it."""
    for name, value in {"ID": 1, "COUNT": 4, "MIN": 0, "MAX": 3}.items():
        monkeypatch.setenv(f"SLURM_ARRAY_TASK_{name}", str(value))
    steps = demo.configure_stages(tmp_path)
    assert {name: parse_shard(options.shard) for name, _, options in steps if name not in ("train", "eval")} == {
        "extract": (0, 1), "judge": (0, 1), "teacher": (0, 1)
    }  # fmt: skip


def test_it_closes_with_the_figures_and_what_to_type_next(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The suggested commands exist, and `opdkit show` is suggested with the name of this run."""
    screen = io.StringIO()
    monkeypatch.setattr(demo, "stdout", Console(file=screen, width=100))
    demo.show(run, DATA / "prompts.jsonl")
    said = screen.getvalue()
    assert "before" in said
    commands = re.findall(r"^  opdkit (\w+) (\S+)", said, re.MULTILINE)
    assert ("show", str(run)) in commands
    assert {name for name, _ in commands} <= {command.name for command in app.registered_commands}
    assert ("run", "runs/mine") in commands


def share(run: Path, *, corrected: bool, model: str) -> float:
    asked = [json.loads(line) for line in (DATA / "prompts.jsonl").read_text().splitlines()]
    ids = {row["id"] for row in asked if row["corrected"] == corrected}
    replies = [r for r in read_all(run, "replies") if r["prompt_id"] in ids and r["model"] == model and r["sample"] > 0]
    assert len(replies) == 4 * len(ids)
    return sum(bool(r["passed"]) for r in replies) / len(replies)


def test_the_model_learns_what_its_users_wanted_and_keeps_the_rest(run: Path) -> None:
    assert share(run, corrected=True, model="before") <= 0.25
    assert share(run, corrected=True, model="after") >= 0.90
    assert share(run, corrected=False, model="after") >= share(run, corrected=False, model="before") - 0.03


def judged(run: Path) -> list[tuple[dict, dict]]:
    """Return (label, verdict) of every judged turn."""
    verdicts = {v["turn_id"]: v for v in read_all(run, "verdicts")}
    found = [(label, verdicts[label["turn_id"]]) for label in labels() if label["turn_id"] in verdicts]
    assert len(found) >= 0.95 * len(labels()), "nearly every turn that has a next state is judged"
    return found


def test_every_hint_is_reviewed_in_a_few_decisions(run: Path, tmp_path: Path) -> None:
    """Over HTTP, groups of hints are kept, reworded or struck: some 250 turns in at most 15 decisions."""
    for stage in ("extract", "judge"):
        shutil.copytree(run / stage, tmp_path / stage)
    hints = {v["turn_id"]: v["hint"] for v in read_all(run, "verdicts") if v["hint"]}
    server = ReviewServer(Api(tmp_path, "Ada"))
    serving = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    serving.start()
    try:
        groups = collect(tmp_path, 10, reviewing=True).summary["hints"]["groups"]
        ways = [{"action": "keep"}, {"action": "set", "hint": "Say it better."}, {"action": "set", "hint": None}]
        address, seen = f"http://127.0.0.1:{server.server_port}/api/reviews", -1
        for group, way in zip(groups, cycle(ways), strict=False):
            answer = httpx.post(address, json={"group": group["wordings"][0][0], **way, "seen": seen},
                                headers={"X-Opdkit-Token": server.token}, trust_env=False, timeout=60)  # fmt: skip
            assert len(answer.raise_for_status().json()["reviews"]) == group["turns"]
            seen = answer.json()["last"]
    finally:
        server.shutdown()
        serving.join()
        server.server_close()
    assert len(groups) <= 15
    assert len(hints) > 200
    decided = {name: review.decided["hint"] for name, review in read_reviews_in_force(tmp_path).items()}
    assert decided.keys() == hints.keys()
    assert {hint if hint != hints[name] else "kept" for name, hint in decided.items()} == {
        "kept", "Say it better.", None
    }  # fmt: skip


def test_the_tiny_judge_is_right(run: Path) -> None:
    pairs = judged(run)
    right = Counter(label["reward"] == verdict["reward"] for label, verdict in pairs)
    assert right[True] >= 0.90 * len(pairs)
    corrected = [(label["wanted"], verdict["hint"] or "") for label, verdict in pairs if label["wanted"]]
    named = [bool(re.search(NAMES[wanted], hint)) for wanted, hint in corrected]
    assert sum(named) >= 0.90 * len(named)
    unhinted = [verdict["hint"] is None for label, verdict in pairs if not label["wanted"]]
    assert sum(unhinted) >= 0.95 * len(unhinted), "no hint where the reaction reveals nothing"


def test_hints_about_orders_are_true_of_the_call(run: Path) -> None:
    """At most 3% may be untrue: single votes of the tiny judge err now and then, but rarely most of five.

    In 0.1.0 the tool blamed a missing argument for every error, and half of these hints were untrue.
    """
    hints = {v["turn_id"]: v["hint"] for v in read_all(run, "verdicts") if v["hint"]}
    sessions = {s["session_id"]: s["messages"] for s in read_all(run, "sessions")}
    true = []
    for turn in read_all(run, "turns"):
        messages, index = sessions[turn["session_id"]], turn["message_index"]
        if turn["turn_id"] in hints and (calls := messages[index]["tool_calls"]):
            asked = asked_order(messages[:index])
            true.append(is_true_of_call(hints[turn["turn_id"]], calls[0]["arguments"], asked))
    assert len(true) >= 20
    assert true.count(False) <= 0.03 * len(true)


@pytest.mark.parametrize("name", sorted(name for name, table in TABLES.items() if table.option is None))
def test_every_table_opens_with_the_usual_readers(run: Path, name: str) -> None:
    import datasets
    import pandas as pd

    folder = stage_dir(run, TABLES[name].stage) / name
    frame = pd.read_parquet(folder)
    assert list(frame.columns) == TABLES[name].schema.names
    assert pyarrow.dataset.dataset(folder).count_rows() == len(frame)
    loaded = datasets.load_dataset("parquet", data_dir=str(folder), split="train")
    assert (len(loaded), loaded.column_names) == (len(frame), list(frame.columns))


def test_without_a_hint_there_is_no_teacher(run: Path) -> None:
    """Turns that nobody corrected have no teacher log-probs, so they train on their reward alone."""
    verdicts = {v["turn_id"]: v for v in read_all(run, "verdicts")}
    for target in read_all(run, "targets"):
        hint = verdicts[target["turn_id"]]["hint"]
        assert target["hint"] == hint
        assert (target["teacher_logprobs"] is None) == (hint is None)
        assert len(target["response_ids"]) == len(target["response_mask"]) == len(target["old_logprobs"])


def test_the_trained_model_loads_like_any_other(run: Path) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    folder = stage_dir(run, "train") / "model"
    tokenizer, model = AutoTokenizer.from_pretrained(folder), AutoModelForCausalLM.from_pretrained(folder)
    ids = tokenizer.apply_chat_template(
        [{"role": "user", "content": "How do I cook rice?"}], add_generation_prompt=True, return_tensors="pt"
    )["input_ids"]
    reply = tokenizer.decode(model.generate(ids, max_new_tokens=64, do_sample=False)[0, ids.shape[1] :])
    assert reply.startswith("1. ")
