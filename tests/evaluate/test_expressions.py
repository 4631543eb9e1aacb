"""Tests of patterns that tell praised replies from corrected ones: by hand, and what must never be found."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from opdkit.evaluate.checks import read_patterns
from opdkit.evaluate.expressions import FEW, MANY, find_check

NAMES = "Ada Bob Cleo Dan Eve Finn Gus Hal Ida Jo Kim Leo".split()
NUMBERS = [5, 15, 20, 30, 45, 12, 18, 21, 7, 9, 11, 33]
ANY_CASE = {"ignore_case": True}
PROSE = "Well, {} said that it is so, and then went on for a good long while about what it all may have meant to them"


def texts(form: str, count: int = FEW) -> list[str]:
    return [form.format(name, number) for name, number in zip(NAMES, NUMBERS, strict=True)][:count]


@pytest.mark.parametrize(("praised", "corrected", "hint", "expected"), [
    ("In {} it is {} C.", "In {} it is {} F.", "Use Celsius.", {"match": [r"\d ?C\b"]}),
    ("1. Ask {}.\n2. Wait {} days.", "Ask {} and wait {} days.", "Number the steps.", {"match": [r"(?m)^\s*\d+[.)] "]}),
    ("{} owes it.", "{} owes {}.", "Name no amount.", {"absent": [r"\d"]}),
    ("It was {}?", "It was {}.", "Ask.", {"match": [r"\?\s*$"]}),
    ('{{"user_id": "{}"}}', '{{"user": "{}"}}', "Pass user_id.", {"match": [r"\buser_id\b"], **ANY_CASE}),
    ("{} came.", "Sorry, {} came.", "Do not say sorry.", {"absent": [r"\bsorry\b"], **ANY_CASE}),
    ("{} costs {}%.", "{} costs {} in all.", "As a share.", {"match": [r"\d ?%"]}),
    ("{} costs ${}.", "{} costs {}.", "In dollars.", {"match": [r"\$\d"]}),
    ("{} came.", PROSE, "Be brief.", {"absent": [r"^\s*(?:\S+\s+){7}\S"]}),
    (PROSE, "{} came.", "Say it in more detail.", {"match": [r"^\s*(?:\S+\s+){6}\S"]}),
])  # fmt: skip
def test_the_form_that_users_asked_for_is_found(praised, corrected, hint, expected) -> None:
    right, wrong = texts(praised), texts(corrected)
    check = find_check(right, wrong, [hint] * FEW)
    assert check == expected
    patterns = read_patterns(check)
    assert all(map(patterns.passes, right))
    assert not any(map(patterns.passes, wrong))


def test_a_time_on_the_24_hour_clock() -> None:
    clock = [f"{name} leaves at {13 + n}:{10 + n}." for n, name in enumerate(NAMES[:FEW])]
    ampm = [f"{name} leaves at {1 + n}:{10 + n} pm." for n, name in enumerate(NAMES[:FEW])]
    assert find_check(clock, ampm, ["Use the 24-hour clock."]) == {"match": [r"\b\d\d:\d\d\b"]}
    assert find_check(ampm, clock, ["Use am and pm."]) == {"match": [r"\d ?pm\b"]}


@pytest.mark.parametrize(("praised", "corrected", "hint", "right", "wrong"), [
    ("Moin {}.", "Hi {}.", "Greet with moin.", "So, moin, Zoe!", "Hello Zoe."),
    ("{} came.", "Sorry, {} came.", "Do not say sorry.", "Zoe came.", "I am so sorry, Zoe came."),
    ("{} owes 1,{:03d} $.", "{} owes 1{:03d} $.", "Separate thousands.", "She owes 12,500,000 $.", "She owes 12500 $."),
    ("It is 1.{1:02d} m, {0}.", "It is {1} m, {0}.", "Two decimals.", "It is 12.55 m.", "It is 12.5 m."),
    ("{} owes 1,{:03d}.50 $.", "{} owes 1{:03d}.50 $.", "Separate thousands.", "10,500.05 $.", "1500.05 $."),
    ("{} came at 10:{:02d}.", "{} came {} past ten.", "Use the 24-hour clock.", "At 21:30.", "At 9:30."),
    ("{0} came on {1:02d}.05.1990.", "{0} came in 1990.", "Name the day.", "On 31.12.2021.", "On 3.5.21."),
])  # fmt: skip
def test_what_was_not_seen_passes_in_another_case_and_size(praised, corrected, hint, right, wrong) -> None:
    check = find_check(texts(praised), texts(corrected), [hint] * FEW)
    assert [read_patterns(check).passes(text) for text in (right, wrong)] == [True, False]


@pytest.mark.parametrize("opening", ["You're right! ", "Of course! ", "Sorry about that. ", "Apologies, ", "好的！",
                                     "Got it!\n\n", "Sorry for the confusion. Here it is:\n"])  # fmt: skip
def test_how_a_reply_takes_up_the_correction_is_no_check(opening) -> None:
    right, wrong = texts(opening + "Dear {}, come at nine.", MANY), texts("Come at nine, {}.", MANY)
    assert find_check(right[:FEW], wrong[:FEW], ["Be polite."] * FEW) is None
    assert find_check(right, wrong, ["Be polite."] * MANY) == {"match": [r"\bdear\b"]} | ANY_CASE


def test_too_few_replies_show_nothing() -> None:
    right, wrong = texts("In {} it is {} C."), texts("In {} it is {} F.")
    assert find_check(right[:-1], wrong, ["Use Celsius."]) is None
    assert find_check(right, wrong[:-1], ["Use Celsius."]) is None
    assert find_check([], [], []) is None


def test_a_word_that_no_hint_names_needs_more_replies() -> None:
    for count in (FEW, MANY - 1):
        assert find_check(texts("{} bows.", count), texts("{} waves.", count), ["Be polite."] * count) is None
    found = find_check(texts("{} bows.", MANY), texts("{} waves.", MANY), ["Be polite."] * MANY)
    assert found == {"match": [r"\bbows\b"]} | ANY_CASE


def test_a_word_that_any_hint_could_hold_is_not_named() -> None:
    right, wrong = texts("Ask the {}."), texts("Ask {}.")
    assert find_check(right, wrong, ["It should be the fix, please."]) is None
    assert find_check(right, wrong, ["Name the fix."] * FEW) is None


@pytest.mark.parametrize(("praised", "corrected", "hint", "expected"), [
    ("In {} it is {} C.", "In {} it is {} F.", "Use Celsius.", {"match": [r"\d ?C\b"]}),
    ("{} came.", "Sorry, {} came.", "Do not say sorry.", {"absent": [r"\bsorry\b"], **ANY_CASE}),
    ("{} came.", "Oh no! {} came.", "Be calm.", None),  # another model may be upset in other words
    ("{} bows.", "{} waves.", "Be polite.", None),
])  # fmt: skip
def test_what_another_writer_does_wrong_is_a_check_only_if_hints_name_it(praised, corrected, hint, expected) -> None:
    right, wrong = texts(praised, MANY), texts(corrected, MANY)
    assert find_check(right, wrong, [hint] * MANY, is_own=False) == expected
    assert find_check(right, wrong, [hint] * MANY) is not None


def test_lengths_count_where_the_hints_speak_of_them_and_differ_by_far() -> None:
    assert find_check(texts("{} came."), texts(PROSE.replace(",", "")), ["Be polite."] * FEW) is None
    assert find_check(texts("{} came now"), texts("{} came by now"), ["Be brief."] * FEW) is None


def test_a_judge_may_err_in_one_of_ten() -> None:
    right, wrong = texts("It is {1} C in {0}.", 12), texts("It is {1} F in {0}.", 12)
    mixed = [*right[:-1], wrong[-1]], [*wrong[:-1], right[-1]]
    assert find_check(*mixed, ["Use Celsius."] * 12) == {"match": [r"\d ?C\b"]}
    mixed = [*right[:-2], *wrong[-2:]], [*wrong[:-2], *right[-2:]]
    assert find_check(*mixed, ["Use Celsius."] * 12) is None


@given(st.lists(st.text(max_size=40), max_size=12), st.lists(st.text(max_size=40), max_size=12), st.text(max_size=20))
def test_what_is_found_holds(praised, corrected, hint) -> None:
    """For any replies, a check is valid, accepts nine of ten praised replies, and rejects nine of ten others."""
    check = find_check(praised, corrected, [hint])
    if check is not None:
        patterns = read_patterns(check)
        assert sum(map(patterns.passes, praised)) >= 0.9 * len(praised)
        assert sum(map(patterns.passes, corrected)) <= 0.1 * len(corrected)


def test_the_answer_itself_is_never_the_check() -> None:
    """If every reply has a different answer, the pattern holds none of them, and so fits an unseen reply."""
    for left in itertools.islice(range(MANY + 2), 0, None, 4):
        right, wrong = texts("In {} it is {} C.", MANY + 2), texts("In {} it is {} F.", MANY + 2)
        unseen = right.pop(left), wrong.pop(left)
        patterns = read_patterns(find_check(right, wrong, ["Use Celsius."]))
        assert [patterns.passes(text) for text in unseen] == [True, False]


def test_a_letter_with_its_vowel_sign_is_no_word() -> None:
    """Only a judge can tell that a reply should be a whole sentence; in Hindi, no letter tells it either."""
    praised = [
        "हाँ, कल दिल्ली में भारी बारिश होगी, इसलिए छाता साथ ले जाइए। देर शाम तक सड़कें भर सकती हैं।",
        "नहीं, यह दुकान रविवार को बंद रहती है। उस दिन सब कर्मचारी छुट्टी पर जाते हैं।",
        "ट्रेन शाम को छूटती है, पर कोहरे के कारण देर हो सकती है, इसलिए पहले पूछ लीजिए।",
        "यह किताब सस्ती है, इसका नया संस्करण आ गया है। दुकानदार पुराना माल जल्दी बेचते हैं।",
        "पानी सौ डिग्री पर उबलता है, पर पहाड़ पर कम ताप पर, क्योंकि वहाँ हवा का दाब कम होता है।",
        "मुंबई में गर्मी कम लगती है क्योंकि समुद्र से ठंडी हवा आती है, दोपहर में भी राहत देती है।",
    ]
    corrected = ["हाँ, बारिश होगी।", "जी नहीं।", "शाम को।", "महँगी है।", "नब्बे डिग्री पर।", "कम गर्मी।"]
    check = find_check(praised, corrected, ["एक शब्द में नहीं, पूरे वाक्य में उत्तर दीजिए।"] * 6) or {}
    assert not [pattern for pattern in check.get("match", []) if "द" in pattern]
