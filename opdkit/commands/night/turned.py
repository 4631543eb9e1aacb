"""Wishes that turned around: hints that contradict older ones, and replies that users reject but praised before.

A change is found where complaints rose by more than chance. It stays found: each night keeps the changes in its
night.json, and only the same test the other way round ends one.
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

# Every night looks again at the same opinions, each as a possible start. So the level is a tenth of the 1% of the homes
# where a change may be found by chance within thirty nights: simulated, it was found in at most 0.4% of them.
LEVEL = 0.001
_MOST_PRAISE = 0.5  # of what users reject, over the complaints
_COMPARED = 2_000  # complaints whose hints and replies are compared
_FEWEST_ALIKE = 3  # rejected replies among these; a single one may have been rejected for another reason


@dataclass(frozen=True)
class Opinion:
    """Reaction of a user to one reply: content, or not."""

    turn_id: str
    kind: str  # COMPLAINT, PRAISE or NEUTRAL
    hint: str | None
    request: Words
    reply: Words  # those that are not of the request
    is_decision: bool = False  # it is known from a thumb or an edit alone, which a user may take back


@dataclass(frozen=True)
class NightSession:
    """Session as one night saw it, with the turns that were judged that night."""

    night: int
    part: int
    session_id: str
    is_held_out: bool
    opinions: tuple[Opinion, ...]
    unanswered: frozenset[str] = frozenset()  # turns that nobody reacted to or decided about


@dataclass(frozen=True)
class Change:
    """Change of what users want, from a night on."""

    since: int  # the night
    hint: str | None  # the new wish; of a kind of replies that is wanted again, the wish that no longer holds
    reply: Words | None = None  # the kind of replies that users reject; None: the hint contradicts older ones
    is_back: bool = False  # users want this kind again

    def to_json(self) -> JSON:
        """Return what night.json holds; `from_json` reads it."""
        return asdict(self) | {"reply": None if self.reply is None else sorted(self.reply)}

    @classmethod
    def from_json(cls, row: JSON) -> "Change":
        return cls(**row | {"reply": None if row["reply"] is None else frozenset(row["reply"])})


class DatedOpinion(NamedTuple):
    """Opinion, and the night and session that it is of."""

    night: int
    opinion: Opinion
    session: NightSession


@dataclass(frozen=True)
class OpinionIndex:
    """Opinions of several nights, by the kind of their replies and by what their hints ask for."""

    opinions: Sequence[DatedOpinion]
    replies: SimilarTexts  # of `opinions`, with their places as labels
    group_of: Mapping[str, str]  # hint -> the hint that stands for those like it

    def find_group(self, opinion: Opinion) -> str | None:
        """Return the hint that stands for that of an opinion; None without one, and for one that is not compared."""
        return self.group_of.get(opinion.hint or "")

    def select_alike(self, kind: Words) -> list[DatedOpinion]:
        """Return the opinions on replies of a kind."""
        return [self.opinions[place] for place in sorted(map(int, self.replies.count_labels(kind)))]


def find_turned(
    sessions: Sequence[NightSession], recent: Set[int] = frozenset(), known: Sequence[Change] = ()
) -> tuple[list[Change], set[tuple[int, str]]]:
    """Return the changes of what users want, and the (night, turn) that no longer count.

    `known`: the changes that earlier nights found. Those that still hold are returned, too. `recent`: nights from which
    at least half of the complaints are drawn that are compared.
    """
    opinions = [DatedOpinion(session.night, opinion, session) for session in sessions for opinion in session.opinions]
    oldest = min((night for night, *_ in opinions), default=0)
    known = [change for change in known if change.since > oldest]  # of others, no opinion from before is left
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
    """Return at most _COMPARED complaints, by a hash of their turns: first from `recent` nights, up to half of them."""
    complaints = sorted((dated for dated in opinions if dated.opinion.kind == COMPLAINT),
                        key=lambda dated: stable_hash(dated.opinion.turn_id))  # fmt: skip
    first = [dated for dated in complaints if dated.night in recent][: _COMPARED // 2]
    return [*dict.fromkeys([*first, *complaints])][:_COMPARED]


def find_contradicting(index: OpinionIndex, known: Sequence[Change]) -> list[Change]:
    """Return the hints that turned around older ones, which they contradict in words.

    An older hint stands for praise: both say what users wanted before.
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
        since = find_turn(((night, kind) for (night, _), kind in asked.items()), len(wishes))
        if since is not None:
            found[wish] = Change(since, wish)
    ended = set[str]().union(*(rivals[wish] for wish in found))
    return [*(change for group, change in held if group not in ended), *found.values()]


def find_rejected(index: OpinionIndex, kinds: Sequence[Words], known: Sequence[Change]) -> list[Change]:
    """Return the kinds of replies that users reject, but praised before, or want again after they rejected them.

    The most frequent hint since then stands for the new wish.
    """
    held = {change.reply: change for change in known if change.reply is not None}
    looked_at = [*held, *(kind for kind in kinds if not any(is_similar(kind, other) for other in held))]
    found = list[Change]()
    for kind in looked_at:
        last = held.get(kind)
        alike = [dated for dated in index.select_alike(kind) if last is None or dated.night >= last.since]
        is_back = last is not None and not last.is_back  # what they reject, they may want again
        counts_as = {PRAISE: COMPLAINT, COMPLAINT: PRAISE} if is_back else {COMPLAINT: COMPLAINT, PRAISE: PRAISE}
        reacted = {(night, session.session_id): counts_as[opinion.kind] for night, opinion, session in alike
                   if opinion.kind in counts_as}  # fmt: skip
        since = find_turn(((night, mark) for (night, _), mark in reacted.items()), len(looked_at))
        if since is not None:
            wanted = Counter(index.find_group(opinion) for night, opinion, _ in alike
                             if night >= since and opinion.kind == COMPLAINT)  # fmt: skip
            found.append(Change(since, last.hint if last else wanted.most_common(1)[0][0], kind, is_back))
        elif last is not None:
            found.append(last)
    return found


def find_turn(opinions: Iterable[tuple[int, str]], kinds: int = 1) -> int | None:
    """Return the night from which on users complain more than before, by more than chance; None without such a night.

    `opinions`: (night, COMPLAINT or PRAISE), one per session. `kinds`: how many kinds of opinions are tested. Each
    night but the first is a possible start. There is more praise than complaints before it, and after it at least
    FEWEST complaints and at most half as much praise. Fisher's exact test (one-sided) gives the probability that chance
    puts so many of the complaints after a start. The start with the lowest one is returned, if that is at most LEVEL
    over the number of starts and kinds (Bonferroni).
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
    """Return the probability of at least `hits` marked ones among those `drawn` from `total` (hypergeometric)."""

    def log_ways(count: int, chosen: int) -> float:
        return lgamma(count + 1) - lgamma(chosen + 1) - lgamma(count - chosen + 1)

    return fsum(exp(log_ways(marked, n) + log_ways(total - marked, drawn - n) - log_ways(total, drawn))
                for n in range(hits, min(drawn, marked) + 1))  # fmt: skip


def list_contradicted(index: OpinionIndex, change: Change) -> list[tuple[int, str]]:
    """Return the (night, turn) before a change that were corrected with hints that it contradicts."""
    claims = find_claims(str(change.hint))
    gone = {hint for hint, group in index.group_of.items() if contradicts(find_claims(group), claims)}
    return [(night, opinion.turn_id) for night, opinion, _ in index.opinions
            if night < change.since and opinion.hint in gone]  # fmt: skip


def list_outdated(index: OpinionIndex, change: Change) -> list[tuple[int, str]]:
    """Return the (night, turn) before a change of a kind of replies that no longer count.

    They are such replies that users praised or accepted, the complaints that asked for what is rejected now, and those
    about what users like now. Of a kind that users want again, they are the complaints about it.
    """
    alike = index.select_alike(change.reply or frozenset())
    before = [dated for dated in alike if dated.night < change.since]
    if change.is_back:
        return [(night, opinion.turn_id) for night, opinion, _ in before if opinion.kind == COMPLAINT]
    accepted = [dated for dated in before if dated.opinion.kind != COMPLAINT]
    rejected = [opinion for night, opinion, _ in alike if night >= change.since and opinion.kind == COMPLAINT]
    # What users asked for in the sessions with such replies, and no longer ask for.
    asked = {index.find_group(opinion) for _, _, session in accepted for opinion in session.opinions}
    asked -= {index.find_group(opinion) for opinion in rejected} | {None}
    # What users made of other replies to the same requests.
    answered = {opinion.request for opinion in (*rejected, *(dated.opinion for dated in accepted))}
    requests = find_alike({opinion.request for _, opinion, _ in index.opinions}, answered)
    about = [dated for dated in index.opinions if dated.opinion.request in requests]
    praised = {opinion.reply for night, opinion, _ in about if night >= change.since and opinion.kind == PRAISE}
    liked = find_alike({opinion.reply for _, opinion, _ in about}, praised)
    complaints = [dated for dated in about if dated.night < change.since and dated.opinion.kind == COMPLAINT
                  and (dated.opinion.reply in liked or index.find_group(dated.opinion) in asked)]  # fmt: skip
    return [(night, opinion.turn_id) for night, opinion, _ in (*accepted, *complaints)]


def find_kinds(replies: Sequence[Words]) -> list[Words]:
    """Return a reply for each kind that is there _FEWEST_ALIKE times, the most frequent one of its kind."""
    kinds = dict[Words, int]()
    for reply, count in Counter(replies).most_common():
        kind = next((kind for kind in kinds if is_similar(reply, kind)), reply)
        kinds[kind] = kinds.get(kind, 0) + count
    return [kind for kind, count in kinds.items() if count >= _FEWEST_ALIKE]


def find_alike(texts: Set[Words], others: Set[Words]) -> set[Words]:
    """Return those of `texts` that are like one of `others`."""
    index = SimilarTexts((other, "") for other in others)
    return {text for text in texts if index.count_labels(text)}
