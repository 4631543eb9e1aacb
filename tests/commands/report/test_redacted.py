"""Tests that `opdkit report --redacted` has numbers and opdkit's own words, but no text of users, models or files."""

import ast
import base64
import re
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path

import orjson
import pytest
from browser import Watched
from checked_runs import whole_run
from report_runs import hostile_run

import opdkit
from opdkit.commands.report.command import run as report
from opdkit.commands.report.page import make_page
from opdkit.commands.report.redact import Names, list_own_words, redact_label
from opdkit.config.fields import JSON
from opdkit.config.report import ReportConfig
from opdkit.evaluate.scores import METRICS
from opdkit.extract.formats.trees import CIRCLE, NO_PARENT
from opdkit.store import reviews
from opdkit.store.reading import read_all
from opdkit.store.reviews import Review

MARKER = "zebra"


def content(html: str) -> str:
    """Return the page's packed data as text."""
    data = re.search(r'<script id="data" type="application/json">([^<]*)</script>', html)
    assert data
    return zlib.decompress(base64.b64decode(data[1]), 31).decode()


@pytest.fixture(scope="module")
def marked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a run with MARKER in every text of every table, manifest, decision and failure, and in its own name."""
    run = tmp_path_factory.mktemp("redacted") / f"{MARKER}-run"
    numbers = iter(range(1_000_000))
    assert hostile_run(run, 20, lambda: f"{MARKER} {next(numbers)}") > 500
    judged = [row["turn_id"] for row in read_all(run, "verdicts")]
    reviews.append(run, [Review(judged[0], True, 1, True, f"{MARKER} hint", note=f"{MARKER} note"),
                         Review(judged[1], False, None, True, None)], reviewer=MARKER)  # fmt: skip
    return run


def test_no_text_of_a_run_is_in_the_page(marked: Path) -> None:
    whole, redacted = make_page(marked), make_page(marked, redacted=True)
    assert content(whole).count(MARKER) > 200, "the marker reaches the page that is not redacted"
    assert MARKER not in redacted.casefold()
    assert MARKER not in content(redacted).casefold()


def test_no_text_where_the_conclusion_and_the_names_are_real(tmp_path: Path) -> None:
    """A report on the sample logs keeps its figures and opdkit's own words, but no session id, source or message."""
    run = whole_run(tmp_path / "run")
    found: JSON = orjson.loads(content(make_page(run, redacted=True)))
    whole: JSON = orjson.loads(content(make_page(run)))
    for key in ("turns", "training", "advantages", "rewards_by_length"):
        assert found["summary"][key] == whole["summary"][key]
    for key in ("sentence", "word", "numbers", "watch"):
        assert found["summary"]["conclusion"][key] == whole["summary"]["conclusion"][key]
    for key in ("reward", "tokens", "strength", "hint_length", "asks", "state"):
        assert found["rows"][key] == whole["rows"][key]
    assert found["views"] == []
    for key in ("funnel", "votes", "hint_checks"):
        assert "not shown" not in orjson.dumps(found["summary"][key]).decode(), "each word is opdkit's own"
    assert orjson.loads(orjson.dumps(found["summary"]["funnel"])) == whole["summary"]["funnel"]
    for key in ("statuses", "rejected", "lengths"):
        assert found["summary"]["hints"][key] == whole["summary"]["hints"][key]
    texts = set(strings(found)) - set(strings(whole["summary"]["training"]))
    for session in read_all(run, "sessions"):
        names = {session["session_id"], session["source"], *(m["content"] for m in session["messages"])}
        assert not names & texts
        assert not any(session["session_id"] in text or session["source"] in text for text in texts)


def strings(value: object) -> Iterator[str]:
    """Yield all strings in a JSON value, keys included."""
    if isinstance(value, str):
        yield value
    for one in value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ():
        yield from (text for part in one for text in strings(part))


def test_names_are_numbered() -> None:
    names = Names()
    assert [names.number("source", name) for name in ("b", "a", "b")] == ["source 1", "source 2", "source 1"]
    assert names.turn("jane@example.org:17:3") == "session 1:3"
    assert names.turn("jane@example.org:17:3/rollout-0:3") == "session 1:3/rollout-0:3"
    assert names.turn("jane@example.org:18:1") == "session 2:1"
    assert "jane" not in names.turn("no number but jane")


def test_words_of_a_log_are_not_shown() -> None:
    assert redact_label("no next state") == "no next state"
    names = [*METRICS, *(metric.words for metric in METRICS.values())]
    assert list(map(redact_label, names)) == names
    assert redact_label("filtered: metadata.customer = 'Jane'") == "filtered: not shown"
    assert redact_label("hint: no decision: Jane") == "hint: no decision: not shown"
    assert redact_label("skipped: no next state") == "skipped: no next state"
    assert redact_label("Jane") == "not shown"


def test_every_reason_that_the_code_names_is_known() -> None:
    """A reason that is not known would be redacted. That is safe, but reasons are opdkit's own words."""
    trees = [ast.parse(path.read_text(encoding="utf-8")) for path in Path(opdkit.__file__).parent.rglob("*.py")
             if "commands" not in path.parts]  # fmt: skip
    pairs = [(target, node.value) for tree in trees for node in tree.body if isinstance(node, ast.Assign)
             for target in node.targets]  # fmt: skip
    pairs += [pair for target, value in pairs if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple)
              for pair in zip(target.elts, value.elts, strict=True)]  # fmt: skip
    constants = {target.id: value.value for target, value in pairs
                 if isinstance(target, ast.Name) and isinstance(value, ast.Constant)}  # fmt: skip
    named = {NO_PARENT, CIRCLE}
    for call in (node for tree in trees for node in ast.walk(tree) if isinstance(node, ast.Call)):
        name = ast.unparse(call.func)
        if name in ("Unreadable", "ChatError") or name.endswith(("counters.drop", "counters.count")):
            labels = [keyword.value for keyword in call.keywords if keyword.arg == "label"]
            for value in (*call.args[:1], *labels):
                text = value.value if isinstance(value, ast.Constant) else constants.get(ast.unparse(value))
                named |= {text} if isinstance(text, str) else set()
    assert len(named) > 50
    assert named - list_own_words() == set()


def test_it_is_a_file_of_its_own(marked: Path) -> None:
    assert report(ReportConfig(run=marked, redacted=True)).path == marked / "report-redacted.html"
    assert MARKER not in content((marked / "report-redacted.html").read_text(encoding="utf-8"))


@pytest.mark.slow
def test_it_opens_with_counts_that_are_links(marked: Path, opened: Callable[..., Watched]) -> None:
    path = marked.parent / "redacted.html"
    path.write_text(make_page(marked, redacted=True), encoding="utf-8")
    watched = opened(path)
    watched.page.click("#feedback a[data-counts]")
    shown = watched.page.evaluate("list.shown.length")
    assert watched.text("#found").startswith(f"{shown} of 20 turns")
    watched.page.locator("#list button").first.click()
    watched.says("#whole", "tokens of the reply")
    assert MARKER not in watched.page.content().casefold()
