"""The targets of a run as arrays, and their prompts as the teacher stage read them.

Messages are stored once a session, so a prompt is rendered again here, with the template arguments and the cut that
the teacher stage recorded. Token ids stay, as int32; messages are let go with the part they came from.
"""

import hashlib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from opdkit.chat import Chat, ChatError, without_first
from opdkit.config import JSON, parse_pairs
from opdkit.errors import ConfigError, OpdkitError
from opdkit.store import limited, manifest, model_identity, part_count, read_part


@dataclass(frozen=True)
class Turn:
    """One row of `targets`: R response tokens with what student and teacher said to them before training."""

    turn_id: str
    prompt_tokens: int
    cut_messages: int
    response_ids: NDArray[np.int32]  # [R]
    sampled: NDArray[np.bool_]  # [R] the response mask
    old_logprobs: NDArray[np.float32]  # [R] nats
    teacher_logprobs: NDArray[np.float32] | None  # [R] nats; None: no hint
    reward: int | None

    def __len__(self) -> int:
        return self.prompt_tokens + len(self.response_ids)

    @property
    def session_id(self) -> str:
        return self.turn_id.rpartition(":")[0]

    @property
    def message_index(self) -> int:
        return int(self.turn_id.rpartition(":")[2])


def load_turns(run: Path, limit: int | None = None) -> list[Turn]:
    """All targets of the run (of its first `limit` sessions), in order."""
    return [_turn(row) for part in range(part_count(run, "teacher")) for row in _rows(run, part, limit)]


def _rows(run: Path, part: int, limit: int | None) -> Iterator[JSON]:
    rows = read_part(run, "targets", part)
    count = limited(run, part, limit)
    if count is None:
        yield from rows
    elif count:
        within = {row["session_id"] for row in read_part(run, "sessions", part)[:count]}
        yield from (row for row in rows if row["turn_id"].rpartition(":")[0] in within)


def _turn(row: JSON) -> Turn:
    teacher = row["teacher_logprobs"]
    return Turn(
        turn_id=row["turn_id"],
        prompt_tokens=row["prompt_tokens"],
        cut_messages=row["cut_messages"],
        response_ids=np.asarray(row["response_ids"], np.int32),
        sampled=np.asarray(row["response_mask"], np.bool_),
        old_logprobs=np.asarray(row["old_logprobs"], np.float32),
        teacher_logprobs=None if teacher is None else np.asarray(teacher, np.float32),
        reward=row["reward"],
    )


# -- which turns train ----------------------------------------------------------------------------------------------


def held_out(session_id: str, share: float) -> bool:
    """Whether a session is kept out of training: the same answer in every stage, process and run.

    A hash, not a draw: a session stays where it is when others are added to the logs. Raising `share` adds sessions.
    """
    digest = hashlib.sha256(f"holdout:{session_id}".encode()).digest()
    return int.from_bytes(digest[:8], "big") < share * 2**64


def select(turns: Sequence[Turn], sources: Sequence[str], holdout: float) -> tuple[list[Turn], Counter[str]]:
    """The turns that at least one of the objective's sources applies to, and why the others were left out."""
    kept, dropped = [], Counter[str]()
    for turn in turns:
        reason = _why_not(turn, sources, holdout)
        if reason:
            dropped[reason] += 1
        else:
            kept.append(turn)
    return kept, dropped


def _why_not(turn: Turn, sources: Sequence[str], holdout: float) -> str | None:
    if held_out(turn.session_id, holdout):
        return "held out"
    if not turn.sampled.any():
        return "nothing sampled"
    usable = {"teacher": turn.teacher_logprobs is not None, "reward": turn.reward is not None}
    if not any(usable[source] for source in sources):
        return " and ".join({"teacher": "no hint", "reward": "no reward"}[source] for source in sources)
    numbers = [turn.old_logprobs] + ([turn.teacher_logprobs] if turn.teacher_logprobs is not None else [])
    if not all(np.isfinite(x[turn.sampled]).all() for x in numbers):
        return "log-prob not finite"
    return None


# -- prompts --------------------------------------------------------------------------------------------------------


def scored_template_args(run: Path, given: Sequence[str]) -> JSON:
    """The template arguments that the teacher stage rendered its prompts with.

    Raises ConfigError when `given` (a stage's own `--template-arg`) says otherwise.
    """
    recorded = manifest(run, "teacher")["plan"]["config"]["template_arg"]
    args = parse_pairs(recorded, "--template-arg")
    if given and parse_pairs(given, "--template-arg") != args:
        raise ConfigError(
            f"--template-arg {' '.join(given)} differs from what the teacher stage scored with "
            f"({' '.join(recorded) or 'none'}); leave it out: the same arguments are used"
        )
    return args


def refuse_another_student(run: Path, model: str) -> JSON:
    """The identity of `model`. Raises ConfigError unless it is the student that the teacher stage scored.

    Its log-probs are the old policy of the ratio: those of another model would make every ratio wrong.
    """
    identity = model_identity(model)
    plan = manifest(run, "teacher")["plan"]
    scored = plan["inputs"]["model"]
    if identity.get("files", identity["name"]) != scored.get("files", scored["name"]):
        raise ConfigError(
            f"--model {model} is not the student that the teacher stage scored ({plan['config']['model']}): "
            f"pass that one, or run `opdkit teacher {run} --model {model}` in another run directory"
        )
    return identity


def load_prompts(run: Path, turns: Sequence[Turn], chat: Chat) -> dict[str, NDArray[np.int32]]:
    """turn_id -> the token ids of its prompt.

    Raises OpdkitError when a prompt does not come out as long as the teacher stage found it: then the tokens that
    would be trained are not those that were scored.
    """
    wanted: dict[str, list[Turn]] = {}
    for turn in turns:
        wanted.setdefault(turn.session_id, []).append(turn)
    prompts: dict[str, NDArray[np.int32]] = {}
    for part in range(part_count(run, "teacher")):
        for session in read_part(run, "sessions", part):
            for turn in wanted.get(session["session_id"], ()):
                prompts[turn.turn_id] = _prompt_ids(session, turn, chat)
    missing = next((turn.turn_id for turn in turns if turn.turn_id not in prompts), None)
    if missing is not None:
        raise OpdkitError(f"turn {missing} has no session in {run}/extract: run the stages again from extract")
    return prompts


def _prompt_ids(session: Mapping[str, Any], turn: Turn, chat: Chat) -> NDArray[np.int32]:
    messages = without_first(session["messages"][: turn.message_index], turn.cut_messages)
    try:
        ids = chat.prompt_ids(messages, session["tools"])
    except ChatError as error:
        raise OpdkitError(f"the prompt of turn {turn.turn_id} cannot be rendered again: {error.reason}") from error
    if len(ids) != turn.prompt_tokens:
        raise OpdkitError(
            f"the prompt of turn {turn.turn_id} has {len(ids)} tokens, but {turn.prompt_tokens} when the teacher "
            "stage scored it: the tokenizer or its library has changed; run `opdkit teacher` again with --overwrite"
        )
    return np.asarray(ids, np.int32)
