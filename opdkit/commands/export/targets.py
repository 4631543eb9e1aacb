"""Targets of `opdkit export`: their rows, columns and kinds of file.

In most targets, a row is one turn. In OpenAI's, it is one session: the weights say which replies are learned, so the
messages that the turns of a session share are uploaded, and paid for, once.
"""

import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import count

import pyarrow as pa

from opdkit.chat.markup import split_thinking
from opdkit.chat.openai_messages import Message, openai_message
from opdkit.commands.export.messages import (
    NotExportedError,
    TurnToExport,
    check_complete,
    check_reward,
    check_row,
    convert_completion,
    convert_prompt,
    convert_tools,
)
from opdkit.config.fields import JSON
from opdkit.store.counters import Counters

Rewards = tuple[int, ...]  # rewards of the replies that are worth imitating
Rows = Iterator[JSON]
RowOfTurn = Callable[[TurnToExport, Rewards, int], JSON]

FEWEST_LINES = 10  # OpenAI accepts no smaller file
# PLAIN is a message with role and text, which every reader accepts. Other messages hold objects of any shape, such as
# the arguments of a call. ANY stores them as JSON, which `datasets` returns unchanged. In a struct, each message would
# get the keys of all others, and templates that test whether a message has `tool_calls` would find them in every one.
PLAIN = pa.struct({"role": pa.string(), "content": pa.string()})
ANY = pa.json_(pa.string())
MESSAGES = pa.list_(PLAIN)  # `choose_schema` replaces PLAIN by ANY if needed
_TEXT = pa.string()
_NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")  # name of a participant that OpenAI accepts


@dataclass(frozen=True)
class Target:
    """Format of an export.

    `rows` yields the rows for the judged turns of one session. It counts exported turns in `rows_out`, and all other
    turns in `dropped`. `suffixes` are the kinds of file, the default first.
    """

    columns: Mapping[str, pa.DataType]
    rows: Callable[[list[TurnToExport], Rewards, Counters], Rows]
    suffixes: tuple[str, ...] = (".parquet", ".jsonl")


def make_rows(row_of_turn: RowOfTurn, turns: list[TurnToExport], rewards: Rewards, counters: Counters) -> Rows:
    """Yield `row_of_turn(turn, rewards, number of rows before it)` for each turn, unless it raises NotExportedError."""
    for turn in turns:
        try:
            check_row(row := row_of_turn(turn, rewards, counters.rows_out))
        except NotExportedError as error:
            counters.drop(str(error))
        else:
            counters.rows_out += 1
            yield row


def trl_sdft(turn: TurnToExport, _rewards: Rewards, _number: int) -> JSON:
    """Return a row for TRL's SDFT trainer (self-distillation): a prompt, and context that only the teacher may read.

    The trainer appends `privileged_context` to the last user message, after two line breaks. So its teacher reads what
    opdkit's teacher reads with `--hint-placement last-user`. The trainer samples the replies itself. It accepts only
    prompts that end with a user message, and no tool definitions per row.
    """
    hint = turn.verdict["hint"]
    if hint is None:
        raise NotExportedError(f"no hint ({turn.verdict['hint_status']})")
    prompt = convert_prompt(turn)
    if prompt[-1]["role"] != "user":
        raise NotExportedError(f"prompt ends with a {prompt[-1]['role']} message")
    return {"prompt": prompt, "privileged_context": turn.hint_text.replace("{hint}", hint), "turn_id": turn.turn_id}


def trl_kto(turn: TurnToExport, _rewards: Rewards, _number: int) -> JSON:
    """Return a row for TRL's KTO trainer: prompt, reply, and whether it is desirable. KTO has no neutral replies."""
    label = check_reward(turn, (1, -1)) == 1
    return {"prompt": convert_prompt(turn), "completion": convert_completion(turn), "label": label,
            "tools": convert_tools(turn), "turn_id": turn.turn_id}  # fmt: skip


def trl_dpo(turn: TurnToExport, _rewards: Rewards, _number: int) -> JSON:
    """Return a row for TRL's DPO trainer: the wanted reply is chosen over the logged one.

    The wanted reply is a person's edit, the reply that a person kept, or one that the hinted teacher wrote.
    """
    if turn.verdict["hint"] is None:
        raise NotExportedError(f"no hint ({turn.verdict['hint_status']})")
    if turn.wanted is None:
        raise NotExportedError("no complete reply by a person or the teacher")
    chosen, rejected = [openai_message(turn.wanted)], convert_completion(turn)
    if chosen == rejected:
        raise NotExportedError("the same reply")
    return {"prompt": convert_prompt(turn), "chosen": chosen, "rejected": rejected, "tools": convert_tools(turn),
            "turn_id": turn.turn_id}  # fmt: skip


def trl_sft(turn: TurnToExport, rewards: Rewards, _number: int) -> JSON:
    """Return a row for TRL's SFT trainer: a prompt with a reply worth imitating."""
    check_reward(turn, rewards)
    return {"prompt": convert_prompt(turn), "completion": convert_completion(turn), "tools": convert_tools(turn),
            "turn_id": turn.turn_id}  # fmt: skip


def verl(turn: TurnToExport, _rewards: Rewards, number: int) -> JSON:
    """Return a row for verl's RLHFDataset: a prompt, and what a reward function compares a fresh reply with.

    In a conversation, the right answer is rarely one string, so the style is "model": a judge compares the fresh reply
    with `ground_truth`. That is the hint or, without a hint and with reward +1, the logged reply without its thinking
    (`extra_info.ground_truth_is` says which).
    """
    hint, reward = turn.verdict["hint"], turn.verdict["reward"]
    if hint is None and reward != 1:
        raise NotExportedError("neither a hint nor reward +1")
    truth = hint
    if hint is None:
        (reply,) = convert_completion(turn)
        _, truth = split_thinking(reply["content"])
        if not truth:
            is_call = "tool_calls" in reply
            raise NotExportedError("a tool call is not a text to compare with" if is_call else "nothing but thinking")
    return {
        "data_source": "opdkit",
        "prompt": convert_prompt(turn),
        "ability": "chat",
        "reward_model": {"style": "model", "ground_truth": truth},
        "extra_info": {"index": number, "split": "train", "turn_id": turn.turn_id,
                       "ground_truth_is": "reply" if hint is None else "hint", "reward": reward,
                       "tools": convert_tools(turn)},
    }  # fmt: skip


def openai(turns: list[TurnToExport], rewards: Rewards, counters: Counters) -> Rows:
    """Yield a session for OpenAI's fine-tuning, up to its last reply to imitate; nothing without such a reply.

    Replies to imitate have weight 1, all others 0.
    """
    if not turns:
        return
    messages, error = link_tool_calls(turns[0].session["messages"])
    for n, message in enumerate(messages):
        if message["role"] == "assistant" and message["content"]:
            thinking, answer = split_thinking(message["content"])
            messages[n] = message | {"reasoning": thinking or message["reasoning"], "content": answer}
    weighted, tools = set(), None
    for turn in turns:
        try:
            check_reward(turn, rewards)
            check_complete(turn)
            tools = convert_tools(turn)
            if turn.index >= len(messages):
                raise NotExportedError(error)
            if not (messages[turn.index]["content"] or messages[turn.index]["tool_calls"]):
                raise NotExportedError("nothing but thinking")
        except NotExportedError as not_exported:
            counters.drop(str(not_exported))
        else:
            weighted.add(turn.index)
    if not weighted:
        return
    counters.rows_out += len(weighted)
    counters.count("conversations")
    if without_thinking := sum(bool(messages[i]["reasoning"]) for i in weighted):  # the format has no field for it
        counters.count("replies without the thinking", without_thinking)
    lines = [_convert(message, int(i in weighted)) for i, message in enumerate(messages[: max(weighted) + 1])]
    yield {"messages": lines} | ({"tools": json.loads(tools)} if tools else {})


def link_tool_calls(messages: list[Message]) -> tuple[list[Message], str]:
    """Return the messages before the first one that OpenAI would refuse, and why; all of them and "" if it accepts all.

    Every call needs an id, and every result the id of a call right before it. If the log has no ids (ShareGPT), results
    are assigned to calls in order, and ids are made up.
    """
    linked, waiting = list[Message](), list[tuple[str, str]]()  # (logged id, id) of calls without a result
    numbers = count()
    for message in messages:
        if message["role"] == "tool":
            logged = message["tool_call_id"] or ""
            answered = next((pair for pair in waiting if pair[0] == logged), None)
            if answered is None:
                return linked, "a tool result without its call"
            waiting.remove(answered)
            linked.append(message | {"tool_call_id": answered[1]})
            continue
        if waiting:
            return linked, "a tool call without its result"
        numbered = zip(message["tool_calls"], numbers, strict=False)
        calls = [call | {"id": call["id"] or f"call_{number}"} for call, number in numbered]
        if len({call["id"] for call in calls}) < len(calls):
            return linked, "tool calls that share an id"
        waiting = [(old["id"], new["id"]) for old, new in zip(message["tool_calls"], calls, strict=True)]
        linked.append(message | {"tool_calls": calls})
    return linked, ""


def _convert(message: Message, weight: int) -> Message:
    exported = openai_message(message | {"reasoning": None}, arguments_as_text=True)
    if message["tool_calls"] and not exported["content"]:
        del exported["content"]
    if message["role"] == "tool" or not _NAME.fullmatch(exported.get("name", "")):
        exported.pop("name", None)
    return exported | ({"weight": weight} if message["role"] == "assistant" else {})


_SDFT = {"prompt": MESSAGES, "privileged_context": _TEXT, "turn_id": _TEXT}
_SFT = {"prompt": MESSAGES, "completion": MESSAGES, "tools": _TEXT, "turn_id": _TEXT}
_KTO = {"prompt": MESSAGES, "completion": MESSAGES, "label": pa.bool_(), "tools": _TEXT, "turn_id": _TEXT}
_DPO = {"prompt": MESSAGES, "chosen": MESSAGES, "rejected": MESSAGES, "tools": _TEXT, "turn_id": _TEXT}
_VERL = {
    "data_source": _TEXT,
    "prompt": MESSAGES,
    "ability": _TEXT,
    "reward_model": pa.struct({"style": _TEXT, "ground_truth": _TEXT}),
    "extra_info": pa.struct({"index": pa.int64(), "split": _TEXT, "turn_id": _TEXT, "ground_truth_is": _TEXT,
                             "reward": pa.int8(), "tools": _TEXT}),
}  # fmt: skip

TARGETS: dict[str, Target] = {
    "trl-sdft": Target(_SDFT, partial(make_rows, trl_sdft)),
    "trl-kto": Target(_KTO, partial(make_rows, trl_kto)),
    "trl-dpo": Target(_DPO, partial(make_rows, trl_dpo)),
    "trl-sft": Target(_SFT, partial(make_rows, trl_sft)),
    "verl": Target(_VERL, partial(make_rows, verl), (".parquet",)),
    "openai": Target({}, openai, (".jsonl",)),
}
