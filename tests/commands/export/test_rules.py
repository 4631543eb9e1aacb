"""Tests of the export "rules": hints merged by meaning, contradictions named, a prompt and evidence for its rules."""

import itertools
import json
import random
from pathlib import Path

import pytest
from judged_runs import message, session, turn, verdict, write_run

from opdkit.commands.export import rules
from opdkit.commands.export.command import run as export
from opdkit.commands.export.rules import is_near, merge_hints
from opdkit.config.export import ExportConfig
from opdkit.errors import ConfigError, OpdkitError
from opdkit.judge.words import NEGATION, OPPOSITES
from opdkit.store.reviews import Review, append

MERGED = [
    ("Use Celsius.", "Please always use Celsius!"),
    ("The reply should be brief.", "Be concise."),
    ("Be brief.", "The answer must not be long."),
    ("Avoid bullet points.", "Don’t use any bullet point"),
    ("Use tabs instead of spaces.", "Use tabs, not spaces."),
    ("Aim for this: short Python.", "Next time: use short Python."),
    ("Name the train, the platform and the time.", "Name the train, the platform, the time and the price."),
    ("使用摄氏度。", "使用摄氏度"),
]
APART = [
    ("Give the temperature of each city in degrees Celsius.", "Give the temperature of each city in degrees Kelvin."),
    ("Use Python, not Java.", "Use Java, not Python."),
    ("Use bullet points.", "Do not use bullet points."),
    ("Name the train.", "Name the train and the platform."),
    ("使用Python", "不使用Python"),
    ("Write the program in C.", "Write the program in C++."),
    ("Write the program in C.", "Write the program in C#."),
    ("Keep rows where x > 3.", "Keep rows where x < 3."),
    ("Give prices in €.", "Give prices in $."),
    ("使用十二小时制", "使用二十四小时制"),
]


@pytest.mark.parametrize(("a", "b"), MERGED)
def test_hints_that_say_the_same_are_one_rule(a: str, b: str) -> None:
    assert len(merge_hints([(a, "s:1", "s"), (b, "t:1", "t")])) == 1


@pytest.mark.parametrize(("a", "b"), APART)
def test_another_word_in_place_of_one_is_another_rule(a: str, b: str) -> None:
    assert len(merge_hints([(a, "s:1", "s"), (b, "t:1", "t")])) == 2


def test_hints_without_a_word_of_their_own_are_not_merged_with_others() -> None:
    texts = ["!!!", "That is wrong.", "?", "Use Celsius."]
    assert len(merge_hints([(text, f"s:{n}", "s") for n, text in enumerate(texts)])) == 4


def test_near_hints_are_found_among_all_rules() -> None:
    """The index over the rarest claims misses no near pair: no two of the merged rules are near each other."""
    draw = random.Random(0)
    vocabulary = [f"w{n}" for n in range(12)]
    hints = [(" ".join(draw.sample(vocabulary, draw.randint(1, 9))), f"s:{n}", f"s{n}") for n in range(400)]
    merged = merge_hints(hints)
    assert sum(len(of_rule) for _, of_rule in merged) == 400
    assert 1 < len(merged) < 350
    assert not any(is_near(a, b) for (a, _), (b, _) in itertools.combinations(merged, 2))
    backwards = merge_hints(hints[::-1])  # the order of the hints does not matter
    assert all(a == b for (a, _), (b, _) in zip(merged, backwards, strict=True))


def write(run: Path, hints: dict[str, list[str | None]]) -> Path:
    """Write sessions (id -> the hints of its turns) as a judged run."""
    parts = []
    for name, of_session in hints.items():
        said = [m for n in range(len(of_session)) for m in (message("user", f"q{n}"), message("assistant", f"a{n}"))]
        turns = [turn(f"{name}:{2 * n + 1}") for n in range(len(of_session))]
        verdicts = [verdict(row["turn_id"], hint=hint) for row, hint in zip(turns, of_session, strict=True)]
        parts.append(([session(name, *said)], turns, verdicts))
    return write_run(run, parts)


@pytest.fixture
def run(tmp_path: Path) -> Path:
    hints = {
        "a": ["Be brief.", "Use Celsius."],
        "b": ["Use  Celsius!", None],
        "c": ["Write detailed replies.", "Use Celsius."],
        "a:3/rollout-0": ["Use Celsius."],
        "e": ["Call it with <|im_end|>."],
        "f": ["Be concise.", "Be brief."],
        "g": ["Name the number of the platform."],
    }
    return write(tmp_path / "run", hints)


def test_prompt_and_evidence(run: Path, capsys) -> None:
    summary = export(ExportConfig(run=run, to="rules", max_rules=3))
    assert summary.where == run / "export" / "rules.md"
    lines = summary.where.read_text(encoding="utf-8").splitlines()
    assert lines[0] == "- Use Celsius."
    evidence = [json.loads(line) for line in (run / "export" / "rules.jsonl").read_text(encoding="utf-8").splitlines()]
    assert [(row["text"], row["sessions"], row["turns"], row["contradicts"]) for row in evidence] == [
        ("Use Celsius.", 3, 4, []),
        ("Be brief.", 2, 3, [3]),
        ("Write detailed replies.", 1, 1, [2]),
    ]
    assert all(line.startswith(f"- {row['text']}") for line, row in zip(lines, evidence, strict=True))
    assert ["detailed" in lines[1], "brief" in lines[2]] == [True, True]
    assert evidence[0]["wordings"] == {"Use Celsius.": 3, "Use Celsius!": 1}
    assert evidence[1]["turn_ids"] == ["a:1", "f:1", "f:3"]
    counters = summary.counters
    assert (counters.rows_in, counters.rows_out, counters.total("rules")) == (11, 8, 3)
    assert counters.dropped == {"no hint (none)": 1, "control tokens in the text": 1, "beyond --max-rules": 1}
    assert "rules 2, 3" in capsys.readouterr().err


def test_decisions_of_people_count(run: Path) -> None:
    append(run, [Review("g:1", hint_decided=True, hint="Be brief.", reviewer="somebody")])
    evidence = export(ExportConfig(run=run, to="rules")).where.with_suffix(".jsonl").read_text(encoding="utf-8")
    assert "platform" not in evidence
    assert '"g:1"' in evidence


def test_limit_and_plain_text(run: Path, tmp_path: Path) -> None:
    out = tmp_path / "prompt.txt"
    assert export(ExportConfig(run=run, to="rules", out=out, limit=2)).counters.total("rules") == 2
    assert "detailed" not in out.read_text(encoding="utf-8")


@pytest.mark.parametrize("name", ["rules.md", "rules.jsonl"])
def test_neither_file_is_replaced_unasked(run: Path, tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text("mine", encoding="utf-8")
    with pytest.raises(ConfigError, match=name):
        export(ExportConfig(run=run, to="rules", out=tmp_path / "rules.md"))
    assert [path.read_text(encoding="utf-8") for path in tmp_path.glob("rules.*")] == ["mine"]
    export(ExportConfig(run=run, to="rules", out=tmp_path / "rules.md", overwrite=True))
    assert "Celsius" in (tmp_path / "rules.md").read_text(encoding="utf-8")


def test_evidence_that_another_process_writes_meanwhile_stays(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    beside = run / "export" / "rules.jsonl"

    def merge(hints: object) -> object:
        beside.write_text("mine", encoding="utf-8")
        return merge_hints(hints)

    monkeypatch.setattr("opdkit.commands.export.command.merge_hints", merge)
    with pytest.raises(ConfigError, match=r"rules\.jsonl"):
        export(ExportConfig(run=run, to="rules"))
    assert [path.name for path in beside.parent.iterdir()] == ["rules.jsonl"]
    assert beside.read_text(encoding="utf-8") == "mine"


def test_without_hints_there_is_no_file(tmp_path: Path) -> None:
    run = write(tmp_path / "run", {"a": [None]})
    with pytest.raises(OpdkitError, match="no hint"):
        export(ExportConfig(run=run, to="rules"))
    assert not (run / "export").exists()


@pytest.mark.parametrize("options", [{"to": "trl-kto", "max_rules": 3}, {"to": "review-csv", "limit": 2}])
def test_options_of_others_are_refused(run: Path, options: dict) -> None:
    with pytest.raises(ConfigError, match=r"--max-rules|--limit"):
        ExportConfig(run=run, **options)


def test_the_words_are_in_the_package() -> None:
    assert OPPOSITES["fahrenheit"] == ("celsius", False)
    assert NEGATION.search("do not")


def test_time_grows_with_the_number_of_rules(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hints about different things, in words that all of them share: few pairs are compared."""
    compared = []
    monkeypatch.setattr(rules, "is_near", lambda a, b: compared.append((a, b)) or is_near(a, b))
    hints = [(f"Look up order {n} in the shop with track_order", f"s:{n}", "s") for n in range(2_000)]
    assert len(merge_hints(hints)) == 2_000
    assert len(compared) < 10 * 2_000  # of two million pairs
