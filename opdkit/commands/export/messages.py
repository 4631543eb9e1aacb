"""Judged turns of a run, and their prompts and replies in OpenAI's format, which trainers read.

A trainer encodes the rendered text as a whole. Text of a log that looks like a template's control tokens would become
control tokens there, and forge a turn. opdkit can tell them apart when it encodes, but an exported file cannot. So such
turns are not exported.
"""

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

from opdkit.chat.control_tokens import has_control_tokens
from opdkit.chat.conversation import NO_DECISION
from opdkit.chat.finish_reasons import is_cut_off, is_incomplete
from opdkit.chat.markup import split_reply, split_thinking
from opdkit.chat.messages import message
from opdkit.chat.openai_messages import Message, openai_message, read_tool_definitions
from opdkit.commands.turns.line import signed
from opdkit.config.fields import JSON
from opdkit.config.wording import DEFAULTS
from opdkit.console import progress
from opdkit.store.counters import Counters
from opdkit.store.joined_turns import CHECKED, JoinedTurn, by_session, joined_turns
from opdkit.store.plans import read_hint_text
from opdkit.store.reading import count_parts
from opdkit.store.reviews import Review, read_reviews_in_force

if TYPE_CHECKING:
    from opdkit.chat.template import Chat

CONTROL_TOKENS = "control tokens in the text"
REFUSED = "JSON that strict readers refuse"
_BIG = re.compile("[:,[-][0-9]{19}")  # an integer with the 19 digits of 2^63, or more


class NotExportedError(Exception):
    """Raised for a turn that cannot be exported. Its text is the reason that is counted."""


@dataclass(frozen=True)
class TurnToExport(JoinedTurn):
    """Turn with its session. Its verdict has the decision in force applied."""

    verdict: JSON
    review: Review | None = None
    targets: Sequence[Any] = ()
    wanted: Message | None = None  # the reply to prefer, by a person or the teacher
    hint_text: str = DEFAULTS["teacher"]["hint"]  # text around the {hint} in the teacher's prompt


def read_judged_turns(
    run: Path, limit: int | None, counters: Counters, chat: "Chat | None" = None
) -> Iterator[list[TurnToExport]]:
    """Yield the judged turns of each session, within the first `limit` sessions of the run.

    Hints that `--check-hints` dropped are left out, and decisions in force override the votes. `rows_in` counts all
    turns. Turns without a verdict are dropped: as "not judged", or for the reason why they cannot be trained on. `chat`
    decodes the replies that the teacher wrote; without it, they are not read. Raises what `read_part` raises.
    """
    columns = CHECKED if chat is None else {**CHECKED, "targets": ("turn_id", "written", "response_ids")}
    hint_text, reviews, parts = read_hint_text(run), read_reviews_in_force(run), count_parts(run, "judge")
    of_parts = (joined_turns(run, part, columns, limit=limit, reviews=reviews) for part in range(parts))
    for session_turns in by_session(chain.from_iterable(progress(of_parts, "export", parts, "parts"))):
        judged = []
        for joined in session_turns:
            counters.rows_in += 1
            row, verdict = joined.turn, joined.final_verdict
            if verdict is not None:
                wanted = wanted_reply(joined, chat)
                judged.append(TurnToExport(joined.session, row, verdict, hint_text=hint_text, wanted=wanted))
            else:
                counters.drop("not judged" if row["trainable"] else row["skip_reason"] or "not trainable")
        yield judged


def wanted_reply(turn: JoinedTurn, chat: "Chat | None") -> Message | None:
    """Return a person's edit, else the reply that a person kept, else the hinted teacher's first finished reply."""
    decision, logged = turn.turn["decision"] or NO_DECISION, turn.session["messages"][turn.index]
    thinking, answer = split_thinking(logged["content"] or "")
    if text := decision["edited"]:  # keeps the logged tool calls and thinking, so that only the text differs
        if split_thinking(text)[0]:
            return logged | {"content": text, "reasoning": None}
        return logged | {"content": (logged["content"] or "").removesuffix(answer) + text}
    thinking = thinking or logged["reasoning"]
    # Beside a rejected reply with thinking, a kept text without its own would teach a trainer to omit thinking.
    if (text := decision["kept"]) and (split_thinking(text)[0] or not thinking):
        return message("assistant", text)
    if chat is None:
        return None
    written = [row["response_ids"].tolist() for row in turn.targets if row["written"] is not None]
    if not (texts := [chat.text(ids[:-1]) for ids in written if ids[-1] in chat.stop_ids]):
        return None
    prompt = chat.prompt_ids(turn.session["messages"][: turn.index], turn.session["tools"])  # it may open the thinking
    if (text := next((text for text in texts if chat.visible_text(text, prompt)), None)) is None:
        return None
    reasoning, content, calls = split_reply(text)
    return message("assistant", content or None, reasoning=reasoning, tool_calls=calls)


def check_reward(turn: TurnToExport, rewards: Sequence[int]) -> int:
    """Return the reward of a turn. Raises NotExportedError if it is missing or not one of `rewards`."""
    reward: int | None = turn.verdict["reward"]
    if reward is None:
        raise NotExportedError(f"no reward ({turn.verdict['reward_status']})")
    if reward not in rewards:
        raise NotExportedError(f"reward {signed(reward)}")
    return reward


def check_complete(turn: TurnToExport) -> None:
    """Raise NotExportedError if the reply was cut off or interrupted: a trainer would teach the model to end there."""
    reason = turn.turn["finish_reason"]
    if is_incomplete(reason):
        raise NotExportedError("reply cut off" if is_cut_off(reason) else "reply interrupted")


def check_row(row: JSON) -> None:
    """Raise NotExportedError for text or numbers that readers would misread: integers beyond 64 bits, control tokens.

    The latter are text that a tokenizer reads as control tokens of a chat template, also in tools and parsed arguments.
    """
    text = dump_json(row)
    if _BIG.search(text):
        json.loads(text, parse_int=_check_integer)
    if has_control_tokens(text) and has_control_tokens(text.replace("\\n", "\n")):  # control tokens have no line break
        raise NotExportedError(CONTROL_TOKENS)


def convert_prompt(turn: TurnToExport) -> list[Message]:
    """Return all messages before the reply. Raises NotExportedError."""
    if not turn.index:
        raise NotExportedError("no prompt")
    return [openai_message(each) for each in turn.session["messages"][: turn.index]]


def convert_completion(turn: TurnToExport) -> list[Message]:
    """Return the reply, as a list of one message. Raises NotExportedError, also for an incomplete reply."""
    check_complete(turn)
    return [openai_message(turn.session["messages"][turn.index])]


def convert_tools(turn: TurnToExport) -> str | None:
    """Return the tool definitions as JSON in OpenAI's wrapped form; None without any. Raises NotExportedError."""
    definitions = read_tool_definitions(turn.session["tools"])
    return dump_json(definitions) if definitions else None


def dump_json(value: Any) -> str:
    """Return one line of JSON. Raises NotExportedError for NaN, infinity, and values that are nested too deeply."""
    try:
        return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    except (ValueError, RecursionError):
        raise NotExportedError(REFUSED) from None


def _check_integer(text: str) -> None:
    """Raise NotExportedError for an integer that does not fit into 64 bits."""
    if not -(2**63) <= int(text) < 2**63:
        raise NotExportedError(REFUSED)
