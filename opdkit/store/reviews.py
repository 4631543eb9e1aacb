"""Decisions of people about turns, and verdicts with these decisions applied.

    judge/reviews/review-00000041-9f0c2ab1.parquet      decision 41 of the run, or a sheet that ends with it

Decisions are only added; each file is complete and on the disk before its reviewer gets an answer. The last decision
on a turn counts, and a strike withdraws it. The verdicts themselves never change, and `opdkit judge --overwrite` keeps
the decisions: they are about turns, not about votes.
"""

import contextlib
import getpass
import re
import uuid
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from opdkit.config.command_line import quote
from opdkit.config.fields import JSON
from opdkit.console import counted, verb
from opdkit.errors import OpdkitError
from opdkit.store.atomic import find_left_overs, move_into_place, remove_entries, temporary_file
from opdkit.store.counters import VERSION_KEY, read_inputs
from opdkit.store.disk import disk_errors_explained
from opdkit.store.plans import fingerprint, stage_dir
from opdkit.store.reading import has_stage, part_count, part_path, parts_of_turns
from opdkit.store.tables import REVIEWS, TABLES, to_arrow

REVIEWED = "reviewed"  # reward_status and hint_status of what a person decided
FILE_NAME = re.compile(r"review-(\d{8,})-[0-9a-f]{8}\.parquet")


@dataclass(frozen=True)
class Review:
    """Decision on one turn. The votes hold for whatever it does not decide."""

    turn_id: str
    reward_decided: bool = False
    reward: int | None = None
    hint_decided: bool = False
    hint: str | None = None
    note: str | None = None
    reviewer: str = ""
    time: str = ""
    action: str = "set"
    ordinal: int = -1

    @property
    def decided(self) -> JSON:
        """Decided values without reviewer, time and note, so that equal decisions compare equal."""
        reward = {"reward": self.reward} if self.reward_decided else {}
        return reward | ({"hint": self.hint} if self.hint_decided else {})

    def to_json(self) -> JSON:
        """Return the JSON that pages and files show; values that are not decided are absent."""
        return {"turn_id": self.turn_id, **self.decided, "note": self.note, "reviewer": self.reviewer,
                "time": self.time, "ordinal": self.ordinal}  # fmt: skip


Reviews = dict[str, Review]  # turn_id -> the decision in force


def reviews_dir(run: Path) -> Path:
    """Return the folder of the decisions of a run."""
    return stage_dir(run, REVIEWS.stage) / REVIEWS.name


def reviews_in_force(run: Path) -> Reviews:
    """Return turn_id -> the decision in force. Turns that nobody decided on are absent."""
    return Ledger(run).in_force()


class Ledger:
    """Decisions of a run. Each file is read once, so `in_force` again costs only the new files."""

    def __init__(self, run: Path) -> None:
        self.run = run
        self._files: dict[str, list[Review]] = {}

    def in_force(self) -> Reviews:
        """Return turn_id -> the decision in force. Raises OpdkitError for a damaged file."""
        last = {review.turn_id: review for review in self.all_reviews()}
        return {name: review for name, review in last.items() if review.action == "set"}

    def all_reviews(self) -> list[Review]:
        """Return all decisions that were ever made, in their order."""
        for path in files(self.run):
            if path.name not in self._files:
                self._files[path.name] = read_file(path)
        named = [(review.ordinal, name, review) for name, rows in self._files.items() for review in rows]
        return [review for *_, review in sorted(named, key=lambda row: row[:2])]


def files(run: Path) -> list[Path]:
    """Return the files of decisions, in their order."""
    folder = reviews_dir(run)
    paths = [path for path in folder.iterdir() if FILE_NAME.fullmatch(path.name)] if folder.is_dir() else []
    return sorted(paths, key=lambda path: (int(path.name.split("-")[1]), path.name))


def read_file(path: Path) -> list[Review]:
    """Read the decisions in one file. Raises OpdkitError if it is damaged or of another version."""
    try:
        with pq.ParquetFile(path, page_checksum_verification=True) as file:  # a third of the time of read_table
            table = file.read(use_threads=False)
    except (pa.ArrowException, OSError) as error:
        raise OpdkitError(f"{path} cannot be read ({error}): put it back from a copy, or move it away; "
                          "the decisions in it do not count then") from error  # fmt: skip
    if (table.schema.metadata or {}).get(VERSION_KEY) != str(REVIEWS.version).encode():
        raise OpdkitError(f"{path} was written by another version of opdkit, or by something else; move it away")
    return [Review(**row) for row in table.to_pylist()]


def apply_review(verdict: JSON, review: Review | None) -> JSON:
    """Return a row of `verdicts` with a decision applied, its status then "reviewed"; the row itself without one.

    A decided hint becomes the first of `hints`. The agreement stays the share of the valid votes with this reward.
    """
    if review is None:
        return verdict
    changed = dict(verdict)
    if review.reward_decided:
        valid = [vote["score"] for vote in verdict["reward_votes"] if vote["score"] is not None]
        share = valid.count(review.reward) / len(valid) if valid and review.reward is not None else None
        changed |= {"reward": review.reward, "reward_status": REVIEWED, "reward_agreement": share}
    if review.hint_decided:
        first = [] if review.hint is None else [review.hint]
        others = [hint for hint in verdict["hints"] if hint != review.hint]
        changed |= {"hint": review.hint, "hint_status": REVIEWED, "hints": first + others}
    return changed


def decisions(reviews: Mapping[str, Review]) -> JSON:
    """Return turn_id -> decided values, sorted, without decisions that decide nothing (somebody has looked)."""
    return {name: reviews[name].decided for name in sorted(reviews) if reviews[name].decided}


def decision(turn_id: str, decided: JSON) -> Review:
    """Return a decision with the values of one entry of `decisions`, without reviewer and time."""
    return Review(turn_id, "reward" in decided, decided.get("reward"), "hint" in decided, decided.get("hint"))


def part_inputs(run: Path, reviews: Reviews) -> Callable[[int], JSON]:
    """Return a function from part to its inputs: {"reviews": the `decisions` on its turns}, or {}.

    A stage that reads verdicts pins them in the footer of the part, so that a decision has the parts with its turns
    computed again, and no others.
    """
    decided = decisions(reviews)
    by_part: defaultdict[int, JSON] = defaultdict(dict)
    for name, part in parts_of_turns(run, list(decided)).items() if decided else ():
        by_part[part][name] = decided[name]
    return lambda part: {"reviews": dict(sorted(by_part[part].items()))} if part in by_part else {}


def decided_in(run: Path, table: str) -> JSON:
    """Return turn_id -> the decided values that the existing parts of a table were computed from."""
    paths = (part_path(run, table, part) for part in range(part_count(run, TABLES[table].stage)))
    return {k: v for path in paths if path.exists() for k, v in read_inputs(path).get("reviews", {}).items()}


def plan_inputs(decided: JSON) -> JSON:
    """Return what pins `decisions` in the plan of a stage that is computed from all parts; {} without any."""
    return {"reviews": fingerprint(decided)} if decided else {}


def outdated_targets(run: Path, reviews: Reviews) -> list[int]:
    """Return the parts of the targets that were computed from other decisions than `reviews`."""
    if not has_stage(run, "teacher"):
        return []
    now = part_inputs(run, reviews)
    paths = {part: part_path(run, "targets", part) for part in range(part_count(run, "teacher"))}
    return [part for part, path in paths.items() if path.exists() and read_inputs(path) != now(part)]


def check_targets_current(run: Path) -> None:
    """Raise OpdkitError if the targets were computed from other decisions than those in force."""
    if outdated := outdated_targets(run, reviews_in_force(run)):
        raise OpdkitError(
            f"{len(outdated)} of {counted(part_count(run, 'teacher'), 'part')} of {run}/teacher/targets "
            f"{verb(len(outdated), 'is', 'are')} older than the "
            f"decisions of `opdkit review` on their turns: run `opdkit teacher {quote(run)} ...` again as before; it "
            "does only these"
        )


MAX_HINT, MAX_NOTE = 4000, 10_000  # characters


def find_problem(review: Review) -> str | None:
    """Return what is wrong with a decision; None if nothing is."""
    if review.action not in ("set", "strike"):
        return f"action is {review.action!r}; it must be set or strike"
    if type(review.reward) not in (int, type(None)) or review.reward not in (None, -1, 0, 1):
        return f"reward is {review.reward!r}; it must be -1, 0, 1 or null"
    for name, text, most in (("hint", review.hint, MAX_HINT), ("note", review.note, MAX_NOTE)):
        if text is None:
            continue
        if not isinstance(text, str) or not text.strip() or len(text) > most:
            return f"{name} must be text of 1 to {most:,} characters, or null"
        if not text.isascii() and any("\ud800" <= c <= "\udfff" for c in text):
            return f"{name} is not Unicode text: half of a surrogate pair"
    if (not review.reward_decided and review.reward is not None) or (not review.hint_decided and review.hint):
        return "a value that is not decided"
    if review.action == "strike" and review.decided:
        return "a strike decides nothing: it withdraws the decision before"
    return None


def append(run: Path, decided: Sequence[Review], *, reviewer: str | None = None) -> list[Review]:
    """Add decisions, all of them or none, on the disk when this returns. Return them as they were written.

    Two reviewers at the same time lose nothing: each writes a file of their own, numbered after those they saw.
    Raises OpdkitError for an invalid decision, or if the disk is full or read-only.
    """
    for review in decided:
        if problem := find_problem(review):
            raise OpdkitError(f"turn {review.turn_id}: {problem}")
    if not decided:
        return []
    folder = reviews_dir(run)
    now = datetime.now(UTC).isoformat(timespec="milliseconds")
    with disk_errors_explained(folder):
        folder.mkdir(parents=True, exist_ok=True)
        remove_entries(find_left_overs(folder))
        earlier, by = files(run), reviewer or whoami()
        first = int(earlier[-1].name.split("-")[1]) + 1 if earlier else 0
        rows = [replace(r, reviewer=by, time=now, ordinal=n) for n, r in enumerate(decided, first)]
        last = rows[-1].ordinal
        arrow = to_arrow(REVIEWS, [vars(row) for row in rows])
        arrow = arrow.replace_schema_metadata({VERSION_KEY: str(REVIEWS.version)})
        final = folder / f"review-{last:08d}-{uuid.uuid4().hex[:8]}.parquet"
        with temporary_file(final) as temporary:  # hidden: no reader of the folder sees it
            with pq.ParquetWriter(temporary, arrow.schema, compression="zstd", write_page_checksum=True) as file:
                file.write_table(arrow)
            move_into_place(temporary, final)
    return rows


def whoami() -> str:
    """Return the user name of the reviewer."""
    with contextlib.suppress(OSError, KeyError):
        return getpass.getuser()
    return "unknown"
