"""From a judge's raw answer to a vote, or to null and the reason. Pure, and strict: no vote beats a wrong vote.

What counts is the text after the last `</think>`, and in it the last decision. An answer that was cut off, that only
repeats the rules, or whose last decision is not on offer is no vote, and no earlier decision stands in for it.
"""

import re

from opdkit.chat.finish_reasons import is_cut_off
from opdkit.chat.markup import final_answer
from opdkit.judge.exchange import Answer, HintVote, RewardVote
from opdkit.judge.prompts import QUESTIONS

HINT_DECISIONS = (1, -1)
REWARD_SCORES = (1, 0, -1)

CUT_OFF = "cut off by the token limit"
EMPTY = "empty answer"
OPEN_THINKING = "the thinking never ends"
NO_DECISION = "no decision"
HALF_DECISION = "the last decision is incomplete"
ECHO = "repeats the rules"
OFF_RANGE = "decision not on offer"

_BOX = re.compile(r"\\+boxed\s*\{", re.IGNORECASE)
_START = re.compile(r"\[\s*HINT_START\s*\]", re.IGNORECASE)
_END = re.compile(r"\[\s*HINT_END\s*\]", re.IGNORECASE)
_NUMBER = re.compile(r"([+-]?)\s*(\d)(?:\.0*)?")
_WRAPPED = re.compile(r"\\(?:text|textbf|mathrm|mathbf|mathit|bf|rm)\s*\{([^{}]*)\}")
# Between two decisions of an enumeration, and nowhere else.
_ENUMERATION = re.compile(r"[\s$.`*'\"()]*(?:,|/|\||;|\bor\b|\band\b)(?:[\s$.`*'\"(),/|;]|\bor\b|\band\b)*")


def parse_hint(answer: Answer) -> HintVote:
    """The vote on the hint question.

    A decision 1 whose hint block is missing, empty or unclosed stands, with a null hint: it says that something was
    revealed and counts as a vote, but it is no candidate. A hint beside a decision -1 is not taken.
    """
    body, error = _body(answer)
    hint = _hint(body)
    # A hint may itself speak of \boxed{...} ("put the result in \boxed{}"): closed blocks hold no decision.
    decision, error = (None, error) if error else _decision(_without_hints(body), "hint", HINT_DECISIONS)
    return HintVote(decision, hint if decision == 1 else None, answer.text, error)


def parse_reward(answer: Answer) -> RewardVote:
    """The vote on the reward question."""
    body, error = _body(answer)
    score, error = (None, error) if error else _decision(body, "reward", REWARD_SCORES)
    return RewardVote(score, answer.text, error)


def _body(answer: Answer) -> tuple[str, str | None]:
    """What follows the thinking, and why there is no vote in it if that is clear already."""
    if answer.error:
        return "", answer.error
    body, is_open = final_answer(answer.text, answer.thinking)
    if is_cut_off(answer.finish_reason):
        return body, CUT_OFF
    if is_open:
        return body, OPEN_THINKING
    return body, None if body.strip() else EMPTY


def _decision(body: str, question: str, allowed: tuple[int, ...]) -> tuple[int | None, str | None]:
    """(decision, None), or (None, why there is none)."""
    boxes = [(m.start(), *_braced(body, m.end())) for m in _BOX.finditer(body)]
    if not boxes:
        return None, NO_DECISION
    content = boxes[-1][2]
    if content is None:
        return None, HALF_DECISION
    value = _value(content)
    if value not in allowed:
        return None, f"{OFF_RANGE}: {content.strip()[:40]!r}"
    if len(boxes) > 1 and _echoes(body, boxes, question):
        return None, ECHO
    return value, None


def _braced(text: str, start: int) -> tuple[int, str | None]:
    """(end, content) of the group whose opening brace ends at `start`; content is null when it never closes."""
    depth = 1
    for i in range(start, len(text)):
        depth += {"{": 1, "}": -1}.get(text[i], 0)
        if depth == 0:
            return i + 1, text[start:i]
    return len(text), None


def _value(content: str) -> int | None:
    """1 for "1", " +1", "1.0", "\\text{1}", "$1$"; null for what is no single whole number of one digit."""
    text = _WRAPPED.sub(r"\1", _WRAPPED.sub(r"\1", content)).strip().strip("$").strip()
    match = _NUMBER.fullmatch(text.replace("\N{MINUS SIGN}", "-").replace("\N{EN DASH}", "-"))
    return int(match[1] + match[2]) if match else None


def _echoes(body: str, boxes: list[tuple[int, int, str | None]], question: str) -> bool:
    """Whether the last decision is part of a list of the options rather than a choice of one."""
    start, _end, last = boxes[-1]
    _start, before_end, before = boxes[-2]
    values = _value(before or ""), _value(last or "")
    if values[0] != values[1] and _ENUMERATION.fullmatch(body[before_end:start]):
        return True
    rules = _squeezed(QUESTIONS[question])
    quoted = [_value(content or "") for at, end, content in boxes if _context(body, at, end) in rules]
    return len(set(quoted)) > 1 and _context(body, start, boxes[-1][1]) in rules


def _context(body: str, start: int, end: int, width: int = 16) -> str:
    """A decision with a few characters around it; never empty of words, or a bare decision would be a quotation."""
    around = _squeezed(body[max(0, start - width) : end + width])
    return around if len(around) - (end - start) >= width // 2 else "\0"


def _squeezed(text: str) -> str:
    return " ".join(text.split())


def _hint(body: str) -> str | None:
    """The text of the last hint block; null when that block is unclosed, empty or absent."""
    starts = list(_START.finditer(body))
    if not starts:
        return None
    end = _END.search(body, starts[-1].end())
    return body[starts[-1].end() : end.start()].strip() or None if end else None


def _without_hints(body: str) -> str:
    kept, position = [], 0
    for end in _END.finditer(body):
        starts = list(_START.finditer(body, position, end.start()))
        if starts:
            kept.append(body[position : starts[-1].start()])
            position = end.end()
    return "\n".join([*kept, body[position:]])
