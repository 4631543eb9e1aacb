"""Test of each hint before it teaches: it must change what the student writes, in the direction that it asks for.

The student samples new replies to the prompt of a turn, N with the hint and N without; a judge says for each whether it
does what the hint asks. Reply k has the same random stream in both cases: if a hint changes nothing, the two replies
are equal and share one vote, so that the judge's errors cancel. A hint that does not help is kept out of the teacher's
prompt: what it changes there is noise, and often more than a good hint changes.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from opdkit.chat.hint_placement import with_hint
from opdkit.chat.template import ChatError
from opdkit.config.fields import JSON
from opdkit.config.teacher import TeacherConfig
from opdkit.config.wording import read_wording
from opdkit.console import counted
from opdkit.judge.criterion import FreshReply, judge_replies, open_criterion_judge, read_judge_options
from opdkit.judge.votes import WANTED_REPLIES, Ask
from opdkit.model.random_streams import make_random_stream
from opdkit.model.sampling import Request, Sample
from opdkit.store.dropped_hints import DROPPED, NO_BETTER, WORSE, by_turn, remove_dropped_hints
from opdkit.store.reviews import REVIEWED
from opdkit.teacher.examples import JudgedSession, JudgedTurn, Row, choose_candidates, fit_together
from opdkit.teacher.models import Scorer

HELPS, NOT_NEEDED, NOT_JUDGED, NOT_TESTED = "helps", "followed without it, too", "not judged", "not tested"
REPLIES_CUT_OFF = f"{NOT_TESTED}: replies are cut off before they say anything"
_MARGIN = 0.25  # of the pairs; a difference must exceed this share, so that single errors of the judge do not decide

Text = str | None  # a reply as its reader sees it; None: cut off before any of it, or out of memory
Pair = tuple[bool | None, bool | None]  # verdicts on a reply with the hint and on one without; None: cannot be judged


@dataclass(frozen=True)
class TurnHints:
    """Turn whose hints are tested: the messages before the reply, and the prompts without a hint and with each hint."""

    turn_id: str
    before: list[JSON]
    hints: list[str]
    prompts: list[list[int]]  # [] for a turn that cannot be tested
    reason: str = ""  # why it cannot be tested


class TestWork(NamedTuple):
    """Work of tests: hints to test, replies to sample, tokens of all prompts, and the most tokens of all replies."""

    hints: int = 0
    replies: int = 0
    tokens_read: int = 0
    tokens_written: int = 0


def decide_status(pairs: Sequence[Pair]) -> str:
    """Return HELPS, NOT_NEEDED or NOT_JUDGED for a hint that stays, or why it is dropped.

    NOT_JUDGED: both replies have a verdict in fewer than half of the pairs.
    """
    judged = [(int(a), int(b)) for a, b in pairs if a is not None and b is not None]
    if 2 * len(judged) < len(pairs) or not judged:
        return NOT_JUDGED
    hinted, unhinted = (sum(column) / len(judged) for column in zip(*judged, strict=True))
    if abs(hinted - unhinted) > _MARGIN:
        return HELPS if hinted > unhinted else WORSE
    return NOT_NEEDED if hinted >= 0.5 else NO_BETTER


def choose_hint_judge(config: TeacherConfig) -> JSON:
    """Return the options that name the judge of `--check-hints`: the model that judged the run, else the student."""
    if not config.check_hints or config.judge_model:
        return {}
    return read_judge_options(config.run) or {"judge_model": config.model}


def open_judge(config: TeacherConfig, scorer: Scorer, folder: Path | None = None) -> Ask:
    """Return the judge that `choose_hint_judge` names, with one vote per reply. The student is not loaded again.

    `folder` is the folder of the stage that stores the votes; None if none does.
    """
    model = scorer.student.model if config.judge_model == config.model and not config.judge_url else None
    return open_criterion_judge(config, folder, votes=1, model=model)


def find_turn_hints(config: TeacherConfig, scorer: Scorer, sessions: Sequence[JudgedSession]) -> Iterator[TurnHints]:
    """Yield the turns whose hints come from the judge's votes, not from people."""
    student, room = scorer.student, scorer.max_tokens - config.max_new_tokens
    for session, turns in sessions:
        for turn, verdict in turns:
            hints = choose_candidates(verdict, config.teacher_hint)
            if not hints or verdict["hint_status"] in (REVIEWED, *WANTED_REPLIES):
                continue
            before = session["messages"][: turn["message_index"]]
            try:
                hinted = [with_hint(before, hint, config.hint_placement, scorer.hint_text) for hint in hints]
                renderings = [(student.chat, messages) for messages in (before, *hinted)]
                prompts = fit_together(renderings, session["tools"], room, config.too_long)
                yield TurnHints(turn["turn_id"], before, hints, [prompt.ids for prompt in prompts])
            except ChatError as error:
                yield TurnHints(turn["turn_id"], before, hints, [], error.reason)


def count_tests(config: TeacherConfig, turns: Iterable[TurnHints]) -> TestWork:
    """Return the work of `check_hints` on these turns."""
    prompts = [turn.prompts for turn in turns if turn.prompts]
    hints, replies = sum(len(ids) - 1 for ids in prompts), sum(map(len, prompts)) * config.check_hints
    tokens_read = sum(len(ids) for of_turn in prompts for ids in of_turn)
    return TestWork(hints, replies, tokens_read, replies * config.max_new_tokens)


def check_hints(config: TeacherConfig, scorer: Scorer, ask: Ask, sessions: Sequence[JudgedSession]) -> list[Row]:
    """Return the rows of `hint_checks` for the hints of a part.

    Reply k to a turn uses the random stream (seed, turn, k), with each hint and without.
    """
    student, texts = scorer.student, read_wording(config.wording)["criterion"]
    turns = list(find_turn_hints(config, scorer, sessions))
    numbers, seed = range(config.check_hints), config.seed
    requests = {(turn.turn_id, n): Request(ids, [make_random_stream(seed, "check", turn.turn_id, k) for k in numbers])
                for turn in turns for n, ids in enumerate(turn.prompts)}  # fmt: skip
    sampled = scorer.sampler.sample(student.model, student.chat, list(requests.values()), temperature=1.0,
                                    max_new_tokens=config.max_new_tokens,
                                    batch_tokens=config.batch_tokens)  # fmt: skip
    samples = dict(zip(requests, sampled, strict=True))
    asked, tested = dict[tuple[str, Text], FreshReply](), list[tuple[TurnHints, str, list[Text], list[Text]]]()
    for turn in turns:
        replies = [[_read_visible_text(scorer, ids, reply) for reply in samples[turn.turn_id, n]]
                   for n, ids in enumerate(turn.prompts)]  # fmt: skip
        unhinted, *by_hint = replies or [[]] * (1 + len(turn.hints))
        for hint, hinted in zip(turn.hints, by_hint, strict=True):
            tested.append((turn, hint, hinted, unhinted))
            for k, text in (*enumerate(hinted), *enumerate(unhinted)):
                if text is not None:
                    name = f"{turn.turn_id}:{hint}:{k}"
                    asked[name, text] = FreshReply(name, turn.before, text, texts["helps"], hint)
    verdicts = dict(zip(asked, judge_replies(ask, list(asked.values()), texts), strict=True))
    rows = []
    for turn, hint, *columns in tested:
        judged = [[None if text is None else verdicts[f"{turn.turn_id}:{hint}:{k}", text][1].is_met
                   for k, text in enumerate(column)] for column in columns]  # fmt: skip
        pairs = list(zip(*judged, strict=True))
        both = [pair for pair in pairs if None not in pair]
        shares: list[float | None] = [sum(map(bool, side)) / len(both) for side in zip(*both, strict=True)]
        with_it, without_it = shares or (None, None)
        status = f"{NOT_TESTED}: {turn.reason}" if turn.reason else decide_status(pairs)
        if status == NOT_JUDGED and any(2 * column.count(None) > len(column) for column in columns):
            status = REPLIES_CUT_OFF
        rows.append({"turn_id": turn.turn_id, "hint": hint, "samples": len(pairs), "judged": len(both),
                     "with_hint": with_it, "without_hint": without_it, "status": status,
                     "reply": next(iter(columns[0]), None)})  # fmt: skip
    return rows


def _read_visible_text(scorer: Scorer, prompt_ids: list[int], reply: Sample) -> Text:
    chat = scorer.student.chat
    text = chat.visible_text(chat.text(reply.text_ids), prompt_ids)
    return text if text or reply.finish_reason == "stop" else None


def leave_out_dropped(sessions: Sequence[JudgedSession], rows: Iterable[Row]) -> list[JudgedSession]:
    """Return the sessions without the hints that the rows of `hint_checks` drop."""
    checks = by_turn(rows)
    return [
        JudgedSession(session, [
            JudgedTurn(turn, remove_dropped_hints(verdict, checks.get(turn["turn_id"], ()))) for turn, verdict in turns
        ])
        for session, turns in sessions
    ]  # fmt: skip


def describe_dropped(rows: Sequence[Row]) -> Iterator[str]:
    """Yield, for each reason, how many hints were dropped, with an example."""
    for reason in DROPPED:
        if dropped := [row for row in rows if row["status"] == reason]:
            example = ("{hint!r} ({turn_id}), which {with_hint:.0%} of the replies with it follow, and "
                       "{without_hint:.0%} without").format_map(dropped[0])  # fmt: skip
            yield f"{counted(len(dropped), 'hint')} dropped, {reason}: for example {example}"
