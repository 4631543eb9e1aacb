"""Held-out prompts from the log: what users corrected, praised, or accepted in the sessions kept out of training.

A complaint is a turn with an accepted hint: its prompt, with a check that the logged reply fails and the reply that was
praised next passes. A turn with reward +1 is praise: what the reply did must not get lost. The same holds for a turn
with reward 0, unless users complained about requests like it. The check is a regular expression where the replies of
the whole log show one (expressions.py), and for the hint of the complaint, too; else it is a question to the judge.

Praise counts as corrected where users complained about such requests no less often than they praised: there the model
was right by chance. A prompt that ends with a correction is neither corrected nor uncorrected: most models do what they
were just told, before training, too.
"""

import contextlib
import heapq
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby
from pathlib import Path

from opdkit.chat.messages import message
from opdkit.chat.openai_messages import openai_message, tool_definitions
from opdkit.chat.template import Chat, ChatError
from opdkit.config.fields import JSON
from opdkit.config.wording import Texts
from opdkit.console import counted
from opdkit.evaluate.bootstrap import FEWEST
from opdkit.evaluate.checks import POOLED, key_words, read_patterns
from opdkit.evaluate.expressions import ERRORS, FEW, find_check
from opdkit.extract.known_turns import digests_of, logged_id
from opdkit.judge.claims import group_alike
from opdkit.judge.criterion import visible
from opdkit.judge.hints import words
from opdkit.judge.words import FILLER, specific_words, without_judgements
from opdkit.model.behavior_policy import is_other_model
from opdkit.store.joined_turns import CHECKED, JoinedTurn, joined_turns
from opdkit.store.reading import part_count
from opdkit.store.skip_reasons import DUPLICATE
from opdkit.store.stable_hash import stable_hash
from opdkit.store.turn_ids import conversation_id, is_held_out

COMPLAINT, PRAISE, NEUTRAL = "complaint", "praise", "neutral"  # kinds of reactions
PRAISED, OTHERS = "praised replies", "other complaints"  # domains beside those of the common hints
ACCEPTED = "accepted replies"  # domain of those that users neither praised nor complained about
AFTER = "directly after a correction"  # domain of those whose prompt ends with a correction
_EXAMPLES, _ALL_EXAMPLES = 50, 2000  # of each hint, and of all hints, that are read in sessions that trained
_TEXTS = 2000  # the commonest hints, which are grouped; any other one is a group of its own
_LABEL = 60  # characters of a hint that names a domain
_SPECIFIC = 3  # words of a request that says what it is about; "Go on." does not

Request = frozenset[str]  # words of a request
Said = tuple[str, str]  # system prompt and reply
Opinions = dict[Said | None, Counter[str]]  # how often a reply was praised (PRAISED), or corrected by each hint


@dataclass(frozen=True)
class Reaction:
    """Turn that users corrected, praised, or accepted without a word."""

    turn: JoinedTurn
    is_held_out: bool
    kind: str
    hint: str | None  # of a praised turn: that of the corrected one which it answers
    other: JoinedTurn | None  # the reply that was praised next
    is_after: bool = False  # the prompt ends with a correction

    @cached_property
    def request(self) -> Request:
        """Words of what is asked."""
        return frozenset(request_of(self.turn))


class RequestIndex:
    """Requests, each with a label, by their rarest words: finds those alike without comparing all pairs.

    The rarest words of two requests that are alike (half of each, and one more) have one in common.
    """

    def __init__(self, labelled: Iterable[tuple[Request, str]]) -> None:
        self._labels = defaultdict[Request, Counter[str]](Counter)
        for request, label in labelled:
            self._labels[request][label] += 1
        self._frequencies = Counter(word for request in self._labels for word in request)
        self._holders = defaultdict[str, list[tuple[int, Request]]](list)  # word -> requests, by their places
        for numbered in enumerate(self._labels):
            for word in self._rarest(numbered[1]):
                self._holders[word].append(numbered)

    def labels_alike(self, request: Request) -> Counter[str]:
        """Return how often each label occurs among the requests like this one, in the order of the requests."""
        others = {place: other for word in self._rarest(request) for place, other in self._holders.get(word, ())}
        found = Counter[str]()
        for _, other in sorted(others.items(), key=lambda item: item[0]):
            found.update(self._labels[other] if is_alike(request, other) else ())
        return found

    def _rarest(self, request: Request) -> list[str]:
        return sorted(request, key=lambda word: (self._frequencies[word], word))[: len(request) // 2 + 1]


def request_of(turn: JoinedTurn) -> list[str]:
    """Return the words of the last message of a prompt; all numbers are the same word.

    If that says little, or is not the user's, the words of the user's message before it follow, marked: the reply to
    "Go on." or to the result of a call is another one than that to the message itself.
    """
    *before, last = turn.session["messages"][: turn.index]
    found = _fold_words(last["content"])
    if last["role"] == "user" and len(specific_words(found) - FILLER) >= _SPECIFIC:
        return found
    context = next((m["content"] for m in reversed(before) if m["role"] == "user"), None)
    return found + [f"before: {word}" for word in _fold_words(context)]


def _fold_words(text: str | None) -> list[str]:
    """Return the words of a text; all numbers are the same word."""
    return [re.sub(r"\d+", "0", word) for word in words(text or "")]


def _hash_prompt(turn: JoinedTurn) -> int:
    """Return a hash of the words of a whole prompt, the same for near duplicates."""
    prompt = turn.session["messages"][: turn.index]
    texts = ((m["role"], m["content"], *(f"{c['name']} {c['arguments']}" for c in m["tool_calls"])) for m in prompt)
    return stable_hash(" ".join(word for parts in texts for text in parts for word in _fold_words(text)))


def read_reactions(run: Path, holdout: float) -> Iterator[Reaction]:
    """Yield the turns of the held-out sessions that tell what users want; then, of other sessions, examples of hints.

    A turn is neutral where most votes say so, and where it does not follow a complaint: its user may be tired of
    complaining. The examples are drawn by a hash of their turns.
    """
    examples = list[tuple[int, str, Reaction]]()  # a heap: minus the hash of the turn, its id
    seen, conversation, verdicts = Counter[str](), "", dict[bytes, JSON]()  # of the turns of a conversation's branches
    for part in range(part_count(run, "judge")):
        for session_id, turns in groupby(joined_turns(run, part, CHECKED, partial=True), lambda turn: turn.session_id):
            is_kept = is_held_out(session_id, holdout)
            if logged_id(session_id) != conversation:
                conversation, verdicts = logged_id(session_id), {}
            judged = list[tuple[JoinedTurn, JSON]]()
            own = [turn for turn in turns if turn.index]
            for turn, said in zip(own, digests_of(own, reactions=False) if own else (), strict=True):
                if turn.decided is not None:
                    verdicts[said] = turn.decided
                if turn.decided is not None or turn.turn["skip_reason"] == DUPLICATE:
                    judged += [(turn, verdicts[said])] if said in verdicts else []
            for n, (turn, verdict) in enumerate(judged):
                if turn.decided is None:  # an earlier branch has it
                    continue
                corrected = judged[n - 1][1] if n else {"hint": None, "reward": None}
                is_after = corrected["hint"] is not None or corrected["reward"] == -1
                if (hint := verdict["hint"]) is not None:
                    seen[hint] += 1
                    after = next(((other, v["reward"]) for other, v in judged[n + 1 :] if v["hint"] is None), None)
                    other = after[0] if after and after[1] == 1 else None
                    reaction = Reaction(turn, is_kept, COMPLAINT, hint, other, is_after)
                    if is_kept:
                        yield reaction
                    elif seen[hint] <= _EXAMPLES:
                        heapq.heappush(examples, (-stable_hash(turn.turn_id), turn.turn_id, reaction))
                        if len(examples) > _ALL_EXAMPLES:
                            heapq.heappop(examples)
                    continue
                is_neutral = (verdict["reward"], verdict["reward_status"]) == (0, "ok")
                if verdict["reward"] == 1 and is_kept:
                    yield Reaction(turn, True, PRAISE, corrected["hint"], None, is_after)
                elif is_neutral and not is_after and is_kept:
                    yield Reaction(turn, True, NEUTRAL, None, None)
    yield from (reaction for *_, reaction in sorted(examples, reverse=True))


def count_opinions(run: Path, reactions: Sequence[Reaction]) -> Opinions:
    """Return what all users of a run made of the held-out replies, wherever the log holds the same ones."""
    found: Opinions = {said: Counter() for one in reactions if one.is_held_out and (said := _said(one.turn))}
    for part in range(part_count(run, "judge")) if found else ():
        for turn in joined_turns(run, part, CHECKED, partial=True):
            verdict = turn.decided
            if verdict is not None and turn.index and (counts := found.get(_said(turn))) is not None:
                counts.update([verdict["hint"]] if verdict["hint"] else [PRAISED] if verdict["reward"] == 1 else [])
    return found


def _said(turn: JoinedTurn) -> Said | None:
    """Return system prompt and reply of a turn; None for one that takes up no word of its request, such as "Done.".

    The request is what the user said last, and what the user said before that, which it may correct.
    """
    messages = turn.session["messages"]
    first, reply = messages[0], messages[turn.index]
    asked = [m["content"] or "" for m in messages[: turn.index] if m["role"] == "user"][-2:]
    text = (reply["content"] or "") + "".join(call["arguments"] for call in reply["tool_calls"])
    if key_words(" ".join(asked)).isdisjoint(key_words(without_judgements(text))):
        return None
    return (first["content"] or "" if first["role"] == "system" else "", text)


def make_prompts(
    reactions: Sequence[Reaction], opinions: Opinions, chat: Chat, room: float, criteria: Texts, names: frozenset[str]
) -> tuple[list[JSON], Counter[str]]:
    """Return rows of a file of prompts, in the order of the log, and how many turns were left out, by reason.

    Near duplicates are one row: `turns` says of how many. `room`: the longest prompt, in tokens. `names`: of the model
    that the prompts are for (`student_names`). Where a log holds a reply more than once, most users decide what was
    wrong with it: judges err.
    """
    complaints = [one for one in reactions if one.kind == COMPLAINT]
    counts = Counter(str(one.hint) for one in complaints).most_common(_TEXTS)
    group_of = {text: members[0][0] for members in group_alike(counts) for text, _ in members}
    of_group = defaultdict[str, list[Reaction]](list)
    for one in complaints:
        of_group[group_of.setdefault(str(one.hint), str(one.hint))].append(one)
    complained = RequestIndex((one.request, group_of[str(one.hint)]) for one in complaints)
    fresh = [one for one in reactions if one.is_held_out and not one.is_after and one.kind != NEUTRAL]
    praised = defaultdict[str, list[Reaction]](list)  # at once, for requests like more than a few of a group
    for one in fresh:
        for label, number in complained.labels_alike(one.request).items():
            if one.kind == PRAISE and number > ERRORS * len(of_group[label]):
                praised[label].append(one)
    checks = {hint: check for label, members in of_group.items()
              if len(members) >= FEW and any(one.is_held_out for one in members)
              for hint, check in _find_checks(members, praised[label], chat, names).items()}  # fmt: skip
    # Of several hints about one request, one with a check counts, then the most frequent one.
    asked = Counter((one.request, str(one.hint)) for one in complaints).most_common()
    hint_of_request = dict(key for key, _ in sorted(asked, key=lambda item: item[0][1] not in checks)[::-1])
    rows = dict[tuple[str, str | None, int], JSON]()
    accepted, left_out = _choose_accepted(reactions, complained)
    judged = RequestIndex((one.request, PRAISED if one.kind == PRAISE else group_of[str(one.hint)]) for one in fresh)
    for one in (one for one in reactions if one.is_held_out and (one.kind != NEUTRAL or one.turn.turn_id in accepted)):
        said = Counter(group_of.get(opinion, opinion)
                       for opinion in opinions.get(_said(one.turn), Counter()).elements())  # fmt: skip
        own = PRAISED if one.kind != COMPLAINT else group_of[str(one.hint)]
        if any(number >= said[own] for opinion, number in said.items() if opinion != own):
            left_out["the same reply was judged otherwise"] += 1
            continue
        # Praise for a reply to a request that others complained about shows what they wanted, too.
        hint = one.hint or hint_of_request.get(one.request, "")
        group = group_of.get(hint, hint) or None
        try:
            row = _row(one, chat, room, checks.get(hint), criteria)
        except ChatError as error:
            left_out[error.reason] += 1
            continue
        if one.is_after:
            row["domain"] = AFTER
        else:
            if one.kind == PRAISE and group is None:
                # The commonest complaint about requests like this one, unless more of those were praised.
                groups = judged.labels_alike(one.request)
                number = groups.pop(PRAISED, 0)
                if groups and groups.total() >= number:
                    ((group, _),) = groups.most_common(1)
            row |= {"domain": group or (ACCEPTED if one.kind == NEUTRAL else PRAISED), "corrected": group is not None}
        key = (row["domain"], group, _hash_prompt(one.turn))
        turns = 1 + (rows[key]["turns"] if key in rows else 0)
        if key not in rows or ("judge" in rows[key]["check"] and "judge" not in row["check"]):
            rows[key] = row
        rows[key]["turns"] = turns
    sizes = Counter(row["domain"] for row in rows.values())
    for row in rows.values():
        label = " ".join(row["domain"].split())[:_LABEL]
        is_own = label not in POOLED and (label in (PRAISED, ACCEPTED, AFTER) or sizes[row["domain"]] >= FEWEST)
        row["domain"] = label if is_own else OTHERS
    return list(rows.values()), left_out


def is_alike(one: Request, other: Request) -> bool:
    """Return True for two requests that share half of their words."""
    return bool(one) and 2 * len(one & other) >= len(one | other)


def _choose_accepted(reactions: Sequence[Reaction], complained: RequestIndex) -> tuple[set[str], Counter[str]]:
    """Return the ids of the neutral turns that become prompts, and how many do not, by reason.

    One like a request that users complained about does not: this user may have had the same wish, and said nothing. As
    many as there are complaints and praise suffice: the judge is asked about each.
    """
    neutral = [one for one in reactions if one.kind == NEUTRAL]
    most = max(FEWEST, sum(one.is_held_out and one.kind != NEUTRAL for one in reactions))
    chosen, left_out = set[str](), Counter[str]()
    for one in sorted(neutral, key=lambda one: stable_hash(one.turn.turn_id)):
        if complained.labels_alike(one.request):
            left_out["accepted replies to requests like those that others complained about"] += 1
        elif len(chosen) == most:
            left_out["accepted replies, more than are needed"] += 1
        else:
            chosen.add(one.turn.turn_id)
    return chosen, left_out


def describe_prompts(rows: Sequence[JSON], left_out: Counter[str], replies: int) -> str:
    """Return what `make_prompts` made, in words; `replies`: of both models to each prompt."""
    corrected, judged = sum(row.get("corrected", False) for row in rows), sum("judge" in row["check"] for row in rows)
    sizes, merged = Counter(row["domain"] for row in rows), sum(row["turns"] for row in rows) - len(rows)
    reasons = "".join(f"; left out: {number:,} ({reason})" for reason, number in left_out.most_common())
    return (f"{counted(len(rows), 'prompt')} from the log: {corrected:,} on corrected topics, "
            f"{sizes[PRAISED]:,} on other {PRAISED}, {sizes[ACCEPTED]:,} on {ACCEPTED}, "
            f"{sizes[AFTER]:,} {AFTER}; {merged:,} near duplicates merged{reasons}; "
            f"{len(rows) - judged:,} are checked by patterns, {judged:,} by the judge, "
            f"with at most {counted(judged * replies, 'question')}")  # fmt: skip


def _find_checks(
    complaints: Sequence[Reaction], fresh: Sequence[Reaction], chat: Chat, names: frozenset[str]
) -> dict[str, JSON]:
    """Return hints of a group of complaints, with the patterns that check them; `fresh`: praise for requests like them.

    At least half of `fresh` must pass. As the hints of a group may ask for opposite things, so must most replies that
    were praised after complaints with the same hint.
    """
    corrected = _visible_replies([(one.request, one.turn) for one in complaints], chat)
    praised = _visible_replies([(one.request, one.other) for one in complaints], chat)
    is_own = not any(is_other_model(one.turn.session["model"], names) for one in complaints)
    hints = [str(one.hint) for one in complaints]
    check = find_check([*praised.values()], [*corrected.values()], hints, is_own)
    if check is None:
        return {}
    patterns = read_patterns(check)
    at_once = _visible_replies([(one.request, one.turn) for one in fresh], chat).values()
    if 2 * sum(map(patterns.passes, at_once)) < len(at_once):
        return {}
    passed = defaultdict[str, list[bool]](list)
    for hint, one in zip(hints, complaints, strict=True):
        passed[hint] += map(patterns.passes, _visible_replies([(one.request, one.other)], chat).values())
    return {hint: check for hint, marks in passed.items() if 2 * sum(marks) > len(marks)}


def _visible_replies(turns: Iterable[tuple[Request, JoinedTurn | None]], chat: Chat) -> dict[Request, str]:
    """Return the first reply to each request."""
    found = dict[Request, str]()
    for request, turn in turns:
        if turn is not None and request not in found:
            with contextlib.suppress(ChatError):
                found[request] = _visible_reply(turn, chat)
    return found


def _row(one: Reaction, chat: Chat, room: float, check: JSON | None, criteria: Texts) -> JSON:
    """Return the row of a turn, without its domain. `check`: what fits its group. Raises ChatError."""
    logged, tools = _visible_reply(one.turn, chat), one.turn.session["tools"]
    prompt = one.turn.session["messages"][: one.turn.index]
    is_asked, fits = prompt[-1]["role"] != "assistant", len(chat.prompt_ids(prompt, tools)) <= room
    if not (logged and is_asked and fits):
        raise ChatError("empty reply" if not logged else "too long" if is_asked else "no request")
    right = [logged] if one.kind != COMPLAINT else [_visible_reply(one.other, chat)] if one.other else []
    patterns = read_patterns(check) if check else None
    is_right = patterns is not None and all(map(patterns.passes, right))
    if patterns and not is_right and one.kind != COMPLAINT and one.hint is None:
        raise ChatError("praise for what others corrected")
    if not patterns or not is_right or (one.kind == COMPLAINT and patterns.passes(logged)):
        check = {"judge": criteria["follows_hint"], "hint": one.hint}
        if one.kind != COMPLAINT:
            check = {"judge": criteria["serves_as_well"], "praised": logged}
    is_plain = prompt == [message("user", prompt[0]["content"])] and bool((prompt[0]["content"] or "").strip())
    asked = {"prompt": prompt[0]["content"]} if is_plain else {
        "messages": [openai_message(m, arguments_as_text=True) for m in prompt]}  # fmt: skip
    return {"id": one.turn.turn_id, "session": conversation_id(one.turn.session_id), "domain": "", **asked,
            "check": check, "hint": one.hint, "logged": logged, "turns": 1,
            "tools": tool_definitions(tools) or tools}  # fmt: skip


def _visible_reply(turn: JoinedTurn, chat: Chat) -> str:
    """Return a logged reply as the checks see one of the model: as its template writes it, without thinking."""
    messages, tools = turn.session["messages"], turn.session["tools"]
    ids = chat.reply(messages, turn.index, tools, turn.turn["finish_reason"]).ids
    text = chat.text(ids[:-1] if ids and ids[-1] in chat.stop_ids else ids)
    return visible(text, chat.opens_thinking(chat.prompt_ids(messages[: turn.index], tools)))
