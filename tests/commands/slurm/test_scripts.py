"""Tests of the batch scripts as text: what they say, that they hold no key, and that a shell reads them as intended."""

import os
import shlex
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
from accelerate.commands.launch import _validate_launch_command, launch_command_parser
from accelerate.utils.launch import prepare_multi_gpu_env

from opdkit.commands.slurm.scripts import (
    count_gpus,
    ranges,
    write_array_script,
    write_submit_script,
    write_train_script,
)
from opdkit.config.command_line import command_line
from opdkit.config.commands import configure
from opdkit.config.extract import ExtractConfig
from opdkit.config.fields import StageConfig
from opdkit.config.judge import JudgeConfig
from opdkit.config.slurm import SlurmConfig
from opdkit.config.train import TrainConfig
from opdkit.errors import ConfigError

HOSTILE = 'it\'s $(touch hacked) `x` "y"\n#SBATCH --uid=0\n; é *'
PLACE = Path("/home/a user"), Path("/venv/bin")


def slurm(**options) -> SlurmConfig:
    return SlurmConfig(**({"run": Path("runs/a"), "logs": ("logs",)} | options))


def judge_script(config: JudgeConfig | None = None, **options) -> str:
    return write_array_script(
        slurm(**options), "judge", config or JudgeConfig(run=Path("runs/a"), judge="rules"), range(4), PLACE
    )


def directives(script: str) -> list[str]:
    """Return what sbatch reads: the `#SBATCH` lines before the first command."""
    lines = script.splitlines()
    first = next(n for n, line in enumerate(lines) if line and not line.startswith("#"))
    return [line.removeprefix("#SBATCH ") for line in lines[:first] if line.startswith("#SBATCH")]


def words(command: str, config: StageConfig) -> list[str]:
    return command_line(command, type(config), config.run, config.effective())


def check_syntax(script: str) -> None:
    done = subprocess.run(["bash", "-n"], input=script.encode(), capture_output=True, check=False)
    assert done.returncode == 0, done.stderr.decode()


def test_an_array_script() -> None:
    script = judge_script(max_running=2, time=("4:00:00", "train=9:00:00"), gpus=("train=8", "judge=a100:1"),
                          partition=("gpu", "extract=cpu"), sbatch=("--exclusive", "train=--x"),
                          setup=("module load cuda",))  # fmt: skip
    assert directives(script) == [
        "--job-name=opdkit-judge", "--output=logs/%x-%A_%a.out", "--open-mode=append", "--requeue",
        "--signal=B:USR1@120", "--array=0-3%2", "--partition=gpu", "--time=4:00:00", "--gres=gpu:a100:1", "--exclusive",
    ]  # fmt: skip
    assert "cd -- '/home/a user' || exit 1\nexport PATH=/venv/bin:\"$PATH\"\nmodule load cuda\n" in script
    assert '\nopdkit judge runs/a --judge rules --shard "$SLURM_ARRAY_TASK_ID"/4 &\n' in script
    assert 'scontrol requeue "${SLURM_ARRAY_JOB_ID}_$SLURM_ARRAY_TASK_ID"' in script
    check_syntax(script)


@pytest.mark.parametrize("nodes", [1, 2])
def test_the_training_script(nodes: int) -> None:
    config = TrainConfig(run=Path("runs/a"), model=HOSTILE)
    script = write_train_script(slurm(nodes=nodes, gpus=("train=h100:4",)), config, PLACE)
    check_syntax(script)
    assert f"--nodes={nodes}" in directives(script)
    assert "--gres=gpu:h100:4" in directives(script)
    assert f"accelerate launch --multi_gpu --num_machines {nodes} --num_processes {4 * nodes} --gpu_ids all " in script
    assert ("\nsrun --kill-on-bad-exit=1 ${SLURM_CPUS_PER_TASK:+--cpus-per-task=" in script) == (nodes > 1)
    assert ("pkill -USR1 -P" in script) == (nodes == 1), "srun hands a signal on, the agent of torchrun does not"
    assert shlex.quote(HOSTILE) in script
    assert not any("uid" in line for line in directives(script))


@pytest.fixture
def place(tmp_path: Path) -> tuple[Path, Path]:
    """Return a place whose programs print their name and arguments. Beside it is a module with others."""
    for folder in ("it's own", "module"):
        for program in ("accelerate", "opdkit"):
            path = tmp_path / folder / program
            path.parent.mkdir(exist_ok=True)
            path.write_text(f"""#!/bin/bash\nprintf '%s\\0' "{folder}/{program}" "$@"\n""", encoding="utf-8")
            path.chmod(0o755)
    return tmp_path, tmp_path / "it's own"


def run_script(script: str, **environment: str) -> list[str]:
    """Return what the program that a script starts prints."""
    done = subprocess.run(["bash", "-c", script], capture_output=True, env=os.environ | environment, check=True)
    return done.stdout.decode().split("\0")[:-1]


def test_the_programs_are_those_of_the_caller_whatever_a_setup_loads(place: tuple[Path, Path]) -> None:
    setup = (f"PATH={place[0]}/module:$PATH",)
    training = write_train_script(slurm(setup=setup), TrainConfig(run=Path("r"), model="m"), place)
    assert run_script(training) == ["it's own/opdkit", "train", "r", "--model", "m"]
    judging = JudgeConfig(run=Path("r"), judge="rules")
    script = write_array_script(slurm(setup=setup), "judge", judging, [0], place)
    assert run_script(script, SLURM_ARRAY_TASK_ID="0")[:3] == ["it's own/opdkit", "judge", "r"]


@pytest.mark.parametrize("nodes", [1, 2])
def test_a_configuration_of_accelerate_for_one_gpu_changes_nothing(
    nodes: int, place: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    setup = (f"PATH={place[0]}/module:$PATH", "scontrol() { echo node7; }",
             'srun() { while [[ $1 = -* ]]; do shift; done; "$@"; }')  # fmt: skip
    config = TrainConfig(run=Path("r"), model=HOSTILE)
    script = write_train_script(slurm(nodes=nodes, processes=2, setup=setup), config, place)
    job = {"SLURM_JOB_ID": "50001", "SLURM_JOB_NODELIST": "node[7-8]", "SLURM_NODEID": "1"}
    program, _, *given = run_script(script, **job)
    assert program == "it's own/accelerate"
    file = place[0] / "default_config.yaml"
    file.write_text("compute_environment: LOCAL_MACHINE\ndistributed_type: 'NO'\ngpu_ids: '0'\nmixed_precision: bf16\n"
                    "num_machines: 1\nnum_processes: 1\nuse_cpu: false\n", encoding="utf-8")  # fmt: skip
    arguments = launch_command_parser().parse_args(["--config_file", str(file), *given])
    _validate_launch_command(arguments)
    assert "CUDA_VISIBLE_DEVICES" not in prepare_multi_gpu_env(arguments)
    assert arguments.mixed_precision == "no"
    assert (arguments.module, arguments.training_script) == (True, "opdkit")
    assert arguments.training_script_args == ["train", "r", "--model", HOSTILE]
    if nodes == 2:
        assert (arguments.node_rank, arguments.rdzv_endpoint) == (1, "node7:30001")


def test_a_training_of_one_process_needs_no_launcher() -> None:
    """Exit code and signals are then those of opdkit itself. The job is requeued only if it wrote a new checkpoint."""
    script = write_train_script(slurm(), TrainConfig(run=Path("runs/a b"), model="m"), PLACE)
    check_syntax(script)
    assert "\n(trap '' USR1; exec opdkit train 'runs/a b' --model m) &\n" in script
    assert "accelerate" not in script
    assert """[ "$(ls 'runs/a b/train/checkpoints' 2>/dev/null)" != "$before" ]""" in script


def test_submit_chains_the_tasks_one_by_one() -> None:
    script = write_submit_script({"judge": [0, 2], "teacher": [1], "train": []})
    check_syntax(script)
    assert "\njudge=$(sbatch --parsable judge.sbatch)\n" in script
    assert '\nteacher=$(sbatch --parsable --dependency="afterok:${judge}_0:${judge}_2" teacher.sbatch)\n' in script
    assert '\ntrain=$(sbatch --parsable --dependency="afterok:${teacher}_1" train.sbatch)\n' in script


# -- quoting --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("log", ["logs", HOSTILE, "-rf", "--", "a b"])
def test_the_shell_gives_back_the_words(log: str, tmp_path: Path) -> None:
    """Names that a user gives reach opdkit unchanged; no part of them is run or becomes a directive."""
    config = ExtractConfig(run=Path(HOSTILE), logs=(log, "second"), part_mb=0.5)
    script = write_array_script(slurm(), "extract", config, [0], (tmp_path, Path("/bin")))
    assert not any("uid" in line for line in directives(script))
    check_syntax(script)
    shown = """opdkit() { printf '%s\\0' "$@"; }\nSLURM_ARRAY_TASK_ID=2\n"""
    done = subprocess.run(["bash", "-c", shown + script], capture_output=True, cwd=tmp_path, check=True)
    words = done.stdout.decode().split("\0")[:-1]
    flags = ["--part-mb", "0.5", "--shard", "2/4"]
    places = [HOSTILE, log, "second"]
    assert words == ["extract", *([*flags, "--", *places] if log.startswith("-") else [*places, *flags])]
    assert not any(tmp_path.iterdir()), "nothing was run"


def test_a_command_line_makes_the_same_configuration() -> None:
    config = TrainConfig(run=Path("r"), model="-m", learning_rate=1e-5, gradient_checkpointing=True, holdout=0.1,
                         template_arg=("a=1", "b=x y"))  # fmt: skip
    assert words("train", config) == [
        "opdkit", "train", "r", "--template-arg", "a=1", "--template-arg", "b=x y", "--model=-m", "--holdout", "0.1",
        "--learning-rate", "1e-05", "--gradient-checkpointing",
    ]  # fmt: skip
    assert words("judge", JudgeConfig(run=Path("r"), judge="rules")) == ["opdkit", "judge", "r", "--judge", "rules"]


def test_no_key_reaches_a_script(monkeypatch: pytest.MonkeyPatch) -> None:
    """A script names the environment variable that holds the key, never the key."""
    monkeypatch.setenv("MY_KEY", "secret-key-of-a-test")
    config = JudgeConfig(
        run=Path("r"), judge="endpoint", judge_model="m", judge_url="http://h/v1", api_key_env="MY_KEY"
    )
    script = judge_script(config)
    assert "--api-key-env MY_KEY" in script
    assert "secret-key-of-a-test" not in script


# -- options --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("options", "message"), [
    ({"time": ("jugde=1:00",)}, "--time is 'jugde=1:00'; write it as VALUE or STAGE=VALUE"),
    ({"time": ("4 hours",)}, "without blanks"),
    ({"partition": ("a\n#SBATCH --uid=0",)}, "--partition is"),
    ({"sbatch": ("--x\n--y",)}, "--sbatch is"),
    ({"sbatch": ("train=exclusive",)}, "--sbatch is 'exclusive'"),
    ({"shard": "0/4"}, "--shards says"),
    ({"overwrite": True}, "--overwrite"),
    ({"logs": ("-",)}, "no standard input"),
    ({"shards": 0}, "--shards is 0"),
])  # fmt: skip
def test_options_that_make_no_job(options: dict, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        slurm(**options)


def test_an_account_for_one_kind_of_gpu() -> None:
    script = judge_script(account=("abc@cpu", "judge=abc@a100"))
    assert "--account=abc@a100" in directives(script)


def test_options_from_the_file_that_the_stages_read(tmp_path: Path) -> None:
    file = tmp_path / "c.toml"
    file.write_text('[slurm]\nshards = 9\ntime = "1:00"\n[judge]\njudge = "rules"\nvotes = 7\n', encoding="utf-8")
    flags = {"run": Path("r"), "logs": ("a",), "config": file}
    config = configure("slurm", flags, file)
    assert isinstance(config, SlurmConfig)
    assert (config.shards, config.time, config.config) == (9, ("1:00",), file)
    assert configure("run", flags, file).config == file
    assert configure("judge", {"run": Path("r")}, file).votes == 7


def test_small_numbers() -> None:
    assert ranges([0, 1, 2, 5, 7, 8]) == "0-2,5,7-8"
    for notice, grace in ((10, 5), (60, 30), (120, 90), (600, 570)):
        assert f"{{ sleep {grace}; kill " in judge_script(notice=notice)
    wanted = {(): 1, ("8",): 8, ("judge=2",): 1, ("2", "train=a100:4"): 4, ("a100",): 1}
    assert {gpus: count_gpus(slurm(gpus=gpus)) for gpus in wanted} == wanted
    assert replace(slurm(), time=("1", "judge=2")).of_stage("time", "judge") == ["1", "2"]
