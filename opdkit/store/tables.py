"""Schemas of all tables: the contract between the stages. Missing is null, never 0.0 and never ""."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from opdkit.errors import OpdkitError

I8, I32, I64, F16, F32, F64 = pa.int8(), pa.int32(), pa.int64(), pa.float16(), pa.float32(), pa.float64()
STR, BOOL = pa.string(), pa.bool_()


@dataclass(frozen=True)
class Table:
    """Table of a stage, with its version and columns."""

    stage: str
    name: str
    version: int
    schema: pa.Schema


def _col(name: str, kind: pa.DataType, meaning: str, *, null: bool = False) -> pa.Field:
    return pa.field(name, kind, nullable=null, metadata={"meaning": meaning})


def _list(kind: pa.DataType) -> pa.DataType:
    return pa.list_(pa.field("item", kind, nullable=False))


TOOL_CALL = pa.struct([
    _col("id", STR, "call id, \"\" where the log has none"),
    _col("name", STR, "function name"),
    _col("arguments", STR, "arguments, verbatim as logged"),
])  # fmt: skip
MESSAGE = pa.struct([
    _col("role", STR, "system, user, assistant or tool"),
    _col("content", STR, "text; null where the log has none", null=True),
    _col("reasoning", STR, "the model's thinking, apart from its text", null=True),
    _col("name", STR, "who speaks: a tool's or a user's name", null=True),
    _col("tool_call_id", STR, "tool results: the call that this answers", null=True),
    _col("tool_calls", _list(TOOL_CALL), "assistant messages: calls, [] where there are none"),
])  # fmt: skip
_CONFIDENCE = _col(
    "confidence", F32, "probability of the decision's tokens, by the judge at temperature 1; null: not known, or no "
    "decision", null=True,
)  # fmt: skip
HINT_VOTE = pa.struct([
    _col("decision", I8, "1: the next state shows what the reply should have done, -1: it does not", null=True),
    _col("hint", STR, "the hint of this vote", null=True),
    _col("raw", STR, "the judge's answer, verbatim"),
    _col("error", STR, "why there is no decision", null=True),
    _CONFIDENCE,
])  # fmt: skip
REWARD_VOTE = pa.struct([
    _col("score", I8, "-1, 0 or 1", null=True),
    _col("raw", STR, "the judge's answer, verbatim"),
    _col("error", STR, "why there is no score", null=True),
    _CONFIDENCE,
])  # fmt: skip

SESSIONS = Table("extract", "sessions", 1, pa.schema([
    _col("session_id", STR, "unique in the run"),
    _col("source", STR, "input it came from"),
    _col("line", I64, "line of that input where it starts, or record of an array, from 1"),
    _col("format", STR, "log format it was read as; rollout: fresh replies"),
    _col("model", STR, "behaviour policy, if the log says", null=True),
    _col("messages", _list(MESSAGE), "the conversation, stored once"),
    _col("tools", STR, "tool definitions, JSON as logged", null=True),
    _col("metadata", STR, "the log's other fields, JSON", null=True),
]))  # fmt: skip
TURNS = Table("extract", "turns", 1, pa.schema([
    _col("turn_id", STR, "session_id:message_index"),
    _col("session_id", STR, "session of the turn"),
    _col("message_index", I32, "index of the assistant message in the session's messages, from 0"),
    _col("next_count", I32, "messages in the next state"),
    _col("next_role", STR, "user or tool: role of the next state's first message", null=True),
    _col("kind", STR, "main, or side (not part of the conversation with the user)"),
    _col("trainable", BOOL, "may be judged and trained on"),
    _col("skip_reason", STR, "why it is not trainable", null=True),
    _col("finish_reason", STR, "why the policy stopped, as logged", null=True),
    _col("response_token_ids", _list(I32), "sampled tokens, when logged", null=True),
    _col("behavior_logprobs", _list(F32), "their log-probs under the behaviour policy (nats), when logged", null=True),
]))  # fmt: skip
REJECTED = Table("extract", "rejected", 1, pa.schema([
    _col("source", STR, "input"),
    _col("line", I64, "line, or record of an array, from 1; 0 is the whole input"),
    _col("reason", STR, "why it could not be read, in a few words that are the same for all lines of this kind"),
    _col("detail", STR, "what exactly was wrong"),
    _col("raw", STR, "the text, cut to 2,000 characters"),
]))  # fmt: skip
VERDICTS = Table("judge", "verdicts", 2, pa.schema([
    _col("turn_id", STR, "turn that was judged"),
    _col("hint_votes", _list(HINT_VOTE), "votes on: what should the reply have done?"),
    _col("reward_votes", _list(REWARD_VOTE), "votes on: did the reply do its job?"),
    _col("reward", I8, "-1, 0 or 1: the value with the most valid votes, or the largest sum of confidences "
         "(--weigh-votes)", null=True),
    _col("reward_status", STR, "ok, tie, no_quorum or failed; outcome: what the log says of the turn, without a "
         "vote (--good, --bad); of fresh replies also empty (nothing but a stop token or thinking: -1 without a vote), "
         "or not_judged. To the stages after the judge also reviewed: a person decided"),
    _col("reward_agreement", F32, "share of the valid votes that agree with the reward", null=True),
    _col("hints", _list(STR), "accepted candidates, shortest first, no two alike"),
    _col("hint", STR, "the chosen hint", null=True),
    _col("hint_status", STR, "ok, or why none: none, no_quorum, outvoted, too_short, too_long, "
         "empty_judgement, leak. To the stages after the judge also reviewed: a person decided"),
]))  # fmt: skip
REVIEWS = Table("judge", "reviews", 1, pa.schema([
    _col("ordinal", I64, "place in the order of the decisions; the last one on a turn counts"),
    _col("turn_id", STR, "turn that was decided on"),
    _col("action", STR, "set, or strike: the decision before is withdrawn, and the votes count again"),
    _col("reward_decided", BOOL, "the reward is decided; false: that of the votes stays"),
    _col("reward", I8, "-1, 0 or 1; null: no reward", null=True),
    _col("hint_decided", BOOL, "the hint is decided; false: that of the votes stays"),
    _col("hint", STR, "the hint; null: no hint", null=True),
    _col("note", STR, "what the reviewer wrote beside it", null=True),
    _col("reviewer", STR, "who decided"),
    _col("time", STR, "when, UTC, ISO 8601"),
]))  # fmt: skip
TARGETS = Table("teacher", "targets", 3, pa.schema([
    _col("turn_id", STR, "turn that can be trained on"),
    _col("written", I32, "number of the reply, from 0, where the hinted teacher wrote it; null: the logged reply",
         null=True),
    _col("prompt_tokens", I32, "tokens in the student's prompt (no hint)"),
    _col("cut_messages", I32, "messages removed from the beginning of the prompt to make it fit; system messages stay"),
    _col("response_ids", _list(I32), "the reply, the same tokens for student and teacher"),
    _col("response_mask", _list(BOOL), "true for tokens that the policy sampled"),
    _col("old_logprobs", _list(F32), "log-probs under the student, no hint, temperature 1 (nats)"),
    _col("teacher_logprobs", _list(F32), "log-probs under the teacher, with the hint (nats)", null=True),
    _col("unhinted_logprobs", _list(F32), "log-probs under the teacher without the hint (nats), if asked", null=True),
    _col("behavior_logprobs", _list(F32), "log-probs under the policy that wrote the log (nats), if logged", null=True),
    _col("hint", STR, "the hint that was scored", null=True),
    _col("overlap", F32, "mean share of the top K that student and hinted teacher have in common", null=True),
    _col("support_ids", _list(_list(I32)), "K token ids at each position, most likely first", null=True),
    _col("support_old", _list(_list(F16)), "their log-probs under the student, no hint (nats)", null=True),
    _col("support_teacher", _list(_list(F16)), "their log-probs under the teacher, with the hint (nats)", null=True),
    _col("reward", I8, "-1, 0 or 1", null=True),
]))  # fmt: skip
METRICS = Table("train", "metrics", 4, pa.schema([
    _col("step", I32, "optimizer step, from 1"),
    _col("epoch", F64, "passes over the targets so far"),
    _col("loss", F64, "the loss that was minimised (nats per token)"),
    _col("reward_loss", F64, "its reward term", null=True),
    _col("teacher_loss", F64, "its teacher term", null=True),
    _col("support_loss", F64, "its support term", null=True),
    _col("divergence_loss", F64, "its divergence term", null=True),
    _col("kl_loss", F64, "its KL term", null=True),
    _col("reward_advantage", F64, "mean reward advantage over the tokens that have one", null=True),
    _col("teacher_advantage", F64, "mean teacher advantage over the tokens that have one (nats)", null=True),
    _col("support_advantage", F64, "mean over the positions with a support of their advantages' sum (nats)", null=True),
    _col("length_penalty", F64, "mean overlong penalty of the replies with a reward; null: none, or the penalty is off",
         null=True),
    _col("reward_tokens", I64, "tokens in the reward term"),
    _col("teacher_tokens", I64, "tokens in the teacher term"),
    _col("support_tokens", I64, "positions in the support term"),
    _col("divergence_tokens", I64, "positions in the divergence term"),
    _col("clip_low", F64, "lower clip of the ratio in this step: 1 - this"),
    _col("clip_high", F64, "upper clip of the ratio in this step: 1 + this"),
    _col("clip_fraction", F64, "share of the ratios that were clipped", null=True),
    _col("approx_kl", F64, "KL(old policy || student), estimated on the trained tokens by k3 (nats)"),
    _col("shift", F64, "mean absolute change of a trained token's log-prob since before training (nats)"),
    _col("entropy", F64, "mean entropy of the student (nats)"),
    _col("grad_norm", F64, "before clipping"),
    _col("skipped", BOOL, "every gradient was 0, so the step changed no weight"),
    _col("learning_rate", F64, "of this step"),
    _col("turns", I32, "turns in the step"),
    _col("turn_ids", _list(STR), "ids of these turns"),
    _col("tokens", I64, "tokens of these turns, prompts included"),
    _col("tokens_read", I64, "tokens that went through the model; a beginning that turns share counts once"),
    _col("tokens_per_second", F64, "tokens read / seconds"),
    _col("seconds", F64, "wall time of the step"),
]))  # fmt: skip
REPLIES = Table("eval", "replies", 3, pa.schema([
    _col("prompt_id", STR, "held-out prompt"),
    _col("domain", STR, "its group in the tables"),
    _col("model", STR, "before or after"),
    _col("sample", I32, "0 is the greedy reply"),
    _col("reply", STR, "what the model wrote"),
    _col("finish_reason", STR, "stop or length"),
    _col("passed", BOOL, "it satisfies the prompt's check; null: the judge gave no verdict", null=True),
    _col("hint_echo", STR, "words that refer to a hint, which the prompt does not hold; case-folded", null=True),
    _col("kl", F64, "drift: mean KL(before || after) over its tokens (nats per token); of the model before, sampled "
         "replies, or the greedy ones where there are no others", null=True),
]))  # fmt: skip
SCORES = Table("eval", "scores", 2, pa.schema([
    _col("metric", STR, "passed_sampled, passed_greedy, cut_off, hint_echo: shares of replies; reply_tokens: their "
         "mean length; logprob_good, logprob_bad (logged replies with reward 1, -1), logprob_neutral: nats per token; "
         "kl_replies (on replies of the model before), kl_neutral: KL of before to after, nats per token; hint_streak, "
         "log_streak: sessions before three in a row are right; equal to `count` where that never happens"),
    _col("domain", STR, "domain of the prompts; all: everything; corrected, uncorrected: prompts that say so"),
    _col("before", F64, "value before training", null=True),
    _col("after", F64, "value after training", null=True),
    _col("difference", F64, "after - before", null=True),
    _col("low", F64, "2.5% quantile of the difference over resamples of the prompts, turns or passages; null where "
         "there are fewer than six", null=True),
    _col("high", F64, "97.5% quantile", null=True),
    _col("count", I64, "prompts behind the value; logprob_good, logprob_bad: turns; logprob_neutral, kl_neutral: "
         "passages; hint_streak, log_streak: sessions"),
]))  # fmt: skip

# Written by the stages, part by part.
TABLES = {t.name: t for t in (SESSIONS, TURNS, REJECTED, VERDICTS, TARGETS, METRICS, REPLIES, SCORES)}
# Stage -> its primary table, whose files say which parts are done.
PRIMARY = {table.stage: table for table in reversed(TABLES.values())}
# Written by people at any time, one file per decision. They lie in the folder of a stage, which never removes them.
APPENDED = {t.name: t for t in (REVIEWS,)}

Row = dict[str, Any] | tuple[Any, ...]


def to_arrow(table: Table, rows: Sequence[Row]) -> pa.Table:
    """Return rows as Arrow under the table's schema. A list of lists may be given as a 2-D array.

    The rows are dicts, or all of them tuples of the columns in their order, which takes a fraction of the time.

    Raises OpdkitError for an unknown or missing column (pyarrow silently drops the one and nulls the other), for a null
    in a column that has none, and for a value that does not fit its type.
    """
    names = table.schema.names
    if tuple in set(map(type, rows)):
        for row in rows:
            if row.__class__ is not tuple or len(row) != len(names):
                raise OpdkitError(
                    f"table {table.name}: every row must be a tuple of its {len(names)} columns, not {row!r:.200}"
                )
        values = [list(column) for column in zip(*rows, strict=True)]
    else:
        expected = set(names)
        dicts: Sequence[Any] = rows
        for row in dicts:
            if row.keys() != expected:
                missing, unknown = sorted(expected - row.keys()), sorted(row.keys() - expected)
                raise OpdkitError(f"table {table.name}: missing columns {missing}, unknown columns {unknown}")
        values = [[row[name] for row in dicts] for name in names]
    try:
        columns = [_column(field.type, column) for field, column in zip(table.schema, values, strict=True)]
        arrow = pa.Table.from_arrays(columns, schema=table.schema)
    except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
        raise OpdkitError(f"table {table.name}: {error}") from error
    for field, column in zip(table.schema, arrow.columns, strict=True):
        for chunk in column.chunks:
            _check_nulls(field, chunk, f"{table.name}.{field.name}")
    return arrow


def _column(kind: pa.DataType, values: list[Any]) -> pa.Array:
    if not (_is_nested(kind) and any(isinstance(value, np.ndarray) and value.ndim == 2 for value in values)):
        return pa.array(values, kind)
    # From the arrays: the supports of one part would be hundreds of millions of Python numbers.
    item = np.dtype(kind.value_type.value_type.to_pandas_dtype())
    blocks = [np.empty((0, 0), item) if value is None else np.asarray(value) for value in values]
    flat = np.concatenate([block.reshape(-1) for block in blocks])
    inner = pa.array(flat.astype(item, casting="same_kind", copy=False))
    widths = np.concatenate([np.full(len(block), block.shape[1]) for block in blocks])
    per_row = pa.ListArray.from_arrays(_offsets(widths), inner, type=kind.value_type)
    missing = pa.array([value is None for value in values])
    return pa.ListArray.from_arrays(_offsets([len(b) for b in blocks]), per_row, type=kind, mask=missing)


def _is_nested(kind: pa.DataType) -> bool:
    return pa.types.is_list(kind) and pa.types.is_list(kind.value_type)


def _offsets(lengths: Any) -> pa.Array:
    return pa.array(np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)]).astype(np.int32))


def encodings(schema: pa.Schema) -> dict[str, Any]:
    """Return the options of pyarrow's ParquetWriter that decide how the columns of a schema are stored.

    A table with supports gets no dictionaries: with half a million token ids they only add to the size. The ids are
    split into their bytes, so that zstd finds the high bytes side by side. Half-precision numbers would gain as well
    (33 bytes per token at K = 50), but DuckDB cannot read them split.
    """
    nested = {f.name: f.type.value_type.value_type for f in schema if _is_nested(f.type)}
    split = [f"{name}.list.element.list.element" for name, kind in nested.items() if pa.types.is_integer(kind)]
    return {"use_dictionary": False, "column_encoding": dict.fromkeys(split, "BYTE_STREAM_SPLIT")} if nested else {}


def _check_nulls(field: pa.Field, array: pa.Array, path: str) -> None:
    """Raise OpdkitError for a null in a non-nullable column: pyarrow writes it, and readers disagree about it."""
    if array.null_count and not field.nullable:
        raise OpdkitError(f"table {path}: null in a column that has none")
    if pa.types.is_list(field.type):
        _check_nulls(field.type.value_field, array.flatten(), f"{path}[]")
    elif pa.types.is_struct(field.type):
        # The children of a null struct are null, and that is right.
        valid = array.drop_null() if array.null_count else array
        for i, child in enumerate(field.type):
            _check_nulls(child, valid.field(i), f"{path}.{child.name}")
