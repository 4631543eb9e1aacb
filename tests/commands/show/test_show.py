"""Tests of `opdkit show`: its output in a terminal and in a pipe, and that text of a log controls neither."""

import io
import json
import math
import re
import shutil
from collections import Counter

import pytest
from rich.console import Console
from runs import message, talk, write_extract
from scored_runs import Said, Toy, toy_sessions, write_run

from opdkit.commands.show import command as show
from opdkit.commands.show.choose import choose_turns
from opdkit.commands.show.one_turn import print_whole
from opdkit.commands.show.tokens import STEPS, legend, level, print_likely, reply_text
from opdkit.commands.show.turn_list import COLUMNS, print_list
from opdkit.commands.turns.view import read_turn_view
from opdkit.config.judge import JudgeConfig
from opdkit.config.show import ShowConfig
from opdkit.console import add_sign
from opdkit.errors import ConfigError, OpdkitError
from opdkit.judge import stage as judge
from opdkit.store import reviews
from opdkit.store.reading import read_all
from opdkit.store.reviews import Review

TOYS = [*toy_sessions(4), Toy("other", [Said("Größe", 1, "Say it in English letters."), Said("x", -1)])]


@pytest.fixture(scope="module")
def scored(tmp_path_factory, tiny_model_dir):
    return write_run(tmp_path_factory.mktemp("show") / "run", tiny_model_dir, TOYS, per_part=2)


def terminal(width: int = 100, **options) -> Console:
    return Console(file=io.StringIO(), force_terminal=True, width=width, highlight=False, **options)


def written(console: Console) -> str:
    return console.file.getvalue()


def ids(scored, **options) -> list[str]:
    return [turn.turn_id for turn in choose_turns(ShowConfig(run=scored, **options)).lines]


def sums(scored) -> dict[str, float]:
    """Return turn -> sum of the advantages, added up by hand."""
    return {
        row["turn_id"]: sum(t - o for t, o, m in zip(row["teacher_logprobs"], row["old_logprobs"], row["response_mask"],
                                                     strict=True) if m)
        for row in read_all(scored, "targets") if row["teacher_logprobs"] is not None
    }  # fmt: skip


# -- which turns -----------------------------------------------------------------------------------------------------


def test_worst_and_best_go_by_the_sum_of_the_advantages(scored):
    expected = sorted(sums(scored), key=sums(scored).get)
    assert ids(scored, worst=3) == expected[:3]
    assert ids(scored, best=2) == expected[:-3:-1]
    assert set(ids(scored, worst=100)) == set(expected), "a turn without a hint is neither bad nor good"
    for turn in choose_turns(ShowConfig(run=scored)).lines:
        assert turn.advantage == pytest.approx(sums(scored).get(turn.turn_id), abs=1e-4)


def test_a_draw_depends_on_the_seed_and_the_turns_alone(scored):
    drawn = ids(scored, random=3)
    assert ids(scored, random=3) == drawn
    assert ids(scored, random=2) == drawn[:2]
    assert len({tuple(ids(scored, random=3, seed=seed)) for seed in range(5)}) > 1


def test_the_list_is_in_the_order_of_the_run_and_limited(scored):
    every = [row["turn_id"] for row in read_all(scored, "turns")]
    assert ids(scored) == every
    chosen = choose_turns(ShowConfig(run=scored, max_turns=2))
    assert ([turn.turn_id for turn in chosen.lines], chosen.passed) == (every[:2], len(every))


@pytest.mark.parametrize(("pattern", "found"), [
    (r"^Größe$", ["other:1"]), (r"English letters", ["other:1"]), (r"say \w+ \(other\)", ["other:1", "other:3"]),
    (r"(?i)gröSSe|\p{Lu}{9}", []),
])  # fmt: skip
def test_grep_looks_at_request_reply_and_hints(scored, pattern, found):
    assert ids(scored, grep=pattern) == found


def test_grep_looks_at_what_a_person_wrote_too(scored, tmp_path):
    run = shutil.copytree(scored, tmp_path / "run")
    reviews.append(run, [Review("toy-1:1", False, None, True, "Quite another thing.")])
    assert ids(run, grep="Quite another") == ids(run, status="reviewed") == ["toy-1:1"]


@pytest.mark.parametrize(("options", "words"), [
    ({"grep": "(unclosed"}, "--grep '(unclosed'"), ({"worst": 1, "random": 1}, "--worst and --random"),
    ({"turn_id": "toy-0:1", "grep": "x"}, "--grep"),
])  # fmt: skip
def test_a_selection_that_cannot_be_is_named(scored, options, words):
    with pytest.raises(ConfigError, match=re.escape(words)):
        show.run(ShowConfig(run=scored, **options))


def test_a_pattern_that_takes_forever_is_stopped(tmp_path, monkeypatch):
    monkeypatch.setattr("opdkit.commands.show.choose._PATIENCE", 0.05)
    run = write_extract(tmp_path / "run", {"s": talk("a" * 40 + "!", "ok", "thanks")})
    with pytest.raises(ConfigError, match=r"--grep .*0\.05 .*s:1"):
        ids(run, grep=r"^(\w|a|aa)+$")


def test_a_status_keeps_only_its_turns(scored):
    statuses = {row["turn_id"]: (row["reward_status"], row["hint_status"]) for row in read_all(scored, "verdicts")}
    assert any("no_quorum" in both for both in statuses.values())
    for status in ("ok", "none", "no_quorum", "leak"):
        assert ids(scored, status=status) == [name for name, both in statuses.items() if status in both]


# -- the tokens ------------------------------------------------------------------------------------------------------


def token(text: str, advantage: float | None, trained: bool = True) -> dict:
    return {"text": text, "id": 1, "trained": trained, "old": -1.0, "advantage": advantage,
            "teacher": None if advantage is None else advantage - 1.0, "likely": None}  # fmt: skip


TOKENS = [token("far", -2.0), token(" less", -0.6), token(" a bit", -0.2), token(" same", 0.0), token(" none", None),
          token(" more", 0.7), token(" much", 3.0), token(" template", 9.0, trained=False)]  # fmt: skip


def test_the_level_of_an_advantage():
    assert [level(token("x", a)) for a in (None, 0.0, STEPS[0] - 1e-6, *STEPS, -STEPS[0], -9.0)] == [
        0,
        0,
        0,
        1,
        2,
        3,
        -1,
        -3,
    ]


def test_without_colours_marks_say_it():
    shown = "  [--far--][- less-] a bit same none{+ more+}{++ much++} template"
    assert reply_text(TOKENS, colour=False).plain == shown
    assert "{++far more++}" in legend(colour=False).plain


def test_never_by_colour_alone():
    """Underline and bold tell negative from positive advantages for readers who see no colours or turned them off."""
    text = reply_text(TOKENS, colour=True)
    console = terminal(color_system="truecolor")
    said = {text.plain[span.start : span.end]: console.get_style(span.style) for span in text.spans if span.style}
    for name in ("far", " less", " a bit"):
        assert said[name].underline
        assert not said[name].bold
    for name in (" more", " much"):
        assert said[name].bold
        assert not said[name].underline
    assert said[" template"].dim, "what was not sampled has no colour, whatever its number"
    assert len({said[name].bgcolor for name in said if name != " template"}) == 5


def test_the_colours_are_blue_and_orange_and_can_be_read():
    """Orange and blue differ for every kind of colour blindness; text on them has a contrast of at least 4.5."""
    console = terminal(color_system="truecolor")
    for advantage in (-2.0, -0.6, -0.2, 0.2, 0.6, 2.0):
        (span,) = [span for span in reply_text([token("x", advantage)], colour=True).spans if span.style]
        style = console.get_style(span.style)
        red, _, blue = style.bgcolor.get_truecolor()
        assert (red > blue) == (advantage < 0)
        ground, letter = (_luminance(color.get_truecolor()) for color in (style.bgcolor, style.color))
        assert (max(ground, letter) + 0.05) / (min(ground, letter) + 0.05) >= 4.5


def _luminance(colour) -> float:
    """Return the relative luminance (WCAG 2.2) of an RGB colour."""
    linear = [(c / 255 / 12.92) if c <= 10 else ((c / 255 + 0.055) / 1.055) ** 2.4 for c in colour]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


@pytest.mark.parametrize("options", [{"no_color": True}, {"color_system": None}])
def test_no_color_is_honoured(scored, options):
    console = terminal(**options)
    view = read_turn_view(scored, next(iter(sums(scored))))
    view["targets"][0]["tokens"] = TOKENS
    print_whole(view, console, logprobs=True)
    assert "[--far--]" in written(console)
    assert not re.search(r"\x1b\[[0-9;]*[34]8;", written(console))


def test_the_likeliest_tokens_stand_where_the_advantages_are_largest():
    """Each clearly marked token gets a line: the strongest eight, in the order of the reply. A weak token gets none."""
    likely = {"student": [(" id", math.log(0.8)), ("\n", math.log(0.2))], "teacher": [(" order", math.log(0.95))]}
    tokens = [token(f"t{n}", -0.6 - n) | {"likely": likely} for n in range(10)]
    tokens += [token("weak", -0.2) | {"likely": likely}, token("none", -9.0)]
    console = terminal(color_system=None, width=80)
    print_likely(tokens, console)
    assert written(console).splitlines() == [
        f'  at "t{n}" the teacher would say " order" 0.95; the student " id" 0.80, "↵" 0.20' for n in range(2, 10)
    ]
    print_likely([token("weak", -0.2) | {"likely": likely}], quiet := terminal())
    assert written(quiet) == ""


# -- one turn, whole -------------------------------------------------------------------------------------------------


def test_a_turn_whole_in_a_pipe(scored, capsys):
    name = "other:1"
    show.run(ShowConfig(run=scored, turn_id=name, logprobs=True))
    shown = capsys.readouterr().out
    assert "\x1b" not in shown
    assert "  Größe" in shown
    assert "reward +1 (ok" in shown
    assert "Say it in English letters.: chosen" in shown
    assert f"sum {sums(scored)[name]:+.3f}" in shown
    rows = [line.split("\t") for line in shown.splitlines() if line.count("\t") == 6]
    (target,) = read_turn_view(scored, name)["targets"]
    assert len(rows) - 1 == len(target["tokens"])
    assert [row[3] for row in rows[1:]] == [f"{token['old']:.4f}" for token in target["tokens"]]


def test_json_is_one_document(scored, capsys):
    show.run(ShowConfig(run=scored, turn_id="toy-0:1", json=True))
    assert json.loads(capsys.readouterr().out) == json.loads(json.dumps(read_turn_view(scored, "toy-0:1")))
    show.run(ShowConfig(run=scored, worst=2, one_line=True, json=True))
    rows = json.loads(capsys.readouterr().out)
    assert [row["turn_id"] for row in rows] == ids(scored, worst=2)
    assert "targets" not in rows[0]
    show.run(ShowConfig(run=scored, worst=2, logprobs=True, json=True))
    views = json.loads(capsys.readouterr().out)
    assert [view["turn_id"] for view in views] == ids(scored, worst=2)
    assert views == [json.loads(json.dumps(read_turn_view(scored, view["turn_id"]))) for view in views]


@pytest.mark.parametrize("options", [{"worst": 3}, {"best": 2}, {"random": 2}, {"grep": "Größe", "whole": True}])
def test_who_asks_for_a_few_turns_sees_them_whole(scored, capsys, options):
    """The turns come in the order of the choice, with their tokens, and without a note about a limit."""
    show.run(ShowConfig(run=scored, **options))
    out, err = capsys.readouterr()
    shown = [line.split()[1] for line in out.splitlines() if line.startswith("turn ")]
    assert shown == ids(scored, **options)
    assert "to the teacher a token is" in out
    assert err == ""


def test_a_few_turns_as_rows(scored, capsys):
    show.run(ShowConfig(run=scored, worst=3, one_line=True))
    out, err = capsys.readouterr()
    assert [line.split("\t")[0] for line in out.splitlines()] == ["turn", *ids(scored, worst=3)]
    assert err == ""


def test_logprobs_of_rows_are_refused(scored):
    for options in ({}, {"grep": "x"}, {"worst": 1, "one_line": True}, {"json": True}):
        with pytest.raises(ConfigError, match="--logprobs"):
            show.run(ShowConfig(run=scored, logprobs=True, **options))


@pytest.mark.parametrize("options", [{}, {"whole": True}, {"json": True}])
@pytest.mark.parametrize("status", ["kept", "edited", "no_qorum"])
def test_nothing_to_show_says_what_there_is(scored, capsys, options, status):
    counts = Counter(row["reward_status"] for row in read_all(scored, "verdicts"))
    show.run(ShowConfig(run=scored, status=status, **options))
    out, err = capsys.readouterr()
    assert out == ("[]\n" if options.get("json") else "")
    assert f"no turn has the status {status}, of 10; reward_status: " in err
    for status, count in counts.items():
        assert f"{status} {count}" in err
    show.run(ShowConfig(run=scored, grep="zzz", **options))
    assert "no turn has a text that --grep 'zzz' matches, of 10\n" in capsys.readouterr().err


def test_the_worst_of_a_run_without_advantages(tmp_path, capsys):
    run = write_extract(tmp_path / "run", {"s": talk("Hi", "Hello.", "Bye")})
    for place in (run, run / "b.training"):
        show.run(ShowConfig(run=place, worst=1))
        assert f"none of 1 turns has advantages: `opdkit teacher {run} " in capsys.readouterr().err
        show.run(ShowConfig(run=place, status="ok"))
        assert f"none is judged: `opdkit judge {run} " in capsys.readouterr().err


def test_a_vote_that_failed_shows_what_the_judge_wrote(scored, capsys):
    """The text is shortened, without line breaks, and its control characters are replaced."""
    view = read_turn_view(scored, "other:1")
    long = "I think\n\x1b[31m it is " + "very " * 200 + "good, \\boxed{7}"
    view["verdict"]["reward_votes"] = [{"score": None, "raw": long, "error": "decision not on offer: '7'"}]
    view["verdict"]["hint_votes"] = [{"decision": None, "hint": None, "raw": "", "error": "empty answer"}]
    console = Console(file=io.StringIO(), width=100, highlight=False)
    print_whole(view, console, logprobs=False)
    lines = written(console).splitlines()
    at = lines.index("  failed: decision not on offer: '7'")
    assert lines[at + 1].startswith("    the judge wrote: I think \N{REPLACEMENT CHARACTER}[31m it is very very")
    end = next(n for n in range(at, len(lines)) if lines[n].endswith("good, \\boxed{7}"))
    assert len("".join(lines[at : end + 1])) < 500
    assert "characters more" in "".join(lines[at : end + 1])
    assert "  failed: empty answer" in lines
    assert written(console).count("the judge wrote") == 1, "with an empty answer, nothing was written"


@pytest.mark.parametrize(("value", "digits", "text"), [
    (-0.0004, 3, "0.000"), (0.0, 2, "0.00"), (0.0004, 3, "0.000"), (-0.0, 0, "0"), (0.12, 2, "+0.12"), (-1, 0, "-1"),
    (10.0, 1, "+10.0"),
])  # fmt: skip
def test_nothing_has_no_sign(value, digits, text):
    assert add_sign(value, digits) == text


def test_what_a_person_decided_stands_beside_what_the_votes_said(scored, tmp_path, capsys):
    run = shutil.copytree(scored, tmp_path / "run")
    reviews.append(run, [Review("other:1", True, 0, True, None, "not so")], reviewer="Ada")
    show.run(ShowConfig(run=run, turn_id="other:1"))
    shown = capsys.readouterr().out
    for words in (
        "reward 0 (reviewed",
        "hint (reviewed)",
        "reviewed by Ada",
        "scored before the decision",
        "the votes said: reward +1 (ok)",
        "not so",
    ):
        assert words in shown
    reviews.append(run, [Review("other:1", True, 1, note="just so")])
    show.run(ShowConfig(run=run, turn_id="other:1"))
    assert "older than" not in capsys.readouterr().out, "the target says the same"


def test_a_run_that_is_only_extracted_can_be_shown(tmp_path, capsys):
    run = write_extract(tmp_path / "run", {"s": talk("Hi", "Hello.", "Bye")})
    show.run(ShowConfig(run=run))
    assert "s:1\t\t" in capsys.readouterr().out
    show.run(ShowConfig(run=run, turn_id="s:1"))
    assert "not judged" in capsys.readouterr().out
    with pytest.raises(OpdkitError, match=re.escape(str(tmp_path / "nothing"))):
        show.run(ShowConfig(run=tmp_path / "nothing"))


# -- the list --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("width", [40, 80, 200])
def test_the_table_fits_the_terminal_and_cuts_no_name(scored, width):
    console = terminal(width, color_system=None)
    print_list(choose_turns(ShowConfig(run=scored)).lines, console)
    lines = written(console).splitlines()
    for name in ids(scored):
        assert any(line.split()[0] == name for line in lines)
    if width >= 80:
        assert all(words in "\n".join(lines[:2]) for words in ("(share)", "(nats)")), "numbers have their unit"
        assert max(map(len, lines)) <= width


def test_the_list_in_a_pipe_is_tab_separated(scored, capsys):
    show.run(ShowConfig(run=scored, max_turns=3))
    out, err = capsys.readouterr()
    assert [len(line.split("\t")) for line in out.splitlines()] == [len(COLUMNS)] * 4
    assert "3 of 10 turns" in err


# -- control characters and markup in a log have no effect ------------------------------------------------------------

HOSTILE = ("over\x1b]0;title\x07\x1b[2J\x9b31m\u202egnp.exe\u2066\u200d\rover\x00\x08[bold red]m[/] [link=http://x]y[/link]"
           "\n-- reward +1 (ok)")  # fmt: skip


@pytest.fixture(scope="module")
def hostile(tmp_path_factory):
    """Return a run with text that controls terminals wherever a log, a judge or a reviewer can put text."""
    said = [message("user", HOSTILE, name=HOSTILE), message("assistant", HOSTILE, calls=[(HOSTILE, HOSTILE)]),
            message("user", f"No, I said use {HOSTILE}")]  # fmt: skip
    said[1]["reasoning"] = HOSTILE
    run = write_extract(tmp_path_factory.mktemp("hostile") / "run", {"s\x1b[31m\u202e\t": said})
    judge.run(JudgeConfig(run=run, judge="rules", shard="0/1"))
    (name,) = [row["turn_id"] for row in read_all(run, "turns")]
    reviews.append(run, [Review(name, False, None, True, HOSTILE, HOSTILE)], reviewer=HOSTILE)
    return run


@pytest.mark.parametrize("options", [{}, {"whole": True, "worst": None, "max_turns": 1}, {"json": True},
                                     {"json": True, "whole": True}, {"grep": "over"}])  # fmt: skip
@pytest.mark.parametrize("terminal_like", [False, True])
def test_hostile_text_never_reaches_the_terminal(hostile, capsys, monkeypatch, options, terminal_like):
    if terminal_like:
        monkeypatch.setattr(show, "stdout", Console(force_terminal=True, width=100, highlight=False, color_system=None))
    show.run(ShowConfig(run=hostile, **options))
    out, err = capsys.readouterr()
    ours = re.sub(r"\x1b\[[0-9;]*m", "", out) if terminal_like else out
    controls = {c for c in ours + err if not c.isprintable()} - {"\n", "\t", "\u200c", "\u200d"}
    assert controls == set()
    assert "over" in out
    if not options.get("json") and not terminal_like:
        assert "[bold red]" in out, "markup is shown, not followed"


def test_a_log_cannot_write_our_headings(hostile, capsys):
    show.run(ShowConfig(run=hostile, whole=True))
    headings = [line for line in capsys.readouterr().out.splitlines() if line.startswith("-- reward")]
    assert headings == ["-- reward -1 (ok, agreement 1.00)"]


def test_an_unknown_turn_does_not_drive_the_terminal_either(hostile):
    with pytest.raises(OpdkitError) as caught:
        show.run(ShowConfig(run=hostile, turn_id="s:1"))
    assert "no turn" in str(caught.value)
