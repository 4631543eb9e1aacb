"""Markup in the text of replies, as chat templates spell it out: thinking, tool calls, end markers."""

import re
from collections import deque

import orjson

from opdkit.chat.conversation import JSON, Unreadable
from opdkit.chat.messages import read_call

# What closes and opens thinking: in most templates, in those of Seed-OSS and MiniMax-M3, of Mistral and Cohere, of
# gpt-oss (where calls are no thinking), and of Gemma 4. Cohere's write a token before the answer, too.
CLOSING = re.compile(r"</(?:\w+:)?think>|\[/THINK\]|<\|(?:END_THINKING|START_RESPONSE|START_TEXT)\|>|"
                      r"<\|channel\|>final<\|message\|>|<channel\|>|"
                      r"<\|end\|><\|start\|>assistant(?= to=|<\|channel\|>commentary)")  # fmt: skip
_TAG, _TOKEN = r"<(?:\w+:)?think>|\[THINK\]", r"<\|START_THINKING\|>|<\|channel\|>(?!commentary| ?json)|<\|channel>"
OPENING = re.compile(f"{_TAG}|{_TOKEN}")
_FIRST_OPENING = re.compile(rf"\A\s*+(?:{_TAG})|{_TOKEN}")
_THINKING = re.compile(r"\s*+(?:<think>)?(.*?)</think>", re.DOTALL)
_END = re.compile(r"(?:(?:<\|im_end\|>|<\|eot_id\|>|<\|end\|>|<\|endoftext\|>|<end_of_turn>|</s>)\s*+)++")

# What Qwen3-Coder's and GLM's templates write between the tags of a call.
_XML_CALL = re.compile(r"<function=[^<>\s]+>.*</function>|[\w.:-]+\s*+(?:<arg_key>.*</arg_value>)?", re.DOTALL)


def split_reply(text: str) -> tuple[str | None, str, list[JSON]]:
    """Return (thinking, answer, calls) of a reply as a policy wrote it, without the end markers of its template."""
    # The last run of markers. A pattern with \Z would try each marker again, in quadratic time.
    end = deque(_END.finditer(text), maxlen=1)
    reasoning, answer = split_thinking(text[: end[0].start()] if end and end[0].end() == len(text) else text)
    return reasoning, *split_calls(answer)


def split_thinking(text: str) -> tuple[str | None, str]:
    """Return (thinking, answer): "<think>a</think>b" -> ("a", "b").

    The opening tag may be in the prompt. If thinking never ends, the answer is empty.
    """
    match = _THINKING.match(text)
    if match and (text.lstrip().startswith("<think>") or "<think>" not in match[1]):
        return match[1].strip() or None, text[match.end() :].lstrip()
    if text.lstrip().startswith("<think>"):
        return text.lstrip().removeprefix("<think>").strip() or None, ""
    return None, text


def split_calls(text: str) -> tuple[str, list[JSON]]:
    """Return (text, calls) of a reply with calls between `<tool_call>` tags, as Hermes and Qwen templates write them.

    If a call cannot be read, the text is returned unchanged, without calls.
    """
    outside, *blocks = text.split("<tool_call>")
    texts, calls = [outside], []
    for block in blocks:
        body, closed, behind = block.partition("</tool_call>")
        if not closed:
            return text, []
        try:
            calls.append(read_call(orjson.loads(body)))
        except (orjson.JSONDecodeError, Unreadable):
            return text, []
        texts.append(behind)
    return ("".join(texts).strip(), calls) if calls else (text, [])


def has_broken_call(text: str) -> bool:
    """Return True for a reply with a call between tags that is neither JSON nor as those of Qwen3-Coder or GLM."""
    blocks = (block.partition("</tool_call>") for block in text.split("<tool_call>")[1:])
    return any(not closed or not (split_calls(f"<tool_call>{body}</tool_call>")[1] or _is_xml_call(body.strip()))
               for body, closed, _ in blocks)  # fmt: skip


def _is_xml_call(body: str) -> bool:
    counts = [body.count(tag) for tag in ("<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>")]
    is_whole = len(set(counts)) == 1 and body.count("<parameter=") == body.count("</parameter>")
    return is_whole and _XML_CALL.fullmatch(body) is not None


def final_answer(text: str, opened: bool = False) -> tuple[str, bool]:
    """Return the text after the last `</think>` or its like, and whether thinking is still open at its end.

    `opened`: the prompt itself opened the thinking block.
    """
    *thoughts, answer = CLOSING.split(text)
    return answer, OPENING.search(answer) is not None or (opened and not thoughts)


def opens_thinking(prompt: str) -> bool:
    """Return whether a prompt ends with an open thought, as generation prompts of reasoning models do."""
    openings = list(OPENING.finditer(prompt))
    return bool(openings) and prompt[openings[-1].end() :].strip() in ("", "thought")  # the latter: Gemma 4


def visible(reply: str, thinking: bool) -> str:
    """Return the part of a reply that its reader sees: what follows the thinking; nothing if that never ends.

    `thinking`: the prompt itself opened the thinking block.
    """
    body, is_open = final_answer(reply, thinking)
    if not thinking and body == reply:  # a tag behind text of an answer is a mention
        is_open = _FIRST_OPENING.search(reply) is not None
    return "" if is_open else body.strip()
