"""The judge that needs no model: patterns over the next state. Deterministic, English, one verdict a turn.

It reads what the user wrote of their own (no code blocks, no quoted lines, no text in quotation marks) and what tools
returned. Precision comes first: it says -1 only to what addresses the reply, and 0 where it cannot tell.

    reward -1  a correction, a change request, the same request again, a failed tool call
    reward +1  praise or thanks, a call that succeeded, a new request after a reply that asked nothing
    reward  0  an answer to the reply's own question, a bare ok/yes/no, doubt, silence
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from opdkit.judge import phrases
from opdkit.judge.exchange import HintVote, Message, RewardVote
from opdkit.judge.flags import tool_failed

_QUOTED_CHARS = 100  # of a correction that no pattern turns into an instruction
_READ_CHARS = 8000  # of a message; a reaction comes first, and what is pasted below it can be of any length


@dataclass(frozen=True)
class Finding:
    """What the rules make of a turn, and which rule it was."""

    reward: int
    hint: str | None
    why: str


def votes(messages: Sequence[Message], index: int, next_count: int) -> tuple[HintVote, RewardVote]:
    """The one vote on each question. `raw` names the rule."""
    found = judge(messages, index, next_count)
    decision = 1 if found.hint else -1
    return HintVote(decision, found.hint, found.why), RewardVote(found.reward, found.why)


def judge(messages: Sequence[Message], index: int, next_count: int) -> Finding:
    """What the next state (messages index + 1 ... index + next_count) says about the reply at `index`."""
    following = messages[index + 1 : index + 1 + next_count]
    said = "\n".join(m["content"] or "" for m in following if m["role"] == "user")
    results = [m["content"] or "" for m in following if m["role"] == "tool"]
    asked = next((m["content"] or "" for m in reversed(messages[:index]) if m["role"] == "user"), "")
    heard = reaction(said, asked, messages[index]["content"] or "") if said.strip() else None
    if heard and heard.reward == -1:
        return heard
    if any(tool_failed(result) for result in results):
        return Finding(-1, None, "a tool call failed")
    if heard:
        return heard
    return Finding(1, None, "the tool calls succeeded") if results else Finding(0, None, "nothing came next")


# -- what a user says -----------------------------------------------------------------------------------------------


def reaction(said: str, asked: str, reply: str) -> Finding:
    """What the user's next message `said` shows about `reply`, which answered `asked`."""
    own = own_words(said[:_READ_CHARS])
    text = phrases.NO_NEWS.sub("ok", phrases.GOOD_NEWS.sub("good", own))
    answering = asks(reply)
    if not text:
        return Finding(0, None, "nothing in the user's own words")
    if hint := instruction(text, answering):
        return Finding(-1, hint, "a correction that says what was wanted")
    if complaint := _complaint(text, answering):
        return Finding(-1, f"User correction: {_shortened(own)}", f"a correction ({complaint!r})")
    if _same_request(own, own_words(asked[:_READ_CHARS])):
        return Finding(-1, None, "the same request again")
    if praise := _praise(text, answering):
        return Finding(1, None, f"praise ({praise!r})")
    if phrases.BARE.fullmatch(text):
        return Finding(0, None, "a bare acknowledgement")
    if answering:
        return Finding(0, None, "an answer to the reply's question")
    if phrases.DOUBT.match(text):
        return Finding(0, None, "a question about the reply")
    if not _in_latin_letters(text):
        return Finding(0, None, "no English, which is all that the patterns know")
    return Finding(1, None, "the user moves on")


def _in_latin_letters(text: str) -> bool:
    letters = [c for c in text if c.isalpha()]
    return 2 * sum(c.isascii() for c in letters) >= len(letters)


def asks(reply: str) -> bool:
    """Whether the reply ends by asking the user for something, so that what they say next may just be the answer.

    Closing formulas ("let me know if you have any other questions") ask for nothing.
    """
    sentences = re.split(r"(?<=[.!?])\s+|\n+", reply.strip()[-400:])
    return any(phrases.ASKS.search(s) for s in sentences[-2:] if not phrases.CLOSING_FORMULA.search(s))


def own_words(text: str) -> str:
    """The user's own words: without code, quoted lines and text in quotation marks; plain apostrophes; one spacing."""
    text = text.replace("\N{RIGHT SINGLE QUOTATION MARK}", "'").replace("\N{LEFT SINGLE QUOTATION MARK}", "'")
    text = re.sub(r"```.*?(?:```|\Z)", " ", text, flags=re.DOTALL)
    text = re.sub(r"(?m)^\s*[>|].*$", " ", text)
    text = re.sub(r"`[^`\n]*`|\"[^\"\n]*\"|“[^”\n]*”|(?<!\w)'[^'\n]*'(?!\w)", " ", text)
    return re.sub(r"[ \t]+", " ", text).strip()


def instruction(text: str, answering: bool) -> str | None:
    """The hint that a correction spells out; null when none of the patterns is there.

    `answering`: the reply asked a question. Then "use the gift card" or "I wanted economy" is its answer and nothing
    was wrong, unless the message says so ("no, ...", "... instead").
    """
    for find in (_manner, _said, _use, _should, _dont, _not_that):
        if hint := find(text, answering):
            return hint
    return None


def _manner(text: str, answering: bool) -> str | None:
    for match in phrases.MANNER.finditer(text):
        about_reply = match["degree"].lower() == "too" or re.search(phrases.ABOUT_REPLY, match[0], re.IGNORECASE)
        for words, hint in phrases.MANNERS.items():
            if about_reply and not match["not"] and re.fullmatch(words, match["manner"], re.IGNORECASE):
                return hint
    if shorter := phrases.BARE_COMPARATIVE.search(text):
        return f"Make the reply {_clean(shorter['x']).lower()}."
    if not answering and (shorter := phrases.COMPARATIVE.search(text)):
        return f"The reply had better be {_clean(shorter['x'])}."
    return None


def _said(text: str, answering: bool) -> str | None:
    for pattern, hint in phrases.SAID.items():
        match = pattern.search(text)
        if match and (not answering or phrases.OBJECTS.search(match["lead"])):
            return hint.format(x=_clean(match["x"]))
    return None


def _use(text: str, answering: bool) -> str | None:
    match = phrases.USE.search(text)
    if match and (not answering or match["instead"] or phrases.OBJECTS.search(match["lead"])):
        return f"{match['verb'].capitalize()} {_clean(match['x'])}."
    return None


def _should(text: str, answering: bool) -> str | None:
    match = phrases.SHOULD.search(text)
    if not match or _is_question(text, match) or phrases.SUPPOSED.match(match["x"]):
        return None
    negated = match["not"] or match["verb"].lower().endswith("n't")
    return f"The reply {'must not' if negated else 'should'} {_clean(match['x'])}."


def _dont(text: str, answering: bool) -> str | None:
    match = phrases.DONT.search(text)
    return f"Do not do this: {_clean(match['x'])}." if match and not answering else None


def _not_that(text: str, answering: bool) -> str | None:
    match = phrases.NOT_THAT.search(text)
    return f"Rather: {_clean(match['x'])}." if match else None


def _is_question(text: str, match: re.Match[str]) -> bool:
    sentence = re.match(r"[^.!?;\n]*([.!?;\n]?)", text[match.start("x") :])
    return bool(sentence and sentence[1] == "?")


def _clean(x: str) -> str:
    return " ".join(x.split()).strip(" ,:-")


def _complaint(text: str, answering: bool) -> str | None:
    """The words that say the reply was not right; null when there are none."""
    if match := phrases.OPENING_COMPLAINT.match(text) or phrases.COMPLAINT.search(text):
        return _clean(match[0])[:40]
    # A bare "no" answers the reply's question or means nothing; "no" and then something objects to what was said.
    no = phrases.NO.match(text)
    if no and not answering and no["rest"] and not phrases.BARE.fullmatch(no["rest"]) and not _praise(no["rest"], True):
        return "no"
    return None


def _praise(text: str, answering: bool) -> str | None:
    """The words of thanks or praise. After a question of the reply they count only at the message's beginning."""
    match = phrases.PRAISE.search(phrases.NO_PRAISE.sub(" ", text))
    return _clean(match[0]) if match and (not answering or match.start() < 25) else None


def _same_request(said: str, asked: str) -> bool:
    """Whether the user asks (nearly) the same thing again: 3 words in 4 are shared, in a request of 4 words or more."""
    ours, theirs = (set(re.findall(r"\w+", text.lower())) for text in (said, asked))
    return min(len(ours), len(theirs)) >= 4 and 4 * len(ours & theirs) >= 3 * len(ours | theirs)


def _shortened(text: str) -> str:
    """The first 100 characters, on one line, ending at a word."""
    flat = " ".join(text.split())
    return flat if len(flat) <= _QUOTED_CHARS else flat[:_QUOTED_CHARS].rsplit(" ", 1)[0] + " ..."
