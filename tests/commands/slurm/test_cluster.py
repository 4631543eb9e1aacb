"""Tests that a real Slurm on this host, with a task killed and a task out of time, gives the rows of a plain run.

Skipped, with the reason, if Slurm is not installed (Debian: slurm-wlm, munge) or cannot start.
"""

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from sample_world import DATA, MODEL
from scored_runs import toy_sessions, train_config, write_run
from slurm_cluster import Cluster, command_lines, until

from opdkit.commands.slurm.scripts import write_train_script
from opdkit.config.run import ORDER
from opdkit.config.slurm import SlurmConfig
from opdkit.store.plans import stage_dir
from opdkit.store.reading import count_parts, read_all
from opdkit.store.tables import TABLES

pytestmark = pytest.mark.slow
OPTIONS = [str(DATA / "logs"), "--model", str(MODEL), "--judge", "local", "--limit", "12",
           "--set", "extract.part_mb=0.000001", "--set", "judge.votes=1", "--set", "judge.max_new_tokens=32",
           "--set", "train.device=cpu", "--set", "train.batch_turns=8"]  # fmt: skip
SHARDS = 2
# Only Slurm knows the names of the nodes: all of them are this host.
HOSTNAMES = 'scontrol() { if [ "$1" = show ]; then echo 127.0.0.1; else command scontrol "$@"; fi; }'


def opdkit(*args: str, environment: dict[str, str] | None = None) -> str:
    """Run opdkit and return its output. It has one thread, because two would sum in a varying order."""
    env = (environment or os.environ) | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, "-m", "opdkit", *args], capture_output=True, text=True, env=env, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout + done.stderr


def parts_of(run: Path, stage: str, shard: int) -> int:
    primary = next(table for table in TABLES.values() if table.stage == stage)
    numbers = [int(p.stem[-5:]) for p in (stage_dir(run, stage) / primary.name).glob("part-*.parquet")]
    return sum(k % SHARDS == shard for k in numbers)


def process_of(run: Path, shard: int) -> int | None:
    """Return the process id of a judge task's opdkit, found by its command line, or None."""
    wanted = {str(run), f"{shard}/{SHARDS}", "judge", "--shard"}
    return next((pid for pid, words in command_lines() if wanted <= set(words)), None)


def held_after_a_part(slurm: Cluster, run: Path, shards: Sequence[int]) -> list[int]:
    """Return the processes of judge tasks, each stopped with a part done: they run in bursts, with checks between."""
    held: dict[int, int] = {}

    def all_held() -> bool:
        for _ in range(10):
            for shard in [s for s in shards if s not in held]:
                if (pid := process_of(run, shard)) is None:
                    continue
                os.kill(pid, signal.SIGSTOP)
                if parts_of(run, "judge", shard):
                    held[shard] = pid
                else:
                    os.kill(pid, signal.SIGCONT)
            time.sleep(0.02)
        return len(held) == len(shards)

    until(slurm, run, all_held, f"a part of each of the tasks {shards}")
    for shard in shards:
        assert parts_of(run, "judge", shard) < count_parts(run, "judge") // SHARDS, "too late to test anything"
    return [held[shard] for shard in shards]


def submitted(said: str) -> dict[str, tuple[str, str]]:
    """Return stage -> (job, what it waits for)."""
    return {m[1]: (m[2], m[3] or "") for m in re.finditer(r"^(\w+) (\d+)(?: (afterok:\S+))?$", said, re.MULTILINE)}


def log_of(run: Path, stage: str, task: str) -> str:
    path = run / "slurm" / "logs" / f"opdkit-{stage}-{task}.out"
    return path.read_text(errors="replace") if path.exists() else ""


def finish(slurm: Cluster, run: Path, job: str) -> None:
    """Wait for the last job; show the logs if it fails."""

    def over() -> bool:
        state = slurm.states()[job]
        if not state.startswith(("PENDING", "RUNNING", "COMPLETING", "CONFIGURING")) or "Never" in state:
            assert state.startswith("COMPLETED"), f"{state}\n{slurm.report(run)}"
            return True
        return False

    until(slurm, run, over, f"the end of job {job}")


def assert_same(run: Path, plain: Path) -> None:
    for stage in ORDER:
        for name in (n for n, table in TABLES.items() if table.stage == stage and table.option is None):
            ours, theirs = (pq.read_table(stage_dir(r, stage) / name) for r in (run, plain))
            timed = [c for c in ("seconds", "tokens_per_second") if name == "metrics"]
            assert ours.drop_columns(timed).equals(theirs.drop_columns(timed)), f"{name} differs"
            parts = sorted(p.name for p in (stage_dir(run, stage) / name).iterdir())
            assert parts == [f"part-{k:05d}.parquet" for k in range(count_parts(run, stage))]
        assert not list((stage_dir(run, stage) / ".tmp").glob("*")), f"{stage} left something half-written"
    model = "train/model/model.safetensors"
    assert (run / model).read_bytes() == (plain / model).read_bytes()


def test_killed_requeued_and_out_of_time(slurm: Cluster, tmp_path: Path) -> None:
    """The run ends with the same tables and the same model as a plain run.

    Task 0 of the judge is killed with `scancel --signal=KILL` and requeued. Task 1 runs into its time limit: its
    process is held (SIGSTOP) until Slurm has sent its signal, because the moment of that signal varies.
    """
    plain, run = tmp_path / "plain", tmp_path / "run"
    opdkit("run", str(plain), *OPTIONS)
    said = opdkit("slurm", str(run), *OPTIONS, "--shards", str(SHARDS), "--max-running", "2", "--notice", "10",
                  "--time", "30", "--submit", environment=slurm.environment)  # fmt: skip
    jobs = submitted(said)
    assert list(jobs) == list(ORDER)
    judge, waiting = jobs["judge"][0], jobs["teacher"]

    _, held = held_after_a_part(slurm, run, (0, 1))
    slurm("scancel", "--signal=KILL", f"{judge}_0")
    ran = re.search(r"RunTime=(\d+):(\d+):(\d+)", slurm("scontrol", "show", "job", f"{judge}_1"))
    assert ran is not None
    minutes = int(ran[1]) * 60 + int(ran[2]) + 1 + (int(ran[3]) > 15)  # 45 seconds from now at least
    slurm("scontrol", "update", f"jobid={judge}_1", f"TimeLimit={minutes}")
    until(slurm, run, lambda: "CANCELLED" in slurm.states()[f"{judge}_0"], "the end of task 0")
    slurm("scontrol", "requeue", f"{judge}_0")
    slurm("scontrol", "update", f"jobid={waiting[0]}", f"dependency={waiting[1]}")

    until(slurm, run, lambda: asked_to_stop(held), "the signal before the time limit")
    os.kill(held, signal.SIGCONT)
    until(slurm, run, lambda: "Restarts=1" in slurm("scontrol", "show", "job", f"{judge}_1"), "task 1 queued again")
    slurm("scontrol", "update", f"jobid={judge}_1", "TimeLimit=30")

    finish(slurm, run, jobs["train"][0])
    assert "stopped as asked" in log_of(run, "judge", f"{judge}_1")
    assert_same(run, plain)
    again = opdkit("slurm", str(run), *OPTIONS, "--submit", environment=slurm.environment)
    assert "nothing to do" in again


def asked_to_stop(pid: int) -> bool:
    """Return whether SIGUSR1 is pending for a held process."""
    text = Path(f"/proc/{pid}/status").read_text(encoding="utf-8")
    pending = int(text.split("ShdPnd:")[1].split()[0], 16)
    return bool(pending >> (signal.SIGUSR1 - 1) & 1)


@pytest.mark.parametrize("nodes", [2, 1])
def test_a_training_out_of_time_goes_on(slurm: Cluster, tmp_path: Path, nodes: int) -> None:
    """If the job is asked to stop, all processes on all nodes keep a checkpoint, and the job requeues itself."""
    run = write_run(tmp_path / "run", MODEL, toy_sessions(8))
    options = {"device": "cpu", "epochs": 20, "checkpoint_every": 0, "batch_turns": 4, "learning_rate": 1e-4}
    wanted = SlurmConfig(run=run, logs=("logs",), nodes=nodes, processes=1, time=("30",), setup=(HOSTNAMES,))
    place = tmp_path, Path(sys.executable).parent
    folder = run / "slurm"
    (folder / "logs").mkdir(parents=True)
    (folder / "train.sbatch").write_text(write_train_script(wanted, train_config(run, MODEL, **options), place))
    job = slurm("sbatch", "--parsable", f"--chdir={folder}", str(folder / "train.sbatch")).strip()
    until(slurm, run, lambda: re.search(r"step \d+ of", log_of(run, "train", job)), "the first steps")
    slurm("scancel", "--batch", "--signal=USR1", job)
    until(slurm, run, lambda: "Restarts=1" in slurm("scontrol", "show", "job", job), "the job queued again")
    finish(slurm, run, job)
    said = log_of(run, "train", job)
    steps = [re.findall(rf"{what} after step (\d+)", said) for what in ("stopping", "resuming")]
    assert steps[0] == steps[1]
    assert len(steps[0]) == 1
    rows = list(read_all(run, "metrics"))
    assert [row["step"] for row in rows] == list(range(1, len(rows) + 1))
