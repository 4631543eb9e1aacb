"""Held-out prompts from the log: what users corrected, praised, or accepted in the sessions kept out of training.

A complaint is a turn with an accepted hint: its prompt, with a check that the logged reply fails and the reply that was
praised next passes. A turn with reward +1 is praise: what the reply did must not get lost. The same holds for a turn
with reward 0, unless users complained about requests like it. The check is a regular expression where the replies of
the whole log show one (expressions.py), else a question to the judge.

Praise counts as corrected where users complained about such requests no less often than they praised: there the model
was right by chance. A prompt that ends with a correction is neither corrected nor uncorrected: most models do what they
were just told, before training, too.
"""

import contextlib
import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

from opdkit.chat.messages import message
from opdkit.chat.openai_messages import openai_message, tool_definitions
from opdkit.chat.template import Chat, ChatError
from opdkit.config.fields import JSON
from opdkit.config.wording import Texts
from opdkit.console import counted
from opdkit.evaluate.bootstrap import FEWEST
from opdkit.evaluate.checks import POOLED, read_patterns
from opdkit.evaluate.expressions import find_check
from opdkit.extract.known_turns import digests_of, logged_id
from opdkit.judge.claims import group_alike
from opdkit.judge.criterion import visible
from opdkit.judge.hints import words
from opdkit.model.behavior_policy import is_other_model
from opdkit.store.joined_turns import CHECKED, JoinedTurn, joined_turns
from opdkit.store.reading import part_count
from opdkit.store.skip_reasons import DUPLICATE
from opdkit.store.stable_hash import stable_hash
from opdkit.train.targets import is_held_out

COMPLAINT, PRAISE, NEUTRAL = "complaint", "praise", "neutral"  # kinds of reactions
PRAISED, OTHERS = "praised replies", "other complaints"  # domains beside those of the common hints
ACCEPTED = "accepted replies"  # domain of those that users neither praised nor complained about
AFTER = "directly after a correction"  # domain of those whose prompt ends with a correction
_EXAMPLES = 50  # of a hint that are read in sessions that trained
_TEXTS = 2000  # the commonest hints, which are grouped; any other one is a group of its own
_LABEL = 60  # characters of a hint that names a domain
_SPECIFIC = 4  # letters of a word that says what a request is about

Request = tuple[str, ...]  # words of a request; those of near duplicates are the same
Said = tuple[str, str]  # system prompt and reply
Opinions = dict[Said | None, Counter[str]]  # how often a reply was praised (PRAISED), or corrected by each hint


@dataclass(frozen=True)
class Reaction:
    """Turn that users corrected, praised, or accepted without a word."""

    turn: JoinedTurn
    is_held_out: bool
    kind: str
    hint: str | None  # of a praised turn: that of the corrected one which it answers
    other: JoinedTurn | None  # the reply that was praised next; of a praised turn: the corrected one which it answers
    is_after: bool = False  # the prompt ends with a correction

    @property
    def request(self) -> Request:
        """Return the words of the last message of the prompt, and before it of the one that the correction is about."""
        return request_of(*([self.other, self.turn] if self.kind == PRAISE and self.other else [self.turn]))


def request_of(*turns: JoinedTurn) -> Request:
    """Return the words of the last messages of these prompts; all numbers are the same word."""
    texts = [turn.session["messages"][turn.index - 1]["content"] or "" for turn in turns]
    return tuple(re.sub(r"\d+", "0", word) for text in texts for word in words(text))


def read_reactions(run: Path, holdout: float) -> Iterator[Reaction]:
    """Yield the turns of the held-out sessions that tell what users want; of other sessions, examples of each hint.

    A turn is neutral where most votes say so, and where it does not follow a complaint: its user may be tired of
    complaining.
    """
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
                before, corrected = judged[n - 1] if n else (None, {"hint": None, "reward": None})
                is_after = corrected["hint"] is not None or corrected["reward"] == -1
                if (hint := verdict["hint"]) is not None:
                    seen[hint] += 1
                    after = next(((other, v["reward"]) for other, v in judged[n + 1 :] if v["hint"] is None), None)
                    if is_kept or seen[hint] <= _EXAMPLES:
                        other = after[0] if after and after[1] == 1 else None
                        yield Reaction(turn, is_kept, COMPLAINT, hint, other, is_after)
                    continue
                is_neutral = (verdict["reward"], verdict["reward_status"]) == (0, "ok")
                if verdict["reward"] == 1 and is_kept:
                    other = before if corrected["hint"] is not None else None
                    yield Reaction(turn, True, PRAISE, corrected["hint"], other, is_after)
                elif is_neutral and not is_after and is_kept:
                    yield Reaction(turn, True, NEUTRAL, None, None)


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
    shared = set(words(" ".join(asked))) & set(words(text))
    if not any(len(word) >= _SPECIFIC or any(map(str.isdigit, word)) for word in shared):
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
    complaints = [(str(one.hint), one) for one in reactions if one.kind == COMPLAINT]
    counts = Counter(hint for hint, _ in complaints).most_common(_TEXTS)
    group_of = {text: members[0][0] for members in group_alike(counts) for text, _ in members}
    of_group = defaultdict[str, list[Reaction]](list)
    for hint, one in complaints:
        of_group[group_of.get(hint, hint)].append(one)
    requests = Counter((one.request, group) for group, members in of_group.items() for one in members)
    group_of_request = {request: group for (request, group), _ in reversed(requests.most_common())}
    checks = {group: _find_check(members, chat, names) for group, members in of_group.items()
              if any(one.is_held_out for one in members)}  # fmt: skip
    rows = dict[tuple[str, str | None, Request], JSON]()
    accepted, left_out = _choose_accepted(reactions)
    fresh = [one for one in reactions if one.is_held_out and not one.is_after]
    praised = [frozenset(one.request) for one in fresh if one.kind == PRAISE]
    complained = [(frozenset(one.request), group_of.get(str(one.hint), str(one.hint)))
                  for one in fresh if one.kind == COMPLAINT]  # fmt: skip
    for one in (one for one in reactions if one.is_held_out and (one.kind != NEUTRAL or one.turn.turn_id in accepted)):
        said = Counter(group_of.get(opinion, opinion)
                       for opinion in opinions.get(_said(one.turn), Counter()).elements())  # fmt: skip
        own = PRAISED if one.kind != COMPLAINT else group_of.get(str(one.hint), str(one.hint))
        if any(number >= said[own] for opinion, number in said.items() if opinion != own):
            left_out["the same reply was judged otherwise"] += 1
            continue
        # Praise for a reply to a request that others complained about shows what they wanted, too.
        group = group_of_request.get(one.request) if one.hint is None else group_of.get(one.hint, one.hint)
        try:
            row = _row(one, chat, room, checks.get(group or ""), criteria)
        except ChatError as error:
            left_out[error.reason] += 1
            continue
        if one.is_after:
            row["domain"] = AFTER
        else:
            if one.kind == PRAISE and group is None:
                # The commonest complaint about requests like this one, unless more of those were praised.
                request = frozenset(one.request)
                groups = Counter(group for other, group in complained if is_alike(request, other))
                if groups.total() >= max(1, sum(is_alike(request, other) for other in praised)):
                    ((group, _),) = groups.most_common(1)
            row |= {"domain": group or (ACCEPTED if one.kind == NEUTRAL else PRAISED), "corrected": group is not None}
        key = (row["domain"], group, one.request)
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


def is_alike(one: frozenset[str], other: frozenset[str]) -> bool:
    """Return True for two requests that share half of their words."""
    return bool(one) and 2 * len(one & other) >= len(one | other)


def _choose_accepted(reactions: Sequence[Reaction]) -> tuple[set[str], Counter[str]]:
    """Return the ids of the neutral turns that become prompts, and how many do not, by reason.

    One like a request that users complained about does not: this user may have had the same wish, and said nothing. As
    many as there are complaints and praise suffice: the judge is asked about each.
    """
    complained = {frozenset(one.request) for one in reactions if one.kind == COMPLAINT}
    neutral = [one for one in reactions if one.kind == NEUTRAL]
    most = max(FEWEST, sum(one.is_held_out and one.kind != NEUTRAL for one in reactions))
    chosen, left_out = set[str](), Counter[str]()
    for one in sorted(neutral, key=lambda one: stable_hash(one.turn.turn_id)):
        request = frozenset(one.request)
        if any(is_alike(request, other) for other in complained):
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


def _find_check(complaints: Sequence[Reaction], chat: Chat, names: frozenset[str]) -> JSON | None:
    """Return the patterns that fit a group of complaints; None without any. One reply to each request counts."""
    praised, corrected = dict[Request, str](), dict[Request, str]()
    for one in complaints:
        for texts, turn in ((corrected, one.turn), (praised, one.other)):
            if turn is not None and one.request not in texts:
                with contextlib.suppress(ChatError):
                    texts[one.request] = _visible_reply(turn, chat)
    is_own = not any(is_other_model(one.turn.session["model"], names) for one in complaints)
    return find_check(list(praised.values()), list(corrected.values()), [str(one.hint) for one in complaints], is_own)


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
    return {"id": one.turn.turn_id, "domain": "", **asked, "check": check, "hint": one.hint,
            "logged": logged, "turns": 1, "tools": tool_definitions(tools) or tools}  # fmt: skip


def _visible_reply(turn: JoinedTurn, chat: Chat) -> str:
    """Return a logged reply as the checks see one of the model: as its template writes it, without thinking."""
    messages, tools = turn.session["messages"], turn.session["tools"]
    ids = chat.reply(messages, turn.index, tools, turn.turn["finish_reason"]).ids
    text = chat.text(ids[:-1] if ids and ids[-1] in chat.stop_ids else ids)
    return visible(text, chat.opens_thinking(chat.prompt_ids(messages[: turn.index], tools)))
