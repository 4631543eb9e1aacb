"""Tests of the rules judge, sentence by sentence."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from runs import in_context, message
from work import passes

from opdkit.judge.rules import NOT_ENGLISH, Judgement, asks_for_answer, judge, keep_own_words, vote
from opdkit.judge.words import is_english

TOLD = "The trip takes three hours by train and costs 40 euros."
ASKED = "I can book that for you. Would you like a window seat?"


def heard(said: str, reply: str = TOLD, asked: str = "How do I get to Lyon?"):
    turn = [message("user", asked), message("assistant", reply), message("user", said)]
    return judge(in_context(turn))


CORRECTIONS = [
    # "no, I said / asked / wanted / meant X"
    ("No, I said by bus", "Go by what was said: by bus."),
    ("no I asked for the price per person.", "Do what the request says: the price per person."),
    ("I asked you to list the stations", "Do what the request says: list the stations."),
    ("No, I wanted the night train!", "Aim for this: the night train."),
    ("I meant the airport, sorry", "Take the request to mean: the airport"),
    ("Actually, I wanted it in a table", "Aim for this: it in a table."),
    ("I already told you: no flights", "Go by what was said: no flights."),
    ("I specifically asked about refunds", "Do what the request says: refunds."),
    # "use / try / switch to X (instead)"
    ("Use Celsius instead.", "Use Celsius."),
    ("please use bullet points", "Use bullet points."),
    ("Can you use metric units instead?", "Use metric units."),
    ("Try the slow train instead", "Try the slow train."),
    ("No, switch to French", "Switch to French."),
    ("just stick to the facts, please", "Stick to the facts."),
    ("No, go with pandas instead of numpy", "Go with pandas instead of numpy."),
    # "too / very verbose | long | short | brief | formal | casual"
    ("I need that in Celsius", "Give that in Celsius."),
    ("As numbered steps, please.", "Answer like this: As numbered steps."),
    ("Please answer in Spanish.", "Answer in Spanish."),
    ("Reply with just the number, please", "Answer with just the number."),
    (
        "Could you rewrite the second paragraph so that it is calmer?",
        "Rewrite the second paragraph so that it is calmer.",
    ),
    ("That's too long", "fewer words"),
    ("too verbose!", "fewer words"),
    ("This is way too wordy for a text message", "fewer words"),
    ("Your answer is very brief.", "more length"),
    ("Hmm, a bit too short", "more length"),
    ("it sounds too formal", "more casual tone"),
    ("That is very casual for a letter to a judge.", "more formal tone"),
    ("Thanks, but that's too technical for me.", "simpler words"),
    ("Your explanation is so vague", "Be specific"),
    ("Shorter, please.", "Answer like this: Shorter."),
    ("more formal please", "Answer like this: more formal."),
    ("Can you make it a bit more friendly?", "Make the reply a bit more friendly."),
    # "should / must / need to X"
    ("You should have checked the date first.", "The reply should have checked the date first."),
    ("It must be in one paragraph.", "The reply should be in one paragraph."),
    ("you need to include the return trip", "The reply should include the return trip."),
    ("You shouldn't guess prices.", "The reply must not guess prices."),
    ("The answer should not mention trains", "The reply must not mention trains."),
    ("Don't use tables", "Don't use tables."),
    ("Stop apologizing!", "Stop apologizing."),
    ("No, the bus instead", "Rather: the bus."),
    # a negative word without a pattern
    ("Wrong city.", "User correction: Wrong city."),
    ("You forgot the return trip", "User correction: You forgot the return trip"),
    ("It doesn't compile", "User correction: It doesn't compile"),
    ("Thanks, but this is incorrect.", "User correction: Thanks, but this is incorrect."),
    ("No, Paris.", "User correction: No, Paris."),
    ("Why did you delete the file?", "User correction: Why did you delete the file?"),
    ("Not that. The other one.", "User correction: Not that. The other one."),
    ("Great, now it doesn't start.", "User correction: Great, now it doesn't start."),
    ("Rewrite it please", "User correction: Rewrite it please"),
    ("Well, I think that is wrong", "User correction: Well, I think that is wrong"),
    ("your code throws an exception", "User correction: your code throws an exception"),
]
COMPLAINTS = [  # say that the reply was wrong, and not what would be right
    "That's wrong.",
    "That is not what I need",
    "you misunderstood me",
    "still not working",
    "This makes no sense.",
    "Thanks for nothing.",
    "I don’t like it.",
    "That isn't right at all",
    "Neither of those works for me",
    "actually, can you revert that?",
    "undo that",
]
NO_CORRECTIONS = [
    # looks like a correction and is not
    ("no problem, thanks!", 1),
    ("Can you talk with Anna about it?", 0),
    ("No worries, thank you", 1),
    ("not bad", 1),
    ("Not bad at all!", 1),
    ("can't go wrong with that, thanks", 1),
    ("Yes, I know. Where is the station?", 0),
    ("I know", 0),
    ("nothing else, thank you", 1),
    ("Nothing else.", 0),
    ("No, that's all. Thanks!", 1),
    ("No, that's perfect.", 1),
    ("no, thanks", 0),
    ("no doubt, great", 0),
    ("Nothing wrong with that. Next: how far is Nice?", 1),
    ("What's wrong with my bike if it squeaks?", 0),
    ("Should I bring an umbrella?", 0),
    ("What should I pack?", 0),
    ("How long is the very long tunnel?", 0),
    ("I need to cancel a booking.", 0),
    ("I want to change my flight, it is on Monday.", 0),
    ('My teacher wrote "this is wrong and too long" below it. How do I say that in German?', 0),
    ("> You should use the bus instead.\nThat works, thanks.", 1),
    ("```\nraise ValueError('wrong')\n```\nHow do I catch this one?", 0),
    ("How do I fix a flat tyre?", 0),
    ("I need to change it to the next day.", 0),
    ("Make that change for me.", 0),
    ("Keep it in economy.", 0),
    ("That should be all for now.", 0),
    ("It should still be within the 24 hours.", 0),
    ("I wanted to confirm that there were 3 passengers.", 0),
    ("I wanted to be a pilot once.", 0),
    ("I gave them the wrong number. What now?", 0),
    ("I am looking for a train that isn't full", 0),
    ("I was told that I didn't need insurance", 0),
    ("I think it is KHIK97. Can you confirm if that's correct?", 0),
    # a new request in words that could also be a wish about the reply
    ("I want a list of hotels in Rome.", 0),
    ("I want a refund.", 0),
    ("I need that in an hour.", 0),
    ("I would like to know the time.", 0),
    ("I use Linux.", 0),
    ("Format the disk.", 0),
    ("Sort the imports.", 0),
    ("Put that in your notes.", 0),
    ("Write in the log that we met.", 0),
    ("Use the attached file to answer.", 0),
    ("Two tickets to Rome, please.", 0),
    ("Next question, please.", 0),
    ("Can you do it for tomorrow as well?", 0),
    ("Could you show me that on a map?", 0),
    ("Is it supposed to rain?", 0),
    ("From now on I'll walk.", 0),
    ("There's no need to worry.", 0),
    ("I'm tired, not hungry.", 0),
    ("Just looking.", 0),
    ("Find me the perfect gift for my mother.", 0),
    ("Can you explain how it works?", 0),
    # praise and thanks
    ("Thanks!", 1),
    ("thank you so much", 1),
    ("Perfect, that works now", 1),
    ("wow", 1),
    ("Great job.", 1),
    ("Exactly what I needed", 1),
    ("It works!", 1),
    ("Looks good to me", 1),
    ("lgtm", 1),
    ("That's very helpful.", 1),
    ("you're a lifesaver", 1),
    ("jesus, everything works, you are a monster", 1),
    # a new request says nothing about the reply before it
    ("And what is the weather there?", 0),
    ("Now book a hotel.", 0),
    # says nothing on its own
    ("ok", 0),
    ("Fine.", 0),
    ("sure", 0),
    ("yes", 0),
    ("no", 0),
    ("No.", 0),
    ("ok, go ahead", 0),
    ("hmm", 0),
    ("Are you sure?", 0),
    ("Why is it so expensive?", 0),
    ("> quoted only", 0),
]
ANSWERS = [
    # said after a reply that asks a question: an answer to it is not a verdict on the reply
    ("No, an aisle seat", 0),
    ("No, I don't need one.", 0),
    ("use my gift card", 0),
    ("Yes, please cancel the reservation S61CZX. Thank you!", 0),
    ("My user ID is mia_li_3668", 0),
    ("I wanted economy, if possible", 0),
    ("Thanks! Yes, by the window.", 1),
    ("No, I said I travel by bus", -1),
    ("No, that's wrong, I never asked about seats", -1),
    ("Use my gift card instead", -1),
    ("You should stop asking questions", -1),
]


@pytest.mark.parametrize(("said", "hint"), CORRECTIONS)
def test_a_correction_is_minus_one_and_says_what_was_wanted(said: str, hint: str) -> None:
    found = heard(said)
    assert found.reward == -1, found
    assert found.hint is not None
    assert hint in found.hint


@pytest.mark.parametrize("said", COMPLAINTS)
def test_a_complaint_is_minus_one_and_no_hint(said: str) -> None:
    assert (heard(said).reward, heard(said).hint) == (-1, None)


@pytest.mark.parametrize(("said", "reward"), NO_CORRECTIONS)
def test_harmless_words_are_no_correction(said: str, reward: int) -> None:
    found = heard(said)
    assert (found.reward, found.hint) == (reward, None), found


@pytest.mark.parametrize(("said", "reward"), ANSWERS)
def test_an_answer_to_the_replys_question_is_no_verdict(said: str, reward: int) -> None:
    """An answer to the reply's question gives no reward, unless it also thanks or corrects."""
    assert heard(said, reply=ASKED).reward == reward, heard(said, reply=ASKED)


def test_the_table_is_generous() -> None:
    assert len(CORRECTIONS) + len(NO_CORRECTIONS) + len(ANSWERS) >= 80


def test_the_same_request_again_is_a_redo() -> None:
    again = heard("How do I get to Lyon today?", asked="How do I get to Lyon?")
    assert (again.reward, again.hint, again.why) == (-1, None, "the same request again")
    assert heard("How do I get to Paris by bus tomorrow?", asked="How do I get to Lyon?").reward == 0


def test_a_long_correction_is_cut_at_a_word() -> None:
    said = "That's wrong. " + "word " * 60
    hint = heard(said).hint
    assert hint is not None
    assert hint.startswith("User correction: That's wrong. word")
    assert hint.endswith("word ...")
    assert len(hint) <= len("User correction: ") + 104


@pytest.mark.parametrize(
    ("reply", "asking"),
    [
        (ASKED, True),
        ("Which one? Please let me know.", True),
        ("Please provide your user ID.", True),
        ("Here are the options. Let me know which flight you would like.", True),
        ("If so, I will book it, please say yes.", True),
        (TOLD, False),
        ("Done. If you have any other questions, please let me know!", False),
        ("It is booked. Is there anything else I can do for you?", False),
        ("You asked: which one? The blue one. It is cheaper. And it is faster.", False),
        ("", False),
    ],
)
def test_asks(reply: str, asking: bool) -> None:
    assert asks_for_answer(reply) is asking


def tools(*results: str, then: str | None = None):
    turn = [message("user", "Book it"), message("assistant", None)]
    turn += [message("tool", r, name="book") for r in results] + ([message("user", then)] if then else [])
    return judge(in_context(turn, 1, len(turn) - 2))


def test_tool_results() -> None:
    """A failed call gives -1, also if only one of several parallel results reports the failure."""
    assert (tools('{"id": 7}').reward, tools('{"id": 7}').hint) == (1, None)
    assert (tools("Error: no seats left").reward, tools("Error: no seats left").hint) == (-1, None)
    assert tools("Error: no seats left", '{"id": 7}').reward == -1
    assert tools('{"id": 7}', "Error: no seats left").reward == -1
    assert tools("").reward == 1
    assert tools("Error: missing required argument order_id").hint == "Call the tool with the argument order_id."
    assert tools("Error: 'day' is a required property").hint == "Call the tool with the argument day."


def test_what_the_user_adds_to_a_tool_result() -> None:
    assert tools('{"id": 7}', then="No, I said Tuesday").hint == "Go by what was said: Tuesday."
    assert tools('{"id": 7}', then="ok").reward == 0
    assert tools("Error: no seats left", then="ok").reward == -1


def test_no_next_state_says_nothing() -> None:
    turn = [message("user", "hi"), message("assistant", "hello")]
    assert judge(in_context(turn, 1, 0)).reward == 0
    assert judge(in_context([*turn, message("user", None)])).reward == 0


def test_own_words() -> None:
    assert keep_own_words('> old\nnew `code` and "quote" ‘q’ it’s') == "new and it's"
    assert keep_own_words("```py\nx") == ""


def test_votes_say_which_rule_spoke() -> None:
    turn = [message("user", "hi"), message("assistant", TOLD), message("user", "Use Celsius instead")]
    [hint], [reward] = vote(in_context(turn))
    assert (hint.decision, hint.hint, hint.error) == (1, "Use Celsius.", None)
    assert (reward.score, reward.error) == (-1, None)
    assert "correction" in hint.raw
    assert hint.raw == reward.raw
    turn[2] = message("user", "thanks")
    [hint], [reward] = vote(in_context(turn))
    assert (hint.decision, hint.hint, reward.score) == (-1, None, 1)


def test_the_rules_need_no_torch() -> None:
    code = "import sys, opdkit.judge.rules; sys.exit('torch' in sys.modules or 'transformers' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize(
    "unit", ["ok ", "no ", "please ", '"', "“", "use a, ", "i said ", "no, ", "no,", "so but ", "\n", " \n", "\n- a"]
)
def test_no_text_takes_long(unit: str) -> None:
    text = "Sure." + (unit * 30_000)[:30_000]
    assert passes(lambda said: heard(said, reply=said, asked=said), text) < 1000
    assert passes(lambda said: heard(said, asked=text), text + "!") < 1000
    assert passes(lambda reply: heard("Yes", reply), text + "Thanks") < 1000


@pytest.mark.parametrize("gap", ["\n", "\n" * 30, " \n " * 100])
def test_blank_lines_change_nothing(gap: str) -> None:
    assert heard(f"Thanks.{gap}But use Celsius instead.") == heard("Thanks.\nBut use Celsius instead.")
    assert asks_for_answer(f"It is late. Which one?{gap}- a{gap}- b. c. d")


LANGUAGES = json.loads((Path(__file__).parent / "languages.json").read_text(encoding="utf-8"))


@pytest.mark.parametrize("language", LANGUAGES)
def test_another_language_is_told_from_english(language: str) -> None:
    """Of twelve reactions per language, some of them short, at most one is taken for English."""
    assert sum(is_english(said) for said in LANGUAGES[language]) <= 1


def test_english_is_told_from_other_languages() -> None:
    for said in (*(said for said, _ in CORRECTIONS), *(said for said, _ in NO_CORRECTIONS), "SELECT * FROM t;", "ok"):
        assert is_english(keep_own_words(said)), said


@pytest.mark.parametrize(
    "said", ["Das ist falsch, bitte auf Deutsch", "不对，我要的是Python", "Non, merci, c'est parfait"]
)
def test_what_it_cannot_read_it_neither_rewards_nor_blames(said: str) -> None:
    assert heard(said) == Judgement(0, None, NOT_ENGLISH)
