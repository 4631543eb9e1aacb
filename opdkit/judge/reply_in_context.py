"""Reply as a judge sees it: with the messages before it, and with what users and tools said in reaction to it."""

from collections.abc import Sequence
from dataclasses import dataclass

from opdkit.chat.conversation import NO_DECISION
from opdkit.chat.messages import message
from opdkit.chat.openai_messages import Message
from opdkit.config.fields import JSON


@dataclass(frozen=True)
class ReplyInContext:
    """Reply at `index` of the messages of its session, and its next state: the messages before the next reply."""

    messages: Sequence[Message]
    index: int
    next_state: list[Message]

    @property
    def request(self) -> Message | None:
        """Last message of the user before the reply."""
        return next((m for m in reversed(self.messages[: self.index]) if m["role"] == "user"), None)


def reply_in_context(messages: list[Message], turn: JSON) -> ReplyInContext:
    """Return the reply of a row of `turns`. A person's comment on it comes first in its next state."""
    index, comment = turn["message_index"], (turn["decision"] or NO_DECISION)["comment"]
    next_state = messages[index + 1 : index + 1 + turn["next_count"]]
    return ReplyInContext(messages, index, [message("user", comment), *next_state] if comment else next_state)
