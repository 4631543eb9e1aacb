"""Test of the job in docs/nights.md on a real Slurm: requeued and killed, it trains the models of plain nights.

Skipped, with the reason, if Slurm is not installed (Debian: slurm-wlm, munge) or cannot start.
"""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from night_logs import QUICK, grow
from sample_world import DATA, MODEL
from slurm_cluster import Cluster, T, command_lines, until

from opdkit.commands.night.home import KEPT, PROMOTED, Home

pytestmark = pytest.mark.slow
PAGE = Path(__file__).parents[3] / "docs" / "nights.md"
UPTO = (24, 48, 60)  # lines of the log, night by night: the second of these nights promotes its model
TRAIN = QUICK.replace("epochs = 1\nlearning_rate = 1e-4", "epochs = 2\nlearning_rate = 1e-3\ncheckpoint_every = 1")
OPTIONS = f"""
[night]
logs = ["logs"]
model = "{MODEL}"
judge = "rules"
prompts = "prompts.jsonl"
least_hints = 10
{TRAIN}
"""


def make_world(folder: Path) -> Path:
    folder.mkdir()
    prompts = (DATA / "prompts.jsonl").read_text(encoding="utf-8").splitlines(keepends=True)
    (folder / "prompts.jsonl").write_text("".join(prompts[:6]), encoding="utf-8")
    (folder / "night.toml").write_text(OPTIONS, encoding="utf-8")
    return folder


def run_plainly(folder: Path, path: str) -> Home:
    """Run the nights without Slurm, none of them killed. They have one thread: two would sum in a varying order."""
    environment = os.environ | {"PATH": path, "OMP_NUM_THREADS": "1"}
    for upto in UPTO:
        grow(folder, upto)
        subprocess.run(["opdkit", "night", "nights", "--config", "night.toml"], cwd=folder, env=environment, check=True,
                       capture_output=True)  # fmt: skip
    return Home(folder / "nights")


def hold_in_training(folder: Path, number: int) -> int | None:
    """Stop the night's process once the training has a checkpoint. Return the process; None before that."""
    if not list((Home(folder / "nights").night(number).folder / "train" / "checkpoints").glob("step-*")):
        return None
    (process,) = (pid for pid, words in command_lines() if {"night", "nights"} <= set(words) and is_in(folder, pid))
    os.kill(process, signal.SIGSTOP)
    return process


def is_in(folder: Path, process: int) -> bool:
    return Path(f"/proc/{process}/cwd").resolve() == folder.resolve()


def test_a_job_that_repeats_is_requeued_and_killed_and_trains_the_same_models(
    slurm: Cluster, tmp_path: Path, warm_path: str
) -> None:
    """Job 2 is requeued while night 2 trains, then killed while night 3 trains. Job 3 finishes night 3."""
    folder = make_world(tmp_path / "slurm")
    (job,) = re.findall(r"```text\n(#!/bin/bash\n.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    (folder / "night.sh").write_text(job, encoding="utf-8")
    log = folder / "nights.log"
    environment = slurm.environment | {"OMP_NUM_THREADS": "1"}
    environment["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{environment['PATH']}"

    def wait(condition: Callable[[], T], what: str) -> T:
        return until(slurm, folder, condition, what)

    def is_(state: str, job: int) -> Callable[[], bool]:
        return lambda: slurm.states().get(str(job), "").startswith(state)

    def start(job: int) -> None:
        """Start a job that waits for three o'clock."""
        begins = slurm("squeue", f"--jobs={job}", "--noheader", "--format=%T %S").strip()
        assert re.fullmatch(r"PENDING .*T03:00:00", begins)
        slurm("scontrol", "update", f"jobid={job}", "StartTime=now")

    with ThreadPoolExecutor(1) as pool:
        plain = pool.submit(run_plainly, make_world(tmp_path / "plain"), warm_path)
        grow(folder, UPTO[0])
        subprocess.run(["sbatch", "night.sh"], cwd=folder, env=environment, check=True, capture_output=True)
        wait(is_("COMPLETED", 1), "the first night")

        grow(folder, UPTO[1])
        start(2)
        wait(lambda: hold_in_training(folder, 2), "a checkpoint of the second night")
        start(3)
        wait(is_("PENDING Dependency", 3), "the third job to wait for the second")
        grow(folder, UPTO[2])
        slurm("scontrol", "requeue", "2")
        held = wait(lambda: hold_in_training(folder, 3), "a checkpoint of the third night")
        assert "Restarts=1" in slurm("scontrol", "show", "job", "2")
        os.kill(held, signal.SIGKILL)
        wait(is_("COMPLETED", 3), "the end of the third job")

        printed = log.read_text(encoding="utf-8")
        assert len(re.findall(r"^resuming after step \d", printed, re.MULTILINE)) == 2
        assert re.findall(r"^night (\d): (?:kept|promoted|nothing new)", printed, re.MULTILINE) == ["1", "2", "3", "4"]
        assert {job: state.split()[0] for job, state in slurm.states().items()} == {
            "1": "COMPLETED", "2": "FAILED", "3": "COMPLETED", "4": "PENDING"}  # fmt: skip
        assert_same(Home(folder / "nights"), plain.result())


def assert_same(ours: Home, theirs: Home) -> None:
    assert [night.record["decision"] for night in theirs.list_nights()] == [KEPT, PROMOTED, KEPT]
    assert len(ours.list_nights()) == len(UPTO)
    for night, other in zip(ours.list_nights(), theirs.list_nights(), strict=True):
        times = {"began": "", "ended": ""}
        assert night.record | times == other.record | times
        assert (night.model / "model.safetensors").read_bytes() == (other.model / "model.safetensors").read_bytes()
    assert ours.find_promoted() == theirs.find_promoted() == 2
    assert [line["night"] for line in ours.read_promotions()] == [line["night"] for line in theirs.read_promotions()]
