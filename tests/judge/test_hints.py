"""Tests of hint candidates: the filter, duplicates, the selection, and what the votes decide."""

import math
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from runs import talk, write_extract

from opdkit.config.judge import JudgeConfig
from opdkit.errors import ConfigError
from opdkit.judge import hints
from opdkit.judge import stage as judge
from opdkit.judge.hints import (
    choose_by_consensus,
    choose_hint,
    drop_duplicates,
    find_fault,
    is_leak,
    score_specificity,
    select_hint,
)
from opdkit.judge.words import split_words
from opdkit.store.reading import read_all

NEXT = "No, please give me the temperature for tomorrow in degrees Celsius, not in Fahrenheit."
GOOD = "Give the temperature in Celsius."


def chosen(decisions, texts, *, select="longest", min_chars=2, max_chars=600, next_state=NEXT):
    votes = list(zip(decisions, texts, strict=True))
    return choose_hint(votes, next_state, select=select, min_chars=min_chars, max_chars=max_chars)


@pytest.mark.parametrize(
    ("hint", "reason"),
    [
        (GOOD, None),
        ("wrong", "empty_judgement"),
        ("that was bad", "empty_judgement"),
        ("The answer is incorrect.", "empty_judgement"),
        ("That’s not right!", "empty_judgement"),
        ("This reply was not very helpful.", "empty_judgement"),
        ("The response should be better.", "empty_judgement"),
        ("...", "empty_judgement"),
        ("K", "too_short"),
        (" K ", "too_short"),
        ("4K", None),
        ("Answer with yes or no.", None),
        ("x" * 601, "too_long"),
        ("x" * 600, None),
        ("Say: please give me the temperature for tomorrow in degrees", "leak"),
        ("请用摄氏度回答明天的温度是多少", None),
    ],
)
def test_the_filter_says_why(hint: str, reason: str | None) -> None:
    assert find_fault(hint, NEXT, min_chars=2, max_chars=600) == reason


# Each of these says what to do.
ACTIONABLE = [
    "Use Python", "Be brief", "JSON", "No emojis.", "User correction: No, Paris.", "用摄氏度回答", "用列表",
    "简洁", "摄氏で答えてください", "箇条書きで", "섭씨로", "목록으로 써 줘", "ตอบเป็นภาษาไทย", "ใช้รายการ",
    "أجب بالعربية", "استخدم القوائم", "Ответь по-русски", "Короче", "Auf Deutsch", "En français",
    "Usa una lista", "हिंदी में लिखिए", "ענה בעברית", "Στα ελληνικά",
]  # fmt: skip
# Each of these says that something was wrong, and not what would be right.
EMPTY = [
    "User correction: incorrect", "User correction: That was bad", "User correction: That's wrong.", "Wrong!",
    "no", "Nope, still not right.", "User correction: This doesn't work", "不对", "这是错误的",
    "回答不正确。", "違います", "それは間違いです。", "틀렸어요", "이건 틀렸습니다", "ผิด",
    "คำตอบนี้ไม่ถูกต้อง", "هذا خطأ", "الإجابة غير صحيحة", "Это неправильно.", "Неверный ответ",
    "Das ist falsch", "Das stimmt nicht.", "C'est faux.", "Eso es incorrecto", "È sbagliato",
    "Isso está errado", "Dat is niet goed", "To jest źle", "Bu yanlış",
]  # fmt: skip


@pytest.mark.parametrize("hint", ACTIONABLE)
def test_an_instruction_passes_in_any_script_however_short(hint: str) -> None:
    assert find_fault(hint, NEXT, min_chars=2, max_chars=600) is None


@pytest.mark.parametrize("hint", EMPTY)
def test_a_judgement_carries_nothing_in_any_script(hint: str) -> None:
    assert find_fault(hint, NEXT, min_chars=2, max_chars=600) == "empty_judgement"


def test_the_shortest_hint_is_an_option(tmp_path: Path) -> None:
    assert find_fault("Use Kelvin", NEXT, min_chars=10, max_chars=600) is None
    assert find_fault("Use Kelvin", NEXT, min_chars=11, max_chars=600) == "too_short"
    run = write_extract(tmp_path / "run", {"s": talk("How warm is it?", "68 F", "Use Kelvin")})
    for least, hint in ((10, "Use Kelvin."), (12, None)):
        options = {"judge": "rules", "min_hint_chars": least, "overwrite": True, "shard": "0/1"}
        judge.run(JudgeConfig(run=run, **options))
        assert [row["hint"] for row in read_all(run, "verdicts")] == [hint]
    with pytest.raises(ConfigError, match="--min-hint-chars"):
        JudgeConfig(run=run, judge="rules", min_hint_chars=50, max_hint_chars=40)


def test_a_hint_that_quotes_the_next_state_leaks() -> None:
    """A run of 8 words from the next state is a leak, 7 are not; case and punctuation do not matter."""
    seven = "please give me the temperature for tomorrow"
    eight = seven + " in"
    assert len(split_words(seven)) == 7
    assert not is_leak(f"Reply to {seven}!", NEXT)
    assert is_leak(f"Reply to {eight}!", NEXT)
    assert is_leak(f"Reply to {eight.upper().replace(' ', ', ')}!", NEXT)
    assert is_leak("in degrees Celsius — NOT in Fahrenheit; for tomorrow in degrees", "for " + NEXT * 2) is False
    assert not is_leak("the temperature", "")
    assert not is_leak("", NEXT)


def test_a_next_state_is_split_into_words_once(monkeypatch) -> None:
    """A next state may be a tool result of megabytes, so it is not split again for each of the candidates."""
    said, split = f"{NEXT} Thank you.", []
    monkeypatch.setattr(hints, "split_words", lambda text: split.append(text) or split_words(text))
    texts = ["Use Celsius", "Use Kelvin", f"Say {NEXT}", "Answer in degrees Celsius", "Show a table"]
    assert chosen([1] * 5, texts, next_state=said).rejected == {"leak": 1}
    assert split.count(said) == 1
    assert chosen([1] * 5, texts, next_state="Nothing of it.").rejected == {}


def test_a_word_is_matched_whole() -> None:
    said = "he can see all of the red cars now"
    assert is_leak("he can see all of the red cars", said)
    assert not is_leak("he can see all of the red car", said)
    assert not is_leak("e can see all of the red cars", said)


def test_a_leak_in_a_script_without_spaces() -> None:
    """16 Han or Kana characters, or 32 Thai ones, count as eight words; a wish in the user's words is not a leak."""
    said = "我想知道明天下午北京的最高气温大概是多少度"
    assert is_leak("应该说明天下午北京的最高气温大概是多少", said)
    assert not is_leak("应该说下午北京的最高气温大概是多少", said)
    assert not is_leak("回答时用摄氏度而不是华氏度，并四舍五入到整数。", "不对，请用摄氏度而不是华氏度。")
    assert not is_leak("摂氏で答えてください。", "違います。摂氏で答えてください。")
    assert is_leak("ตอบว่า อุณหภูมิสูงสุดของวันพรุ่งนี้ในกรุงเทพ", "อุณหภูมิสูงสุดของวันพรุ่งนี้ในกรุงเทพ เท่าไร")
    assert not is_leak("ตอบเป็นภาษาไทย", "ไม่ใช่ ตอบเป็นภาษาไทย สิ")
    assert not is_leak("用 Python 写", "请用Python写代码")


def test_hints_that_differ_in_a_vowel_sign_are_two() -> None:
    assert len(drop_duplicates(["दिन में उत्तर दो", "दान में उत्तर दो"])) == 2


def test_no_two_alike_and_shortest_first() -> None:
    found = drop_duplicates(
        ["Use metric units.", "use  metric, units", "Be brief, please.", "Use metric units always."]
    )
    assert found == ["Be brief, please.", "Use metric units.", "Use metric units always."]


@pytest.mark.parametrize(("most", "other"), [
    ("Write the program in C++.", "Write the program in C."), ("The exponent must be -5.", "The exponent must be 5."),
    ("Keep rows with x >= 3.", "Keep rows with x < 3."), ("Give the price in €.", "Give the price in $."),
])  # fmt: skip
def test_a_sign_that_changes_the_meaning_is_part_of_a_hint(most: str, other: str) -> None:
    """Regression: the two counted as one hint, and the shorter text won, although it had a single vote."""
    choice = chosen([1] * 5, [most] * 4 + [other], select="consensus")
    assert choice.hint == most
    assert sorted(choice.hints) == sorted([most, other])


def test_of_hints_with_the_same_words_the_commonest_is_kept() -> None:
    assert drop_duplicates(["Use metric units!!", "Use metric units!!", "use metric units"]) == ["Use metric units!!"]


@given(st.lists(st.text(min_size=1, max_size=30), max_size=8))
def test_distinct_does_not_depend_on_the_order(hints: list[str]) -> None:
    assert drop_duplicates(hints) == drop_duplicates(hints[::-1])
    assert drop_duplicates(drop_duplicates(hints)) == drop_duplicates(hints)


def test_selection() -> None:
    brief = "Use Celsius."
    telling = "Give tomorrow's temperature in Celsius and name the city of the forecast."
    rambling = "The reply should have been so much better than it was, and it could have been and should be " * 2
    hints = [brief, rambling, telling]
    assert select_hint(hints, "longest") == rambling
    assert select_hint(hints, "shortest") == brief
    assert select_hint(hints, "score") == telling


def test_score_worked_by_hand() -> None:
    assert score_specificity("Use Celsius.") == pytest.approx(2 * math.exp(-2 / 25))
    assert score_specificity("The answer should be better.") == 0.0
    assert score_specificity("Use Celsius Celsius, not Fahrenheit.") == pytest.approx(3 * math.exp(-5 / 25))


def test_score_rises_to_25_words_and_falls() -> None:
    scores = [score_specificity(" ".join(f"word{i}" for i in range(n))) for n in range(1, 80)]
    assert scores.index(max(scores)) + 1 == 25


def test_candidates_are_the_votes_with_decision_1() -> None:
    found = chosen([1, 1, -1, 1, None], [GOOD, "Be brief and plain.", "not taken", None, "nor this one"])
    assert found.hints == ["Be brief and plain.", GOOD]
    assert (found.hint, found.status, found.rejected) == (GOOD, "ok", Counter())
    assert chosen([1, 1], [GOOD, "Be brief and plain."], select="shortest").hint == "Be brief and plain."


def test_one_lucky_vote_gives_no_hint() -> None:
    """One vote of five for a hint is outvoted; two of three valid votes give a hint, and so does a single vote."""
    found = chosen([1, -1, -1, -1, -1], [GOOD, None, None, None, None])
    assert (found.hints, found.hint, found.status) == ([GOOD], None, "outvoted")
    assert chosen([1, -1], [GOOD, None]).status == "outvoted"
    assert chosen([1, 1, -1, None, None], [GOOD, None, None, None, None]).hint == GOOD
    assert chosen([1], [GOOD]).hint == GOOD


def test_fewer_than_half_valid_is_no_quorum() -> None:
    """A failed vote is not a vote: if fewer than half are valid, there is no hint."""
    found = chosen([1, 1, None, None, None], [GOOD, GOOD, None, None, None])
    assert (found.hints, found.hint, found.status) == ([GOOD], None, "no_quorum")
    assert chosen([None, None], [None, None]).status == "no_quorum"
    assert chosen([1, None], [GOOD, None]).status == "ok"


def test_why_there_is_no_hint() -> None:
    assert chosen([-1, -1, 1], [None] * 3).status == "none"
    assert chosen([1, 1, 1], [None] * 3).status == "none"
    found = chosen([1, 1, 1], ["that was bad", "that is wrong", "Use Kelvin"], min_chars=11)
    assert (found.hints, found.hint, found.status) == ([], None, "empty_judgement")
    assert found.rejected == {"empty_judgement": 2, "too_short": 1}
    assert chosen([1, 1], ["y" * 50, "Use K"], min_chars=11, max_chars=49).status == "too_long"
    assert chosen([1], [NEXT]).status == "leak"
    assert chosen([1, -1, -1], ["wrong", None, None]).status == "none"


def test_the_consensus_is_the_hint_that_most_votes_give() -> None:
    """Two of three votes name the 24-hour clock only; `longest` takes the third, which names both clocks."""
    clock, reworded = "Use the 24-hour clock for times.", "Write the time on the 24-hour clock."
    both = "Use the 24-hour clock with am or pm as they like it."
    assert chosen([1, 1, 1], [clock, both, reworded], select="consensus").hint == clock
    assert chosen([1, 1, 1], [clock, both, reworded], select="longest").hint == both


def test_the_consensus_counts_equal_votes_and_sums_similarities() -> None:
    """The words are {a b}, {a c} and {a c}: the Jaccard similarities sum to 1 + 1/3 + 1/3 and 1/3 + 1 + 1."""
    first, second = "alpha beta", "alpha gamma"
    assert choose_by_consensus([first, second], [first, second, second]) == second
    assert choose_by_consensus([first, second], [first, first, second]) == first
    assert choose_by_consensus([first, second], [first, second]) == first


@given(st.lists(st.sampled_from(["use celsius for it", "use fahrenheit for it", "answer in words"]), min_size=1))
def test_a_majority_of_equal_votes_is_the_consensus(votes: list[str]) -> None:
    most, count = Counter(votes).most_common(1)[0]
    if 2 * count > len(votes):
        assert choose_by_consensus(drop_duplicates(votes), votes) == most


def test_a_verbose_quotation_does_not_win_as_the_longest() -> None:
    """A quotation and a text that is too long are rejected, so that the shorter hint wins."""
    found = chosen([1, 1, 1], [NEXT * 3, "z" * 700, GOOD])
    assert (found.hint, found.status) == (GOOD, "ok")
    assert found.rejected == {"leak": 1, "too_long": 1}


@given(
    st.lists(st.tuples(st.sampled_from([1, -1, None]), st.none() | st.text(max_size=40)), min_size=1, max_size=7),
    st.text(max_size=60),
    st.sampled_from(["consensus", "longest", "shortest", "score"]),
)
def test_whatever_the_votes(votes, next_state: str, select: str) -> None:
    found = chosen(*zip(*votes, strict=True), select=select, next_state=next_state)
    assert (found.hint is not None) == (found.status == "ok")
    assert found.hint is None or found.hint in found.hints
    assert all(find_fault(h, next_state, min_chars=2, max_chars=600) is None for h in found.hints)
    assert len(found.hints) == len({tuple(split_words(h)) for h in found.hints})
