"""Prompts of the judge: two questions about one turn, after a common text that servers can cache.

Everything that comes from a log is quoted line by line behind "| ", and the vote markers in it are broken. So no text
in a log can forge a section, a decision or a hint.
"""

import re

from opdkit.chat.markup import CLOSING, OPENING, split_thinking
from opdkit.chat.openai_messages import Message
from opdkit.config.wording import DEFAULTS, Texts
from opdkit.judge.parse import BOX, HINT_END, HINT_START
from opdkit.judge.reply_in_context import ReplyInContext

# Markers that the parser of the answers reads: a judge that repeats a log must not cast or change its vote thereby.
# Before some words <|channel|> opens no thinking, but a long text may be cut between them.
_PATTERNS = (BOX, HINT_START, HINT_END, CLOSING.pattern, OPENING.pattern, r"<\|channel\|>")
_MARKERS = re.compile("|".join(_PATTERNS), re.IGNORECASE)
_BROKEN = str.maketrans("\\[]<>", "/()()")
# Beginning of a line that says who speaks; these lines are quoted like the text.
_SPEAKER = re.compile(r"\(\s*(?=from\s+the\s)", re.IGNORECASE)


def write_turn(reply: ReplyInContext, max_section_chars: int) -> str:
    """Return the common text of both questions: last user message, reply, whole next state with its roles.

    Each section is cut to its head and tail: the point of a request is at its beginning, that of an error at its end.
    """
    next_state = []
    for message in reply.next_state:
        # A line break in a name could forge a line.
        name = defuse(" ".join((message["name"] or "").split())) if message["role"] == "tool" else ""
        next_state.append(f"(from the {message['role']}{name and f' {name}'})\n{_write_spoken(message)}")
    sections = {
        "Request": _write_spoken(reply.request) if reply.request else "",
        "Reply": _write_spoken(reply.messages[reply.index]),
        "What came next": "\n\n".join(next_state),
    }
    head, tail = max_section_chars - max_section_chars // 3, max_section_chars // 3
    for title, text in sections.items():
        if (left_out := len(text) - head - tail) > 0:
            sections[title] = f"{text[:head]}\n[... {left_out:,} characters left out ...]\n{text[-tail:]}"
    return "\n\n".join(f"## {title}\n{quote(text)}" for title, text in sections.items())


def judge_messages(common: str, question: str, texts: Texts = DEFAULTS["judge"]) -> list[Message]:
    """Return the messages that ask one question of `texts`, such as "hint", about the turn in `common`."""
    user = f"{common}\n\n## Question\n{texts[question]}"
    return [{"role": "system", "content": texts["system"]}, {"role": "user", "content": user}]


def defuse(text: str) -> str:
    """Return `text` with its vote, hint and speaker markers broken; a person can still read it."""
    text = "\n".join(text.splitlines())  # form feeds and Unicode separators, too, read as new lines
    text = _MARKERS.sub(lambda m: m[0].translate(_BROKEN), text)
    return _SPEAKER.sub("[", text)


def _write_spoken(message: Message) -> str:
    """Return the visible part of a message: its text and its calls, without the thinking.

    A server that does not parse the thinking logs it as part of the text.
    """
    text = message["content"] or ""
    text = split_thinking(text)[1] if message["role"] == "assistant" else text
    calls = [f"[calls {c['name']} {c['arguments']}]" for c in message["tool_calls"]]
    return defuse("\n".join(filter(None, [text, *calls]))) or "(empty)"


def quote(text: str) -> str:
    """Return `text` with "| " before each line."""
    return "\n".join(f"| {line}" for line in text.splitlines()) or "| (empty)"
