"""Tests of reading label files, in the forms that people write, and of faulty files."""

import json
from pathlib import Path

import pytest

from opdkit.commands.calibrate.labels import Label, read_labels
from opdkit.errors import ConfigError


def write(path: Path, *lines: str) -> Path:
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


@pytest.mark.parametrize(
    ("written", "value"),
    [
        (1, 1),
        (-1, -1),
        (0, 0),
        (True, 1),
        (False, -1),
        (1.0, 1),
        ("good", 1),
        ("Bad", -1),
        ("neutral", 0),
        (" +1 ", 1),
        ("1,0", 1),
        ("\u22121", -1),
        ("-1.0", -1),
    ],
)
def test_the_ways_to_write_a_label(written: object, value: int, tmp_path: Path) -> None:
    path = write(tmp_path / "labels.jsonl", json.dumps({"turn_id": "a:1", "reward": written}))
    assert read_labels(path).labels == [Label("turn_id", "a:1", value, 1)]


@pytest.mark.parametrize("separator", [",", ";", "\t"])
def test_csv_as_spreadsheets_write_it(separator: str, tmp_path: Path) -> None:
    """A CSV file may have a byte-order mark, CRLF, other columns, line breaks in cells, and rows without a label."""
    rows = [
        ["note", "turn_id", "reward"],
        ['"two\r\nlines, one cell"', "a:1", "good"],
        ["", "a:3", ""],
        ["", "b:1", "-1"],
    ]
    path = tmp_path / "labels.csv"
    path.write_bytes(b"\xef\xbb\xbf" + "".join(separator.join(r) + "\r\n" for r in rows).encode())
    found = read_labels(path)
    assert found.labels == [Label("turn_id", "a:1", 1, 2), Label("turn_id", "b:1", -1, 5)]
    assert found.set_aside == {"no label yet": 1}
    assert (found.rows, found.examples) == (3, [])


def test_ids_of_a_review_sheet_stand_behind_an_apostrophe(tmp_path: Path) -> None:
    """A log named after a date has ids such as 2026-11-27:1:1, which a spreadsheet would otherwise read as a time."""
    path = write(tmp_path / "labels.csv", "turn_id,reward", "'2026-11-27:1:1,1", "a:1,-1")
    assert [label.id for label in read_labels(path).labels] == ["2026-11-27:1:1", "a:1"]


def test_who_accepts_a_row_of_a_review_sheet_gives_it_the_reward_of_the_votes(tmp_path: Path) -> None:
    """An accepted row has the reward of the votes as its label. Otherwise only the judge's errors would be labels."""
    head = "turn_id,voted_reward,reward,action"
    path = write(tmp_path / "sheet.csv", head, "a:1,-1,,accept", "a:3,1,,Accept", "a:5,1,0,", "a:7,1,,", "a:9,,,accept")
    found = read_labels(path)
    assert [(label.id, label.value) for label in found.labels] == [("a:1", -1), ("a:3", 1), ("a:5", 0)]
    assert found.set_aside == {"no label yet": 2}


def test_the_first_column_that_is_filled_is_the_label(tmp_path: Path) -> None:
    path = write(tmp_path / "labels.csv", "turn_id,reward,label", "a:1,,good", "a:3,-1,1", "a:5,none,0", "a:7,,")
    found = read_labels(path)
    assert [(label.id, label.value) for label in found.labels] == [("a:1", 1), ("a:3", -1), ("a:5", 0)]
    assert found.set_aside == {"no label yet": 1}


@pytest.mark.parametrize(
    ("written", "wanted"),
    [({}, None), ({"wanted": None}, False), ({"wanted": "celsius"}, True), ({"wanted": "none"}, False),
     ({"wanted": False}, False), ({"wanted": True}, True), ({"wanted": ""}, None), ({"wanted": " "}, None),
     ({"wanted": 0}, False), ({"wanted": 1}, True)],
)  # fmt: skip
def test_whether_something_was_wanted(written: dict, wanted: bool | None, tmp_path: Path) -> None:
    path = write(tmp_path / "labels.jsonl", json.dumps({"turn_id": "a:1", "reward": 0} | written))
    assert read_labels(path).labels[0].wanted is wanted


def test_a_short_row_of_csv_says_nothing_of_what_was_wanted(tmp_path: Path) -> None:
    path = write(tmp_path / "labels.csv", "turn_id,reward,wanted", "a:1,1", "a:3,-1,celsius", "a:5,1,no")
    assert [label.wanted for label in read_labels(path).labels] == [None, True, False]


def test_sessions_and_turns_in_one_file(tmp_path: Path) -> None:
    path = write(
        tmp_path / "x", '{"session_id": "a", "label": "good"}', "", '{"turn_id": "a:1", "session_id": "a", "label": 0}'
    )
    assert read_labels(path).labels == [Label("session_id", "a", 1, 1), Label("turn_id", "a:1", 0, 3)]


def test_rows_of_one_turn_are_labels_of_several_people(tmp_path: Path) -> None:
    """Each row without a rater counts as a different person. A rater may label both a turn and its session."""
    rows = ["a:1,,1,ann", "a:1,,-1,bob", "a:1,,-1,", "a:1,,-1,", ",a,1,ann"]
    path = write(tmp_path / "labels.csv", "turn_id,session_id,reward,rater", *rows)
    found = read_labels(path)
    assert [(label.kind, label.value, label.rater) for label in found.labels] == [
        ("turn_id", 1, "ann"), ("turn_id", -1, "bob"), ("turn_id", -1, None), ("turn_id", -1, None),
        ("session_id", 1, "ann"),
    ]  # fmt: skip
    assert not found.set_aside


def test_what_cannot_be_used_is_counted_and_shown_with_its_line(tmp_path: Path) -> None:
    path = write(
        tmp_path / "labels.jsonl",
        '{"turn_id": "a:1", "reward": 1, "rater": "x"}', "{", "[]", '{"reward": 1}', '{"turn_id": "a:3"}',
        '{"turn_id": "a:5", "reward": "meh"}', '{"turn_id": "a:7", "reward": null}',
        '{"turn_id": "a:1", "reward": 1, "rater": "x"}', '{"turn_id": "a:9", "reward": 1, "rater": 5}',
        '{"turn_id": "a:9", "reward": -1, "rater": "5"}',
    )  # fmt: skip
    found = read_labels(path)
    assert found.labels == [Label("turn_id", "a:1", 1, 1, rater="x")]
    assert found.set_aside == {
        "not JSON": 1, "not an object": 1, "no turn_id or session_id": 1, "no reward": 1, "no such label": 1,
        "no label yet": 1, "the same label again": 1, "contradicting labels": 2,
    }  # fmt: skip
    assert found.rows == len(found.labels) + found.set_aside.total()
    assert found.examples[0] == f"{path}:2: not JSON"
    assert found.examples[1].startswith(f"{path}:3: not an object")


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("labels.csv", "id,reward\na:1,1\n", "needed are turn_id"),
        ("labels.csv", "", "needed are turn_id"),
        ("labels.csv", "turn_id,reward,reward\na:1,1,-1\n", r"\breward comes twice"),
        ("labels.jsonl", '{"turn_id": "a:1", "reward": "meh"}\n', "labels.jsonl:1: no such label"),
        ("labels.jsonl", "", "has no label"),
        ("labels.json", '[{"turn_id": "a:1", "reward": 1}]', "one object per line"),
        ("labels.jsonl", '{\n  "turn_id": "a:1",\n  "reward": 1\n}\n', "one object per line"),
        ("labels.csv", 'turn_id,reward\n"a:1,1\n' + 2_000_000 * "x", "quotation mark"),
    ],
)
def test_a_file_without_labels(name: str, text: str, words: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(ConfigError, match=words):
        read_labels(tmp_path / name)


def test_a_file_that_is_not_there_or_no_text(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"labels\.csv"):
        read_labels(tmp_path / "labels.csv")
    (tmp_path / "labels.csv").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigError, match="not UTF-8"):
        read_labels(tmp_path / "labels.csv")
