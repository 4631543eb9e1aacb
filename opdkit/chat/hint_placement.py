"""Placement of the hint in the prompt that the teacher reads."""

from opdkit.chat.control_tokens import ChatError
from opdkit.chat.openai_messages import Message
from opdkit.config.wording import DEFAULTS


def with_hint(
    messages: list[Message], hint: str, placement: str, text: str = DEFAULTS["teacher"]["hint"]
) -> list[Message]:
    """Return the prompt with `text` added, in which the hint replaces {hint}; `messages` is not changed.

    `last-user`: at the end of the last user message. `tail`: at the end of the last message. `system`: at the end of
    the first system message, which is added if there is none. Raises ChatError if there is no such message.

    >>> with_hint([{"role": "user", "content": "How warm?"}], "Use Celsius.", "tail")
    [{'role': 'user', 'content': "How warm?\\n\\n[user's hint / instruction]\\nUse Celsius."}]
    """
    text = text.replace("{hint}", hint)
    roles = [message["role"] for message in messages]
    if placement == "system":
        if "system" not in roles:
            return [{"role": "system", "content": text}, *messages]
        index = roles.index("system")
    elif placement == "tail":
        if not roles or roles[-1] == "assistant":
            raise ChatError("no message for the hint")
        index = len(roles) - 1
    else:
        if "user" not in roles:
            raise ChatError("no user message")
        index = len(roles) - 1 - roles[::-1].index("user")
    before = f"{messages[index]['content']}\n\n" if messages[index]["content"] else ""
    hinted = messages[index] | {"content": f"{before}{text}"}
    return [*messages[:index], hinted, *messages[index + 1 :]]
