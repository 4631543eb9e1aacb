"""Targets of a run as arrays, and their prompts as the teacher stage read them.

Messages are stored once per session. So prompts are rendered again here, with the template arguments and the cuts that
the teacher stage recorded. To save memory, token ids are int32, and messages are freed part by part.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby, repeat
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from opdkit.chat.template import Chat, ChatError, drop_first_messages
from opdkit.config.command_line import quote
from opdkit.config.fields import JSON
from opdkit.console import counted, verb
from opdkit.errors import ConfigError, OpdkitError
from opdkit.model.folder import pin_model
from opdkit.model.scoring import PromptResponse
from opdkit.store.plans import is_same_path, manifest, stage_dir
from opdkit.store.reading import count_parts, count_sessions_within, read_arrow, read_part
from opdkit.store.reviews import check_targets_current
from opdkit.store.turn_ids import first_branch, message_index_of, session_of

Prompts = Mapping[str, NDArray[np.int32]]  # turn_id -> token ids

COLUMNS = ("turn_id", "written", "prompt_tokens", "cut_messages", "response_ids", "response_mask", "old_logprobs",
           "teacher_logprobs", "behavior_logprobs", "reward", "hint")  # fmt: skip
SUPPORT_COLUMNS = ("support_ids", "support_old", "support_teacher")


@dataclass(frozen=True)
class Support:
    """K tokens at each of R positions, with their log-probs before training (nats)."""

    ids: NDArray[np.int32]  # [R, K]
    old: NDArray[np.float16]  # [R, K] student, no hint
    teacher: NDArray[np.float16] | None  # [R, K] teacher, with the hint; None: no hint


@dataclass(frozen=True)
class Reply:
    """Row of `targets`: a reply of R tokens to train on. Logged and written replies of a turn share id and prompt."""

    turn_id: str
    written: int | None  # number of a reply that the teacher sampled, or EDIT; None: the logged reply
    prompt_tokens: int
    cut_messages: int
    response_ids: NDArray[np.int32]  # [R]
    sampled: NDArray[np.bool_]  # [R] the response mask
    old_logprobs: NDArray[np.float32]  # [R] nats
    reference_logprobs: NDArray[np.float32]  # [R] nats; reference of the KL: the old policy until `add_reference`
    teacher_logprobs: NDArray[np.float32] | None  # [R] nats; None: no hint
    behavior_logprobs: NDArray[np.float32] | None  # [R] nats; None: not in the log
    reward: int | None
    shaped_reward: float | None  # equal to the reward until `shape_rewards`
    support: Support | None = None  # None: not stored, or not loaded
    hint: str | None = None
    length_penalty: float | None = None  # of the shaped reward, before normalisation; None: no reward, or off

    def __len__(self) -> int:
        return self.prompt_tokens + len(self.response_ids)

    @property
    def is_hinted(self) -> bool:
        return self.teacher_logprobs is not None

    @property
    def is_criticised(self) -> bool:
        """True if somebody complained: there is a hint or a negative reward."""
        return self.is_hinted or (self.reward or 0) < 0

    @property
    def is_anchor(self) -> bool:
        """True if nobody complained, and the targets store a support for the reply."""
        return not self.is_criticised and self.support is not None

    @property
    def session_id(self) -> str:
        return session_of(self.turn_id)

    @property
    def branch_root(self) -> str:
        """First branch of the reply's conversation, as an id for all of its branches."""
        return first_branch(self.session_id)


def make_sequence(reply: Reply, prompts: Prompts) -> PromptResponse:
    """Return the prompt and the response of a reply."""
    return PromptResponse(prompts[reply.turn_id].tolist(), reply.response_ids.tolist())


def load_targets(run: Path, limit: int | None = None, supports: str = "none") -> list[Reply]:
    """Return the targets of the run, or of its first `limit` sessions, in order.

    `supports`: "none" to skip them, "any" to load the stored ones, or "needed". Raises OpdkitError if review decisions
    are newer than the targets, or if supports are "needed" and a reply with a hint has none.
    """
    check_targets_current(run)
    replies = []
    for part in range(count_parts(run, "teacher")):
        table = read_arrow(run, "targets", part, [*COLUMNS, *(SUPPORT_COLUMNS if supports != "none" else ())])
        count = count_sessions_within(run, part, limit)
        sessions = None
        if count is not None:
            sessions = set(read_arrow(run, "sessions", part, ["session_id"])["session_id"].to_pylist()[:count])
        rows = table.select(COLUMNS).to_pylist()
        matrices = [_read_matrices(table[name]) if name in table.column_names else repeat(None, len(rows))
                    for name in SUPPORT_COLUMNS]  # fmt: skip
        for row, *support in zip(rows, *matrices, strict=True):
            reply = _make_reply(row, None if support[0] is None or support[1] is None else Support(*support))
            if sessions is None or reply.session_id in sessions:
                replies.append(reply)
    hinted = [reply for reply in replies if reply.is_hinted]
    without = sum(reply.support is None or reply.support.teacher is None for reply in hinted)
    if supports == "needed" and without:
        folder = quote(stage_dir(run, "teacher").parent)
        raise OpdkitError(
            f"{without} of {counted(len(hinted), 'turn')} with a hint {verb(without, 'has', 'have')} no support, the "
            "tokens that this objective compares student and teacher on: run "
            f"`opdkit teacher {folder} ... --top-k K` again with --overwrite, K = 4 or more"
        )
    return replies


def _read_matrices(column: pa.ChunkedArray) -> Iterator[Any]:
    """Yield each row of a list<list<number>> column as an array [R, K] or None, without a Python object per number."""
    for row in column:
        if row.values is None:
            yield None
        else:
            values = row.values.flatten().to_numpy(zero_copy_only=False)
            yield values.reshape(len(row.values), -1)


def _make_reply(row: JSON, support: Support | None) -> Reply:
    names = ("old_logprobs", "teacher_logprobs", "behavior_logprobs")
    logprobs: JSON = {name: None if row[name] is None else np.asarray(row[name], np.float32) for name in names}
    return Reply(
        **{name: row[name] for name in ("turn_id", "written", "prompt_tokens", "cut_messages", "reward", "hint")},
        **logprobs,
        reference_logprobs=logprobs["old_logprobs"],
        response_ids=np.asarray(row["response_ids"], np.int32),
        sampled=np.asarray(row["response_mask"], np.bool_),
        shaped_reward=None if row["reward"] is None else float(row["reward"]),
        support=support,
    )


def check_student(run: Path, model: str, *, load_in_4bit: bool) -> JSON:
    """Return the identity of `model`. Raises ConfigError unless it is the student that the teacher stage scored.

    Probability ratios divide by the old policy, which is that student: with another model every ratio would be wrong.
    The same model with quantized weights counts as another model.
    """
    identity, run = pin_model(model), stage_dir(run, "teacher").parent  # a named training has the targets of its run
    plan = manifest(run, "teacher")["plan"]
    if load_in_4bit != plan["config"].get("load_in_4bit", False):
        raise ConfigError(
            f"the teacher stage of {run} scored {'without' if load_in_4bit else 'with'} --load-in-4bit, and quantized "
            "weights give other log-probs: train as it scored, or run `opdkit teacher` again with --overwrite and "
            f"{'' if load_in_4bit else 'without '}--load-in-4bit"
        )
    scored = plan["inputs"]["model"]
    if identity.get("files", identity["name"]) == scored.get("files", scored["name"]):
        return identity
    files, scored_files = identity.get("files", {}), scored.get("files", {})
    differing = [n for n in sorted(files.keys() | scored_files.keys()) if files.get(n) != scored_files.get(n)]
    differences = f"; what differs: {', '.join(differing[:5])}" if files and scored_files else ""
    if is_same_path(model, plan["config"]["model"]):
        raise ConfigError(
            f"{model} has been changed since the teacher stage scored it{differences}: put it back, or run the "
            f"teacher stage of {run} as before, with --overwrite"
        )
    raise ConfigError(
        f"--model {model} is not the student that the teacher stage scored ({plan['config']['model']}{differences}): "
        "pass that one, or extract and judge the log into another run directory, and run "
        f"`opdkit teacher OTHER_RUN --model {quote(model)}`"
    )


def load_prompts(run: Path, replies: Sequence[Reply], chat: Chat) -> Prompts:
    """Return the token ids of the prompt of each turn, by turn_id.

    A prompt that begins a later one of its session shares its memory: a long session would hold thousands of copies of
    its beginning. Raises OpdkitError if a reply has no session, or if a prompt is not as long as in the teacher stage.
    Training would then read other tokens than those that were scored.
    """
    prompts: dict[str, NDArray[np.int32]] = {}
    for _, pairs in groupby(pair_with_sessions(run, replies), key=lambda pair: pair[1].session_id):
        distinct = {reply.turn_id: (session, reply) for session, reply in pairs}  # a written reply has the logged one's
        own = {turn_id: _encode_prompt(*pair, chat) for turn_id, pair in distinct.items()}
        longest = np.empty(0, np.int32)
        for turn_id, ids in sorted(own.items(), key=lambda item: len(item[1]), reverse=True):
            if not np.array_equal(longest[: len(ids)], ids):
                longest = ids
            prompts[turn_id] = longest[: len(ids)]
    missing = next((reply.turn_id for reply in replies if reply.turn_id not in prompts), None)
    if missing is not None:
        folder = stage_dir(run, "extract")
        raise OpdkitError(f"turn {missing} has no session in {folder}: run the stages again from extract")
    return prompts


def pair_with_sessions(run: Path, replies: Sequence[Reply]) -> Iterator[tuple[JSON, Reply]]:
    """Yield (session, reply) pairs in the order of the sessions. Replies without a session in the run are left out."""
    replies_of: dict[str, list[Reply]] = {}
    for reply in replies:
        replies_of.setdefault(reply.session_id, []).append(reply)
    for part in range(count_parts(run, "teacher")):
        for session in read_part(run, "sessions", part):
            for reply in replies_of.get(session["session_id"], ()):
                yield session, reply


def list_prompt_messages(session: JSON, reply: Reply) -> list[JSON]:
    """Return the messages before a reply, without those that the teacher stage cut."""
    return drop_first_messages(session["messages"][: message_index_of(reply.turn_id)], reply.cut_messages)


def _encode_prompt(session: JSON, reply: Reply, chat: Chat) -> NDArray[np.int32]:
    """Return the token ids of a reply's prompt. Raises OpdkitError if their number differs from the teacher stage's."""
    try:
        ids = chat.prompt_ids(list_prompt_messages(session, reply), session["tools"])
        change = f"has {len(ids)} tokens, but {reply.prompt_tokens} when the teacher stage scored it"
    except ChatError as error:
        ids, change = [], f"cannot be rendered again ({error.reason})"
    if len(ids) != reply.prompt_tokens:
        raise OpdkitError(f"the prompt of turn {reply.turn_id} {change}: the tokenizer or its library has changed; run "
                          "`opdkit teacher` again with --overwrite")  # fmt: skip
    return np.asarray(ids, np.int32)
