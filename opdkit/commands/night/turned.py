"""Wishes that turned around: hints that contradict older ones, and replies that users reject but praised before.

A change is found where complaints rose by more than chance. It stays found: each night keeps the changes in its
night.json, and only the same test the other way round ends one.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import asdict, dataclass
from itertools import pairwise
from math import exp, fsum, lgamma

from opdkit.config.fields import JSON
from opdkit.evaluate.bootstrap import FEWEST
from opdkit.evaluate.log_prompts import COMPLAINT, NEUTRAL, PRAISE
from opdkit.evaluate.similar import SimilarTexts, Words, is_similar
from opdkit.judge.claims import claims_of, commonest_wording, contradicts
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


DatedOpinion = tuple[int, Opinion, NightSession]  # night, opinion, its session
Groups = Mapping[str, str]  # hint -> the hint that stands for those like it


def find_turned(
    sessions: Sequence[NightSession], recent: Set[int] = frozenset(), known: Sequence[Change] = ()
) -> tuple[list[Change], set[tuple[int, str]]]:
    """Return the changes of what users want, and the (night, turn) that no longer count.

    `known`: the changes that earlier nights found. Those that still hold are returned, too. `recent`: nights from which
    at least half of the complaints are drawn that are compared.
    """
    opinions = [(session.night, opinion, session) for session in sessions for opinion in session.opinions]
    drawn = draw_complaints(opinions, recent)
    oldest = min((night for night, *_ in opinions), default=0)
    known = [change for change in known if change.since > oldest]  # no opinion is older than the others
    hints = Counter([opinion.hint for _, opinion, _ in drawn if opinion.hint])
    hints.update(change.hint for change in known if change.hint)
    group_of = commonest_wording(hints.items())
    replies = SimilarTexts((opinion.reply, str(place)) for place, (_, opinion, _) in enumerate(opinions))
    kinds = find_kinds([opinion.reply for _, opinion, _ in drawn])
    contradicting = find_contradicting(opinions, group_of, known)
    rejected = find_rejected(opinions, replies, group_of, kinds, known)
    superseded = {turn for change in contradicting for turn in list_contradicted(opinions, group_of, change)}
    superseded.update(turn for change in rejected for turn in list_outdated(opinions, replies, group_of, change))
    return [*contradicting, *rejected], superseded


def draw_complaints(opinions: Iterable[DatedOpinion], recent: Set[int]) -> list[DatedOpinion]:
    """Return at most _COMPARED complaints, by a hash of their turns: first from `recent` nights, up to half of them."""
    complaints = sorted((dated for dated in opinions if dated[1].kind == COMPLAINT),
                        key=lambda dated: stable_hash(dated[1].turn_id))  # fmt: skip
    first = [dated for dated in complaints if dated[0] in recent][: _COMPARED // 2]
    chosen = {(night, opinion.turn_id) for night, opinion, _ in first}
    return [*first, *(dated for dated in complaints if (dated[0], dated[1].turn_id) not in chosen)][:_COMPARED]


def find_contradicting(opinions: Sequence[DatedOpinion], group_of: Groups, known: Sequence[Change]) -> list[Change]:
    """Return the hints that turned around older ones, which they contradict in words.

    An older hint stands for praise: both say what users wanted before.
    """
    claims = {group: claims_of(group) for group in set(group_of.values())}
    rivals = {group: {other for other in claims if contradicts(claims[other], claims[group])} for group in claims}
    groups = sorted(group for group in rivals if rivals[group])
    held = [change for change in known if change.reply is None]
    labelled = [(night, session.session_id, group_of.get(opinion.hint))
                for night, opinion, session in opinions if opinion.hint]  # fmt: skip
    found = list[Change]()
    for group in groups:
        about = [change for change in held if (own := group_of[str(change.hint)]) == group or own in rivals[group]]
        last = max(about, key=lambda change: change.since, default=None)
        if last and group_of[str(last.hint)] == group:
            continue
        asked = {(night, session_id): COMPLAINT if label == group else PRAISE
                 for night, session_id, label in labelled if label == group or label in rivals[group]}  # fmt: skip
        kinds = [(night, kind) for (night, _), kind in asked.items() if last is None or night >= last.since]
        if since := find_turn(kinds, len(groups)):
            found.append(Change(since, group))
    ended = {rival for change in found for rival in rivals[str(change.hint)]}
    return [*(change for change in held if group_of[str(change.hint)] not in ended), *found]


def find_rejected(
    opinions: Sequence[DatedOpinion], replies: SimilarTexts, group_of: Groups, kinds: Sequence[Words],
    known: Sequence[Change],
) -> list[Change]:  # fmt: skip
    """Return the kinds of replies that users reject, but praised before, or want again after they rejected them.

    The most frequent hint since then stands for the new wish. `replies`: those of `opinions`, their places as labels.
    """
    held = {change.reply: change for change in known if change.reply is not None}
    looked_at = [*held, *(kind for kind in kinds if not any(is_similar(kind, other) for other in held))]
    found = list[Change]()
    for kind in looked_at:
        last = held.get(kind)
        alike = [dated for dated in select_alike(opinions, replies, kind) if last is None or dated[0] >= last.since]
        is_back = last is not None and not last.is_back
        risen, fallen = (PRAISE, COMPLAINT) if is_back else (COMPLAINT, PRAISE)
        marks = {risen: COMPLAINT, fallen: PRAISE}
        reacted = {(night, session.session_id): marks[opinion.kind] for night, opinion, session in alike
                   if opinion.kind != NEUTRAL}  # fmt: skip
        since = find_turn([(night, mark) for (night, _), mark in reacted.items()], len(looked_at))
        if since is None:
            found += [last] if last else []
            continue
        wanted = Counter(group_of.get(str(opinion.hint)) for night, opinion, _ in alike
                         if night >= since and opinion.kind == COMPLAINT)  # fmt: skip
        hint = last.hint if last else next((group for group, _ in wanted.most_common(1)), None)
        found.append(Change(since, hint, kind, is_back))
    return found


def find_turn(opinions: Iterable[tuple[int, str]], kinds: int = 1) -> int | None:
    """Return the night from which on complaints are more than chance makes, if there was more praise before; else None.

    `opinions`: (night, COMPLAINT or PRAISE), one per session. `kinds`: how many kinds of opinions are looked at. Of all
    possible starts, it is the one that is the least likely by chance: with a night that is like those before it in all
    but chance, so many complaints come after it with a probability of LEVEL at most (Fisher's exact test, one-sided),
    all starts and kinds together (Bonferroni). There are FEWEST complaints since then, and at most half as much praise.
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
            chance = chance_of_more(after_c, after_c + after_p, complaints, complaints + praise)
            if chance <= least:
                found, least = start, chance
    return found


def chance_of_more(hits: int, drawn: int, marked: int, total: int) -> float:
    """Return the probability of at least `hits` marked ones among those `drawn` from `total` (hypergeometric)."""

    def log_ways(count: int, chosen: int) -> float:
        return lgamma(count + 1) - lgamma(chosen + 1) - lgamma(count - chosen + 1)

    return fsum(exp(log_ways(marked, n) + log_ways(total - marked, drawn - n) - log_ways(total, drawn))
                for n in range(hits, min(drawn, marked) + 1))  # fmt: skip


def list_contradicted(opinions: Sequence[DatedOpinion], group_of: Groups, change: Change) -> list[tuple[int, str]]:
    """Return the (night, turn) before a change that were corrected with hints that it contradicts."""
    claims = claims_of(str(change.hint))
    gone = {hint for hint, group in group_of.items() if contradicts(claims_of(group), claims)}
    return [(night, opinion.turn_id) for night, opinion, _ in opinions if night < change.since and opinion.hint in gone]


def list_outdated(
    opinions: Sequence[DatedOpinion], replies: SimilarTexts, group_of: Groups, change: Change
) -> list[tuple[int, str]]:
    """Return the (night, turn) before a change of a kind of replies that no longer count.

    They are such replies that users praised or accepted, the complaints that asked for what is rejected now, and those
    about what users like now. Of a kind that users want again, they are the complaints about it.
    """
    alike, since = select_alike(opinions, replies, change.reply or frozenset()), change.since
    if change.is_back:
        return [(night, opinion.turn_id) for night, opinion, _ in alike if night < since and opinion.kind == COMPLAINT]
    rejected = [opinion for night, opinion, _ in alike if night >= since and opinion.kind == COMPLAINT]
    wanted = {None, *(group_of.get(str(opinion.hint)) for opinion in rejected)}
    gone = [(opinion, session) for night, opinion, session in alike if night < since and opinion.kind != COMPLAINT]
    asked = {group_of.get(str(opinion.hint)) for _, session in gone for opinion in session.opinions if opinion.hint}
    requests = find_alike({opinion.request for _, opinion, _ in opinions},
                          {opinion.request for opinion in (*rejected, *(opinion for opinion, _ in gone))})  # fmt: skip
    about = [(night, opinion) for night, opinion, _ in opinions if opinion.request in requests]
    praised = {opinion.reply for night, opinion in about if night >= since and opinion.kind == PRAISE}
    liked = find_alike({opinion.reply for _, opinion in about}, praised)
    return [*((session.night, opinion.turn_id) for opinion, session in gone),
            *((night, opinion.turn_id) for night, opinion in about if night < since and opinion.kind == COMPLAINT
              and (opinion.reply in liked or group_of.get(str(opinion.hint)) in asked - wanted))]  # fmt: skip


def select_alike(opinions: Sequence[DatedOpinion], replies: SimilarTexts, kind: Words) -> list[DatedOpinion]:
    """Return the opinions on replies of a kind."""
    return [opinions[place] for place in sorted(map(int, replies.count_labels(kind)))]


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
