"""Changes of what users want: hints that contradict older ones, and kinds of replies that users praised but now reject.

A change is found if complaints rose by more than chance. It then holds: each night stores the changes in its
night.json, and a change ends only when the same test finds the opposite change.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import asdict, dataclass
from itertools import pairwise
from math import exp, fsum, lgamma
from typing import NamedTuple

from opdkit.config.fields import JSON
from opdkit.evaluate.bootstrap import FEWEST
from opdkit.evaluate.log_prompts import COMPLAINT, PRAISE
from opdkit.evaluate.similar import SimilarTexts, Words, is_similar
from opdkit.judge.claims import choose_wording, contradicts, find_claims
from opdkit.store.stable_hash import stable_hash

# Every night tests the same opinions again, with each earlier night as a possible start. So the level is a tenth of the
# 1% of homes that may find a change by chance within thirty nights. In simulations, at most 0.4% of homes found one.
LEVEL = 0.001
_MOST_PRAISE = 0.5  # highest ratio of praise to complaints from the start of a change on
_COMPARED = 2_000  # complaints whose hints and replies are compared, at most
_FEWEST_ALIKE = 3  # similar rejected replies that make a kind; a single one may have been rejected for another reason


@dataclass(frozen=True)
class Opinion:
    """Opinion of a user on one reply: a complaint, praise, or neither."""

    turn_id: str
    kind: str  # COMPLAINT, PRAISE or NEUTRAL
    hint: str | None
    request: Words
    reply: Words  # without the words of the request
    is_decision: bool = False  # known only from a thumb or an edit, which a user may take back
    key: str = ""  # logged id, and digest of prompt and reply: the same in each night that reads the turn


@dataclass(frozen=True)
class NightSession:
    """Session as one night saw it, with the opinions on the turns that were judged that night."""

    night: int
    part: int
    session_id: str
    is_held_out: bool
    opinions: tuple[Opinion, ...]
    unanswered: frozenset[str] = frozenset()  # keys of turns that nobody reacted to or decided about


@dataclass(frozen=True)
class Change:
    """Change of what users want, which holds from one night on."""

    since: int  # number of that night
    hint: str | None  # the new wish; if `is_back`, the wish that no longer holds
    reply: Words | None = None  # the kind of replies that users reject; None: the hint contradicts older ones
    is_back: bool = False  # users want this kind again

    def to_json(self) -> JSON:
        """Return the change as night.json stores it and `from_json` reads it."""
        return asdict(self) | {"reply": None if self.reply is None else sorted(self.reply)}

    @classmethod
    def from_json(cls, row: JSON) -> "Change":
        return cls(**row | {"reply": None if row["reply"] is None else frozenset(row["reply"])})


class DatedOpinion(NamedTuple):
    """Opinion with its night and session."""

    night: int
    opinion: Opinion
    session: NightSession


@dataclass(frozen=True)
class OpinionIndex:
    """Opinions of several nights, indexed by similar replies and by similar hints."""

    opinions: Sequence[DatedOpinion]
    replies: SimilarTexts  # the replies of `opinions`; a label is the index of an opinion
    group_of: Mapping[str, str]  # hint -> the hint that represents its group of similar hints

    def find_group(self, opinion: Opinion) -> str | None:
        """Return the hint that represents an opinion's hint; None without a hint, or if its hint is not compared."""
        return self.group_of.get(opinion.hint or "")

    def select_alike(self, kind: Words) -> list[DatedOpinion]:
        """Return the opinions on replies that are similar to `kind`."""
        return [self.opinions[place] for place in sorted(map(int, self.replies.count_labels(kind)))]


def find_changes(
    sessions: Sequence[NightSession], recent: Set[int] = frozenset(), known: Sequence[Change] = ()
) -> tuple[list[Change], set[tuple[int, str]]]:
    """Return the changes of what users want, and the (night, turn id) of the opinions that no longer count.

    `known`: the changes that earlier nights found; those that still hold are returned, too. `recent`: nights that
    supply at least half of the complaints that are compared, if they have enough.
    """
    opinions = [DatedOpinion(session.night, opinion, session) for session in sessions for opinion in session.opinions]
    oldest = min((night for night, *_ in opinions), default=0)
    known = [change for change in known if change.since > oldest]  # the others have no opinion from before them
    drawn = [opinion for _, opinion, _ in draw_complaints(opinions, recent)]
    hints = Counter([opinion.hint for opinion in drawn if opinion.hint])
    hints.update(change.hint for change in known if change.hint)
    replies = SimilarTexts((opinion.reply, str(place)) for place, (_, opinion, _) in enumerate(opinions))
    index = OpinionIndex(opinions, replies, choose_wording(hints.items()))
    contradicting = find_contradicting(index, known)
    rejected = find_rejected(index, find_kinds([opinion.reply for opinion in drawn]), known)
    superseded = {turn for change in contradicting for turn in list_contradicted(index, change)}
    superseded.update(turn for change in rejected for turn in list_outdated(index, change))
    return [*contradicting, *rejected], superseded


def draw_complaints(opinions: Iterable[DatedOpinion], recent: Set[int]) -> list[DatedOpinion]:
    """Return at most _COMPARED complaints, drawn by a hash of the turn ids; `recent` nights fill up to half first."""
    complaints = sorted((dated for dated in opinions if dated.opinion.kind == COMPLAINT),
                        key=lambda dated: stable_hash(dated.opinion.turn_id))  # fmt: skip
    first = [dated for dated in complaints if dated.night in recent][: _COMPARED // 2]
    return [*dict.fromkeys([*first, *complaints])][:_COMPARED]


def find_contradicting(index: OpinionIndex, known: Sequence[Change]) -> list[Change]:
    """Return the known changes that still hold, and new ones, in which a hint contradicts older hints in its words.

    In the test, an older hint counts as praise: both say what users wanted before.
    """
    claims = {group: find_claims(group) for group in set(index.group_of.values())}
    rivals = {group: {other for other in claims if contradicts(claims[other], claims[group])} for group in claims}
    wishes = sorted(group for group in rivals if rivals[group])
    held = [(index.group_of[change.hint], change) for change in known if change.hint and change.reply is None]
    hints = [(night, session.session_id, index.find_group(opinion)) for night, opinion, session in index.opinions]
    found = dict[str, Change]()
    for wish in wishes:
        counts_as = dict.fromkeys(rivals[wish], PRAISE) | {wish: COMPLAINT}
        about = ((group, change) for group, change in held if group in counts_as)
        holding, last = max(about, key=lambda pair: pair[1].since, default=(None, None))
        if holding == wish:
            continue
        asked = {(night, session_id): counts_as[group] for night, session_id, group in hints
                 if group in counts_as and (last is None or night >= last.since)}  # fmt: skip
        since = find_start(((night, kind) for (night, _), kind in asked.items()), len(wishes))
        if since is not None:
            found[wish] = Change(since, wish)
    ended = set[str]().union(*(rivals[wish] for wish in found))
    return [*(change for group, change in held if group not in ended), *found.values()]


def find_rejected(index: OpinionIndex, kinds: Sequence[Words], known: Sequence[Change]) -> list[Change]:
    """Return the changes, known and new, of kinds of replies: users praised and now reject them, or want them again.

    The most frequent hint since a change stands for the new wish.
    """
    held = {change.reply: change for change in known if change.reply is not None}
    looked_at = [*held, *(kind for kind in kinds if not any(is_similar(kind, other) for other in held))]
    found = list[Change]()
    for kind in looked_at:
        last = held.get(kind)
        alike = [dated for dated in index.select_alike(kind) if last is None or dated.night >= last.since]
        is_back = last is not None and not last.is_back  # users may want again what they rejected
        counts_as = {PRAISE: COMPLAINT, COMPLAINT: PRAISE} if is_back else {COMPLAINT: COMPLAINT, PRAISE: PRAISE}
        reacted = {(night, session.session_id): counts_as[opinion.kind] for night, opinion, session in alike
                   if opinion.kind in counts_as}  # fmt: skip
        since = find_start(((night, mark) for (night, _), mark in reacted.items()), len(looked_at))
        if since is not None:
            wanted = Counter(index.find_group(opinion) for night, opinion, _ in alike
                             if night >= since and opinion.kind == COMPLAINT)  # fmt: skip
            found.append(Change(since, last.hint if last else wanted.most_common(1)[0][0], kind, is_back))
        elif last is not None:
            found.append(last)
    return found


def find_start(opinions: Iterable[tuple[int, str]], kinds: int = 1) -> int | None:
    """Return the night from which on users complain more than before, by more than chance; None without such a night.

    `opinions`: (night, COMPLAINT or PRAISE), one per session of a night. `kinds`: number of kinds of opinions that are
    tested. Each night but the first is a possible start. Before the start there must be more praise than complaints;
    from it on, at least FEWEST complaints and at most half as much praise. Fisher's exact test (one-sided) gives the
    probability that by chance at least so many of the complaints come from the start on. Return the start with the
    lowest probability, if this is at most LEVEL / (number of starts x kinds) (Bonferroni).
    """
    counts = Counter(opinions)
    nights = sorted({night for night, _ in counts})
    complaints, praise = (sum(counts[night, kind] for night in nights) for kind in (COMPLAINT, PRAISE))
    before_c = before_p = 0
    found, least = None, LEVEL / max(1, kinds * (len(nights) - 1))
    for earlier, start in pairwise(nights):
        before_c, before_p = before_c + counts[earlier, COMPLAINT], before_p + counts[earlier, PRAISE]
        after_c, after_p = complaints - before_c, praise - before_p
        if before_p > before_c and after_c >= FEWEST and after_p <= _MOST_PRAISE * after_c:
            chance = compute_chance_of_more(after_c, after_c + after_p, complaints, complaints + praise)
            if chance <= least:
                found, least = start, chance
    return found


def compute_chance_of_more(hits: int, drawn: int, marked: int, total: int) -> float:
    """Return P(at least `hits` of the `drawn` items are marked), with `marked` of `total` items (hypergeometric)."""

    def log_ways(count: int, chosen: int) -> float:
        return lgamma(count + 1) - lgamma(chosen + 1) - lgamma(count - chosen + 1)

    return fsum(exp(log_ways(marked, n) + log_ways(total - marked, drawn - n) - log_ways(total, drawn))
                for n in range(hits, min(drawn, marked) + 1))  # fmt: skip


def list_contradicted(index: OpinionIndex, change: Change) -> list[tuple[int, str]]:
    """Return the (night, turn id) before a change that were corrected with hints that the change contradicts."""
    claims = find_claims(str(change.hint))
    gone = {hint for hint, group in index.group_of.items() if contradicts(find_claims(group), claims)}
    return [(night, opinion.turn_id) for night, opinion, _ in index.opinions
            if night < change.since and opinion.hint in gone]  # fmt: skip


def list_outdated(index: OpinionIndex, change: Change) -> list[tuple[int, str]]:
    """Return the (night, turn id) of opinions that no longer count, from before a change of a kind of replies.

    They are replies of this kind that users praised or accepted, complaints that asked for what users now reject, and
    complaints about what users now like. If users want the kind again, they are the complaints about it.
    """
    alike = index.select_alike(change.reply or frozenset())
    before = [dated for dated in alike if dated.night < change.since]
    if change.is_back:
        return [(night, opinion.turn_id) for night, opinion, _ in before if opinion.kind == COMPLAINT]
    accepted = [dated for dated in before if dated.opinion.kind != COMPLAINT]
    rejected = [opinion for night, opinion, _ in alike if night >= change.since and opinion.kind == COMPLAINT]
    # Hints of the sessions with accepted replies of this kind that no complaint since the change repeats.
    asked = {index.find_group(opinion) for _, _, session in accepted for opinion in session.opinions}
    asked -= {index.find_group(opinion) for opinion in rejected} | {None}
    # Opinions on all replies to similar requests.
    answered = {opinion.request for opinion in (*rejected, *(dated.opinion for dated in accepted))}
    requests = find_alike({opinion.request for _, opinion, _ in index.opinions}, answered)
    about = [dated for dated in index.opinions if dated.opinion.request in requests]
    praised = {opinion.reply for night, opinion, _ in about if night >= change.since and opinion.kind == PRAISE}
    liked = find_alike({opinion.reply for _, opinion, _ in about}, praised)
    complaints = [dated for dated in about if dated.night < change.since and dated.opinion.kind == COMPLAINT
                  and (dated.opinion.reply in liked or index.find_group(dated.opinion) in asked)]  # fmt: skip
    return [(night, opinion.turn_id) for night, opinion, _ in (*accepted, *complaints)]


def find_kinds(replies: Sequence[Words]) -> list[Words]:
    """Return the most frequent reply of each kind that occurs at least _FEWEST_ALIKE times."""
    kinds = dict[Words, int]()
    for reply, count in Counter(replies).most_common():
        kind = next((kind for kind in kinds if is_similar(reply, kind)), reply)
        kinds[kind] = kinds.get(kind, 0) + count
    return [kind for kind, count in kinds.items() if count >= _FEWEST_ALIKE]


def find_alike(texts: Set[Words], others: Set[Words]) -> set[Words]:
    """Return those of `texts` that are similar to one of `others`."""
    index = SimilarTexts((other, "") for other in others)
    return {text for text in texts if index.count_labels(text)}
