"""Decisions in a spreadsheet: a CSV file with one row per judged turn, to be filled in and read back.

The columns before `reward` show the turn; they may be cut, sorted, filtered or removed. The columns to fill in:

    reward   the decided reward: -1, 0 or 1; "none": no reward; empty: the reward of the votes stays
    hint     the decided hint; "none": no hint; empty: the hint of the votes stays
    note     anything
    action   "accept": the verdict of the votes is right; "strike": withdraw the decision; empty otherwise

`decision` is the number of the decision that was in force when the file was written. So an untouched row changes
nothing, even if others have decided since, and a row whose columns to fill in were emptied withdraws its decision.

An apostrophe is written before text that a spreadsheet would take for a formula or a time, and before text that begins
with an apostrophe; reading removes it.
"""

import csv
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from opdkit.commands.review.api import read_votes
from opdkit.commands.turns.line import join_messages, shorten, split_turn
from opdkit.config.fields import did_you_mean
from opdkit.console import counted, printable, verb, warn
from opdkit.errors import ConfigError, OpdkitError
from opdkit.store import reviews
from opdkit.store.counters import Counters
from opdkit.store.joined_turns import CHECKED, all_joined_turns
from opdkit.store.reviews import GROUP, Review, ReviewLog
from opdkit.store.spreadsheet import escape, read_csv_rows, read_utf8, unescape

FILLED_IN = ("reward", "hint", "note", "action")
COLUMNS = ("turn_id", "request", "reply", "next_state", "voted_reward", "voted_hint", *FILLED_IN, "decision")
NEEDED = ("turn_id", *FILLED_IN, "decision")
_NONE = "none"
_CELL = 2000  # characters of a conversation that a cell shows; what is decided is never cut
_BAD_ROWS_SHOWN = 10
_WHOLE = re.compile(r"[.,]0*\Z")  # end of a number written as 1.0 or 1,0; `_parse_reward` reads these, too


@dataclass(frozen=True)
class Imported:
    """Effect of reading a file back."""

    changed: int  # decisions that were added, since they differ from those in force
    struck: int  # of these, the ones that withdraw a decision
    same: int  # rows with an untouched decision, or with one that is in force already
    untouched: int  # rows without a decision
    left_out: int  # rows with a decision on a turn that the run does not have

    def text(self) -> str:
        total = self.changed + self.same + self.untouched + self.left_out
        return (f"{counted(total, 'row')}: {counted(self.changed, 'decision')} added ({self.struck:,} of them struck), "
                f"{self.same:,} as they were, {self.untouched:,} without a decision"
                + (f", {self.left_out:,} left out" if self.left_out else ""))  # fmt: skip


def write_csv(run: Path, path: Path) -> Counters:
    """Write every judged turn of a run, with the decisions in force, as UTF-8 that spreadsheets recognise.

    Return the counts: the other turns are dropped.
    """
    counters = Counters()
    with path.open("w", encoding="utf-8-sig", newline="") as stream:
        writer = csv.writer(stream, lineterminator="\r\n")
        writer.writerow(COLUMNS)
        for turn in all_joined_turns(run, CHECKED):
            counters.rows_in += 1
            if turn.verdict is None:
                counters.drop(turn.turn["skip_reason"] or "not judged")
                continue
            texts = [shorten(join_messages(messages), _CELL) for messages in split_turn(turn)]
            reward = "" if turn.verdict["reward"] is None else str(turn.verdict["reward"])
            cells = [turn.turn_id, *texts, reward, turn.verdict["hint"] or "", *_format_decision(turn.review)]
            writer.writerow(escape(cell.replace("\x00", "\N{REPLACEMENT CHARACTER}")) for cell in cells)
            counters.rows_out += 1
    return counters


def _format_decision(review: Review | None) -> tuple[str, ...]:
    """Return the cells of FILLED_IN for the decision in force, and its number; empty cells without a decision."""
    if review is None:
        return ("",) * (len(FILLED_IN) + 1)
    reward = "" if not review.reward_decided else _NONE if review.reward is None else str(review.reward)
    hint = "" if not review.hint_decided else _NONE if review.hint is None else review.hint
    # A space before "none" tells a hint of this one word from no hint.
    hint = f" {hint}" if review.hint is not None and hint.strip().casefold() == _NONE else hint
    return reward, hint, review.note or "", "" if reward or hint else "accept", str(review.ordinal)


def read_csv(run: Path, path: Path) -> Imported:
    """Add the decisions of a file that differ from those in force: all of them, or none if a row is wrong.

    Rows on turns that the run does not have are left out, with a warning if they hold a decision. The file may be of a
    run that this one was made from. Raises ConfigError for wrong rows, by line, and if no turn is in the run.
    """
    log = ReviewLog(run)
    made, in_force, rows = log.all_reviews(), log.in_force(), dict(_read_rows(path))
    by_number, last = {(one.turn_id, str(one.ordinal)): one for one in made}, {one.turn_id: one for one in made}
    voted = read_votes(run, [unescape(row["turn_id"]) for row in rows.values()])
    wrong, added, untouched = list[str](), list[Review](), 0
    lines = dict[str, int]()  # turn_id -> its line
    for line, row in rows.items():
        turn_id = unescape(row["turn_id"])
        before = by_number.get((turn_id, _WHOLE.sub("", row["decision"].strip())))
        try:
            if lines.setdefault(turn_id, line) != line:
                raise ConfigError(f"the turn is in line {lines[turn_id]} already")
            review = _parse_row(turn_id, row, before)
            if review is not None and turn_id in voted:
                reviews.check_typed_hint(review, (voted[turn_id][1] or "").replace("\r\n", "\n"))
        except OpdkitError as error:
            wrong.append(f"line {line}: {error}")
            continue
        now, newest = in_force.get(turn_id), last.get(turn_id)  # the newest may have taken a decision back
        if review is None:
            untouched += 1
        elif _is_same(review, before) or _is_same(review, now):
            continue
        elif newest is not None and (newest.ordinal > before.ordinal if before else now is not None):
            by = newest.reviewer or "somebody"
            wrong.append(f"line {line}: {by} has decided on {turn_id} since the file was written")
        else:
            added.append(review)
    if wrong:
        shown = "\n".join(f"  {printable(line)}" for line in wrong[:_BAD_ROWS_SHOWN])
        more = f"\n  and {len(wrong) - _BAD_ROWS_SHOWN:,} more" if len(wrong) > _BAD_ROWS_SHOWN else ""
        count = f"{counted(len(wrong), 'row')} {verb(len(wrong), 'is', 'are')}"
        raise ConfigError(f"{path}: {count} wrong, and nothing of the file was taken:\n{shown}{more}")
    if lines and not voted:
        raise ConfigError(f"{path}: {run} has none of its turns, such as {printable(next(iter(lines)))}")
    if unknown := [review.turn_id for review in added if review.turn_id not in voted]:
        warn(f"{path}: {counted(len(unknown), 'decision')} left out, on turns that {run} does not have, such as line "
             f"{lines[unknown[0]]}: {printable(unknown[0])}")  # fmt: skip
        added = [review for review in added if review.turn_id in voted]
    for n, review in enumerate(added):
        vote = _WHOLE.sub("", unescape(rows[lines[review.turn_id]]["voted_reward"]).strip())  # perhaps of another judge
        vote_now, before = voted[review.turn_id][0], in_force.get(review.turn_id)
        added[n] = replace(review, voted_reward=int(vote) if vote in ("-1", "0", "1", "+1") else vote_now,
                           chosen=before.chosen if before and before.chosen != GROUP else None)  # fmt: skip
    reviews.append(run, added)
    struck = sum(review.action == "strike" for review in added)
    same = len(rows) - untouched - len(unknown) - len(added)
    return Imported(len(added), struck, same, untouched, len(unknown))


def _read_rows(path: Path) -> Iterator[tuple[int, dict[str, str]]]:
    """Yield (line, row) for each row that is not empty. Raises ConfigError for missing, unknown or repeated columns."""
    rows = read_csv_rows(path, read_utf8(path), strict=True)
    _, header = next(rows, (1, []))
    names = [name.strip() for name in header]
    if missing := [
        name for name in NEEDED if name not in names
    ]:  # an empty column withdraws decisions; a removed column must not
        raise ConfigError(f"{path} has no column {missing[0]}; a file needs: {', '.join(NEEDED)}")
    for name in names:
        if name not in COLUMNS and name:
            raise ConfigError(f"{path}: unknown column {printable(name)!r}; {did_you_mean(name, COLUMNS)}")
    if any(name and names.count(name) > 1 for name in names):  # spreadsheets may add columns without a name
        raise ConfigError(f"{path}: a column comes twice")
    for line, cells in rows:
        if not any(cells):
            continue
        if len(cells) > len(names):
            raise ConfigError(f"{path}, line {line}: {len(cells)} cells under {len(names)} columns")
        yield line, dict.fromkeys(COLUMNS, "") | dict(zip(names, cells, strict=False))


def _parse_row(turn_id: str, row: dict[str, str], before: Review | None) -> Review | None:
    """Return the decision of a row; None if it decides nothing. Raises ConfigError for a wrong cell."""
    cells = {name: unescape(row[name]).replace("\r\n", "\n").strip() for name in FILLED_IN}
    reward, hint, note, action = cells["reward"], cells["hint"], cells["note"], cells["action"].casefold()
    if action not in ("", "accept", "strike"):
        raise ConfigError(f"action is {action!r}; {did_you_mean(action, ('accept', 'strike'))}, or empty")
    if action == "accept" and (reward or hint):
        raise ConfigError("accept leaves everything as the votes say: empty its reward and hint, or its action")
    if not (reward or hint or note or action):
        return None if before is None else Review(turn_id, action="strike")
    if action == "strike":
        return Review(turn_id, action="strike", note=note or None)
    no_hint = unescape(row["hint"]).rstrip().casefold() == _NONE  # a space before the word: it is a hint
    review = Review(turn_id, reward_decided=bool(reward), reward=_parse_reward(reward), hint_decided=bool(hint),
                    hint=None if no_hint else hint or None, note=note or None)  # fmt: skip
    if (error := reviews.find_problem(review)) is not None:
        raise ConfigError(error)
    return review


def _parse_reward(text: str) -> int | None:
    if text.casefold() in ("", _NONE):
        return None
    try:
        number = float(text.replace(",", "."))  # a spreadsheet may write 1 as 1.0 or 1,0
    except ValueError:
        number = 2.0
    if number not in (-1, 0, 1):
        raise ConfigError(f"reward is {text!r}; it must be -1, 0, 1, none, or empty")
    return int(number)


def _is_same(review: Review, other: Review | None) -> bool:
    """Return True if two decisions have the same effect. A withdrawal has the same effect as no decision (None).

    Line ends and outer spaces are ignored, because spreadsheets may change line ends.
    """
    if other is None or review.action == "strike":
        return other is None and review.action == "strike"
    effects = []
    for one in (review, other):
        texts = [None if text is None else text.replace("\r\n", "\n").strip() for text in (one.hint, one.note)]
        effects.append((one.reward_decided, one.reward, one.hint_decided, *texts))
    return effects[0] == effects[1]
