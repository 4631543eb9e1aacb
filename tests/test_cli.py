"""Tests of the command line as a user meets it: help, exit codes, errors, and every example in the help."""

import os
import shlex
import subprocess
import sys
from pathlib import Path

import httpx
import pytest
import typer
from runs import talk, write_extract
from typer.testing import CliRunner

from opdkit.cli import app, errors_as_exit_codes
from opdkit.config.commands import COMMANDS, Command
from opdkit.config.fields import fields_of

ROOT = Path(__file__).parent.parent
SAMPLE = ROOT / "sample_data"


def opdkit(*args: str, cwd: Path = ROOT, timeout: float = 600) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"COLUMNS": "100", "NO_COLOR": "1"}
    command = [sys.executable, "-m", "opdkit", *args]
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=timeout, env=environment)


def test_help_answers_without_the_heavy_libraries() -> None:
    """`--help` answers at once: it imports neither torch nor pyarrow nor transformers."""
    code = (
        "import sys, contextlib, io\n"
        "from opdkit.cli import app\n"
        "with contextlib.suppress(SystemExit), contextlib.redirect_stdout(io.StringIO()): app(['judge', '--help'])\n"
        "heavy = 'torch', 'transformers', 'pyarrow', 'datasets', 'accelerate', 'numpy'\n"
        "print([m for m in heavy if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    assert done.stdout.strip() == "[]"


def test_init_writes_its_file_without_pyarrow(tmp_path: Path) -> None:
    code = (
        "import sys\n"
        "from opdkit.cli import app\n"
        "app(['init', sys.argv[1], '--model', 'm', '--judge', 'rules'], standalone_mode=False)\n"
        "print([m for m in ('torch', 'pyarrow', 'numpy') if m in sys.modules])"
    )
    command = [sys.executable, "-c", code, str(tmp_path / "run.toml")]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT)
    assert (done.stdout.strip(), (tmp_path / "run.toml").exists()) == ("[]", True)


def test_every_command_has_help_and_an_example() -> None:
    commands = {c.name for c in app.registered_commands}
    assert commands == set(COMMANDS)
    for name in commands:
        shown = CliRunner().invoke(app, [name, "-h"]).stdout
        assert f"  {COMMANDS[name].example}\n" in shown, "one line, to be pasted"


def test_the_list_of_commands_is_whole_on_a_terminal_of_80_columns() -> None:
    shown = CliRunner().invoke(app, ["--help"], env={"COLUMNS": "80"}).stdout
    assert "..." not in shown.partition("Commands:")[2]
    assert max(map(len, shown.splitlines())) <= 80
    words = " ".join(shown.split())
    for name, known in COMMANDS.items():
        assert f"{name} {known.help.partition('. ')[0].rstrip('.')}." in words


@pytest.mark.slow
@pytest.mark.parametrize(
    ("typed", "offered"),
    [
        ("opdkit rep", ["report"]),
        ("opdkit judge runs/mine --conc", ["--concurrency"]),
        ("opdkit judge runs/mine --judge ", ["rules", "reaction", "local", "endpoint", "batch"]),
        ("opdkit train runs/mine --objective di", ["distill"]),
        ("opdkit train runs/mine --model ", []),  # the shell then offers files
    ],
)
def test_the_shell_completes_commands_flags_and_their_values(typed: str, offered: list[str]) -> None:
    words = typed.split(" ")
    asked = {"_OPDKIT_COMPLETE": "complete_bash", "COMP_WORDS": typed, "COMP_CWORD": str(len(words) - 1)}
    code = "from opdkit.cli import app; app(prog_name='opdkit')"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=os.environ | asked)
    assert done.stdout.split() == offered


@pytest.mark.parametrize(
    ("args", "code", "words"),
    [
        (["judge", "nowhere"], 2, "--judge is missing"),
        (["judge", "nowhere", "--judge", "rules"], 1, "opdkit extract"),
        (["judge", "nowhere", "--judge", "lokal"], 2, "'local'"),
        (["judge", "nowhere", "--judge", "local"], 2, "--judge-model"),
        (["judge", "nowhere", "--judge", "rules", "--votes", "0"], 2, "--votes is 0"),
        (["judge", "nowhere", "--votes", "many"], 2, "--votes"),
        (["judge", "nowhere", "--judge", "rules", "--shard", "3/3"], 2, "--shard"),
        (["teacher", "nowhere"], 2, "--model"),
        (["train", "nowhere", "--model", "x", "--objective", "odp"], 2, "'opd'"),
        (["extract", "nowhere"], 2, "LOGS"),
        (["extract", "", "logs"], 2, "'RUN': it is empty"),
        (["extract", "nowhere", ""], 2, "'LOGS': it is empty"),
        (["eval", "nowhere", "--from-log", "--trained", ""], 2, "'--trained': it is empty"),
        (["extract", "nowhere", "logs", "--filter="], 2, "'--filter': it is empty"),
        (["status", "\udcff"], 2, "not UTF-8"),
        (["extract", "~/runs/a", __file__], 2, "RUN is '~/runs/a': write the folder's full name"),
        (["rollout", "nowhere", "--model", "x", "--from-run=~a"], 2, "--from-run is '~a'"),
        (["status", "nowhere"], 1, "nowhere"),
        (["check", "nowhere"], 1, "nowhere"),
        (["show", "nowhere"], 1, "nowhere"),
        (["show", "nowhere", "--worst", "1", "--best", "1"], 2, "--best"),
        (["show", "nowhere", "--logprobs"], 2, "--whole"),
        (["show", "nowhere", "--worst", "1", "--one-line", "--logprobs", "--json"], 2, "--one-line"),
        (["show", "nowhere", "--whole", "--one-line"], 2, "--whole"),
        (["review", "nowhere"], 1, "opdkit judge"),
        (["review", "nowhere", "--port", "70000"], 2, "--port is 70000"),
        (["report", "nowhere"], 1, "nowhere"),
        (["report", "nowhere", "--max-mb", "0.1"], 2, "--max-mb"),
        (["run", "nowhere", "logs", "--set", "judge.vote=3"], 2, "'votes'"),
        (["run", "nowhere", "logs", "--lora-rank", "8"], 2, "--set train.lora_rank=VALUE"),
        (["run", "nowhere", "--template-arg=a=b"], 2, "--set teacher.template_arg=VALUE, --set train.template_arg="),
        (["run", "nowhere", "--in", "a.jsonl"], 2, "--set judge.in=VALUE"),
        (["slurm", "nowhere", "--gradient-checkpointing"], 2, "--set train.gradient_checkpointing=true"),
        (["night", "nowhere", "--check-hints", "8"], 2, "--set teacher.check_hints=VALUE"),
        (["judge", "nowhere", "--lora-rank", "8"], 2, "No such option: --lora-rank"),
        (["judge", "nowhere", "--config", "missing.toml"], 2, "missing.toml"),
        (["run", "nowhere", __file__, "--judge", "rules", "--model", "./modle"], 2, "./modle"),
        (
            ["run", "nowhere", __file__, "--judge", "rules", "--model", "m/x", "--set", "teacher.teacher=/no/such"],
            2,
            "/no/such",
        ),
        (["eval", "nowhere", "--prompts", "missing.jsonl"], 2, "--prompts missing.jsonl"),
        (["nothing"], 2, "nothing"),
    ],
)
def test_wrong_commands_say_what_to_do(
    args: list[str], code: int, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(app, args)
    assert (done.exit_code, done.stdout) == (code, "")
    assert words in " ".join(done.stderr.split())
    assert "Traceback" not in done.stderr
    assert not any(tmp_path.iterdir()), "a wrong command leaves nothing behind"


def test_logs_may_stand_in_the_file(tmp_path: Path) -> None:
    (tmp_path / "f.toml").write_text(f'[extract]\nlogs = ["{tmp_path}/none.jsonl"]\n')
    done = CliRunner().invoke(app, ["extract", str(tmp_path / "run"), "--config", str(tmp_path / "f.toml")])
    assert (done.exit_code, "none.jsonl does not exist" in " ".join(done.stderr.split())) == (2, True)


def _required(known: Command) -> set[str]:
    return {field.name for field in fields_of(known.config) if field.positional}


@pytest.mark.parametrize("command", [name for name, known in COMMANDS.items() if "run" in _required(known)])
def test_a_file_is_no_run_directory(command: str, tmp_path: Path) -> None:
    file = tmp_path / "afile"
    file.write_text("not a run")
    rest = ["logs"] if command in ("extract", "run", "slurm") else ["x"] if command == "calibrate" else []
    rest += ["--from-run", "there"] if command == "rollout" else []
    rest += ["--prompts", "x"] if command == "eval" else []
    rest += ["--to", "trl-kto"] if command == "export" else []
    rest += ["--model", "x"] if command in ("teacher", "train", "rollout", "forecast") else []
    rest += ["--judge", "rules"] if command == "judge" else []
    for run in (file, file / "below"):
        done = CliRunner().invoke(app, [command, str(run), *rest])
        assert done.exit_code == 2
        assert f"RUN is '{run}'" in done.stderr
        assert str(file) in done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("args", [["--help"], ["init", "-h"], ["show", "RUN"], ["show", "RUN", "--whole"],
                                  ["show", "RUN", "--json"], ["status", "RUN"]])  # fmt: skip
def test_a_reader_that_has_read_enough_is_no_failure(args: list[str], tmp_path: Path) -> None:
    """As in `opdkit show RUN | head -1`, nothing goes to stderr, for any way of printing and any amount."""
    run = write_extract(tmp_path / "run", {f"s{n}": talk("Hi " * 2000, "Hello.", "Bye") for n in range(40)})
    reading, writing = os.pipe()
    os.close(reading)
    command = [sys.executable, "-m", "opdkit", *(str(run) if arg == "RUN" else arg for arg in args)]
    done = subprocess.run(command, cwd=ROOT, stdout=writing, stderr=subprocess.PIPE, text=True, timeout=600)
    os.close(writing)
    assert (done.returncode in (1, 141), done.stderr) == (True, "")


def test_stdout_that_cannot_encode_a_log_shows_the_rest(tmp_path: Path) -> None:
    run = write_extract(tmp_path / "run", {"s": talk("Hi", "Größe: 日本", "Thanks")})
    command, encoding = [sys.executable, "-m", "opdkit", "show", str(run)], {"PYTHONIOENCODING": "latin-1"}
    done = subprocess.run(command, capture_output=True, encoding="latin-1", timeout=600, env=os.environ | encoding)
    assert (done.returncode, done.stderr) == (0, "")
    assert r"Größe: \u65e5\u672c" in done.stdout


@pytest.mark.slow
@pytest.mark.parametrize("args", [["show", "RUN"], ["show", "RUN", "--json"]])
def test_a_stdout_that_cannot_be_written_is_a_failure(args: list[str], tmp_path: Path) -> None:
    run = write_extract(tmp_path / "run", {"s": talk("Hi", "Hello.", "Bye")})
    command = [sys.executable, "-m", "opdkit", *(str(run) if arg == "RUN" else arg for arg in args)]
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(command, cwd=ROOT, stdout=full, stderr=subprocess.PIPE, text=True, timeout=600,
                              env=os.environ | {"COLUMNS": "1000"})  # fmt: skip
    assert done.returncode == 1
    assert done.stderr.startswith("error: ")
    assert "no space left" in done.stderr.lower()
    assert len(done.stderr.splitlines()) == 1


def test_debug_shows_the_traceback(tmp_path: Path) -> None:
    done = opdkit("status", "nowhere", "--debug", cwd=tmp_path)
    assert done.returncode == 1
    assert "Traceback" in done.stderr


@pytest.mark.slow
def test_the_examples_of_the_help_run(tmp_path: Path, warm_path: str) -> None:
    """One after the other, the examples are a whole run; `demo` has tests of its own, and `review` serves last.

    Examples of nights run on twelve sessions, too few to train on: tests/commands/night has nights that train.
    """
    write_small_sample(tmp_path / "sample_data", sessions=24)
    write_small_sample(tmp_path / "few" / "sample_data", sessions=12)
    served = {"review"}  # serves until it is stopped
    for name in [name for name in COMMANDS if name not in {"demo", *served}]:
        command = shlex.split(COMMANDS[name].example)
        folder = tmp_path / "few" if name in {"night", "models", "forget"} else tmp_path
        environment = os.environ | {"PATH": warm_path}
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, env=environment)
        assert done.returncode == 0, f"{COMMANDS[name].example}\n{done.stderr}"
    for name in served:
        command = [sys.executable, "-m", *shlex.split(COMMANDS[name].example)]
        with subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, text=True) as server:
            assert server.stdout is not None
            try:
                address = server.stdout.readline().strip()
                assert httpx.get(address, trust_env=False, timeout=600).status_code == 200
            finally:
                server.terminate()
        assert server.returncode == 0


def write_small_sample(folder: Path, sessions: int) -> None:
    """Write sample_data with its model, `sessions` lines of one of its logs, and every sixth of its prompts."""
    (folder / "logs").mkdir(parents=True)
    for path in (SAMPLE / "model", SAMPLE / "labels.jsonl"):
        (folder / path.name).symlink_to(path)
    for name, chosen in (("logs/openai.jsonl", slice(sessions)), ("prompts.jsonl", slice(None, None, 6))):
        lines = (SAMPLE / name).read_bytes().splitlines(keepends=True)
        (folder / name).write_bytes(b"".join(lines[chosen]))


def test_an_error_that_quotes_a_log_does_not_drive_the_terminal(tmp_path: Path) -> None:
    """In a hostile log, the keys of a record may hold escape codes."""
    log = tmp_path / "log.jsonl"
    log.write_text('{"\\u001b[31mred\\u001b]0;title\\u0007": 1}\n')
    done = subprocess.run([sys.executable, "-m", "opdkit", "extract", str(tmp_path / "run"), str(log)], cwd=ROOT,
                          capture_output=True, text=True, check=False)  # fmt: skip
    assert done.returncode == 2
    assert "unknown format" in done.stderr
    assert "\x1b" not in done.stderr
    assert "\x07" not in done.stderr


@pytest.mark.parametrize(
    ("command", "advice"),
    [("teacher", {"--batch-tokens", "--dtype", "--device"}), ("train", {"--micro-batch-tokens", "--dtype", "--device"}),
     ("run", {"--set"}), ("doctor", {"--dtype", "--device"}), ("show", set())],
)  # fmt: skip
def test_memory_that_runs_out_is_no_bug_of_opdkit(
    command: str, advice: set[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """The advice names only options that the command has."""
    from opdkit.model.memory import torch

    with pytest.raises(typer.Exit) as end, errors_as_exit_codes(debug=False, command=command):
        raise torch.OutOfMemoryError("CUDA out of memory")
    shown = capsys.readouterr().err
    assert end.value.exit_code == 1
    assert {word.strip(",") for word in shown.split() if word.startswith("--")} == advice
    assert "bug" not in shown


@pytest.mark.parametrize(("command", "keeps"), [("judge", True), ("night", True), ("forecast", False), ("show", False)])
def test_an_interrupted_command_says_what_is_kept(
    command: str, keeps: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(typer.Exit) as end, errors_as_exit_codes(debug=False, command=command):
        raise KeyboardInterrupt
    assert end.value.exit_code == 130
    assert ("resumes" in capsys.readouterr().err) == keeps
