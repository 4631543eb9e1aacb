"""Held-out prompts from the log: what users corrected, praised, or accepted in the sessions kept out of training.

A turn with an accepted hint is a complaint. It gives its prompt and a check, which the logged reply fails and the reply
that was praised next passes. A turn with reward +1 is praise: training must keep what the reply did right. The same
holds for a turn with reward 0, unless users complained about similar requests. The check is a regular expression if the
replies in the log show one (expressions.py) that also fits the hint of the turn; else it is a question to the judge.

Praise counts as corrected if users complained about similar requests at least as often as they praised the replies:
there the model was right by chance. A prompt that ends with a correction is neither corrected nor uncorrected: most
models do what they were just asked to do even before training.
"""

import contextlib
import heapq
import re
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from opdkit.chat.messages import message
from opdkit.chat.openai_messages import openai_message, read_tool_definitions
from opdkit.chat.template import Chat, ChatError
from opdkit.config.fields import JSON
from opdkit.config.wording import Texts
from opdkit.console import counted
from opdkit.evaluate.bootstrap import FEWEST
from opdkit.evaluate.checks import AFTER_CORRECTION, POOLED, read_patterns
from opdkit.evaluate.expressions import ERRORS, FEW, find_check
from opdkit.evaluate.key_words import key_words
from opdkit.evaluate.similar import SimilarTexts, Words, fold_words, list_request_words
from opdkit.extract.known_turns import digest_turns, find_id_in_log
from opdkit.judge.claims import choose_wording
from opdkit.judge.votes import holds_reply
from opdkit.judge.words import drop_judgements
from opdkit.model.behavior_policy import is_other_model
from opdkit.store.joined_turns import CHECKED, Columns, JoinedTurn, all_joined_turns, by_session
from opdkit.store.skip_reasons import DUPLICATE
from opdkit.store.stable_hash import stable_hash
from opdkit.store.turn_ids import conversation_id, is_held_out

COMPLAINT, PRAISE, NEUTRAL = "complaint", "praise", "neutral"  # kinds of reactions
# Domains besides those of the common hints, and AFTER_CORRECTION.
PRAISED_REPLIES, ACCEPTED_REPLIES = "praised replies", "accepted replies"
OTHER_COMPLAINTS = "other complaints"
_EXAMPLES, _ALL_EXAMPLES = 50, 2000  # most complaints per hint, and in all, from the sessions that trained
_TEXTS = 2000  # only the commonest hints are grouped; each other hint is its own group
_LABEL = 60  # characters of a hint in the name of a domain
_SIGN = re.compile(r"[^\w\s.,;:!?'\"()]")

ReplyKey = tuple[str, str]  # system prompt and reply: turns with equal keys count as the same reply
# Reply -> how often users praised it (PRAISED_REPLIES), corrected it with each hint, or rejected it (COMPLAINT).
ReactionCounts = dict[ReplyKey | None, Counter[str]]


@dataclass(frozen=True)
class Reaction:
    """Turn that a user corrected, praised, or accepted without comment."""

    turn: JoinedTurn
    is_held_out: bool
    kind: str
    hint: str | None  # of praise: the hint of the complaint just before it, if any
    praised_next: JoinedTurn | None  # of a complaint: the next turn without a hint, if it was praised
    after_correction: bool = False  # the prompt ends with a correction

    @cached_property
    def request(self) -> Words:
        return frozenset(list_request_words(self.turn))


@dataclass(frozen=True)
class _Complaints:
    """Complaints of a log, in groups whose hints ask for similar things. The commonest hint of a group is its name."""

    group_of: dict[str, str]  # hint -> its group
    members: dict[str, list[Reaction]]  # group -> its complaints
    requests: SimilarTexts  # the requests, labelled with their groups

    def label(self, reaction: Reaction) -> str:
        """Return the group of a complaint, PRAISED_REPLIES for any other reaction."""
        return self.group_of[str(reaction.hint)] if reaction.kind == COMPLAINT else PRAISED_REPLIES


def _hash_prompt(turn: JoinedTurn) -> int:
    """Return a hash of the words of a whole prompt: near duplicates, which differ in case or numbers, have the same."""
    prompt = turn.session["messages"][: turn.index]
    texts = ((m["role"], m["content"], *(f"{c['name']} {c['arguments']}" for c in m["tool_calls"])) for m in prompt)
    # Signs count, but not punctuation: C++ is not C#.
    return stable_hash(" ".join(word for parts in texts for text in parts
                                for word in (*fold_words(text), *_SIGN.findall(text or ""))))  # fmt: skip


def read_reactions(run: Path, holdout: float, columns: Columns = CHECKED) -> Iterator[Reaction]:
    """Yield the reactions in the held-out sessions; then examples of complaints from the other sessions.

    Examples come from the first _EXAMPLES complaints per hint; the _ALL_EXAMPLES with the smallest hashes are kept.
    """
    examples = list[tuple[int, str, Reaction]]()  # a heap of (minus the hash of the turn id, the turn id, the reaction)
    seen, conversation, verdicts = Counter[str](), "", dict[bytes, JSON]()  # of this conversation's branches so far
    for turns in by_session(all_joined_turns(run, columns, partial=True)):
        session_id = turns[0].session_id
        is_kept = is_held_out(session_id, holdout)
        if find_id_in_log(session_id) != conversation:
            conversation, verdicts = find_id_in_log(session_id), {}
        judged = _find_verdicts([turn for turn in turns if turn.index], verdicts)
        for reaction in _find_reactions(judged, is_kept):
            turn_id, hint = reaction.turn.turn_id, str(reaction.hint)
            seen[hint] += reaction.kind == COMPLAINT
            if is_kept:
                yield reaction
            elif reaction.kind == COMPLAINT and seen[hint] <= _EXAMPLES:
                heapq.heappush(examples, (-stable_hash(turn_id), turn_id, reaction))
                if len(examples) > _ALL_EXAMPLES:
                    heapq.heappop(examples)
    yield from (reaction for *_, reaction in sorted(examples, reverse=True))


def _find_reactions(judged: Sequence[tuple[JoinedTurn, JSON]], is_kept: bool) -> Iterator[Reaction]:
    """Yield the reactions to the judged turns of a session, without turns that it shares with an earlier branch.

    A turn is neutral if most votes say so and it does not follow a complaint: its user may be tired of complaining.
    """
    before: JSON = {"hint": None, "reward": None}  # verdict on the previous reply
    for n, (turn, verdict) in enumerate(judged):
        after_correction = before["hint"] is not None or before["reward"] == -1
        if turn.final_verdict is None:  # an earlier branch has it
            pass
        elif verdict["hint"] is not None:
            later = next(((other, v["reward"]) for other, v in judged[n + 1 :] if v["hint"] is None), None)
            praised_next = later[0] if later and later[1] == 1 else None
            yield Reaction(turn, is_kept, COMPLAINT, verdict["hint"], praised_next, after_correction)
        elif verdict["reward"] == 1:
            yield Reaction(turn, is_kept, PRAISE, before["hint"], None, after_correction)
        elif (verdict["reward"], verdict["reward_status"]) == (0, "ok") and not after_correction:
            yield Reaction(turn, is_kept, NEUTRAL, None, None)
        before = verdict


def _find_verdicts(turns: Sequence[JoinedTurn], verdicts: dict[bytes, JSON]) -> list[tuple[JoinedTurn, JSON]]:
    """Return the judged turns of a session with their verdicts, from this branch of the conversation or an earlier one.

    `verdicts` holds the verdicts of earlier branches, by the digests of their turns; those of this branch are added.
    """
    judged = list[tuple[JoinedTurn, JSON]]()
    for turn, digest in zip(turns, digest_turns(turns, reactions=False) if turns else (), strict=True):
        if turn.final_verdict is not None:
            verdicts[digest] = turn.final_verdict
        if turn.final_verdict is not None or turn.turn["skip_reason"] == DUPLICATE:
            judged += [(turn, verdicts[digest])] if digest in verdicts else []
    return judged


def count_reactions(run: Path, reactions: Sequence[Reaction], columns: Columns = CHECKED) -> ReactionCounts:
    """Count how all users reacted to each reply in the held-out sessions, wherever the log has the same reply."""
    counts: ReactionCounts = {key: Counter() for reaction in reactions
                              if reaction.is_held_out and (key := _make_key(reaction.turn))}  # fmt: skip
    for turn in all_joined_turns(run, columns, partial=True) if counts else ():
        verdict = turn.final_verdict
        if verdict is not None and turn.index and (own := counts.get(_make_key(turn))) is not None:
            label = verdict["hint"] or {1: PRAISED_REPLIES, -1: COMPLAINT}.get(verdict["reward"])
            own.update([label] if label else [])
    return counts


def _make_key(turn: JoinedTurn) -> ReplyKey | None:
    """Return system prompt and reply of a turn; None for a reply without a word of its request, such as "Done.".

    The request is the last two messages of the user, since the last one may correct the one before it.
    """
    messages = turn.session["messages"]
    first, reply = messages[0], messages[turn.index]
    asked = [m["content"] or "" for m in messages[: turn.index] if m["role"] == "user"][-2:]
    text = (reply["content"] or "") + "".join(call["arguments"] for call in reply["tool_calls"])
    if key_words(" ".join(asked)).isdisjoint(key_words(drop_judgements(text))):
        return None
    return (first["content"] or "" if first["role"] == "system" else "", text)


def make_prompts(
    reactions: Sequence[Reaction], counts: ReactionCounts, chat: Chat, room: float, texts: Texts, names: frozenset[str]
) -> tuple[list[JSON], Counter[str]]:
    """Return rows of a file of prompts, in the order of the log, and how many turns were left out, by reason.

    Near duplicates become one row, with their number as `turns`. `room`: length of the longest prompt, in tokens.
    `texts`: wording of the criteria. `names`: those of the model that the prompts are for (`list_student_names`).
    """
    complaints = _group_complaints(reactions)
    direct = [reaction for reaction in reactions
              if reaction.is_held_out and not reaction.after_correction and reaction.kind != NEUTRAL]  # fmt: skip
    praise = [reaction for reaction in direct if reaction.kind == PRAISE]
    checks = _find_checks(complaints, praise, chat, names)
    hints = _choose_hints(reactions, checks)
    reacted = SimilarTexts((reaction.request, complaints.label(reaction)) for reaction in direct)
    accepted, left_out = _choose_accepted(reactions, complaints.requests)
    rows = dict[tuple[str, str | None, int], JSON]()
    for reaction in (reaction for reaction in reactions if reaction.is_held_out):
        if reaction.kind == NEUTRAL and reaction.turn.turn_id not in accepted:
            continue
        if _is_contested(reaction, counts, complaints):
            left_out["the same reply was judged otherwise"] += 1
            continue
        # Praised replies to a request that others complained about also show what those others wanted.
        hint = reaction.hint or hints.get(reaction.request, "")
        group = complaints.group_of.get(hint, hint) or None
        try:
            row = _make_row(reaction, chat, room, checks.get(hint), texts)
        except ChatError as error:
            left_out[error.reason] += 1
            continue
        if reaction.after_correction:
            row["domain"] = AFTER_CORRECTION
        else:
            if reaction.kind == PRAISE and group is None:
                labels = reacted.count_labels(reaction.request)
                praised = labels.pop(PRAISED_REPLIES, 0)
                group = labels.most_common(1)[0][0] if labels and labels.total() >= praised else None
            calm = ACCEPTED_REPLIES if reaction.kind == NEUTRAL else PRAISED_REPLIES
            row |= {"domain": group or calm, "corrected": group is not None}
        key = row["domain"], group, _hash_prompt(reaction.turn)
        if (known := rows.setdefault(key, row)) is not row:  # of near duplicates, keep one with patterns
            kept = row if "judge" in known["check"] and "judge" not in row["check"] else known
            rows[key] = kept | {"turns": known["turns"] + 1}
    _name_domains(list(rows.values()))
    return list(rows.values()), left_out


def _group_complaints(reactions: Sequence[Reaction]) -> _Complaints:
    complaints = [reaction for reaction in reactions if reaction.kind == COMPLAINT]
    # A hint that holds a reply that a user edited or kept is a group of its own: such hints differ only in the reply.
    asked = (c.hint for c in complaints if not holds_reply(
        str(c.hint), (c.turn.final_verdict or {}).get("hint_status", ""), c.turn.turn["decision"]))  # fmt: skip
    group_of = choose_wording(Counter(map(str, asked)).most_common(_TEXTS))
    members = defaultdict[str, list[Reaction]](list)
    for complaint in complaints:
        members[group_of.setdefault(str(complaint.hint), str(complaint.hint))].append(complaint)
    requests = SimilarTexts((complaint.request, group_of[str(complaint.hint)]) for complaint in complaints)
    return _Complaints(group_of, members, requests)


def _find_checks(
    complaints: _Complaints, direct_praise: Sequence[Reaction], chat: Chat, names: frozenset[str]
) -> dict[str, JSON]:
    """Return hint -> the patterns that check it, for the groups of at least FEW complaints with a held-out one.

    `direct_praise`: praise for replies that do not follow a correction.
    """
    praise_of = defaultdict[str, list[Reaction]](list)  # group -> praise for requests like > ERRORS of its own
    for praise in direct_praise:
        for group, number in complaints.requests.count_labels(praise.request).items():
            if number > ERRORS * len(complaints.members[group]):
                praise_of[group].append(praise)
    return {hint: check for group, members in complaints.members.items()
            if len(members) >= FEW and any(complaint.is_held_out for complaint in members)
            for hint, check in _find_group_checks(members, praise_of[group], chat, names).items()}  # fmt: skip


def _choose_hints(reactions: Sequence[Reaction], checks: Collection[str]) -> dict[Words, str]:
    """Return request -> hint. Of several hints about a request, one with a check wins, then the most frequent one."""
    complaints = (reaction for reaction in reactions if reaction.kind == COMPLAINT)
    given = Counter((complaint.request, str(complaint.hint)) for complaint in complaints).most_common()
    best_last = sorted(given, key=lambda item: item[0][1] not in checks)[::-1]
    return {request: hint for (request, hint), _ in best_last}


def _is_contested(reaction: Reaction, counts: ReactionCounts, complaints: _Complaints) -> bool:
    """Return True if as many users or more reacted otherwise to the same reply: judges err, so the majority decides."""
    labels = counts.get(_make_key(reaction.turn), Counter[str]()).elements()
    by_group = Counter(complaints.group_of.get(label, label) for label in labels)
    own = complaints.label(reaction)
    return any(number >= by_group[own] for group, number in by_group.items() if group != own)


def _name_domains(rows: Sequence[JSON]) -> None:
    """Shorten the names of domains, and merge domains of fewer than FEWEST prompts into OTHER_COMPLAINTS."""
    sizes = Counter(row["domain"] for row in rows)
    for row in rows:
        label = " ".join(row["domain"].split())[:_LABEL]
        is_fixed = label in (PRAISED_REPLIES, ACCEPTED_REPLIES, AFTER_CORRECTION)
        is_own = label not in POOLED and (is_fixed or sizes[row["domain"]] >= FEWEST)
        row["domain"] = label if is_own else OTHER_COMPLAINTS


def _choose_accepted(reactions: Sequence[Reaction], complained: SimilarTexts) -> tuple[set[str], Counter[str]]:
    """Return the ids of the neutral turns that become prompts, and how many do not, by reason.

    Requests like those that users complained about are left out: this user may have had the same wish without saying
    so. The judge is asked about each prompt, so at most max(FEWEST, complaints and praise) are taken.
    """
    neutral = [reaction for reaction in reactions if reaction.kind == NEUTRAL]
    most = max(FEWEST, sum(reaction.is_held_out and reaction.kind != NEUTRAL for reaction in reactions))
    chosen, left_out = set[str](), Counter[str]()
    for reaction in sorted(neutral, key=lambda reaction: stable_hash(reaction.turn.turn_id)):
        if complained.count_labels(reaction.request):
            left_out["accepted replies to requests like those that others complained about"] += 1
        elif len(chosen) == most:
            left_out["accepted replies, more than are needed"] += 1
        else:
            chosen.add(reaction.turn.turn_id)
    return chosen, left_out


def describe_prompts(rows: Sequence[JSON], left_out: Counter[str], replies: int) -> str:
    """Return what `make_prompts` made, in words. `replies`: number of replies per prompt, of both models together."""
    corrected, judged = sum(row.get("corrected", False) for row in rows), sum("judge" in row["check"] for row in rows)
    sizes, merged = Counter(row["domain"] for row in rows), sum(row["turns"] for row in rows) - len(rows)
    reasons = "".join(f"; left out: {number:,} ({reason})" for reason, number in left_out.most_common())
    return (f"{counted(len(rows), 'prompt')} from the log: {corrected:,} on corrected topics, "
            f"{sizes[PRAISED_REPLIES]:,} on other {PRAISED_REPLIES}, "
            f"{sizes[ACCEPTED_REPLIES]:,} on {ACCEPTED_REPLIES}, {sizes[AFTER_CORRECTION]:,} {AFTER_CORRECTION}; "
            f"{merged:,} near duplicates merged{reasons}; "
            f"{len(rows) - judged:,} are checked by patterns, {judged:,} by the judge, "
            f"with at most {counted(judged * replies, 'question')}")  # fmt: skip


def _find_group_checks(
    complaints: Sequence[Reaction], direct_praise: Sequence[Reaction], chat: Chat, names: frozenset[str]
) -> dict[str, JSON]:
    """Return hint -> the patterns that check it, for the hints of one group of complaints.

    At least half of `direct_praise`, replies to similar requests that were praised at once, must pass. The hints of a
    group may ask for opposite things. So a hint is kept only if most of the replies that were praised after complaints
    with this very hint pass.
    """
    wrong = _read_replies([(complaint.request, complaint.turn) for complaint in complaints], chat)
    right = _read_replies([(complaint.request, complaint.praised_next) for complaint in complaints], chat)
    is_own = not any(is_other_model(complaint.turn.session["model"], names) for complaint in complaints)
    hints = [str(complaint.hint) for complaint in complaints]
    check = find_check([*right.values()], [*wrong.values()], hints, is_own)
    if check is None:
        return {}
    patterns = read_patterns(check)
    at_once = _read_replies([(praise.request, praise.turn) for praise in direct_praise], chat).values()
    if 2 * sum(map(patterns.passes, at_once)) < len(at_once):
        return {}
    passed = defaultdict[str, list[bool]](list)
    for hint, complaint in zip(hints, complaints, strict=True):
        replies = _read_replies([(complaint.request, complaint.praised_next)], chat).values()
        passed[hint] += map(patterns.passes, replies)
    return {hint: check for hint, marks in passed.items() if 2 * sum(marks) > len(marks)}


def _read_replies(turns: Iterable[tuple[Words, JoinedTurn | None]], chat: Chat) -> dict[Words, str]:
    """Return the first reply to each request. Replies that the template cannot render are skipped."""
    found = dict[Words, str]()
    for request, turn in turns:
        if turn is not None and request not in found:
            with contextlib.suppress(ChatError):
                found[request] = _read_reply(turn, chat)
    return found


def _make_row(reaction: Reaction, chat: Chat, room: float, check: JSON | None, texts: Texts) -> JSON:
    """Return the row of a turn, with an empty domain. `check`: the patterns for its hint, if any. Raises ChatError."""
    turn, praised_next = reaction.turn, reaction.praised_next
    logged, tools = _read_reply(turn, chat), turn.session["tools"]
    prompt = turn.session["messages"][: turn.index]
    if not logged:
        raise ChatError("empty reply")
    if prompt[-1]["role"] == "assistant":
        raise ChatError("no request")
    if len(chat.prompt_ids(prompt, tools)) > room:
        raise ChatError("too long")
    if reaction.kind == COMPLAINT:
        right, wrong = [_read_reply(praised_next, chat)] if praised_next else [], [logged]
        question = {"judge": texts["follows_hint"], "hint": reaction.hint}
    else:
        right, wrong = [logged], []
        question = {"judge": texts["serves_as_well"], "praised": logged}
    if check:
        passes = read_patterns(check).passes
        is_right = all(map(passes, right))
        if not is_right and reaction.kind != COMPLAINT and reaction.hint is None:
            raise ChatError("praise for what others corrected")
        if not is_right or any(map(passes, wrong)):
            check = None
    is_plain = prompt == [message("user", prompt[0]["content"])] and bool((prompt[0]["content"] or "").strip())
    asked = {"prompt": prompt[0]["content"]} if is_plain else {
        "messages": [openai_message(m, arguments_as_text=True) for m in prompt]}  # fmt: skip
    return {"id": turn.turn_id, "session": conversation_id(turn.session_id), "domain": "", **asked,
            "check": check or question, "hint": reaction.hint, "logged": logged, "turns": 1,
            "tools": read_tool_definitions(tools) or tools}  # fmt: skip


def _read_reply(turn: JoinedTurn, chat: Chat) -> str:
    """Return a logged reply as checks see a sampled one: as the template writes it, without thinking."""
    messages, tools = turn.session["messages"], turn.session["tools"]
    ids = chat.reply(messages, turn.index, tools, turn.turn["finish_reason"]).ids
    text = chat.text(ids[:-1] if ids and ids[-1] in chat.stop_ids else ids)
    return chat.visible_text(text, chat.prompt_ids(messages[: turn.index], tools))
