"""Wishes that turned around: hints that contradict older ones, and replies that users reject but praised before.

A change is found where complaints rose by more than chance. It stays found: each night keeps the changes in its
night.json, and only the same test the other way round ends one.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from itertools import pairwise
from math import exp, fsum, lgamma

from opdkit.commands.export.rules import contradicts
from opdkit.config.fields import JSON
from opdkit.evaluate.bootstrap import FEWEST
from opdkit.evaluate.log_prompts import COMPLAINT, NEUTRAL, PRAISE, RequestIndex, is_alike
from opdkit.judge.claims import claims_of, group_alike
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
    request: frozenset[str]  # words
    reply: frozenset[str]  # words that are not of the request


@dataclass(frozen=True)
class NightSession:
    """Session as one night saw it, with the turns that were judged that night."""

    night: int
    part: int
    session_id: str
    is_held_out: bool
    opinions: tuple[Opinion, ...]


@dataclass(frozen=True)
class Change:
    """Change of what users want, from a night on."""

    since: int  # the night
    hint: str | None  # the new wish; of a kind of replies that is wanted again, the wish that no longer holds
    reply: frozenset[str] | None = None  # the kind of replies that users reject; None: the hint contradicts older ones
    is_back: bool = False  # users want this kind again

    def to_json(self) -> JSON:
        """Return what night.json holds; `from_json` reads it."""
        reply = None if self.reply is None else sorted(self.reply)
        return {"since": self.since, "hint": self.hint, "reply": reply, "is_back": self.is_back}

    @classmethod
    def from_json(cls, row: JSON) -> "Change":
        return cls(**row | {"reply": None if row["reply"] is None else frozenset(row["reply"])})


Said = tuple[int, Opinion, NightSession]  # night, opinion, its session
Groups = Mapping[str, str]  # hint -> the hint that stands for those like it


def find_turned(
    sessions: Sequence[NightSession], recent: Set[int] = frozenset(), known: Sequence[Change] = ()
) -> tuple[list[Change], set[tuple[int, str]]]:
    """Return the changes of what users want, and the (night, turn) that no longer count.

    `known`: the changes that earlier nights found. Those that still hold are returned, too. `recent`: nights from which
    at least half of the complaints are drawn that are compared.
    """
    said = [(one.night, opinion, one) for one in sessions for opinion in one.opinions]
    drawn = draw_complaints(said, recent)
    oldest = min((night for night, *_ in said), default=0)
    known = [one for one in known if one.since > oldest]  # no opinion is older than the others
    hints = Counter([opinion.hint for _, opinion, _ in drawn if opinion.hint])
    hints.update(one.hint for one in known if one.hint)
    group_of = {text: members[0][0] for members in group_alike(hints.items()) for text, _ in members}
    replies = RequestIndex((one.reply, str(place)) for place, (_, one, _) in enumerate(said))
    contradicting = find_contradicting(said, group_of, known)
    rejected = find_rejected(said, replies, group_of, find_kinds([one.reply for _, one, _ in drawn]), known)
    superseded = {turn for one in contradicting for turn in list_contradicted(said, group_of, one)}
    superseded.update(turn for one in rejected for turn in list_outdated(said, replies, group_of, one))
    return [*contradicting, *rejected], superseded


def draw_complaints(said: Iterable[Said], recent: Set[int]) -> list[Said]:
    """Return at most _COMPARED complaints, by a hash of their turns: first of the nights `recent`, half at most."""
    complaints = sorted((one for one in said if one[1].kind == COMPLAINT), key=lambda one: stable_hash(one[1].turn_id))
    first = [one for one in complaints if one[0] in recent][: _COMPARED // 2]
    chosen = {(night, one.turn_id) for night, one, _ in first}
    return [*first, *(one for one in complaints if (one[0], one[1].turn_id) not in chosen)][:_COMPARED]


def find_contradicting(said: Sequence[Said], group_of: Groups, known: Sequence[Change]) -> list[Change]:
    """Return the hints that turned around older ones, which they contradict in words.

    An older hint stands for praise: both say what users wanted before.
    """
    claims = {group: claims_of(group) for group in set(group_of.values())}
    rivals = {group: {other for other in claims if contradicts(claims[other], claims[group])} for group in claims}
    groups = sorted(group for group in rivals if rivals[group])
    held = [one for one in known if one.reply is None]
    found = list[Change]()
    for group in groups:
        about = [one for one in held if (own := group_of[str(one.hint)]) == group or own in rivals[group]]
        last = max(about, key=lambda one: one.since, default=None)
        if last and group_of[str(last.hint)] == group:
            continue
        asked = {(night, session.session_id): COMPLAINT if label == group else PRAISE for night, one, session in said
                 if one.hint and ((label := group_of.get(one.hint)) == group or label in rivals[group])}  # fmt: skip
        opinions = [(night, kind) for (night, _), kind in asked.items() if last is None or night >= last.since]
        if since := find_turn(opinions, len(groups)):
            found.append(Change(since, group))
    ended = {rival for one in found for rival in rivals[str(one.hint)]}
    return [*(one for one in held if group_of[str(one.hint)] not in ended), *found]


def find_rejected(
    said: Sequence[Said], replies: RequestIndex, group_of: Groups, kinds: Sequence[frozenset[str]],
    known: Sequence[Change],
) -> list[Change]:  # fmt: skip
    """Return the kinds of replies that users reject, but praised before, or want again after they rejected them.

    The most frequent hint since then stands for the new wish. `replies`: those of `said`, their places as labels.
    """
    held = {one.reply: one for one in known if one.reply is not None}
    looked_at = [*held, *(kind for kind in kinds if not any(is_alike(kind, other) for other in held))]
    found = list[Change]()
    for kind in looked_at:
        last = held.get(kind)
        alike = [one for one in select_alike(said, replies, kind) if last is None or one[0] >= last.since]
        is_back = last is not None and not last.is_back
        risen, fallen = (PRAISE, COMPLAINT) if is_back else (COMPLAINT, PRAISE)
        marks = {risen: COMPLAINT, fallen: PRAISE}
        reacted = {(night, session.session_id): marks[one.kind] for night, one, session in alike if one.kind != NEUTRAL}
        since = find_turn([(night, kind) for (night, _), kind in reacted.items()], len(looked_at))
        if since is None:
            found += [last] if last else []
            continue
        wanted = Counter(group_of.get(str(one.hint)) for night, one, _ in alike
                         if night >= since and one.kind == COMPLAINT)  # fmt: skip
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


def list_contradicted(said: Sequence[Said], group_of: Groups, change: Change) -> list[tuple[int, str]]:
    """Return the (night, turn) before a change that were corrected with hints that it contradicts."""
    claims = claims_of(str(change.hint))
    gone = {hint for hint, group in group_of.items() if contradicts(claims_of(group), claims)}
    return [(night, one.turn_id) for night, one, _ in said if night < change.since and one.hint in gone]


def list_outdated(
    said: Sequence[Said], replies: RequestIndex, group_of: Groups, change: Change
) -> list[tuple[int, str]]:
    """Return the (night, turn) before a change of a kind of replies that no longer count.

    They are such replies that users praised or accepted, the complaints that asked for what is rejected now, and those
    about what users like now. Of a kind that users want again, they are the complaints about it.
    """
    alike, since = select_alike(said, replies, change.reply or frozenset()), change.since
    if change.is_back:
        return [(night, one.turn_id) for night, one, _ in alike if night < since and one.kind == COMPLAINT]
    rejected = [one for night, one, _ in alike if night >= since and one.kind == COMPLAINT]
    wanted = {group_of.get(str(one.hint)) for one in rejected}
    gone = [(one, session) for night, one, session in alike if night < since and one.kind != COMPLAINT]
    asked = {group_of.get(str(one.hint)) for _, session in gone for one in session.opinions if one.hint}
    requests = find_alike({one.request for _, one, _ in said},
                          {one.request for one in (*rejected, *(one for one, _ in gone))})  # fmt: skip
    about = [(night, one) for night, one, _ in said if one.request in requests]
    praised = {one.reply for night, one in about if night >= since and one.kind == PRAISE}
    liked = find_alike({one.reply for _, one in about}, praised)
    return [*((session.night, one.turn_id) for one, session in gone),
            *((night, one.turn_id) for night, one in about if night < since and one.kind == COMPLAINT
              and (one.reply in liked or group_of.get(str(one.hint)) in asked - wanted))]  # fmt: skip


def select_alike(said: Sequence[Said], replies: RequestIndex, kind: frozenset[str]) -> list[Said]:
    """Return the opinions on replies of a kind."""
    return [said[place] for place in sorted(map(int, replies.labels_alike(kind)))]


def find_kinds(replies: Sequence[frozenset[str]]) -> list[frozenset[str]]:
    """Return a reply for each kind that is there _FEWEST_ALIKE times, the most frequent one of its kind."""
    kinds = dict[frozenset[str], int]()
    for reply, count in Counter(replies).most_common():
        kind = next((kind for kind in kinds if is_alike(reply, kind)), reply)
        kinds[kind] = kinds.get(kind, 0) + count
    return [kind for kind, count in kinds.items() if count >= _FEWEST_ALIKE]


def find_alike(texts: Set[frozenset[str]], others: Set[frozenset[str]]) -> set[frozenset[str]]:
    """Return those of `texts`, each a set of words, that are like one of `others`."""
    index = RequestIndex((other, "") for other in others)
    return {text for text in texts if index.labels_alike(text)}
