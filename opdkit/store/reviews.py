"""Decisions of people about turns, and verdicts with these decisions applied.

    judge/reviews/decisions.jsonl      a line per decision, in their order

Lines are only appended, under a lock, and are on disk before the reviewer gets an answer. The last decision on a turn
counts; if its action is "strike", the turn is undecided again. The verdicts themselves never change, and `opdkit judge
--overwrite` keeps the decisions: they are about turns, not about votes.
"""

import contextlib
import fcntl
import getpass
import os
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from io import FileIO
from pathlib import Path

import orjson
import pyarrow as pa
import pyarrow.parquet as pq
import xxhash

from opdkit.config.command_line import quote
from opdkit.config.fields import JSON
from opdkit.console import counted, verb, warn
from opdkit.errors import OpdkitError
from opdkit.store.atomic import move_into_place, sync, temporary_file
from opdkit.store.counters import read_inputs
from opdkit.store.disk import disk_errors_explained
from opdkit.store.plans import fingerprint, has_stage, manifest, stage_dir
from opdkit.store.reading import count_parts, find_parts, part_path
from opdkit.store.stable_hash import stable_hash
from opdkit.store.tables import REVIEWS
from opdkit.store.turn_ids import session_of

REVIEWED = "reviewed"  # reward_status and hint_status of what a person decided
FILE, TORN = "decisions.jsonl", "torn.jsonl"  # the second has lines that a kill cut off
OLD_FILES = "review-*.parquet"  # of version 0.1.0, still read
TRAINED_BEFORE = "trained on targets older than the review decisions"
UNCERTAIN, RANDOM, GROUP = "uncertain", "random", "group"  # how a turn was chosen for review
_CHECKSUM = b',"checksum":"'


@dataclass(frozen=True)
class Review:
    """Decision on one turn, a row of `reviews` (columns: tables.toml). What it leaves undecided, the votes decide."""

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
    chosen: str | None = None
    voted_reward: int | None = None
    following: int = 0  # lines after it in the same append: it counts only once all of them are there

    @property
    def decided(self) -> JSON:
        """Decided values without reviewer, time and note, so that equal decisions compare equal."""
        reward = {"reward": self.reward} if self.reward_decided else {}
        return reward | ({"hint": self.hint} if self.hint_decided else {})

    def to_json(self) -> JSON:
        """Return the JSON that pages and files show; values that are not decided are absent."""
        return {"turn_id": self.turn_id, **self.decided, "note": self.note, "reviewer": self.reviewer,
                "time": self.time, "ordinal": self.ordinal, "chosen": self.chosen,
                "voted_reward": self.voted_reward}  # fmt: skip


Reviews = dict[str, Review]  # turn_id -> the decision in force


def reviews_dir(run: Path) -> Path:
    return stage_dir(run, REVIEWS.stage) / REVIEWS.name


def read_reviews_in_force(run: Path) -> Reviews:
    """Return turn_id -> the decision in force. Turns that nobody decided on are absent."""
    return ReviewLog(run).in_force()


class InvalidDecisionError(OpdkitError):
    """Error for a decision that is wrong in itself: it would be refused again."""


class ConflictError(OpdkitError):
    """Error for turns that somebody else decided on after the reviewer looked. `newer`: those decisions."""

    def __init__(self, newer: Sequence[Review]) -> None:
        self.newer = newer
        super().__init__(f"{newer[0].reviewer} decided on {counted(len(newer), 'turn')} since this page was loaded")


class ReviewLog:
    """Decisions of a run. The file is read once; later calls read only what was appended. Not thread-safe."""

    def __init__(self, run: Path) -> None:
        """Read the decisions. Raises OpdkitError for a damaged file."""
        self._path = reviews_dir(run) / FILE
        self._inode, self._end = 0, 0  # of the file that was read, and the number of bytes read
        self._reviews = _read_old_files(self._path.parent)
        self._last = {review.turn_id: review for review in self._reviews}
        self.all_reviews()

    def in_force(self) -> Reviews:
        """Return turn_id -> the decision in force. Raises OpdkitError for a damaged file."""
        self.all_reviews()
        return {name: review for name, review in self._last.items() if review.action == "set"}

    def all_reviews(self) -> Sequence[Review]:
        """Return all decisions that were ever made, in their order. Raises OpdkitError for a damaged file."""
        with contextlib.suppress(FileNotFoundError), self._path.open("rb", buffering=0) as file:
            _lock(file, fcntl.LOCK_SH)
            self._read(file)
        return self._reviews

    def append(self, decided: Sequence[Review], *, reviewer: str | None = None, seen: int | None = None) -> None:
        """Append decisions, all of them or none. They are on disk when this returns.

        `seen` is the ordinal of the last decision that the reviewer knows, -1 for none; None: skip this check.

        Raises ConflictError if a turn was decided otherwise after `seen`, InvalidDecisionError, and OpdkitError if the
        disk is full or read-only. Then nothing is written.
        """
        for review in decided:
            if problem := find_problem(review):
                raise InvalidDecisionError(f"turn {review.turn_id}: {problem}")
        if not decided:
            return
        folder, by = self._path.parent, reviewer or whoami()
        now = datetime.now(UTC).isoformat(timespec="milliseconds")
        with disk_errors_explained(folder):
            folder.mkdir(parents=True, exist_ok=True)
            with self._path.open("a+b", buffering=0) as file:
                _lock(file, fcntl.LOCK_EX)
                if not self._path.exists() or not os.path.samestat(os.fstat(file.fileno()), self._path.stat()):
                    raise OpdkitError(f"{self._path} was replaced by another process: start the command again")
                if torn := self._read(file):
                    with (folder / TORN).open("ab") as kept:
                        kept.write(torn + b"\n")
                    file.truncate(self._end)
                    warn(f"{self._path} ended in a decision that a killed process began: it is set aside in {TORN}")
                if seen is not None and (newer := self._find_newer(decided, seen)):
                    raise ConflictError(newer)
                first, last = self._reviews[-1].ordinal + 1 if self._reviews else 0, len(decided) - 1
                rows = [replace(review, reviewer=by, time=now, ordinal=first + n, following=last - n)
                        for n, review in enumerate(decided)]  # fmt: skip
                left = b"".join(map(_to_line, rows))
                try:
                    while left:
                        left = left[file.write(left) :]
                    os.fsync(file.fileno())
                except BaseException:
                    file.truncate(self._end)
                    raise
                self._read(file)
            if not first:
                sync(folder)

    def _find_newer(self, decided: Sequence[Review], seen: int) -> list[Review]:
        """Return the last decision on each of these turns that came after `seen` and is different, newest first."""
        pairs = ((review, self._last[review.turn_id]) for review in decided if review.turn_id in self._last)
        newer = [last for new, last in pairs if last.ordinal > seen
                 and (last.action, last.decided, last.note) != (new.action, new.decided, new.note)]  # fmt: skip
        return sorted(newer, key=lambda review: -review.ordinal)

    def _read(self, file: FileIO) -> bytes:
        """Read what was appended. Return the bytes at the end that are no complete `append`: they do not count."""
        status = os.fstat(file.fileno())
        if self._end and (status.st_size < self._end or status.st_ino != self._inode):
            raise OpdkitError(f"{self._path} was replaced since it was read: start the command again")
        self._inode = status.st_ino
        file.seek(self._end)
        data, done, place, rows = file.read(), 0, 0, list[Review]()
        for line in data.split(b"\n")[:-1]:
            try:
                rows.append(_parse_line(line))
            except (ValueError, TypeError) as error:
                before = next((row.ordinal for row in (*rows[-1:], *self._reviews[-1:])), "none")
                raise OpdkitError(f"{self._path}: the line after decision {before} cannot be read ({error}): put the "
                                  "file back from a copy, or remove the line") from error  # fmt: skip
            place += len(line) + 1
            if not rows[-1].following:
                self._reviews += rows
                self._last.update((row.turn_id, row) for row in rows)
                done, rows = place, []
        self._end += done
        return data[done:]


def _lock(file: FileIO, kind: int) -> None:
    """Wait for the lock of a file; closing the file releases it. On a file system without locks, do nothing."""
    with contextlib.suppress(OSError):
        fcntl.flock(file, kind)


def _to_line(review: Review) -> bytes:
    text = orjson.dumps(vars(review))
    return text[:-1] + _CHECKSUM + xxhash.xxh64_hexdigest(text).encode() + b'"}\n'


def _parse_line(line: bytes) -> Review:
    """Return the decision in a line. Raises ValueError or TypeError if it is damaged."""
    text, _, digest = line.rpartition(_CHECKSUM)
    if xxhash.xxh64_hexdigest(text + b"}").encode() + b'"}' != digest:
        raise ValueError("its checksum is not that of its text")
    return Review(**orjson.loads(text + b"}"))


def _read_old_files(folder: Path) -> list[Review]:
    """Return the decisions of version 0.1.0, one Parquet file each. Raises OpdkitError for a damaged file."""
    rows = list[JSON]()
    for path in sorted(folder.glob(OLD_FILES)):
        try:
            rows += pq.ParquetFile(path, page_checksum_verification=True).read().to_pylist()
        except (pa.ArrowException, OSError) as error:
            raise OpdkitError(f"{path} cannot be read ({error}): put it back from a copy, or move it away; "
                              "the decisions in it do not count then") from error  # fmt: skip
    return sorted((Review(**row) for row in rows), key=lambda review: review.ordinal)


def order_of_draw(turn_ids: Iterable[str]) -> list[str]:
    """Return turns in a random order that depends on their ids alone: the first n are a random sample of them."""
    return sorted(turn_ids, key=lambda name: stable_hash("review", name))


def apply_review(verdict: JSON, review: Review | None) -> JSON:
    """Return a row of `verdicts` with the decision, if any, applied. Decided values get the status "reviewed".

    A decided hint becomes the first of `hints`. The agreement becomes the share of valid votes for the decided reward.
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
    """Return turn_id -> decided values, sorted by id, without decisions that decide nothing (somebody looked)."""
    return {name: reviews[name].decided for name in sorted(reviews) if reviews[name].decided}


def decision(turn_id: str, decided: JSON) -> Review:
    """Return a decision with the values of one entry of `decisions`, without reviewer and time."""
    return Review(turn_id, "reward" in decided, decided.get("reward"), "hint" in decided, decided.get("hint"))


def part_inputs(run: Path, reviews: Reviews) -> Callable[[int], JSON]:
    """Return a function from a part's number to its inputs: {"reviews": the `decisions` on its turns}, or {}.

    A stage that reads verdicts stores them in the part's footer. So a new decision makes the stage recompute only the
    part that holds its turn.
    """
    decided = decisions(reviews)
    by_part: defaultdict[int, JSON] = defaultdict(dict)
    for name, part in find_parts(run, list(decided)).items() if decided else ():
        by_part[part][name] = decided[name]
    return lambda part: {"reviews": dict(sorted(by_part[part].items()))} if part in by_part else {}


def read_decisions_in_targets(run: Path) -> JSON:
    """Return turn_id -> the decided values that the existing parts of the targets were computed from."""
    paths = (part_path(run, "targets", part) for part in range(count_parts(run, "teacher")))
    return {k: v for path in paths if path.exists() for k, v in read_inputs(path).get("reviews", {}).items()}


def plan_inputs(decided: JSON) -> JSON:
    """Return the plan input that pins `decisions`, for a stage that is computed from all parts; {} without any."""
    return {"reviews": fingerprint(decided)} if decided else {}


def find_known_inputs(run: Path, stage: str) -> JSON:
    """Return the inputs of a stage's plan that are known before it runs, for `plans.check_options`.

    For train: what pins the decisions in force, from which current targets are computed. For other stages: {}.
    """
    if stage != "train":
        return {}
    decided = decisions(read_reviews_in_force(run))
    return {"reviews": None} | plan_inputs({name: decided[name] for name in find_parts(run, list(decided))})


def find_outdated_targets(run: Path) -> list[int]:
    """Return the parts of the targets that were computed from other decisions than those in force."""
    if not has_stage(run, "teacher"):
        return []
    now = part_inputs(run, read_reviews_in_force(run))
    paths = {part: part_path(run, "targets", part) for part in range(count_parts(run, "teacher"))}
    return [part for part, path in paths.items() if path.exists() and read_inputs(path) != now(part)]


def is_trained_before(run: Path) -> bool:
    """Return whether a run was trained on targets that were computed again since, from other decisions."""
    if not has_stage(run, "train") or find_outdated_targets(run):
        return False
    pinned = manifest(run, "train")["plan"]["inputs"].get("reviews")
    return bool(pinned != find_known_inputs(run, "train")["reviews"])


def check_targets_current(run: Path) -> None:
    """Raise OpdkitError if the targets were computed from other decisions than those in force."""
    if outdated := find_outdated_targets(run):
        folder = stage_dir(run, "teacher")
        raise OpdkitError(
            f"{len(outdated)} of {counted(count_parts(run, 'teacher'), 'part')} of {folder}/targets "
            f"{verb(len(outdated), 'is', 'are')} older than the decisions of `opdkit review` on their turns: run "
            f"`opdkit teacher {quote(folder.parent)} ...` again as before; it does only these"
        )


def drop_reviews(run: Path, sessions: Collection[str]) -> None:
    """Remove all decisions about these sessions, and lines that a kill cut off. The others keep their ordinals."""
    path = reviews_dir(run) / FILE
    if not sessions or not path.exists():
        return
    (path.parent / TORN).unlink(missing_ok=True)
    log = ReviewLog(run)
    # NFS locks only files that are opened for writing.
    with disk_errors_explained(path), path.open("r+b", buffering=0) as file, temporary_file(path) as temporary:
        _lock(file, fcntl.LOCK_EX)
        log._read(file)
        # Decisions appended together count once the last is read, which may be removed: make each count by itself.
        kept = [replace(one, following=0) for one in log._reviews if session_of(one.turn_id) not in sessions]
        temporary.write_bytes(b"".join(map(_to_line, kept)))
        move_into_place(temporary, path)


MAX_HINT, MAX_NOTE = 4000, 10_000  # characters that a person may type


def check_typed_hint(review: Review, voted: str | None) -> None:
    """Raise InvalidDecisionError for a hint that is too long. The voted hint, maybe a whole reply, is never refused."""
    if isinstance(review.hint, str) and len(review.hint) > MAX_HINT and review.hint.strip() != (voted or "").strip():
        raise InvalidDecisionError(f"hint must be text of at most {MAX_HINT:,} characters")


def find_problem(review: Review) -> str | None:
    """Return what is wrong with a decision, apart from the length of its hint; None if nothing is."""
    if review.action not in ("set", "strike"):
        return f"action is {review.action!r}; it must be set or strike"
    if type(review.reward) not in (int, type(None)) or review.reward not in (None, -1, 0, 1):
        return f"reward is {review.reward!r}; it must be -1, 0, 1 or null"
    for name, text in (("hint", review.hint), ("note", review.note)):
        if text is None:
            continue
        if not isinstance(text, str) or not text.strip():
            return f"{name} must be text, or null"
        if name == "note" and len(text) > MAX_NOTE:
            return f"note must be text of at most {MAX_NOTE:,} characters"
        if not text.isascii() and any("\ud800" <= c <= "\udfff" for c in text):
            return f"{name} is not Unicode text: half of a surrogate pair"
    if (not review.reward_decided and review.reward is not None) or (not review.hint_decided and review.hint):
        return "a value that is not decided"
    if review.chosen not in (None, UNCERTAIN, RANDOM, GROUP):
        return f"chosen is {review.chosen!r}; it must be {UNCERTAIN}, {RANDOM}, {GROUP} or null"
    if review.action == "strike" and review.decided:
        return "a strike decides nothing: it withdraws the decision before"
    return None


def append(run: Path, decided: Sequence[Review], *, reviewer: str | None = None) -> None:
    """Append decisions, all of them or none, without a check for newer ones. Raises what `ReviewLog.append` raises."""
    ReviewLog(run).append(decided, reviewer=reviewer)


def whoami() -> str:
    """Return the user name of the reviewer."""
    with contextlib.suppress(OSError, KeyError):
        return getpass.getuser()
    return "unknown"
