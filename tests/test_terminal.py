"""Tests of terminal output: no word is broken, commands name the model that they load, and say last what to do."""

import io
import re
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from checked_runs import whole_run
from rich.text import Text
from sample_world import DATA, MODEL
from typer.testing import CliRunner

from opdkit.cli import app
from opdkit.commands import demo
from opdkit.commands.check import stage as check
from opdkit.config.check import CheckConfig
from opdkit.console import WordConsole, stdout, wrap_words
from opdkit.evaluate.conclusion import print_conclusion, read_conclusion
from opdkit.evaluate.scores import print_scores
from opdkit.store.reading import read_part

WIDE = 1_000


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return whole_run(tmp_path_factory.mktemp("terminal") / "run")


def words(text: str) -> Counter[str]:
    """Return the words of an output without the lines of tables; numbers count alike, as times and memory differ."""
    return Counter(re.sub(r"\d+(\.\d+)?", "0", re.sub(r"[\u2500-\u257f]+", " ", text)).split())


def printed(arguments: list[str], columns: int) -> str:
    result = CliRunner().invoke(app, arguments, env={"COLUMNS": str(columns)})
    assert result.exit_code in (0, 1), result.output
    return result.output


COMMANDS = {
    "status": ["status", "{run}"],
    "show one": ["show", "{run}", "--worst", "1", "--logprobs"],
    "show list": ["show", "{run}", "--max-turns", "3"],
    "check": ["check", "{run}"],
    "report": ["report", "{run}"],
    "doctor": ["doctor", str(DATA / "logs"), "--model", str(MODEL)],
    "extract preview": ["extract", "{run}-new", str(DATA / "logs"), "--dry-run"],
    "judge dry run": ["judge", "{run}", "--judge", "local", "--judge-model", str(MODEL), "--dry-run", "--overwrite"],
    "teacher dry run": ["teacher", "{run}", "--model", str(MODEL), "--dry-run", "--overwrite"],
    "train dry run": ["train", "{run}", "--model", str(MODEL), "--dry-run", "--overwrite"],
    "run dry run": ["run", "{run}-new", str(DATA / "logs"), "--model", str(MODEL), "--judge", "rules", "--dry-run"],
    "export": ["export", "{run}", "{run}/rules.md", "--to", "rules", "--overwrite"],
    "calibrate": ["calibrate", "{run}", str(DATA / "labels.jsonl")],
    "an error": ["status", "{run}-that-is-not-there-and-has-a-name-longer-than-any-of-these-three-terminals-is-wide"],
}


@pytest.mark.parametrize("command", COMMANDS)
def test_no_word_is_broken(command: str, run: Path) -> None:
    """At 80, 100 and 120 columns, all words of a wide terminal appear, and only a long word makes a line too long."""
    arguments = [text.replace("{run}", str(run)) for text in COMMANDS[command]]
    expected = words(printed(arguments, WIDE))
    assert expected
    for columns in (80, 100, 120):
        output = printed(arguments, columns)
        assert words(output) == expected
        check_lines(output, columns)


def check_lines(output: str, columns: int) -> None:
    """Assert that lines fit the terminal, except columns of a table for programs, a path or a command."""
    for line in output.splitlines():
        if len(line.rstrip()) > columns and "\t" not in line:
            longest = max(re.findall(r"`[^`]*`|opdkit .*|\S+", line), key=len)
            assert len(line) - len(longest) < 40 or len(longest) > columns - 40, line


@pytest.mark.parametrize("domain", ["weather", "customer_support_of_the_north"])
def test_no_word_of_eval_is_broken(run: Path, domain: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """This holds for its conclusion and scores, also if the name of a domain does not fit beside the metric."""
    conclusion, replies = read_conclusion(run), read_part(run, "replies", 0)
    assert conclusion is not None
    scores = read_part(run, "scores", 0)
    scores += [row | {"domain": domain} for row in scores]

    def captured(columns: int) -> str:
        monkeypatch.setenv("COLUMNS", str(columns))
        with stdout.capture() as printed:
            print_conclusion(conclusion)
            print_scores(scores, replies)
        return printed.get()

    expected = words(captured(WIDE))
    for columns in (80, 100, 120):
        assert words(captured(columns)) == expected
        assert max(map(len, captured(columns).splitlines())) <= columns


def test_no_word_of_the_demo_is_broken(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def captured(columns: int) -> str:
        monkeypatch.setenv("COLUMNS", str(columns))
        with stdout.capture() as printed:
            demo.show(run, DATA / "prompts.jsonl")
        return printed.get()

    expected = words(captured(WIDE))
    for columns in (80, 100, 120):
        output = captured(columns)
        assert words(output) == expected
        check_lines(output, columns)


def test_lines_break_between_words_and_commands_stay_whole() -> None:
    text = Text(
        "  look: so many words; next: `opdkit run runs/a logs` does it, see opdkit is a name\n\nend", style="bold"
    )
    wrapped = wrap_words(text, 24)
    assert wrapped.plain.splitlines() == [
        "  look: so many words;", "  next:", "  `opdkit run runs/a logs`", "  does it, see opdkit is",
        "  a name", "", "end"
    ]  # fmt: skip
    assert wrap_words(Text("見て" * 3 + " 二番"), 12).plain.splitlines() == ["見て" * 3, "二番"]
    assert wrap_words(Text("x" * 30), 10).plain == "x" * 30


def test_a_pipe_keeps_lines_whole(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    conclusion = read_conclusion(run)
    assert conclusion is not None
    assert conclusion.sentence in CliRunner().invoke(app, ["status", str(run)]).stdout.splitlines()


# Ends the process at the first import of a library that takes seconds.
_NO_TORCH = """
import sys
class NoTorch:
    def find_spec(self, name, path=None, target=None):
        if name in ("torch", "transformers", "accelerate"):
            print("IMPORTS", name, file=sys.stderr, flush=True)
            sys.exit(3)
sys.meta_path.insert(0, NoTorch())
from opdkit.cli import main
main()
"""
LOADING = {
    "judge": ["judge", "{run}", "--judge", "local", "--judge-model", str(MODEL), "--overwrite"],
    "teacher": ["teacher", "{run}", "--model", str(MODEL), "--overwrite"],
    "train": ["train", "{run}", "--model", str(MODEL), "--overwrite"],
    "eval": ["eval", "{run}", "--prompts", str(DATA / "prompts.jsonl"), "--trained", str(MODEL)],
    "rollout": ["rollout", "{run}-2", "--from-run", "{run}", "--model", str(MODEL)],
    "forecast": ["forecast", "{run}", "--model", str(MODEL)],
    "doctor": ["doctor", "--model", str(MODEL)],
}


@pytest.mark.slow
@pytest.mark.parametrize("command", LOADING)
def test_a_command_says_which_model_it_loads_before_it_does(command: str, run: Path) -> None:
    """The line is printed before torch is imported, which alone takes seconds."""
    arguments = [text.replace("{run}", str(run)) for text in LOADING[command]]
    result = subprocess.run([sys.executable, "-c", _NO_TORCH, *arguments], capture_output=True, text=True, check=False)
    lines = result.stderr.splitlines()
    imports = next(n for n, line in enumerate(lines) if line.startswith("IMPORTS"))
    assert any(command in line and str(MODEL) in line for line in lines[:imports]), result.stderr


def test_a_finding_of_check_is_whole(run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a terminal, too, the command that repairs the run can be copied."""
    damaged = Path(shutil.copytree(run, tmp_path / "run"))
    (damaged / "teacher" / "targets" / "part-00002.parquet").unlink()
    console = WordConsole(force_terminal=True, width=80, color_system=None, file=(written := io.StringIO()))
    monkeypatch.setattr("opdkit.console.stdout", console)
    monkeypatch.setattr(check, "stdout", console)
    assert not check.run(CheckConfig(run=damaged))
    assert "teacher/targets, part 2: gone" in written.getvalue()
    assert f"`opdkit check {damaged} --recompute`" in written.getvalue()
    check_lines(written.getvalue(), 80)


@pytest.mark.slow
def test_run_train_and_eval_end_with_what_to_do_next(tmp_path: Path) -> None:
    """After the evaluation, `run` has no next command."""
    run = tmp_path / "run"
    few = ["--set", "train.batch_turns=8", "--set", "train.validate=0", "--set", "teacher.teacher_samples=0"]
    whole = ["run", str(run), str(DATA / "logs"), "--model", str(MODEL), "--judge", "rules", "--limit", "8", *few]
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text("".join((DATA / "prompts.jsonl").read_text(encoding="utf-8").splitlines(keepends=True)[:2]))
    short = ["--samples", "1", "--max-new-tokens", "4"]
    for attempt in ("first", "again"):
        for command in (whole, ["eval", str(run), "--prompts", str(prompts), *short]):
            result = CliRunner().invoke(app, command)
            assert result.exit_code == 0, result.output
            last = result.stderr.splitlines()[-1]
            if command is whole:
                assert (f"`opdkit eval {run} --prompts FILE`" in last) == (attempt == "first")
            else:
                conclusion = read_conclusion(run)
                assert conclusion is not None
                assert last == conclusion.next
