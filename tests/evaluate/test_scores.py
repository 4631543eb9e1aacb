"""Tests of how replies and shifts become rows of `scores`: by hand, and against plain loops."""

import math
import random
from dataclasses import replace

import pytest

from opdkit.chat.messages import message
from opdkit.evaluate.bootstrap import interval
from opdkit.evaluate.checks import HeldOutPrompt, Patterns
from opdkit.evaluate.replies import Reply, mark_echoes
from opdkit.evaluate.scores import (
    METRICS,
    make_kl_scores,
    make_reply_scores,
    score_shifts,
)
from opdkit.model.comparison import Shift
from opdkit.model.scoring import PromptResponse


def test_every_metric_has_a_unit() -> None:
    assert all(metric.words and metric.unit and metric.better in (-1, 0, 1) for metric in METRICS.values())


def reply(
    prompt_id: str, model: str, sample: int, passed: bool | None = True, domain: str = "d",
    corrected: bool | None = None, text: str = "x", tokens: int | None = None, session: str | None = None,
) -> Reply:  # fmt: skip
    check = Patterns((), ())
    prompt = HeldOutPrompt(prompt_id, domain, [message("user", "say x")], None, check, corrected, session=session)
    sequence = PromptResponse([1], [2] * (tokens or (10 if model == "after" else 5)))
    return Reply(prompt, model, sample, text, text, sequence, "stop", passed)


def by_key(rows: list[dict]) -> dict[tuple[str, str], dict]:
    return {(row["metric"], row["domain"]): row for row in rows}


def test_shares_are_means_over_prompts_worked_by_hand() -> None:
    replies = [reply("c", "before", 1, None), reply("c", "after", 1, True)]  # nothing to compare with
    for n in range(3):
        replies += [reply(f"a{n}", "before", k, p) for k, p in ((1, False), (2, False))]
        replies += [reply(f"a{n}", "after", k, p) for k, p in ((1, True), (2, None))]  # a null vote leaves one reply
        replies += [reply(f"b{n}", "before", k, p, "e") for k, p in ((1, True), (2, False))]
        replies += [reply(f"b{n}", "after", k, p, "e") for k, p in ((1, True), (2, True))]
    rows = by_key(make_reply_scores(replies, seed=0))
    row = rows["passed_sampled", "all"]
    assert (row["before"], row["after"], row["difference"], row["count"]) == (0.25, 1.0, 0.75, 6)
    assert (row["low"], row["high"]) == pytest.approx((3.5 / 6, 5.5 / 6))  # of six draws at least one a, one b
    assert rows["passed_sampled", "e"]["difference"] == 0.5
    assert rows["passed_sampled", "e"]["low"] is None  # three prompts say too little about the spread
    assert rows["reply_tokens", "all"]["difference"] == 5
    assert ("passed_greedy", "all") not in rows


def test_the_prompts_of_a_session_are_resampled_together() -> None:
    """A session is one unit, with its number of prompts as its weight or, for the drift, their tokens."""
    rng, replies, shifts = random.Random(0), list[Reply](), list[Shift]()
    for n in range(40):
        for model in ("before", "after"):
            replies.append(reply(f"p{n}", model, 1, rng.random() < 0.5, session=f"log:{min(n // 3, 9)}"))
        shifts.append(Shift(rng.randint(1, 50), -1.0, -1.0, rng.random() * 9))
    before = replies[::2]
    found = by_key([*make_reply_scores(replies, seed=3), *make_kl_scores(before, shifts, seed=3)])
    row, drift = found["passed_sampled", "all"], found["kl_replies", "all"]
    groups = [[n for n in range(40) if min(n // 3, 9) == session] for session in range(10)]
    changes = [replies[2 * n + 1].passed - replies[2 * n].passed for n in range(40)]
    means = [sum(changes[n] for n in group) / len(group) for group in groups]
    assert (row["low"], row["high"]) == pytest.approx(interval(means, list(map(len, groups)), seed=3))
    tokens = [sum(shifts[n].tokens for n in group) for group in groups]
    kls = [sum(shifts[n].kl for n in group) / total for group, total in zip(groups, tokens, strict=True)]
    assert (drift["low"], drift["high"]) == pytest.approx(interval(kls, tokens, seed=3))
    assert (row["count"], drift["count"]) == (40, 40)
    assert replies[0].row()["session"] == "log:0"
    few = [replace(r, prompt=replace(r.prompt, session=str(n % 5))) for r, n in zip(replies, range(80), strict=True)]
    alone = [replace(r, prompt=replace(r.prompt, session=None)) for r in replies]
    single = [replace(r, prompt=replace(r.prompt, session=r.prompt.id)) for r in replies]
    row = by_key(make_reply_scores(few, 3))["passed_sampled", "all"]
    assert (row["low"], row["chance"], row["count"]) == (None, None, 40)
    assert make_reply_scores(single, 3) == make_reply_scores(alone, 3)


def test_what_the_logs_correct_is_put_together() -> None:
    """A prompt without the field `corrected` counts in neither group, and a domain may hold both kinds."""
    kinds = {"a": ("d", True), "b": ("d", False), "c": ("e", True), "f": ("g", None)}
    replies = [
        reply(name, model, sample, model == "after" and bool(corrected), domain, corrected)
        for name, (domain, corrected) in kinds.items() for model in ("before", "after") for sample in (0, 1)
    ]  # fmt: skip
    rows = make_reply_scores(replies, seed=0)
    metrics = ("passed_sampled", "passed_greedy", "reply_tokens", "cut_off", "hint_echo", "question", "confirmation")
    domains = ("all", "corrected", "uncorrected", "d", "e", "g")
    assert [(r["domain"], r["metric"]) for r in rows] == [(d, m) for d in domains for m in metrics]
    found = by_key(rows)
    assert [found["passed_sampled", d]["after"] for d in domains] == [0.5, 1.0, 0.0, 0.5, 1.0, 0.0]
    assert [found["passed_greedy", d]["count"] for d in domains] == [4, 2, 1, 2, 1, 1]
    assert {r["domain"] for r in make_reply_scores([r for r in replies if r.prompt.corrected is None], 0)} == {
        "all",
        "g",
    }
    assert {r["domain"] for r in make_reply_scores([r for r in replies if r.prompt.corrected], 0)} == {
        "all", "corrected", "d", "e",
    }  # fmt: skip


def test_echoes_are_counted_in_sampled_replies_and_in_greedy_ones_where_there_are_no_others() -> None:
    before = [reply("a", "before", k) for k in range(3)]
    after = [reply("a", "after", 0, text="As you hinted: x."), reply("a", "after", 1),
             reply("a", "after", 2, text="I say it in three letters, x.")]  # fmt: skip
    replies = mark_echoes([*before, *after], ["Say it in three letters", "Say x."])
    assert [r.hint_echo for r in replies] == [None] * 3 + ["as you hinted", None, "say it in three letters"]
    row = by_key(make_reply_scores(replies, 0))["hint_echo", "all"]
    assert (row["before"], row["after"]) == (0.0, 0.5)
    assert replies[3].row()["hint_echo"] == "as you hinted"
    greedy = by_key(make_reply_scores([r for r in replies if not r.sample], 0))["hint_echo", "all"]
    assert (greedy["before"], greedy["after"]) == (0.0, 1.0)


# -- KL -------------------------------------------------------------------------------------------------------------


def test_kl_is_a_mean_over_tokens_and_prompts_are_drawn_whole_worked_by_hand() -> None:
    replies, shifts = [], []
    for n in range(3):
        replies += [reply(f"a{n}", "before", 1, corrected=True), reply(f"a{n}", "before", 2, corrected=True),
                    reply(f"b{n}", "before", 1, domain="e", corrected=False)]  # fmt: skip
        shifts += [Shift(2, -1.0, -2.0, 1.0), Shift(2, -1.0, -2.0, 3.0), Shift(4, -1.0, -2.0, 8.0)]
    found = by_key(make_kl_scores(replies, shifts, seed=0))
    row = found["kl_replies", "all"]
    assert (row["before"], row["after"], row["difference"], row["count"]) == (0.0, 1.5, 1.5, 6)
    assert (row["low"], row["high"]) == pytest.approx((7 / 6, 11 / 6))  # of six draws at least one a, one b
    assert found["kl_replies", "corrected"]["after"] == found["kl_replies", "d"]["after"] == 1.0
    assert found["kl_replies", "uncorrected"]["after"] == found["kl_replies", "e"]["after"] == 2.0
    assert found["kl_replies", "e"]["low"] is None
    assert list(found) == [("kl_replies", d) for d in ("all", "corrected", "uncorrected", "d", "e")]


def test_prompts_with_longer_replies_weigh_more() -> None:
    rng = random.Random(0)
    replies, shifts = [], []
    for n in range(30):
        for k in (1, 2):
            replies.append(reply(f"p{n}", "before", k, domain=f"d{n % 3}"))
            shifts.append(Shift(rng.randint(1, 50), -1.0, -1.0, rng.random() * 9))
    found = by_key(make_kl_scores(replies, shifts, seed=0))
    for domain in ("all", "d0", "d1", "d2"):
        mine = [s for r, s in zip(replies, shifts, strict=True) if domain in ("all", r.prompt.domain)]
        row = found["kl_replies", domain]
        assert row["after"] == pytest.approx(sum(s.kl for s in mine) / sum(s.tokens for s in mine))
        assert row["low"] < row["after"] < row["high"]
        assert row["count"] == len(mine) / 2


@pytest.mark.parametrize("broken", [math.nan, math.inf])
def test_what_is_no_number_is_left_out_and_said(broken: float, capsys) -> None:
    """A value that is not finite is never replaced by an invented value."""
    replies = [
        reply("a", "before", 1),
        reply("a", "before", 2),
        reply("b", "before", 1),
        reply("c", "before", 1, domain="e"),
    ]
    shifts = [
        Shift(1, -1.0, -1.0, 1.0),
        Shift(1, -1.0, -1.0, broken),
        Shift(1, -1.0, -1.0, 3.0),
        Shift(1, 0, 0, broken),
    ]
    found = by_key(make_kl_scores(replies, shifts, seed=0))
    assert (found["kl_replies", "all"]["after"], found["kl_replies", "all"]["count"]) == (3.0, 1)
    assert (found["kl_replies", "e"]["after"], found["kl_replies", "e"]["count"]) == (None, 0)
    assert "2 of 3 are not finite" in capsys.readouterr().err
    row = score_shifts("kl_neutral", shifts, seed=0)
    assert (row["after"], row["count"]) == (2.0, 2)
    row = score_shifts("logprob_good", [Shift(2, -4.0, -2.0), Shift(1, -1.0, broken)], seed=0)
    assert (row["before"], row["after"], row["difference"], row["count"]) == (-2.0, -1.0, 1.0, 1)
    one, several = (score_shifts("logprob_good", [Shift(1, -n, 1 - n**0.5) for n in range(12)], 0, units)
                    for units in (["chat:1"] * 12, [f"chat:{n}" for n in range(12)]))  # fmt: skip
    assert (one["low"], one["difference"]) == (None, several["difference"]), "turns of one conversation are one unit"
    assert several["low"] is not None
    row = score_shifts("logprob_good", [Shift(1, broken, 0.0)], seed=0)
    assert (row["before"], row["after"], row["difference"], row["count"]) == (None, None, None, 0)
