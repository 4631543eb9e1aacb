"""Parser of a judge's raw answers: a vote, or null and the reason. Pure and strict: no vote is better than a wrong one.

Only the last decision counts, in the text after the last `</think>`. An answer is not a vote if it was cut off or
interrupted, if it only repeats the rules, or if its last decision is not an option. No earlier decision replaces it.
"""

import re
import unicodedata
from collections.abc import Iterable
from typing import NamedTuple

from opdkit.chat.finish_reasons import is_cut_off, is_incomplete
from opdkit.chat.markup import final_answer
from opdkit.config.wording import DEFAULTS, Texts
from opdkit.judge.votes import Answer, HintVote, RewardVote

CUT_OFF = "cut off by the token limit"
INTERRUPTED = "interrupted"
EMPTY = "empty answer"
OPEN_THINKING = "the thinking never ends"
NO_DECISION = "no decision"
HALF_DECISION = "the last decision is incomplete"
ECHO = "repeats the rules"
OFF_RANGE = "decision not on offer"
DENIED = "the last decision is denied"

BOX = r"(?<!\\)\\+boxed\s*\{"
# Markers of a hint. Their characters may be escaped, and the end may be written as in XML.
HINT_START = r"\\?\[\s*HINT\\?_START\s*\\?\]"
HINT_END = r"\\?\[\s*(?:/?HINT\\?_END|/HINT\\?_START)\s*\\?\]"
_BOX, _BRACE = re.compile(BOX, re.IGNORECASE), re.compile("[{}]")
# A marker may be in bold or in code quotes.
_START, _END = (re.compile(rf"(\*\*|`|){marker}\1", re.IGNORECASE) for marker in (HINT_START, HINT_END))
_NUMBER = re.compile(r"([+-]?)\s*(\d)(?:\.0*)?")
_DASH = re.compile("[\u2010-\u2014\u2212\uff0d]")  # hyphens, dashes, the minus sign, and the full-width minus
_DECISION = re.compile(rf"(?:(?:[+\-]|{_DASH.pattern})\s*)?\d")
_DENIAL = re.compile(r"(?:\bnot|\brather than|\binstead of|\bnicht|不是|而非)[ $`*'\"(]*\Z", re.IGNORECASE)
# A few words of any language within one sentence, between two decisions: they may deny either of them.
_BETWEEN = re.compile(r"[^.!?:\n。！？：]{0,24}")
_WRAPPED = re.compile(r"\\(?:text|textbf|mathrm|mathbf|mathit|bf|rm)\s*\{([^{}]*)\}")
# All that may stand between two decisions of an enumeration.
_ENUMERATION = re.compile(r"[\s$.`*'\"()]*(?:,|/|\||;|\bor\b|\band\b)(?:[\s$.`*'\"(),/|;]|\bor\b|\band\b)*")


def parse_hint(answer: Answer, wording: str = DEFAULTS["judge"]["hint"]) -> HintVote:
    """Return the vote on the hint question. `wording` is its text, which an answer may repeat.

    A decision 1 without a complete hint block is a vote with a null hint: the judge saw something to learn, but gives
    no candidate. A hint next to a decision -1 is ignored.
    """
    body, error = _find_visible_text(answer)
    # A hint may itself mention \boxed{...} ("put the result in \boxed{}"), so closed blocks are not searched.
    outside, hint = split_hint(body)
    decision, error = (None, error) if error else _parse_decision(outside, wording, (1, -1))
    confidence = None if error else answer.confidence
    return HintVote(decision, hint if decision == 1 else None, answer.text, error, confidence)


def parse_reward(answer: Answer, wording: str = DEFAULTS["judge"]["reward"]) -> RewardVote:
    """Return the vote on the reward question. `wording` is its text, which an answer may repeat."""
    body, error = _find_visible_text(answer)
    score, error = (None, error) if error else _parse_decision(body, wording, (1, 0, -1))
    return RewardVote(score, answer.text, error, None if error else answer.confidence)


def read_decisions(answers: Iterable[Answer], name: str, texts: Texts) -> list[tuple[int | None, float | None]]:
    """Return (decision, confidence) of each answer. `name` is the name of the question, hint or reward."""
    if name == "hint":
        return [(vote.decision, vote.confidence) for vote in (parse_hint(one, texts["hint"]) for one in answers)]
    return [(vote.score, vote.confidence) for vote in (parse_reward(one, texts["reward"]) for one in answers)]


def find_decision_span(answer: Answer, name: str) -> tuple[int, int] | None:
    """Return (start, end) of the last decision in the text of an answer; None if there is no decision or no digit.

    The span is the sign and the digit, and the character before them. Many vocabularies have one token for "{-" but
    none for "{1". So the choice between 1 and -1 is made in the token of the brace.
    """
    body, _ = final_answer(answer.text, answer.thinking)
    parts = _find_outside_hints(body) if name == "hint" else [(0, len(body))]
    boxes = [box.end() for part in parts for box in _BOX.finditer(body, *part)]
    number = _DECISION.search(body, boxes[-1]) if boxes else None
    first = len(answer.text) - len(body)
    return (first + number.start() - 1, first + number.end()) if number else None


def split_hint(body: str) -> tuple[str, str | None]:
    """Return the text outside of all closed hint blocks, and the text of the last block.

    The hint is None when the last block is unclosed, empty or absent.
    """
    hint = None
    if starts := list(_START.finditer(body)):
        last_end = _END.search(body, starts[-1].end())
        hint = body[starts[-1].end() : last_end.start()].strip() or None if last_end else None
    return "\n".join(body[start:end] for start, end in _find_outside_hints(body)), hint


def _find_outside_hints(body: str) -> list[tuple[int, int]]:
    """Return (start, end) of the parts between the closed hint blocks."""
    parts, position, searched = [], 0, 0
    for end in _END.finditer(body):
        starts = list(_START.finditer(body, searched, end.start()))
        searched = end.start()  # so that many ends without a start take linear time
        if starts:
            parts.append((position, starts[-1].start()))
            position = searched = end.end()
    return [*parts, (position, len(body))]


def _find_visible_text(answer: Answer) -> tuple[str, str | None]:
    """Return the text after the thinking, and an error if it is clear already that this text holds no vote."""
    if answer.error:
        return "", answer.error
    body, is_open = final_answer(answer.text, answer.thinking)
    if is_incomplete(answer.finish_reason):
        return body, CUT_OFF if is_cut_off(answer.finish_reason) else f"{INTERRUPTED}: {answer.finish_reason}"
    if is_open:
        return body, OPEN_THINKING
    return body, None if body.strip() else EMPTY


class _Box(NamedTuple):
    r"""Span and content of a decision, `\boxed{...}`; the content is None if the brace never closes."""

    start: int
    end: int
    content: str | None

    @property
    def value(self) -> int | None:
        """Return 1 for "1", " +1", "1.0", "\\text{1}", "$1$"; None for anything but a number of one digit."""
        text = _WRAPPED.sub(r"\1", _WRAPPED.sub(r"\1", self.content or "")).strip("{}$ \t\n")
        match = _NUMBER.fullmatch(_DASH.sub("-", unicodedata.normalize("NFKC", text)))
        return int(match[1] + match[2]) if match else None


def _parse_decision(body: str, wording: str, allowed: tuple[int, ...]) -> tuple[int | None, str | None]:
    """Return (decision, None), or (None, why there is none)."""
    closing = _match_braces(body)
    boxes = [_Box(m.start(), end + 1, body[m.end() : end]) if (end := closing.get(m.end())) else
             _Box(m.start(), len(body), None) for m in _BOX.finditer(body)]  # fmt: skip
    if not boxes:
        return None, NO_DECISION
    last = boxes[-1]
    if last.content is None:
        return None, HALF_DECISION
    if _DENIAL.search(body[max(0, last.start - 20) : last.start]):
        return None, DENIED
    if last.value not in allowed:
        return None, f"{OFF_RANGE}: {last.content.strip()[:40]!r}"
    if len(boxes) > 1 and _is_echo(body, boxes, wording):
        return None, ECHO
    if len(boxes) > 1 and boxes[-2].value != last.value and _BETWEEN.fullmatch(body, boxes[-2].end, last.start):
        return None, DENIED
    return last.value, None


def _match_braces(text: str) -> dict[int, int]:
    """Return the position after an opening brace -> that of its closing brace, in one pass."""
    closing, open_braces = dict[int, int](), list[int]()
    for brace in _BRACE.finditer(text):
        if brace[0] == "{":
            open_braces.append(brace.end())
        elif open_braces:
            closing[open_braces.pop()] = brace.start()
    return closing


def _is_echo(body: str, boxes: list[_Box], wording: str) -> bool:
    """Return whether the last of two or more decisions is part of a list of the options rather than a choice.

    An option is quoted from the rules if the same 16 characters stand before and after it there.
    """
    before, last = boxes[-2:]
    if before.value != last.value and _ENUMERATION.fullmatch(body[before.end : last.start]):
        return True
    rules, width = " ".join(wording.split()), 16
    quoted = []
    for box in boxes:
        around = " ".join(body[max(0, box.start - width) : box.end + width].split())
        # Without this minimum of text around it, any bare decision would be a quotation.
        if len(around) - (box.end - box.start) >= width // 2 and around in rules:
            quoted.append(box)
    return len({box.value for box in quoted}) > 1 and last in quoted
