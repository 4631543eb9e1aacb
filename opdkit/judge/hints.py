"""Choice of a turn's hint: the candidates from its votes, the filter, the selection. Pure.

A candidate must give the teacher something to act on, but must not do the teacher's work. A hint says what the reply
should have done, and a hint that quotes the next state gives the answer away.
"""

import math
from bisect import bisect_left
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import accumulate

from opdkit.chat.openai_messages import Message
from opdkit.config.fields import JSON
from opdkit.judge.reply_in_context import ReplyInContext, reply_in_context
from opdkit.judge.votes import CONFLICT, KEPT_REPLY, NOT_JUDGED, Reward, sum_weights
from opdkit.judge.words import drop_judgements, find_specific_words, split_terms, split_words, weigh_word

LEAK_WORDS = 8.0  # a run of words of this total weight that is also in the next state is a quotation
_SCORE_WORDS = 25  # the score of a hint of constant density peaks at this length: one or two sentences

# Texts that say what became of a candidate.
CHOSEN = "chosen"
_REJECTED = {
    "empty_judgement": "says nothing to act on",
    "too_short": "too short",
    "too_long": "too long",
    "leak": "quotes what came next",
}
_NOT_CHOSEN = {  # by hint_status, or else by --hint-select
    CONFLICT: "accepted, but a person rated the reply +1",
    KEPT_REPLY: "accepted, but not chosen to stand before the reply that a person kept",
    "no_quorum": "accepted, but fewer than half of the votes are valid",
    "outvoted": "accepted, but as many votes or more say that there is nothing to learn",
    "consensus": "accepted, but has less in common with the other votes than the chosen one",
    "longest": "accepted, but shorter than the chosen one",
    "shortest": "accepted, but longer than the chosen one",
    "score": "accepted, but less specific for its length than the chosen one",
}
_PART = "chosen, and stands before the reply that a person kept"
_CARRIED = "carried over with the turn that this reply answers again, not chosen"


@dataclass(frozen=True)
class Choice:
    """Hint of one turn. `hints` are the distinct accepted candidates; `rejected` counts rejected ones by reason."""

    hints: list[str]
    hint: str | None
    status: str
    rejected: Counter[str] = field(default_factory=Counter)


def choose_hint(
    votes: Sequence[tuple[int | None, str | None]],
    next_state: str,
    *,
    select: str,
    min_chars: int,
    max_chars: int,
    weights: Sequence[float] | None = None,
) -> Choice:
    """Filter the candidates of one turn and choose a hint.

    `votes` are (decision, hint); a decision is 1, -1 or null (failed). Each hint with decision 1 is a candidate; a
    candidate that quotes `next_state` (see `find_unquotable_text`) is rejected. A hint is chosen only if at least half
    of the votes are valid (else no_quorum) and more votes say 1 than -1 (else outvoted). So a single vote of five gives
    no hint. The candidates stay in `hints` in any case. With `weights`, the total weights of the two sides are
    compared.
    """
    rejected: Counter[str] = Counter()
    accepted = []
    for decision, text in votes:
        if decision == 1 and text is not None:
            if reason := find_fault(text, next_state, min_chars=min_chars, max_chars=max_chars):
                rejected[reason] += 1
            else:
                accepted.append(text)
    hints = drop_duplicates(accepted)
    decisions = [decision for decision, _ in votes]
    if 2 * sum(decision is not None for decision in decisions) < len(votes):
        return Choice(hints, None, "no_quorum", rejected)
    if sum_weights(1, decisions, weights) <= sum_weights(-1, decisions, weights):
        return Choice(hints, None, "outvoted" if hints else "none", rejected)
    if not hints:
        return Choice([], None, rejected.most_common(1)[0][0] if rejected else "none", rejected)
    hint = choose_by_consensus(hints, accepted) if select == "consensus" else select_hint(hints, select)
    return Choice(hints, hint, "ok", rejected)


def find_fault(hint: str, next_state: str, *, min_chars: int, max_chars: int) -> str | None:
    """Return why a candidate is not good enough: empty_judgement, too_short, too_long, leak; None for a good one.

    A good one has at least one specific word, in any script: in Chinese, two characters can be a whole instruction.
    """
    if not find_specific_words(split_words(drop_judgements(hint))):
        return "empty_judgement"
    if len(hint.strip()) < min_chars:
        return "too_short"
    if len(hint.strip()) > max_chars:
        return "too_long"
    return "leak" if is_leak(hint, next_state) else None


def is_leak(hint: str, next_state: str) -> bool:
    """Return whether 8 or more consecutive words of `hint` are in `next_state`, ignoring case and punctuation.

    Two Han or Kana characters count as one word, and so do four characters of Thai.
    """
    ours, theirs = split_words(hint), _line_up(next_state)
    sums = [0.0, *accumulate(map(weigh_word, ours))]
    spans = ((start, bisect_left(sums, before + LEAK_WORDS)) for start, before in enumerate(sums))
    return any(end < len(sums) and f" {' '.join(ours[start:end])} " in theirs for start, end in spans)


@lru_cache(1)
def _line_up(next_state: str) -> str:
    """Return the words of a next state with a space around each. Cached for all candidates: it may be long."""
    return f" {' '.join(split_words(next_state))} "


def find_unquotable_text(judge: str, reply: ReplyInContext) -> str:
    """Return the text that a hint about a reply must not quote: the whole next state, or nothing for the rules.

    The rules write no hints of their own: they quote the user's instruction, which makes a hint actionable.
    """
    return "" if judge == "rules" else "\n".join(message["content"] or "" for message in reply.next_state)


def take_reaction(reply: ReplyInContext) -> tuple[Reward, Choice]:
    """Return no reward, and as the hint the full text of what users and tools said after a reply.

    This is the hint of SDPO on user interactions (arXiv 2603.12273). No filter of length or content applies to it: a
    message of thanks is a hint, too.
    """
    said = (message["content"] or "" for message in reply.next_state if message["role"] in ("user", "tool"))
    hint = "\n\n".join(text for text in map(str.strip, said) if text)
    return NOT_JUDGED, Choice([hint], hint, "ok") if hint else Choice([], None, "none")


def drop_duplicates(hints: Sequence[str]) -> list[str]:
    """Return the hints, shortest first; of hints with the same terms only the most frequent (ties: the shortest)."""
    wordings = Counter(hint.strip() for hint in hints)
    kept: dict[tuple[str, ...], str] = {}
    for hint in sorted(wordings, key=lambda h: (-wordings[h], len(h), h)):
        kept.setdefault(tuple(split_terms(hint)), hint)
    return sorted(kept.values(), key=lambda h: (len(h), h))


def choose_by_consensus(hints: Sequence[str], votes: Sequence[str]) -> str:
    """Return the hint that is most similar to all votes.

    Similarity is the sum, over the votes, of the Jaccard similarities of the sets of terms (minimum Bayes risk
    selection; Kumar & Byrne 2004, there with BLEU). A hint unlike all others loses, however long it is; equal votes
    count as often as they were given. Ties go to the first of `hints`.
    """
    own, others = ([frozenset(split_terms(text)) for text in texts] for texts in (hints, votes))
    likeness = [math.fsum(len(a & b) / len(a | b) for b in others) for a in own]
    return hints[likeness.index(max(likeness))]


def select_hint(hints: Sequence[str], how: str) -> str:
    """Return the longest or shortest hint, or for "score" that with the best `score_specificity`; ties: the shorter."""
    by_length = sorted(hints, key=lambda hint: (len(hint), hint))
    if how == "shortest":
        return by_length[0]
    return max(by_length, key=len if how == "longest" else score_specificity)


def score_specificity(hint: str) -> float:
    """Return specificity relative to length: d * exp(-n / 25), with d distinct specific words and n words in all.

    Words that any hint could contain (articles, auxiliaries, "the reply should", "wrong", "better") are not specific.
    While d grows with n, the score grows up to 25 words, one or two sentences. Each word of padding lowers it.
    """
    all_words = split_words(hint)
    return len(find_specific_words(all_words)) * math.exp(-len(all_words) / _SCORE_WORDS)


def explain_candidates(messages: list[Message], turn: JSON, verdict: JSON, config: JSON) -> list[JSON]:
    """Return [{"hint", "status"}] with each text once: the chosen hint, then accepted and then rejected candidates.

    `turn` and `verdict` are rows as extract and judge wrote them, `messages` those of the turn's session, `config` the
    judge's configuration in the manifest. The verdict may lack hints that `--check-hints` moved to its `dropped`.
    """
    chosen, accepted, status = verdict["hint"], verdict["hints"], verdict["hint_status"]
    dropped = verdict.get("dropped", {})
    written = [vote["hint"].strip() for vote in verdict["hint_votes"] if vote["decision"] == 1 and vote["hint"]]
    # The sort is stable: accepted hints keep the order of the verdict, rejected ones that of the votes.
    texts = sorted(
        dict.fromkeys([*accepted, *dropped, *written]), key=lambda text: (text != chosen, text not in accepted)
    )
    if "hint_select" not in config:  # a rollout: its verdicts have hints, but no votes on them
        return [{"hint": text, "status": CHOSEN if text == chosen else _CARRIED} for text in texts]
    next_state = find_unquotable_text(config["judge"], reply_in_context(messages, turn))
    rows: list[JSON] = []
    limits = {"min_chars": config["min_hint_chars"], "max_chars": config["max_hint_chars"]}
    for text in texts:
        if text == chosen:
            outcome = CHOSEN
        elif text in dropped:
            outcome = f"left out by --check-hints: {dropped[text]}"
        elif text not in accepted and (reason := find_fault(text, next_state, **limits)):
            outcome = _REJECTED[reason]
        elif status == KEPT_REPLY and chosen.startswith(f"{text}\n\n"):
            outcome = _PART
        elif text not in accepted and status not in (KEPT_REPLY, CONFLICT):  # these may list only the wanted reply
            outcome = "has the same words as another one"
        else:
            outcome = _NOT_CHOSEN.get(status) or _NOT_CHOSEN[config["hint_select"]]
        rows.append({"hint": text, "status": outcome})
    return rows
