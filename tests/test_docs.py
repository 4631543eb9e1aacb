"""Tests that the documentation says what the code does."""

import importlib.util
import json
import re
from pathlib import Path

import pytest

from opdkit.commands.review.api import parse_decision
from opdkit.commands.review.spreadsheet import FILLED_IN
from opdkit.config.train import TrainConfig
from opdkit.store.tables import APPENDED, TABLES
from opdkit.train.objective.terms import PRESETS

ROOT = Path(__file__).parent.parent
# Flags of other programs that are named within a line.
OTHERS = set("--help --draw --work --requeue --signal --dependency --nproc-per-node --nnodes --node-rank".split())
VLLM = set("--enable-log-requests --enable-log-outputs --max-log-len".split())
_spec = importlib.util.spec_from_file_location("generate", ROOT / "docs" / "generate.py")
assert _spec
assert _spec.loader
generate = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(generate)


@pytest.mark.parametrize("page", sorted(generate.PAGES))
def test_generated_pages_are_up_to_date(page: str) -> None:
    written = (ROOT / "docs" / page).read_text(encoding="utf-8")
    assert written == generate.PAGES[page](), "run: python docs/generate.py"


def anchors_of(page: Path) -> set[str]:
    """Return the anchors of a page's headings, as GitHub and the site make them."""
    text = re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    titles = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", re.sub(r"\]\([^)]*\)", "", title).lower()).replace(" ", "-") for title in titles}


@pytest.mark.parametrize("page", sorted({"README.md", *(f"docs/{path.name}" for path in (ROOT / "docs").glob("*.md"))}))
def test_every_link_leads_to_a_file_and_a_heading_that_are_there(page: str) -> None:
    path = ROOT / page
    for target, anchor in re.findall(r"\]\(([^)#\s]*)(?:#([^)\s]+))?\)", path.read_text(encoding="utf-8")):
        if target.startswith(("http:", "https:", "mailto:")):
            continue
        there = path.parent / target if target else path
        assert there.exists(), target
        assert not anchor or anchor in anchors_of(there), f"{target}#{anchor}"


def test_the_readme_names_options_that_exist() -> None:
    """Every flag in a command of the README is in docs/commands.md."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    commands = (ROOT / "docs" / "commands.md").read_text(encoding="utf-8")
    for line in re.findall(r"^.*opdkit \w+ .*$", text, re.MULTILINE):
        for flag in re.findall(r"--[a-z-]+", line):
            assert f"`{flag}`" in commands, f"{flag} in: {line}"


def test_the_readme_counts_right() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert len(text.splitlines()) <= 120
    assert len(PRESETS) == 8
    assert "[seven other objectives](docs/objectives.md)" in text


def test_the_page_of_objectives_names_what_there_is() -> None:
    """The page names every preset with its terms, and only options that exist."""
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


# Words in names of columns that have their usual English meaning.
PLAIN = set(
    """
    action after approx back before behavior broke by call chance chosen count cut decided decision detail difference
    domain echo ended epoch error eval extract finish following format fraction grad high id ids index judged kept
    kind learning length likely limit line logprob logprobs looped loss lost low messages metadata metric metrics
    model name norm note of old ordinal passed penalty per position rate raw read reason replies response reviewer
    role sample samples score scores second seconds sessions skip skipped source status steps targets teacher time to
    token tokens tools train turn turns unhinted validations value voted went with without written
    """.split()
)


def test_every_word_of_a_table_is_in_the_glossary() -> None:
    """The project's words have one meaning each, on one page; a new column must bring its words with it."""
    page = (ROOT / "docs" / "glossary.md").read_text(encoding="utf-8")
    words = [word for row in re.findall(r"^\| ([^|]+) \|", page, re.MULTILINE) for word in row.split(", ")]
    words = [word.strip() for word in words if word.strip() not in ("word", "---")]
    assert len(words) == len(set(words)), "one meaning each"
    known = PLAIN | {part for word in words for part in re.split(r"[ _-]", word.lower())}
    tables = [*TABLES.values(), *APPENDED.values()]
    names = {name for table in tables for name in (table.stage, table.name, *table.schema.names)}
    parts = {part for name in names for part in name.split("_")}
    assert {part for part in parts if part not in known and part.removesuffix("s") not in known} == set()


def test_a_column_that_one_option_fills_names_it() -> None:
    page = (ROOT / "docs" / "tables.md").read_text(encoding="utf-8")
    (row,) = re.findall(r"^\| `overlap` .*", page, re.MULTILINE)
    assert "--teacher-hint overlap" in row


def test_the_page_on_privacy_names_every_table() -> None:
    page = (ROOT / "docs" / "privacy.md").read_text(encoding="utf-8")
    for table in (*TABLES.values(), *APPENDED.values()):
        assert f"`{table.stage}/{table.name}`" in page


def test_the_pages_say_how_to_fill_in_a_sheet_of_decisions_and_how_a_script_decides() -> None:
    (row,) = re.findall(
        r"^- \*\*Decisions in a spreadsheet.*?(?=^- )", read_page("export.md"), re.MULTILINE | re.DOTALL
    )
    assert all(f"`{word}`" in row for word in (*FILLED_IN, "turn_id", "decision", "none", "accept", "strike"))
    (answer,) = re.findall(r"^\*\*Can a script review\?.*?\n\n", read_page("faq.md"), re.MULTILINE | re.DOTALL)
    on_turn, on_group = map(json.loads, re.findall(r"`(\{.*?\})`", answer, re.DOTALL))
    decided = parse_decision(on_turn)
    assert (decided.reward, decided.hint) == (on_turn["reward"], on_turn["hint"])
    assert on_group.keys() == {"group", "action"}


def read_page(name: str) -> str:
    return (ROOT / "docs" / name).read_text(encoding="utf-8")


@pytest.mark.parametrize("page", sorted({path.name for path in (ROOT / "docs").glob("*.md")} - {"commands.md"}))
def test_pages_name_options_and_pages_that_exist(page: str) -> None:
    """Flags of other programs stand in `text` blocks, which are not checked."""
    commands = (ROOT / "docs" / "commands.md").read_text(encoding="utf-8")
    text = re.sub(r"```text\n.*?```", "", (ROOT / "docs" / page).read_text(encoding="utf-8"), flags=re.DOTALL)
    for line in re.findall(r"`[^`\n]*`|^.*opdkit \w+ .*$", text, re.MULTILINE):
        for flag in re.findall(r"(?<![\w-])--[a-z][a-z0-9-]*", line):
            assert f"`{flag}`" in commands or flag in OTHERS | VLLM, f"{flag} in: {line}"
