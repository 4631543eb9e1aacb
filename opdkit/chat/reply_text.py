"""Find a reply in the rendering of a conversation: the text that a template writes after the prompt of the reply."""

import re

from opdkit.chat.control_tokens import ChatError
from opdkit.chat.openai_messages import Message
from opdkit.chat.rendering import ASKED, ChatTemplate

EMPTY_THINKING = re.compile(r"\s*+(?:<think>)?\s*+</think>\s*")
# An empty thought with which a prompt says that there is none: Qwen's and DeepSeek's, Gemma 4's, Command's.
_NO_THOUGHT = re.compile(
    r"<think>\s*</think>\s*|<\|channel>thought\s*<channel\|>|<\|START_THINKING\|><\|END_THINKING\|>"
)
_THOUGHT = "opdkit's thought"


def render_reply(template: ChatTemplate, before: list[Message], message: Message, tools: str | None) -> tuple[str, str]:
    """Return what the template renders for the reply `message` after the prompt of the messages `before`.

    Also return the text at its beginning that closes a thought which the prompt opens and the template leaves out of
    the conversation; "" if there is none. Raises ChatError if the conversation's rendering does not continue the
    prompt, or leaves out text or calls of the reply.
    """
    prompt = template.render(before, tools, generation_prompt=True)
    whole = template.render([*before, message], tools, generation_prompt=False)
    if whole.startswith(prompt):
        reply, closing = whole[len(prompt) :], ""
    else:
        reply, closing = _find_reply(template, before, message, tools, prompt, whole)
    _check_complete(template, before, message, tools, whole, reply)
    return reply, closing


def _find_reply(
    template: ChatTemplate, before: list[Message], message: Message, tools: str | None, prompt: str, whole: str
) -> tuple[str, str]:
    """Return the reply, and what closes its thought, in a rendering that does not begin with the prompt of the reply.

    - Mistral's templates write the system message into the last user message only if no reply follows, gpt-oss's
      leaves out thinking before a final reply, Hermes's ends a tool's result in another way if a reply follows: the
      reply follows the header.
    - Gemma 4's, GLM's and MiniMax's prompts end with a thought, empty or open, that the rendering leaves out.
    - Apertus's prompts repeat the header after a tool's result.

    Another reply shows how far what precedes may reach. Raises ChatError if none of this holds.
    """
    probe = message | {"content": "1" if (message["content"] or "").lstrip().startswith("0") else "0"}
    other = template.render([*before, probe | {"reasoning": None, "tool_calls": []}], tools, generation_prompt=False)
    start = _find_common(whole, other)  # at most to the first character of the reply
    question = template.try_render(before, tools) or ""
    end = _find_end_of_header(template, before[-1], prompt, question, start)
    if end is not None:
        return whole[end:].removeprefix(prompt[len(prompt.rstrip()) :]), ""
    common = _drop_half_tag(_find_common(prompt, start))
    thought, reply = prompt[len(common) :], whole[len(common) :]
    logged = template.encoder.as_data((message.get("reasoning") or "").strip(), sampled=True)
    if (not logged or logged not in reply) and "</think>" not in (message["content"] or ""):
        closed = EMPTY_THINKING.match(reply)
        if _NO_THOUGHT.fullmatch(thought):
            return reply[closed.end() if closed else 0 :], ""
        if closed and _NO_THOUGHT.fullmatch(thought + closed[0]):
            return reply, ""
        closing = _find_closing(template, before, message, tools, prompt, reply)
        if closing is not None:
            return closing + reply, closing
    if before[-1]["role"] == "tool" and start == question:
        asked, asked_prompt = template.try_render(ASKED), template.try_render(ASKED, generation_prompt=True)
        if asked and asked_prompt == asked + prompt.removeprefix(question):
            return reply, ""
    raise ChatError("reply does not continue the prompt")


def _find_end_of_header(template: ChatTemplate, last: Message, prompt: str, question: str, start: str) -> int | None:
    """Return where the header of the reply ends in `start`, the rendering up to the reply; None if it has no header.

    `question` is the rendering of the messages before the reply, of which `last` is the last one. The header follows
    it in the prompt. It may stand in an earlier message, too, so it counts only behind the last message.
    """
    header = prompt.removeprefix(question)
    text = template.encoder.as_data((last["content"] or "").strip(), sampled=last["role"] == "assistant")
    # The header may hold the same text as the last message: "hi" is in <think>, too.
    at = prompt.rfind(text, 0, len(prompt) - len(header) or None) if text else -1
    common = len(_drop_half_tag(_find_common(question, start)))
    behind = max(common, start.rfind(text) + len(text) if text else 0)
    for ending, lowest in ((prompt[at:] if at >= 0 else "", min(at, common)), (header, behind)):
        if (ending := ending.rstrip()) and (found := start.rfind(ending, lowest)) >= 0:
            return found + len(ending)
    return None


def _find_closing(
    template: ChatTemplate, before: list[Message], message: Message, tools: str | None, prompt: str, reply: str
) -> str | None:
    """Return the text that closes the thought which the prompt opens, before this reply; None if it opens none.

    The template writes it for a reply with thinking.
    """
    rendered = template.try_render([*before, message | {"reasoning": _THOUGHT}], tools) or ""
    opening, _, rest = rendered.removeprefix(prompt).partition(_THOUGHT)
    if not rendered.startswith(prompt) or opening.strip() or not rest.endswith(reply):
        return None
    return opening + rest.removesuffix(reply)


def _check_complete(
    template: ChatTemplate, before: list[Message], message: Message, tools: str | None, whole: str, reply: str
) -> None:
    """Raise ChatError if the `whole` rendering leaves out calls or text of the reply.

    Many templates do not support calls: for a call, they write just the stop token, as for an empty reply.
    """
    text, calls = (message["content"] or "").strip(), message.get("tool_calls") or ()
    others = {}
    # A rendered call holds its name. If one is missing, the comparison decides, which costs a rendering.
    said = "\n".join([text, message.get("reasoning") or "", *(call["arguments"] for call in calls)])
    names = [call["name"] for call in calls]
    if any(reply.count(name) - said.count(name) < "\n".join(names).count(name) for name in names):
        others["calls"] = {"tool_calls": calls[:-1]}
        others["the names of calls"] = {"tool_calls": [call | {"name": "opdkit"} for call in calls]}
    if text and template.encoder.as_data(text, sampled=True) not in reply:
        others["text of a reply"] = {"content": "opdkit"}
    for part, other in others.items():
        if template.try_render([*before, message | other], tools) == whole:
            raise ChatError(f"template: leaves out {part}")


def _find_common(a: str, b: str) -> str:
    """Return what both texts begin with."""
    low, high = 0, min(len(a), len(b))
    while low < high:  # the first `low` characters are equal; comparing slices is faster than characters one by one
        middle = (low + high + 1) // 2
        low, high = (middle, high) if a[low:middle] == b[low:middle] else (low, middle - 1)
    return a[:low]


def _drop_half_tag(text: str) -> str:
    return re.sub(r"<[^<>\s]*\Z", "", text)
