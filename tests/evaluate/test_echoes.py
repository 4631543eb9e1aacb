"""Tests of replies that mention a hint that nobody gave: what counts, and the ordinary words that must not."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from opdkit.chat.hint_placement import with_hint
from opdkit.config.teacher import PLACEMENTS
from opdkit.evaluate.echoes import echo_of, index_hints
from opdkit.evaluate.key_words import key_words

ASKED = "What is the weather in Perth?"
NONE = index_hints([])
HINTS = index_hints(
    ["Report the temperature in degrees Celsius.", "Use Celsius.", "Be brief and kind, please: one line."]
)


@pytest.mark.parametrize("reply", [
    "Based on your hint, it is 12 C.",
    "It is 12 C, BASED ON YOUR HINTS.",
    "As per the hint, it is 12 C.",
    "It is 12 C\nas per  the provided\nhint.",
    "Following the hint you gave, it is 12 C.",
    "Following the instruction you gave, it is 12 C.",
    "According to the instructions that you've just provided: 12 C.",
    "As you hinted, it is 12 C.",
    "It is 12 C, as you've already hinted.",
    "It is 12 C, as hinted by the user.",
    "Following the user’s hint, I use Celsius.",
    "Based on **your hint**, it is 12 C.",
    "Per your “hint”, it is 12 C.",
    "Thank you for the hint! It is 12 C.",
    "Your hint says to use Celsius: 12 C.",
    "Based on the hint, it is 12 C.",
    "Sure! According to the given hint, it is 12 C.",
    "<think>\nBased on the hint, Celsius.\n</think>\n\nIt is 12 C.",
    "<think>\nHm.\n</think>\n\nBased on the hint, it is 12 C.",
    "[HINT_START]Use Celsius.[HINT_END]",
    "It is 12 C. [ hint_end ]",
    "[user's hint / instruction]\nUse Celsius.",
    "The user's hint / instruction is to use Celsius.",
])  # fmt: skip
def test_an_echo(reply: str) -> None:
    assert echo_of(reply, ASKED, NONE)


@pytest.mark.parametrize("reply", [
    "It is 12 C.",
    "",
    "A hint of lemon makes it better.",
    "Here is a hint: it begins with P.",
    "I would rather not hint at the answer.",
    "Add type hints; based on your type hints, mypy finds the rest.",
    "Following the hint, Sherlock found the key.",
    "She opened the door based on the hint from the librarian.",
    "Players are given the hint after three tries.",
    "As the title hinted, it rains.",
    "As hinted in chapter two, it rains.",
    "Click on Hint to see the hint.",
    "Your hint button is grey.",
    "Following the instructions on the box, boil the rice.",
    "As per your instructions, here are two lines.",
    "Follow the instructions of the driver.",
    "Based on your hinterland, based on your hinting.",
    "A rehint_start] and [hints].",
    "Set HINT_START=1 in the environment.",
    "The user's hints and instructions differ.",
    "It's per the hint-and-run rule.",
])  # fmt: skip
def test_ordinary_words_are_no_echo(reply: str) -> None:
    assert echo_of(reply, ASKED, HINTS) is None


@pytest.mark.parametrize("placement", PLACEMENTS)
def test_the_line_that_every_placement_writes_is_a_marker(placement: str) -> None:
    messages = [{"role": "user", "content": ASKED}]
    added = {m["content"] for m in with_hint(messages, "Use Celsius.", placement)} - {ASKED}
    (text,) = added
    assert echo_of(text.removeprefix(ASKED), ASKED, NONE)
    assert echo_of(text.removeprefix(ASKED), text, NONE) is None  # the prompt had it


@pytest.mark.parametrize(("prompt", "reply", "counts"), [
    ("A hint: it begins with P. Which city?", "Based on your hint, it is Perth.", False),
    ("I hinted at a city in Australia.", "As you hinted, it is Perth.", False),
    ("A splinter? Which city?", "Based on your hint, it is Perth.", True),  # not the word "hint"
    ("Read the instructions, then answer.", "Following the instructions you gave: Perth.", False),
    ("Read the instructions, then answer.", "Based on your hint: Perth.", True),  # another word
    ("What does [HINT_START] mean?", "[HINT_START] opens a hint.", False),
    ("What does [HINT_START] mean?", "It opens what [HINT_END] closes.", True),
    ("Repeat: report the temperature in degrees celsius", "Report the temperature in degrees Celsius.", False),
])  # fmt: skip
def test_what_the_prompt_gives_a_reason_for_does_not_count(prompt: str, reply: str, counts: bool) -> None:
    assert (echo_of(reply, prompt, HINTS) is not None) is counts


@pytest.mark.parametrize(("reply", "counts"), [
    ("Report the temperature in degrees Celsius.", True),
    ("I will: REPORT the\ttemperature\nin degrees celsius, so 12 C.", True),
    ("be brief and kind, please: one line", True),
    ("Report the temperature in degrees.", False),  # not the whole hint
    ("Report the temperature of Perth in degrees Celsius.", False),
    ("Report the temperature in degrees Celsiuses.", False),
    ("Use Celsius.", False),  # under five words
])  # fmt: skip
def test_a_hint_of_the_run_word_for_word(reply: str, counts: bool) -> None:
    assert (echo_of(reply, ASKED, HINTS) is not None) is counts


def test_hints_in_scripts_without_spaces_are_found_too() -> None:
    hints = index_hints(["请用摄氏度报告24小时的气温。", "ใช้องศาเซลเซียส"])
    assert echo_of("好的，请用摄氏度报告24小时的气温", ASKED, hints)
    assert echo_of("ฉันจะใช้องศาเซลเซียส", ASKED, hints)
    assert echo_of("珀斯今天12摄氏度。", ASKED, hints) is None
    short = index_hints(["使用摄氏度", "摄氏度 use Celsius"])
    assert echo_of("好的，已改为使用摄氏度。摄氏度 use Celsius", ASKED, short) is None, "as short as 'Use Celsius.'"
    assert echo_of("Please use 摄氏 in reports.", ASKED, index_hints(["Please use 摄氏 in reports"]))


def test_vowel_signs_do_not_divide_words() -> None:
    assert key_words("मुझे दिल्ली का मौसम सेल्सियस में बताओ") == {"मुझे", "दिल्ली", "मौसम", "सेल्सियस", "बताओ"}
    assert key_words("orle\u0301ans") == {"orle\u0301ans"}
    short = index_hints(["सेल्सियस में लिखें।"])  # as short as "Use Celsius."
    assert echo_of("तापमान 20 है, उसे सेल्सियस में लिखें।", ASKED, short) is None


def test_what_is_echoed_is_named() -> None:
    assert echo_of("Well, based on YOUR\nhint: 12 C", ASKED, HINTS) == "based on your hint"
    assert echo_of("report the temperature in degrees Celsius!", ASKED, HINTS) == (
        "report the temperature in degrees celsius"
    )


words = st.lists(st.sampled_from("use the word red blue hintless and then stop".split()), min_size=1, max_size=12)


@given(words, words, words)
def test_a_whole_hint_is_found_wherever_it_stands_as_a_plain_search_finds_it(
    hint: list[str], before: list[str], after: list[str]
) -> None:
    reply = " ".join([*before, *hint, *after])
    assert (echo_of(reply, "", index_hints([" ".join(hint)])) is not None) is (len(hint) >= 5)
    assert echo_of(reply, " ".join(hint), index_hints([" ".join(hint)])) is None
    elsewhere = " ".join(before)
    found = len(hint) >= 5 and f" {' '.join(hint)} " in f" {elsewhere} "
    assert (echo_of(elsewhere, "", index_hints([" ".join(hint)])) is not None) is found
