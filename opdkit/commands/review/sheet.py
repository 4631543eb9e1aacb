"""Decisions in a spreadsheet: a CSV file with one row a judged turn, to be filled in and read back.

The columns before `reward` show the turn; they may be cut, sorted, filtered or removed. What is filled in:

    reward   -1, 0, 1 as decided; "none": no reward; empty: the votes' stays
    hint     the hint as decided; "none": no hint; empty: the votes' stays
    note     anything
    action   "accept": looked at, and as the votes say; "strike": withdraw the decision; empty otherwise

`decision` numbers the decision that was in force when the file was written. So a row that nobody has touched changes
nothing, whatever others have decided since, and one whose decision has been emptied withdraws it.

Text that a spreadsheet would take for a formula is written behind an apostrophe, as is text that begins with one;
reading takes it off again.
"""

import csv
import io
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

from opdkit.commands.review.api import without_verdict
from opdkit.config.fields import JSON, did_you_mean
from opdkit.console import counted, printable, verb
from opdkit.errors import OpdkitError
from opdkit.store import part_count, reviews
from opdkit.store.joined import joined_turns
from opdkit.store.reviews import Ledger, Review, in_force

SHOWN = ("turn_id", "request", "reply", "next_state", "voted_reward", "voted_hint")
FILLED_IN = ("reward", "hint", "note", "action")
COLUMNS = (*SHOWN, *FILLED_IN, "decision")
NEEDED = ("turn_id", *FILLED_IN, "decision")
_FORMULA = ("=", "+", "-", "@", "\t", "\r", "\n", "'")
_NONE = "none"
_CELL = 2000  # characters of a conversation that a cell shows; what is decided is never cut
_MAX_FIELD = 1 << 20
_BAD_ROWS_SHOWN = 10


@dataclass(frozen=True)
class Imported:
    """What reading a file back did."""

    changed: int  # decisions that differ from what was in force, and were added
    struck: int  # of them, those that withdraw one
    same: int  # rows whose decision nobody has touched, or that is in force already
    untouched: int  # rows without a decision

    def text(self) -> str:
        total = self.changed + self.same + self.untouched
        return (
            f"{counted(total, 'row')}: {counted(self.changed, 'decision')} added ({self.struck:,} of them struck), "
            f"{self.same:,} as they were, {self.untouched:,} without a decision"
        )


# -- writing --------------------------------------------------------------------------------------------------------


def write_csv(run: Path, stream: TextIO) -> int:
    """Write every judged turn of a run, with the decisions in force; the number of rows.

    `stream` should be opened with newline="" and encoding="utf-8-sig", which is how spreadsheets know UTF-8.
    """
    writer = csv.writer(stream, lineterminator="\r\n")
    writer.writerow(COLUMNS)
    decided, count = in_force(run), 0
    for part in range(part_count(run, "judge")):
        for turn in joined_turns(run, part, reviews=decided):
            if turn.verdict is not None:
                row = _row(turn.turn, turn.session["messages"], turn.verdict, turn.review)
                writer.writerow([escaped(row[name]) for name in COLUMNS])
                count += 1
    return count


def _row(turn: JSON, messages: list[JSON], verdict: JSON, review: Review | None) -> dict[str, str]:
    index, count = turn["message_index"], turn["next_count"]
    asked = next((m for m in reversed(messages[:index]) if m["role"] == "user"), None)
    return {
        "turn_id": turn["turn_id"],
        "request": _short([asked] if asked else []),
        "reply": _short([messages[index]]),
        "next_state": _short(messages[index + 1 : index + 1 + count]),
        "voted_reward": "" if verdict["reward"] is None else str(verdict["reward"]),
        "voted_hint": verdict["hint"] or "",
        **_decision(review),
    }


def _decision(review: Review | None) -> dict[str, str]:
    """The columns to be filled in, as they stand."""
    if review is None:
        return dict.fromkeys((*FILLED_IN, "decision"), "")
    reward = "" if not review.reward_decided else _NONE if review.reward is None else str(review.reward)
    hint = "" if not review.hint_decided else _NONE if review.hint is None else review.hint
    # A hint of the one word "none" stays tellable from no hint.
    hint = f" {hint}" if review.hint is not None and hint.strip().casefold() == _NONE else hint
    action = "" if reward or hint else "accept"
    return {"reward": reward, "hint": hint, "note": review.note or "", "action": action,
            "decision": str(review.ordinal)}  # fmt: skip


def _short(messages: list[JSON]) -> str:
    said = []
    for message in messages:
        calls = [f"{call['name']}({call['arguments']})" for call in message["tool_calls"]]
        said.append("\n".join(filter(None, [message["content"], *calls])))
    text = "\n".join(said).replace("\x00", "\N{REPLACEMENT CHARACTER}")  # which no CSV reader takes
    return text if len(text) <= _CELL else text[: _CELL - 1] + "…"


def escaped(text: str) -> str:
    """`text` so that no spreadsheet takes it for a formula; `unescaped` gives it back."""
    return f"'{text}" if text.startswith(_FORMULA) and not _is_number(text) else text


def unescaped(text: str) -> str:
    """What `escaped` was given."""
    return text[1:] if text.startswith("'") else text


def _is_number(text: str) -> bool:
    """A reward is a number, and computes nothing."""
    return text in ("-1", "+1")


# -- reading --------------------------------------------------------------------------------------------------------


def read_csv(run: Path, path: Path) -> Imported:
    """Add the decisions of a file that differ from what is in force: all of them, or none when a row is wrong.

    Raises OpdkitError that names the wrong rows by their line.
    """
    every = Ledger(run).every()
    known = {(review.turn_id, str(review.ordinal)): review for review in every}
    now, rows = in_force(run), dict(_rows(path))
    wrong: list[str] = []
    lines: dict[str, int] = {}
    added: list[Review] = []
    untouched = 0
    for line, row in rows.items():
        turn_id = unescaped(row["turn_id"])
        before = known.get((turn_id, row["decision"].strip()))
        try:
            if lines.setdefault(turn_id, line) != line:
                raise OpdkitError(f"the turn is in line {lines[turn_id]} already")
            review = _review(turn_id, row, before)
        except OpdkitError as error:
            wrong.append(f"line {line}: {error}")
            continue
        if review is None:
            untouched += 1
        elif not (_same(review, before) or _same(review, now.get(turn_id))):
            added.append(review)
    unjudged = without_verdict(run, list(lines))
    wrong += [f"line {lines[name]}: the run has no judged turn {name}" for name in unjudged]
    if wrong:
        raise OpdkitError(_in_words(path, wrong))
    reviews.append(run, added)
    struck = sum(review.action == "strike" for review in added)
    return Imported(len(added), struck, len(rows) - untouched - len(added), untouched)


def _in_words(path: Path, wrong: list[str]) -> str:
    shown = "\n".join(f"  {printable(line)}" for line in wrong[:_BAD_ROWS_SHOWN])
    more = f"\n  and {len(wrong) - _BAD_ROWS_SHOWN:,} more" if len(wrong) > _BAD_ROWS_SHOWN else ""
    rows = f"{counted(len(wrong), 'row')} {verb(len(wrong), 'is', 'are')}"
    return f"{path}: {rows} wrong, and nothing of the file was taken:\n{shown}{more}"


def _rows(path: Path) -> Iterator[tuple[int, dict[str, str]]]:
    """(line, row) of a CSV file as a spreadsheet saves it: comma, semicolon or tab, a byte-order mark or none."""
    try:
        text = path.read_bytes().decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise OpdkitError(f"{path} is not UTF-8 (byte {error.start}): save it as CSV UTF-8") from error
    except OSError as error:
        raise OpdkitError(f"{path} cannot be read: {error.strerror or error}") from error
    header = text.partition("\n")[0]
    delimiter = max(",;\t", key=header.count)
    limit = csv.field_size_limit(_MAX_FIELD)  # which is the whole process's
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True)
    try:
        names = [name.strip() for name in next(reader, [])]
        _refuse_columns(path, names)
        line = reader.line_num + 1
        for cells in reader:
            if any(cells):
                if len(cells) > len(names):
                    raise OpdkitError(f"{path}, line {line}: {len(cells)} cells under {len(names)} columns")
                yield line, dict.fromkeys(COLUMNS, "") | dict(zip(names, cells, strict=False))
            line = reader.line_num + 1
    except csv.Error as error:
        raise OpdkitError(f"{path}, line {reader.line_num}: {error}") from error
    finally:
        csv.field_size_limit(limit)


def _refuse_columns(path: Path, names: list[str]) -> None:
    missing = [name for name in NEEDED if name not in names]
    if missing:  # an empty column and one that was removed do not mean the same
        raise OpdkitError(f"{path} has no column {missing[0]}; a file needs: {', '.join(NEEDED)}")
    for name in names:
        if name not in COLUMNS and name:
            raise OpdkitError(f"{path}: unknown column {printable(name)!r}; {did_you_mean(name, COLUMNS)}")
    if len(set(names)) < len(names):
        raise OpdkitError(f"{path}: a column comes twice")


def _review(turn_id: str, row: dict[str, str], before: Review | None) -> Review | None:
    """What a row decides; null where it decides nothing. Raises OpdkitError."""
    reward, hint, note = (_filled(row[name]) for name in ("reward", "hint", "note"))
    action = _filled(row["action"]).strip().casefold()
    if action not in ("", "accept", "strike"):
        raise OpdkitError(f"action is {action!r}; {did_you_mean(action, ('accept', 'strike'))}, or empty")
    if action == "accept" and (reward.strip() or hint.strip()):
        raise OpdkitError("accept leaves everything as the votes say: empty its reward and hint, or its action")
    if not any(text.strip() for text in (reward, hint, note, action)):
        return None if before is None else Review(turn_id, action="strike")
    if action == "strike":
        return Review(turn_id, action="strike", note=note.strip() or None)
    review = Review(
        turn_id,
        reward_decided=bool(reward.strip()),
        reward=_reward(reward.strip()),
        hint_decided=bool(hint.strip()),
        hint=None if hint.casefold() in ("", _NONE) else hint.strip() or None,
        note=note.strip() or None,
    )
    what = reviews.invalid(review)
    if what is not None:
        raise OpdkitError(what)
    return review


def _filled(cell: str) -> str:
    return unescaped(cell).replace("\r\n", "\n")


def _reward(text: str) -> int | None:
    if text.casefold() in ("", _NONE):
        return None
    try:
        number = float(text.replace(",", "."))  # a spreadsheet may write 1 as 1.0 or 1,0
    except ValueError:
        number = 2.0
    if number not in (-1, 0, 1):
        raise OpdkitError(f"reward is {text!r}; it must be -1, 0, 1, none, or empty")
    return int(number)


def _same(review: Review, other: Review | None) -> bool:
    """Whether two decisions come to the same; withdrawing what is not there is nothing either."""
    if other is None or review.action == "strike":
        return other is None and review.action == "strike"
    return _said(review) == _said(other)


def _said(review: Review) -> tuple[object, ...]:
    """What a row shows of a decision: a spreadsheet may end lines in its own way."""
    hint, note = (None if text is None else text.replace("\r\n", "\n").strip() for text in (review.hint, review.note))
    return review.reward_decided, review.reward, review.hint_decided, hint, note
