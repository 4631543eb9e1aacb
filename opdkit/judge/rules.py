"""Judge without a model: English patterns on the next state. Deterministic; one vote per question.

It reads the user's own words (no code blocks, no quoted lines, no text in quotation marks) and the results of tools.
Precision comes before recall: -1 only if the text is about the reply, and 0 if that is unclear.

    reward -1  a correction, a change request, the same request again, a failed tool call
    reward +1  praise or thanks, a call that succeeded
    reward  0  all else: a new request, an answer to the reply's own question, a bare ok/yes/no, another language
"""

import re
from dataclasses import dataclass

from opdkit.judge import phrases
from opdkit.judge.flags import reports_failure
from opdkit.judge.reply_in_context import ReplyInContext
from opdkit.judge.votes import HintVote, RewardVote, Votes
from opdkit.judge.words import find_specific_words, is_english

_QUOTED_CHARS = 100  # of a correction that is quoted, since no pattern turns it into an instruction
NOT_ENGLISH = "another language than English"
_WISH_WORDS = 25  # in a longer message, "I prefer tabs" is part of a new request
_READ_CHARS = 8000  # of a message; the reaction comes first, and text pasted below it may have any length


@dataclass(frozen=True)
class Judgement:
    """Reward and hint of a turn, and the rule that gave them."""

    reward: int
    hint: str | None
    why: str


def vote(reply: ReplyInContext) -> Votes:
    """Return the one vote on each question about a reply. `raw` names the rule."""
    judgement = judge(reply)
    hint_vote = HintVote(1 if judgement.hint else -1, judgement.hint, judgement.why)
    return Votes([hint_vote], [RewardVote(judgement.reward, judgement.why)])


def judge(reply: ReplyInContext) -> Judgement:
    """Return the judgement of a reply by its next state: the user's words and the results of tool calls."""
    said = "\n".join(m["content"] or "" for m in reply.next_state if m["role"] == "user")
    results = [m["content"] or "" for m in reply.next_state if m["role"] == "tool"]
    request = reply.request["content"] or "" if reply.request else ""
    answer = reply.messages[reply.index]["content"] or ""
    by_user = judge_reaction(said, request, answer) if said.strip() else None
    if by_user and by_user.reward == -1:
        return by_user
    if failures := [result[:_READ_CHARS] for result in results if reports_failure(result)]:
        missing = next(filter(None, map(phrases.MISSING_ARGUMENT.search, failures)), None)
        argument = next(filter(None, missing.groups())) if missing else None
        hint = f"Call the tool with the argument {argument}." if argument else None
        return Judgement(-1, hint, "a tool call failed")
    if by_user:
        return by_user
    return Judgement(1, None, "the tool calls succeeded") if results else Judgement(0, None, "nothing came next")


def judge_reaction(said: str, request: str, reply: str) -> Judgement:
    """Return what the user's message `said` shows about `reply`, which answered `request`."""
    own = keep_own_words(said[:_READ_CHARS])
    text = phrases.NO_NEWS.sub("ok", phrases.GOOD_NEWS.sub("good", own))
    answering = asks_for_answer(reply)
    if not text:
        return Judgement(0, None, "nothing in the user's own words")
    if not is_english(own):
        return Judgement(0, None, NOT_ENGLISH)
    if hint := find_instruction(text, answering):
        hint = find_instruction(own, answering) or hint  # in the user's words, before "ok" and "good" replaced phrases
        return Judgement(-1, hint, "a correction that says what was wanted")
    if complaint := _find_complaint(text, answering):
        rest = phrases.COMPLAINT.sub(" ", phrases.OPENING_COMPLAINT.sub(" ", text)).casefold()
        quoted = " ".join(own.split())
        if len(quoted) > _QUOTED_CHARS:  # end at a word
            quoted = quoted[:_QUOTED_CHARS].rsplit(" ", 1)[0] + " ..."
        # "That doesn't work" gives nothing to act on.
        hint = f"User correction: {quoted}" if find_specific_words(re.findall(r"\w+(?:'\w+)*", rest)) else None
        return Judgement(-1, hint, f"a correction ({complaint!r})")
    # Both have 4 distinct words or more, and the Jaccard similarity of their words is 3/4 or more.
    words, earlier_words = (set(re.findall(r"\w+", s.lower())) for s in (own, keep_own_words(request[:_READ_CHARS])))
    shared, all_words = len(words & earlier_words), len(words | earlier_words)
    if min(len(words), len(earlier_words)) >= 4 and 4 * shared >= 3 * all_words:
        return Judgement(-1, None, "the same request again")
    if praise := _find_praise(text, answering):
        return Judgement(1, None, f"praise ({praise!r})")
    return Judgement(0, None, "no pattern matches")


def asks_for_answer(reply: str) -> bool:
    """Return whether the reply ends by asking the user for something: the next message may then just be the answer.

    Closing formulas ("let me know if you have any other questions") ask for nothing.
    """
    without_options = re.sub(r"(?:\n\s*+(?:\d++[.)]|[-*]) [^\n]*+)++\Z", "", reply.strip()[-1000:])
    sentences = re.split(r"(?<=[.!?])\s+|\n+", without_options[-400:])
    return any(phrases.ASKS.search(s) for s in sentences[-2:] if not phrases.CLOSING_FORMULA.search(s))


def keep_own_words(text: str) -> str:
    """Return a message without code, quoted lines and text in quotation marks; plain apostrophes, single spaces."""
    text = text.replace("\N{RIGHT SINGLE QUOTATION MARK}", "'").replace("\N{LEFT SINGLE QUOTATION MARK}", "'")
    # Long gaps are shortened, since each pattern would be tried at every position in them.
    text = re.sub(r"\s{40,}+", lambda gap: "\n" if "\n" in gap[0] else " ", re.sub(r"[ \t]+", " ", text))
    text = re.sub(r"```.*?(?:```|\Z)", " ", text, flags=re.DOTALL)
    text = re.sub(r"(?m)^\s*[>|].*$", " ", text)
    text = re.sub(r"`[^`\n]*`|\"[^\"\n]*\"|“[^”\n]*”|(?<!\w)'[^'\n]*'(?!\w)", " ", text)
    return re.sub(r"[ \t]+", " ", text).strip()


def find_instruction(text: str, answering: bool) -> str | None:
    """Return the hint that a correction spells out, None if no pattern matches.

    `answering`: the reply asked a question. Then "use the gift card" or "I wanted economy" just answers it, and is a
    correction only if the message objects ("no, ...", "... instead").
    """
    for manner in phrases.MANNER.finditer(text):  # "too long"
        about_reply = manner["degree"].lower() == "too" or phrases.ABOUT_REPLY.search(manner[0])
        for words, hint in phrases.MANNERS.items():
            if about_reply and not manner["not"] and re.fullmatch(words, manner["manner"], re.IGNORECASE):
                return hint
    for pattern, hint in phrases.INSTRUCTIONS.items():
        match = pattern.search(text)
        said = {name: _clean(words or "") for name, words in match.groupdict().items()} if match else {}
        if not said or ("wish" in said and len(text.split()) > _WISH_WORDS):
            continue
        objects = "wish" not in said and (said.get("instead") or phrases.OBJECTS.search(said["lead"]))
        if objects or not answering:
            filled = hint.format(**said)
            return filled[0].upper() + filled[1:]
    match = phrases.SHOULD.search(text)
    if match and not phrases.SUPPOSED.match(match["x"]) and not (answering and "you" not in match[0].lower()):
        sentence = re.match(r"[^.!?;\n]*([.!?;\n]?)", text[match.start("x") :])
        if not (sentence and sentence[1] == "?"):
            negated = match["not"] or match["verb"].lower().endswith("n't")
            return f"The reply {'must not' if negated else 'should'} {_clean(match['x'])}."
    match = phrases.DONT.search(text)
    if match and not answering:
        return f"{match['verb'].capitalize()} {_clean(match['x'])}."
    match = phrases.NOT_THAT.search(text)
    return f"Rather: {_clean(match['x'])}." if match else None


def _clean(words: str) -> str:
    return " ".join(words.split()).strip(" ,:-")


def _find_complaint(text: str, answering: bool) -> str | None:
    """Return the words that say that the reply was not right, None if there are none."""
    if match := phrases.OPENING_COMPLAINT.match(text) or phrases.COMPLAINT.search(text):
        return _clean(match[0])[:40]
    # A bare "no" answers the reply's question or means nothing; "no" followed by more words objects to the reply.
    no = phrases.NO.match(text)
    rest = no["rest"] if no and not answering else None
    return "no" if rest and not phrases.BARE.fullmatch(rest) and not _find_praise(rest, True) else None


def _find_praise(text: str, answering: bool) -> str | None:
    """Return the words of thanks or praise. If the reply asked a question, they count only near the beginning."""
    match = phrases.PRAISE.search(phrases.NO_PRAISE.sub(" ", text))
    return _clean(match[0]) if match and (not answering or match.start() < 25) else None
