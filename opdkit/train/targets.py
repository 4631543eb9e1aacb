"""The targets of a run as arrays, and their prompts as the teacher stage read them.

Messages are stored once a session, so a prompt is rendered again here, with the template arguments and the cut that
the teacher stage recorded. Token ids stay, as int32; messages are let go with the part they came from.
"""

import hashlib
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import repeat
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from opdkit.chat.template import Chat, ChatError, without_first
from opdkit.config.command_line import quote
from opdkit.config.fields import JSON, parse_pairs
from opdkit.console import counted, verb
from opdkit.errors import ConfigError, OpdkitError
from opdkit.model.folder import refuse_no_model
from opdkit.store import limited, manifest, model_identity, part_count, read_arrow, read_part
from opdkit.store.reviews import refuse_outdated_targets
from opdkit.store.turn_ids import logged_session_id


@dataclass(frozen=True)
class Support:
    """K tokens at each of R positions, with their log-probs before training (nats)."""

    ids: NDArray[np.int32]  # [R, K]
    old: NDArray[np.float16]  # [R, K] student, no hint
    teacher: NDArray[np.float16]  # [R, K] teacher, with the hint


@dataclass(frozen=True)
class Turn:
    """One row of `targets`: R response tokens with what student and teacher said to them before training."""

    turn_id: str
    written: int | None  # the number of a reply that the teacher wrote; None: the logged one
    prompt_tokens: int
    cut_messages: int
    response_ids: NDArray[np.int32]  # [R]
    sampled: NDArray[np.bool_]  # [R] the response mask
    old_logprobs: NDArray[np.float32]  # [R] nats
    teacher_logprobs: NDArray[np.float32] | None  # [R] nats; None: no hint
    behavior_logprobs: NDArray[np.float32] | None  # [R] nats; None: not in the log
    reward: int | None
    advantage: float | None  # what the reward is worth: the reward itself, until it has been shaped
    support: Support | None = None  # None: no hint, or not loaded

    def __len__(self) -> int:
        return self.prompt_tokens + len(self.response_ids)

    @property
    def session_id(self) -> str:
        return self.turn_id.rpartition(":")[0]

    @property
    def message_index(self) -> int:
        return int(self.turn_id.rpartition(":")[2])


COLUMNS = ("turn_id", "written", "prompt_tokens", "cut_messages", "response_ids", "response_mask", "old_logprobs",
           "teacher_logprobs", "behavior_logprobs", "reward")  # fmt: skip
TOO_MANY = "over --max-turns-per-session"
SUPPORT_COLUMNS = ("support_ids", "support_old", "support_teacher")


def load_turns(run: Path, limit: int | None = None, supports: bool = False) -> list[Turn]:
    """All targets of the run (of its first `limit` sessions), in order; with their `supports` where asked.

    Raises OpdkitError when supports are asked for and a turn with a hint has none, or when people have decided
    something about the turns that the targets do not show yet.
    """
    refuse_outdated_targets(run)
    turns = [t for part in range(part_count(run, "teacher")) for t in _turns_of(run, part, limit, supports)]
    hinted = [turn for turn in turns if turn.teacher_logprobs is not None]
    without = sum(turn.support is None for turn in hinted)
    if supports and without:
        raise OpdkitError(
            f"{without} of {counted(len(hinted), 'turn')} with a hint {verb(without, 'has', 'have')} no support, the "
            "tokens that this objective compares "
            f"student and teacher on: run `opdkit teacher {quote(run)} ... --support K` again with --overwrite, "
            "K = 4 or more"
        )
    return turns


def _turns_of(run: Path, part: int, limit: int | None, supports: bool) -> Iterator[Turn]:
    table = read_arrow(run, "targets", part, [*COLUMNS, *(SUPPORT_COLUMNS if supports else ())])
    count = limited(run, part, limit)
    within = None
    if count is not None:
        within = set(read_arrow(run, "sessions", part, ["session_id"])["session_id"].to_pylist()[:count])
    rows = table.select(COLUMNS).to_pylist()
    for row, support in zip(rows, _supports(table) if supports else repeat(None, len(rows)), strict=True):
        if within is None or row["turn_id"].rpartition(":")[0] in within:
            yield _turn(row, support)


def _supports(table: pa.Table) -> Iterator[Support | None]:
    """The support of each row; none where one of the models has no log-probs of it (a turn without a hint)."""
    for ids, old, teacher in zip(*[_matrices(table[name]) for name in SUPPORT_COLUMNS], strict=True):
        yield None if ids is None or old is None or teacher is None else Support(ids, old, teacher)


def _matrices(column: pa.ChunkedArray) -> Iterator[NDArray[Any] | None]:
    """Each row of a list<list<number>> column as an array [R, K], without a Python object for each number."""
    for row in column:
        if row.values is None:
            yield None
        else:
            values = row.values.flatten().to_numpy(zero_copy_only=False)
            yield values.reshape(len(row.values), -1)


def _turn(row: JSON, support: Support | None) -> Turn:
    return Turn(
        turn_id=row["turn_id"],
        written=row["written"],
        prompt_tokens=row["prompt_tokens"],
        cut_messages=row["cut_messages"],
        response_ids=np.asarray(row["response_ids"], np.int32),
        sampled=np.asarray(row["response_mask"], np.bool_),
        old_logprobs=np.asarray(row["old_logprobs"], np.float32),
        teacher_logprobs=_floats(row["teacher_logprobs"]),
        behavior_logprobs=_floats(row["behavior_logprobs"]),
        reward=row["reward"],
        advantage=None if row["reward"] is None else float(row["reward"]),
        support=support,
    )


def _floats(values: list[float] | None) -> NDArray[np.float32] | None:
    return None if values is None else np.asarray(values, np.float32)


# -- which turns train ----------------------------------------------------------------------------------------------


def held_out(session_id: str, share: float) -> bool:
    """Whether a session is kept out of training: the same answer in every stage, process and run.

    A hash, not a draw: a session stays where it is when others are added to the logs. Raising `share` adds sessions.
    Fresh replies (`opdkit rollout`) stay where the session of the log is whose prompts they answer.
    """
    digest = hashlib.sha256(f"holdout:{logged_session_id(session_id)}".encode()).digest()
    return int.from_bytes(digest[:8], "big") < share * 2**64


def select(turns: Sequence[Turn], terms: Collection[str], holdout: float) -> tuple[list[Turn], Counter[str]]:
    """The turns that at least one of the objective's terms can use, and why the others were left out."""
    kept, dropped = [], Counter[str]()
    for turn in turns:
        reason = _why_not(turn, terms, holdout)
        if reason:
            dropped[reason] += 1
        else:
            kept.append(turn)
    return kept, dropped


def capped(turns: Sequence[Turn], most: int | None, seed: int) -> tuple[list[Turn], Counter[str]]:
    """At most `most` turns of each session, in their order, and the number of the others as dropped.

    Which stay is drawn from (seed, turn id) and nothing else: not the first ones, whose place whoever wrote the session
    could choose, and the same whatever other sessions there are. A turn stays or goes with all replies to it that the
    teacher wrote; the fresh replies of `opdkit rollout` count for the session of the log that they answer.
    """
    if most is None:
        return list(turns), Counter()
    sessions: dict[str, set[str]] = {}
    for turn in turns:
        sessions.setdefault(logged_session_id(turn.session_id), set()).add(turn.turn_id)
    kept = {turn_id for ids in sessions.values() for turn_id in sorted(ids, key=lambda i: (_draw(seed, i), i))[:most]}
    inside = [turn for turn in turns if turn.turn_id in kept]
    return inside, Counter({TOO_MANY: len(turns) - len(inside)} if len(inside) < len(turns) else {})


def _draw(seed: int, turn_id: str) -> bytes:
    return hashlib.sha256(f"max-turns-per-session:{seed}:{turn_id}".encode()).digest()


def _why_not(turn: Turn, terms: Collection[str], holdout: float) -> str | None:
    if held_out(turn.session_id, holdout):
        return "held out"
    if not turn.sampled.any():
        return "nothing sampled"
    missing = []
    if "reward" in terms and turn.reward is None:
        missing.append("no reward")
    if set(terms) - {"reward"} and turn.teacher_logprobs is None:
        missing.append("no hint")
    if len(missing) == len({term == "reward" for term in terms}):
        return " and ".join(missing)
    support = [] if turn.support is None else [turn.support.old, turn.support.teacher]
    numbers = [turn.old_logprobs, turn.teacher_logprobs, turn.behavior_logprobs, *support]
    if not all(np.isfinite(x[turn.sampled]).all() for x in numbers if x is not None):
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
    refuse_no_model(model)
    identity = model_identity(model)
    plan = manifest(run, "teacher")["plan"]
    scored = plan["inputs"]["model"]
    if identity.get("files", identity["name"]) != scored.get("files", scored["name"]):
        here, then = (found.get("files", {}) for found in (identity, scored))
        changed = [name for name in sorted(here.keys() | then.keys()) if here.get(name) != then.get(name)]
        what = f"; what differs: {', '.join(changed[:5])}" if here and then else ""
        if _same_folder(model, plan["config"]["model"]):
            raise ConfigError(
                f"{model} has been changed since the teacher stage scored it{what}: put it back, or run the "
                f"teacher stage of {run} as before, with --overwrite"
            )
        raise ConfigError(
            f"--model {model} is not the student that the teacher stage scored ({plan['config']['model']}{what}): "
            f"pass that one, or run `opdkit teacher {quote(run)} --model {model}` in another run directory"
        )
    return identity


def _same_folder(one: str, other: str) -> bool:
    return Path(one).resolve() == Path(other).resolve()


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
