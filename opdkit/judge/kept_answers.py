"""Answers of a server to the questions of one part, stored as they arrive until the part is committed.

    RUN/judge/.tmp/verdicts-00003.answers
    RUN/judge/.tmp/escalated-00003.answers      answers of the first judge of a cascade

One line of JSON per answer, appended in one write: a killed process loses requests in progress, but no answer. The
line break comes first in each line, so that a torn line does not damage the next one. A server may answer differently
the next time, so an answer counts only for the plan and the seed of its request. A server's errors are not stored; of
a batch's errors, only those that count as failed votes are.
"""

import contextlib
import json
import os
from collections.abc import Collection, Iterator
from itertools import product
from pathlib import Path

from opdkit.judge.votes import Answer, Usage, VoteRequest
from opdkit.store.atomic import move_into_place, temporary_file
from opdkit.store.part_writer import Stage
from opdkit.store.stopping import count_finished
from opdkit.store.turn_ids import session_of


class KeptAnswers:
    """Answers in one file. The key of each is (plan, turn, question, seed); the seed identifies the vote."""

    def __init__(self, path: Path, plan: str) -> None:
        self.path, self.plan = path, plan
        self.file: int | None = None  # opened for the first new answer
        lines = path.read_bytes().split(b"\n") if path.exists() else []
        self._answers = dict(pair for line in lines if (pair := _read_line(line)))

    def find(self, request: VoteRequest) -> Answer | None:
        """Return the stored answer to a request, None if there is none."""
        return self._answers.get((self.plan, *request.question.key, request.seed))

    def close(self) -> None:
        if self.file is not None:
            os.close(self.file)

    def add(self, request: VoteRequest, answer: Answer) -> None:
        """Append an answer to the file. Raises OSError if the disk is full."""
        if self.file is None:
            self.path.parent.mkdir(exist_ok=True)
            self.file = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
        key = self.plan, *request.question.key, request.seed
        self._answers[key] = answer
        said = answer.text, answer.finish_reason, answer.confidence, answer.usage, answer.error
        os.write(self.file, b"\n" + json.dumps([*key, *said]).encode())
        count_finished()


def _read_line(line: bytes) -> tuple[tuple[str, str, str, int], Answer] | None:
    """Return the key and the answer in a line; None for an empty, torn or damaged one."""
    try:
        plan, turn_id, name, seed, text, finish_reason, confidence, usage, error = json.loads(line)
        usage = None if usage is None else Usage(*usage)
    except (ValueError, TypeError):
        return None
    return (plan, turn_id, name, seed), Answer(text, finish_reason, error=error, confidence=confidence, usage=usage)


def answers_file(stage: Stage, part: int, table: str | None = None) -> Path:
    return stage.folder / ".tmp" / f"{table or stage.tables[0].name}-{part:05d}.answers"


@contextlib.contextmanager
def keep_answers(stage: Stage, part: int, table: str | None = None) -> Iterator[KeptAnswers]:
    """Yield the kept answers of a part, which the block commits. Remove their file if the block raises nothing."""
    kept = KeptAnswers(answers_file(stage, part, table), stage.fingerprint)
    try:
        yield kept
    finally:
        kept.close()
    kept.path.unlink(missing_ok=True)


def remove_answers_of_done_parts(stage: Stage) -> None:
    """Remove the files of a process that was killed between the commit of a part and the end of `keep_answers`."""
    for part, table in product(range(stage.parts), stage.tables):
        if (path := answers_file(stage, part, table.name)).exists() and stage.is_done(part):
            path.unlink(missing_ok=True)


def drop_answers(folder: Path, sessions: Collection[str]) -> None:
    """Remove the answers about these sessions, and damaged lines, from the folder of a stage."""
    for path in (folder / ".tmp").glob("*.answers"):
        lines = path.read_bytes().split(b"\n")
        answers = [(line, pair[0][1]) for line in lines if (pair := _read_line(line))]
        kept = [line for line, turn_id in answers if session_of(turn_id) not in sessions]
        with temporary_file(path) as temporary:
            temporary.write_bytes(b"".join(b"\n" + line for line in kept))
            move_into_place(temporary, path)
