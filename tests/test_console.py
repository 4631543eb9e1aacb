"""Tests of opdkit/console.py: bars within bars, progress in a pipe, and counted nouns."""

import os
import re
import subprocess
import sys

import pytest
from rich.console import Console

from opdkit import console
from opdkit.console import counted


def test_a_bar_within_a_bar_is_a_line_of_it(monkeypatch):
    """Rich shows one live display at a time, and a second one would raise."""
    monkeypatch.setattr(console, "stderr", Console(force_terminal=True, stderr=True))
    seen = [
        (part, piece)
        for part in console.progress(range(2), "parts", 2, "parts")
        for piece in console.progress("ab", "pieces", 2)
    ]
    assert seen == [(0, "a"), (0, "b"), (1, "a"), (1, "b")]
    assert console._screen.bars is None


def test_a_bar_that_is_left_early_is_taken_away(monkeypatch):
    monkeypatch.setattr(console, "stderr", Console(force_terminal=True, stderr=True))
    for _ in console.progress(range(5), "parts", 5):
        break
    assert list(console.progress(range(3), "again", 3)) == [0, 1, 2]
    assert console._screen.bars is None


def test_a_pipe_sees_no_bar(monkeypatch, capsys):
    monkeypatch.setattr(console, "stderr", Console(force_terminal=False, stderr=True))
    assert list(console.progress(range(3), "parts", 3)) == [0, 1, 2]
    assert capsys.readouterr().err == ""


def test_a_pipe_is_told_once_a_minute(monkeypatch, capsys):
    monkeypatch.setattr(console, "stderr", Console(force_terminal=False, stderr=True, width=100))
    clock = iter([0.0, 10.0, 61.0, 90.0, 121.5, 130.0, 200.0])  # at the beginning, then at each of six items
    monkeypatch.setattr(console.time, "monotonic", lambda: next(clock))
    monkeypatch.setattr(console, "_screen", console._Screen())
    assert len(list(console.progress(range(6), "judging", 6, "votes"))) == 6
    assert capsys.readouterr().err.splitlines() == ["judging: 2 of 6 votes", "judging: 4 of 6 votes"]


@pytest.mark.parametrize("columns", ["0", "00", "", "wide"])
def test_columns_that_are_no_width_count_as_not_set(columns):
    """In a pipe the line stays whole."""
    text = " ".join(["word"] * 30)
    command = [sys.executable, "-c", f"from opdkit.console import print_line, say; say({text!r}); print_line({text!r})"]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=os.environ | {"COLUMNS": columns})
    assert (done.stdout, done.stderr) == (f"{text}\n", f"{text}\n")


def test_spaces_and_joiners_are_printed_and_bidirectional_controls_are_not():
    text = "10\u00a0000\u202fm\u3000\u0645\u06cc\u200c\u062e \U0001f469\u200d\U0001f680\n"
    assert console.printable(text) == re.sub(r"[\u00a0\u202f\u3000]", " ", text)
    assert console.printable("a\u202eb\u2066\u200f\u200b\t\x1b\u2028") == "a\ufffdb" + "\ufffd" * 6


@pytest.mark.parametrize(
    ("number", "noun", "text"),
    [(0, "turn", "0 turns"), (1, "turn", "1 turn"), (1_024, "reply", "1,024 replies"), (2, "day", "2 days"),
     (1, "reply", "1 reply"), (2, "hinted turn", "2 hinted turns")],
)  # fmt: skip
def test_a_noun_agrees_with_its_count(number, noun, text):
    assert counted(number, noun) == text


def test_a_plural_can_be_given():
    assert counted(2, "line or session", "lines or sessions") == "2 lines or sessions"
