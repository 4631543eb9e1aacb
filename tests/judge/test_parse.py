"""Tests of parsing raw judge answers into votes."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from opdkit.config.wording import DEFAULTS
from opdkit.judge.parse import (
    CUT_OFF,
    DENIED,
    ECHO,
    EMPTY,
    HALF_DECISION,
    NO_DECISION,
    OPEN_THINKING,
    parse_hint,
    parse_reward,
)
from opdkit.judge.votes import Answer

HINT_QUESTION, REWARD_QUESTION = DEFAULTS["judge"]["hint"], DEFAULTS["judge"]["reward"]


def reward(text: str, **fields) -> int | None:
    vote = parse_reward(Answer(text, **fields))
    assert (vote.score is None) == (vote.error is not None)
    assert vote.raw == text
    return vote.score


def hint(text: str, **fields) -> tuple[int | None, str | None]:
    vote = parse_hint(Answer(text, **fields))
    assert (vote.decision is None) == (vote.error is not None)
    return vote.decision, vote.hint


ONES = [
    r"\boxed{1}",
    r"\boxed{ 1 }",
    r"\boxed{1.0}",
    r"\boxed{1.}",
    r"\boxed{+1}",
    r"\boxed{ + 1 }",
    r"\boxed{\text{1}}",
    r"\boxed{\mathrm{ 1 }}",
    r"\boxed{\textbf{\text{1}}}",
    r"\boxed{$1$}",
    r"$\boxed{1}$",
    r"\boxed {1}",
    r"\\boxed{1}",
    "\\boxed{\n1\n}",
    r"**\boxed{1}**.",
    r"\Boxed{1}",
]


@pytest.mark.parametrize("text", ONES)
def test_ways_to_write_one(text: str) -> None:
    """Every usual way to box a 1 is a decision, such as `\\boxed{1.0}` and `\\boxed{ 1 }`."""
    assert reward(f"It did. {text}") == 1
    assert hint(f"{text} [HINT_START]Use metric units.[HINT_END]") == (1, "Use metric units.")


@pytest.mark.parametrize(
    ("text", "score"),
    [
        (r"\boxed{-1}", -1),
        (r"\boxed{-1.0}", -1),
        ("\\boxed{\u22121}", -1),
        (r"\boxed{- 1}", -1),
        (r"\boxed{0}", 0),
        (r"\boxed{0.0}", 0),
        (r"\boxed{-0}", 0),
        (r"\boxed{\text{0}}", 0),
    ],
)
def test_the_other_scores(text: str, score: int) -> None:
    assert reward(text) == score


@pytest.mark.parametrize(
    "content",
    ["2", "-2", "10", "11", "0.5", "1.5", "yes", "", " ", "1 or -1", "1/-1", "1, -1", "±1", "l", "--1"],
)
def test_a_decision_that_is_not_on_offer_is_no_vote(content: str) -> None:
    """The vote fails; an earlier decision in the same answer does not replace it."""
    vote = parse_reward(Answer(rf"First \boxed{{1}}. No: \boxed{{{content}}}"))
    assert vote.score is None
    assert vote.error is not None
    assert vote.error.startswith("decision not on offer")


def test_zero_is_no_decision_on_a_hint() -> None:
    assert hint(r"\boxed{1} then \boxed{0}") == (None, None)
    assert "decision not on offer: '0'" in str(parse_hint(Answer(r"\boxed{0}")).error)


@pytest.mark.parametrize("text", [
    r"The answer is \boxed{-1}, not \boxed{1}.", r"\boxed{-1} rather than \boxed{1}", r"It is not $\boxed{1}$.",
    r"答案是 \boxed{-1},而不是 \boxed{1}", r"\boxed{-1} y no \boxed{1}", r"\boxed{-1} et non \boxed{1}",
    r"\boxed{-1}, kein \boxed{1}", r"\boxed{-1} statt \boxed{1}", r"\boxed{-1} instead of a \boxed{1}",
])  # fmt: skip
def test_a_decision_that_is_denied_is_no_vote(text: str) -> None:
    assert parse_reward(Answer(text)).error == DENIED
    assert reward(r"The reply is not good enough: \boxed{-1}") == -1
    assert reward("It helped? No, it did not\n**\\boxed{-1}**") == -1
    assert reward(r"First \boxed{1}. On second thought: \boxed{-1}") == -1


@pytest.mark.parametrize("content", ["－1", "‑1", "—1", "{-1}", "-1"])
def test_the_minus_may_be_any_dash(content: str) -> None:
    assert reward(rf"\boxed{{{content}}}") == -1


@pytest.mark.parametrize("text", [
    r"**[HINT_START]** use x **[HINT_END]**", r"`[HINT_START]`use x`[HINT_END]`", r"\[HINT_START\] use x \[HINT\_END\]",
    "[HINT_START] use x [/HINT_END]", "[HINT_START] use x [/HINT_START]",
])  # fmt: skip
def test_markers_of_a_hint_in_markdown(text: str) -> None:
    assert hint(text + r" \boxed{1}") == (1, "use x")
    assert hint(r"[HINT_START] use **x** and `y`[HINT_END] \boxed{1}") == (1, "use **x** and `y`")


def test_the_last_decision_counts() -> None:
    assert reward(r"At first \boxed{1}. But the user asks again, so it is \boxed{-1}") == -1
    assert reward(r"\boxed{-1} is what I thought; in the end \boxed{1}.") == 1


def test_only_what_follows_the_thinking_counts() -> None:
    """A decision inside the thinking is only a draft."""
    assert reward(r"<think>maybe \boxed{1}</think>\boxed{-1}") == -1
    assert reward(r"<think>a</think>\boxed{1}<think>b</think> \boxed{0}") == 0
    assert reward(r"maybe \boxed{1}</think> It failed: \boxed{-1}", thinking=True) == -1
    assert parse_reward(Answer(r"<think>\boxed{1}</think> well")).error == NO_DECISION
    assert parse_reward(Answer(r"<think>\boxed{1}</think>")).error == EMPTY


def test_thinking_that_never_ends_is_no_vote() -> None:
    """A decision in thinking that never closes is a draft of an answer that was cut off."""
    assert parse_reward(Answer(r"<think>\boxed{1}")).error == OPEN_THINKING
    assert parse_reward(Answer(r"<think>a</think> \boxed{1} <think>wait, \boxed{-1}")).error == OPEN_THINKING
    assert parse_reward(Answer(r"so \boxed{1}", thinking=True)).error == OPEN_THINKING
    assert hint(r"<think>\boxed{1}[HINT_START]Use metric units.[HINT_END]") == (None, None)


def test_a_vote_cut_off_by_the_token_limit_is_none() -> None:
    """An answer that was cut off or interrupted is a failed vote, even if it holds a decision."""
    assert parse_reward(Answer(r"\boxed{1} because", "length")).error == CUT_OFF
    assert parse_reward(Answer(r"\boxed{1} because", "abort")).error == "interrupted: abort"
    vote = parse_hint(Answer(r"\boxed{1}[HINT_START]Use metric units.[HINT_END] and", "length"))
    assert (vote.decision, vote.hint, vote.error) == (None, None, CUT_OFF)
    assert reward(r"\boxed{1}", finish_reason="stop") == 1


@pytest.mark.parametrize(
    "text",
    [
        r"\boxed{1} or \boxed{-1}",
        r"I must answer \boxed{1}, \boxed{-1}, or \boxed{0}.",
        r"\boxed{1}/\boxed{0}/\boxed{-1}",
        r"(\boxed{1} and \boxed{-1})",
        r"`\boxed{1}` | `\boxed{-1}` | `\boxed{0}`",
        REWARD_QUESTION,
        REWARD_QUESTION.replace("\n", " "),
        REWARD_QUESTION.rsplit("\n", 1)[0],
    ],
)
def test_a_vote_that_repeats_the_rules_is_none(text: str) -> None:
    """An answer such as "\\boxed{1} or \\boxed{-1}" lists the options and chooses none."""
    assert parse_reward(Answer(text)).error == ECHO


def test_the_hint_question_repeated_is_no_vote() -> None:
    """An answer that only repeats the question lists the options and chooses none."""
    for text in (HINT_QUESTION, HINT_QUESTION.replace("\n", " ")):
        assert hint(text) == (None, None)


def test_a_decision_after_the_rules_is_one() -> None:
    assert reward(REWARD_QUESTION + "\nThe user thanks. " + r"\boxed{1}") == 1
    assert reward(r"Either \boxed{1} or \boxed{-1}. The tool failed, so \boxed{-1}") == -1
    assert reward(r"\boxed{0}: it cannot be told.") == 0
    assert reward(r"\boxed{1} and, to say it once more, \boxed{1}") == 1


def test_half_a_decision_is_none() -> None:
    assert parse_reward(Answer(r"\boxed{1} no: \boxed{")).error == HALF_DECISION
    assert parse_reward(Answer(r"\boxed{1} no: \boxed{-1")).error == HALF_DECISION
    assert parse_reward(Answer("1")).error == NO_DECISION
    assert parse_reward(Answer(" \n")).error == EMPTY


def test_an_answer_that_could_not_be_asked_for_says_why() -> None:
    assert parse_reward(Answer("", error="the prompt does not fit")).error == "the prompt does not fit"
    assert parse_hint(Answer("", error="the prompt does not fit")).error == "the prompt does not fit"


def test_an_unclosed_hint_is_no_hint_and_the_decision_stands() -> None:
    """An unclosed block would take in the reasoning after it, and could win as the longest hint."""
    assert hint(r"\boxed{1} [HINT_START] Use metric units. And then I thought about it for long") == (1, None)
    assert hint(r"\boxed{1} [HINT_START]Use A.[HINT_END] or rather [HINT_START] use B") == (1, None)
    assert hint(r"[HINT_START] let me think \boxed{1} [HINT_START]Use metric units.[HINT_END]") == (
        1,
        "Use metric units.",
    )
    assert hint(r"\boxed{1} Use metric units.[HINT_END]") == (1, None)
    assert hint(r"\boxed{1}") == (1, None)
    assert hint(r"\boxed{1} [HINT_START] [HINT_END]") == (1, None)


def test_the_last_block_counts() -> None:
    text = r"\boxed{1} [HINT_START]Use feet.[HINT_END] no: [HINT_START]Use metric units.[HINT_END]"
    assert hint(text) == (1, "Use metric units.")
    assert hint("[hint_start]\nUse metric\nunits.\n[ HINT_END ]\n\\boxed{1}") == (1, "Use metric\nunits.")


def test_a_hint_beside_minus_one_is_not_taken() -> None:
    assert hint(r"\boxed{-1} [HINT_START]Use metric units.[HINT_END]") == (-1, None)


def test_a_box_inside_a_closed_hint_is_no_decision() -> None:
    text = r"\boxed{1} [HINT_START]Put the result in \boxed{42} at the end.[HINT_END]"
    assert hint(text) == (1, r"Put the result in \boxed{42} at the end.")
    assert hint(r"[HINT_START]Write \boxed{1}.[HINT_END]") == (None, None)


@given(st.text(alphabet=st.sampled_from(list("\\boxed{}[]HINT_START END1-0<think>/ \n")), max_size=80))
def test_whatever_is_said_it_is_a_vote_or_says_why_not(text: str) -> None:
    assert reward(text) in (1, 0, -1, None)
    decision, said = hint(text)
    assert decision in (1, -1, None)
    assert said is None or (decision == 1 and said.strip())


@given(st.text(max_size=60), st.sampled_from([1, 0, -1]))
def test_a_decision_at_the_end_is_read_whatever_comes_before(before: str, score: int) -> None:
    assert reward(f"{before} \n so it is \\boxed{{{score}}}") == score
