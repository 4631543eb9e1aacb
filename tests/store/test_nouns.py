import pytest

from opdkit.store.nouns import counted, every, singular


@pytest.mark.parametrize(
    ("number", "noun", "text"),
    [(0, "turn", "0 turns"), (1, "turn", "1 turn"), (1_024, "reply", "1,024 replies"), (2, "day", "2 days"),
     (1, "reply", "1 reply"), (2, "hinted turn", "2 hinted turns")],
)  # fmt: skip
def test_a_noun_agrees_with_its_count(number, noun, text):
    assert counted(number, noun) == text


def test_a_plural_can_be_given():
    assert counted(2, "line or session", "lines or sessions") == "2 lines or sessions"


def test_all_of_one():
    assert (every(1, "reward"), every(3, "reward")) == ("the one reward is", "all 3 rewards are")


@pytest.mark.parametrize(
    ("name", "one"),
    [("failed votes", "failed vote"), ("rewards +1", "reward +1"), ("tokens scored", "token scored"),
     ("lost replies", "lost reply"), ("log sessions unread", "log session unread"), ("with a hint", "with a hint")],
)  # fmt: skip
def test_the_name_of_a_counter_that_counts_one(name, one):
    assert singular(name) == one
