"""The documentation says what the code does."""

import importlib.util
import re
from pathlib import Path

import pytest

from opdkit.config.train import TrainConfig
from opdkit.train.objective.terms import PRESETS

ROOT = Path(__file__).parent.parent
_spec = importlib.util.spec_from_file_location("generate", ROOT / "docs" / "generate.py")
assert _spec
assert _spec.loader
generate = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(generate)


@pytest.mark.parametrize("page", sorted(generate.PAGES))
def test_generated_pages_are_up_to_date(page: str) -> None:
    written = (ROOT / "docs" / page).read_text(encoding="utf-8")
    assert written == generate.PAGES[page](), "run: python docs/generate.py"


def test_links_and_files_that_the_readme_names_are_there() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    for target in re.findall(r"\]\(([^)#]+)\)", text):
        assert (ROOT / target).exists(), target


def test_the_readme_names_options_that_exist() -> None:
    """No documented option that nothing reads."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    commands = (ROOT / "docs" / "commands.md").read_text(encoding="utf-8")
    for line in re.findall(r"^.*opdkit \w+ .*$", text, re.MULTILINE):
        for flag in re.findall(r"--[a-z-]+", line):
            assert f"`{flag}`" in commands, f"{flag} in: {line}"


def test_the_page_of_objectives_names_what_there_is() -> None:
    """Every preset with its terms, and no option that does not exist."""
    text = (ROOT / "docs" / "objectives.md").read_text(encoding="utf-8")
    rows = dict(re.findall(r"^\| `(\w+)` \| ([^|]+) \|", text, re.MULTILINE))
    assert list(rows) == list(PRESETS)
    for name, phases in PRESETS.items():
        assert set(re.findall(r"reward|teacher|support|divergence", rows[name])) == {t for p in phases for t in p}
        for weight, term in re.findall(r"(0\.\d+) (\w+)", rows[name]):
            assert phases[0][term] == float(weight)
    assert re.findall(r"^\| `(\w+)` .*the default \|$", text, re.MULTILINE) == [TrainConfig.objective]
    commands = (ROOT / "docs" / "commands.md").read_text(encoding="utf-8")
    for flag in re.findall(r"--[a-z][a-z-]+", text):
        assert f"`{flag}`" in commands, flag
