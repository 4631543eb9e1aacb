"""Tests of `--tensor-parallel`: processes that each hold a share of every layer write the rows of a single process."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pyarrow.parquet as pq
import pytest
import torch
from sample_world import DATA, MODEL

from opdkit.config.extract import ExtractConfig
from opdkit.config.judge import JudgeConfig
from opdkit.config.teacher import TeacherConfig
from opdkit.errors import ConfigError
from opdkit.extract import stage as extract
from opdkit.judge import stage as judge
from opdkit.store.stopping import TRY_AGAIN, Stopped
from opdkit.teacher import process_group
from opdkit.teacher import stage as teacher

TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Return the same run three times, in several parts; one process has scored the first."""
    folder = tmp_path_factory.mktemp("lockstep")
    for run in (folders := [folder / name for name in ("one", "two", "stopped")]):
        extract.run(ExtractConfig(run=run, logs=(str(DATA / "logs" / "openai.jsonl"),), limit=20, part_mb=0.005))
        judge.run(JudgeConfig(run=run, judge="rules"))
    teacher.run(TeacherConfig(run=folders[0], model=str(MODEL), device="cpu", teacher_samples=0))
    return folders


def rows(run: Path) -> list[dict[str, list[float]]]:
    targets: list[dict[str, list[float]]] = pq.read_table(run / "teacher" / "targets").to_pylist()
    return targets


def launch(run: Path, *more: str) -> "subprocess.Popen[str]":
    command = [*TORCHRUN, *(more or ["-m", "opdkit", "teacher", str(run), "--model", str(MODEL), "--tensor-parallel"])]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)


def same(ours: list[dict[str, list[float]]], theirs: list[dict[str, list[float]]]) -> None:
    assert [row["turn_id"] for row in ours] == [row["turn_id"] for row in theirs]
    for a, b in zip(ours, theirs, strict=True):
        assert a["response_ids"] == b["response_ids"]
        for column in ("old_logprobs", "teacher_logprobs"):
            assert (a[column] is None) == (b[column] is None)
            assert a[column] is None or a[column] == pytest.approx(b[column], abs=2e-5)


def test_each_process_sends_objects_from_its_own_gpu(monkeypatch, tmp_path):
    done = []
    for name, value in {"WORLD_SIZE": "2", "RANK": "1", "LOCAL_RANK": "1", "MASTER_ADDR": "127.0.0.1"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(process_group, "resolve_device", lambda _: torch.device("cuda:1"))
    monkeypatch.setattr(torch.cuda, "set_device", lambda index: done.append(("device", index)))
    monkeypatch.setattr(process_group.distributed, "init_process_group", lambda kind, **_: done.append(("join", kind)))
    process_group.join(TeacherConfig(run=tmp_path, model="m", tensor_parallel=True, shard="0/1"))
    assert done == [("device", 1), ("join", "nccl")]


def test_who_stops_leaves_first(tmp_path, monkeypatch):
    """A process that exits as a member of a group sometimes aborts, and its exit code is lost."""
    distributed = process_group.distributed
    distributed.init_process_group("gloo", store=distributed.FileStore(str(tmp_path / "store")), rank=0, world_size=1)
    group = process_group.ProcessGroup(size=2)
    group.stop_if_asked()
    assert distributed.is_initialized()
    monkeypatch.setattr(process_group.stopping, "is_requested", lambda: True)
    with pytest.raises(Stopped):
        group.stop_if_asked()
    assert not distributed.is_initialized()


@pytest.mark.slow
def test_two_halves_of_a_model_give_the_rows_of_the_whole(runs):
    process = launch(runs[1])
    _, errors = process.communicate(timeout=600)
    assert process.returncode == 0, errors
    assert len(list((runs[1] / "teacher" / "targets").iterdir())) > 2, "several parts, in the same order in both"
    assert "tokens saved" in errors, "sessions are read once here, too"
    same(rows(runs[1]), rows(runs[0]))


@pytest.mark.slow
def test_each_process_holds_a_share(tmp_path):
    (tmp_path / "share.py").write_text(
        "import torch; from torch import distributed; distributed.init_process_group('gloo');"
        "from opdkit.model.load import load_model;"
        f"m = load_model({str(MODEL)!r}, device='cpu', dtype='float32', tensor_parallel=True);"
        "w = m.model.layers[0].mlp.up_proj.weight; print(w.numel() // w.to_local().numel(), flush=True)",
        encoding="utf-8",
    )
    out, errors = launch(tmp_path, str(tmp_path / "share.py")).communicate(timeout=600)
    assert out.split() == ["2", "2"], errors


@pytest.mark.slow
def test_one_that_is_asked_to_stop_stops_all_and_one_process_goes_on(runs):
    """A signal to one process stops all of them, with none waiting for it; one process alone then finishes the run."""
    process = launch(runs[2])
    marks = runs[2] / "teacher" / ".tmp"
    while not (working := list(marks.glob("*.running"))) and process.poll() is None:
        time.sleep(0.01)
    assert working, process.communicate()[1]
    os.kill(_child(process.pid), signal.SIGUSR1)
    _, errors = process.communicate(timeout=600)
    assert str(TRY_AGAIN) in errors, errors
    done = len(list((runs[2] / "teacher" / "targets").iterdir()))
    assert 1 <= done < len(list((runs[0] / "teacher" / "targets").iterdir()))
    teacher.run(TeacherConfig(run=runs[2], model=str(MODEL), device="cpu", teacher_samples=0))
    same(rows(runs[2]), rows(runs[0]))


def _child(launcher: int) -> int:
    return int(subprocess.check_output(["pgrep", "-P", str(launcher), "-n"], text=True))


def test_one_process_alone_is_refused(runs, monkeypatch):
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    with pytest.raises(ConfigError, match="torchrun"):
        teacher.run(TeacherConfig(run=runs[0], model=str(MODEL), tensor_parallel=True))
    with pytest.raises(ConfigError, match="--device-map"):
        TeacherConfig(run=runs[0], model="m", tensor_parallel=True, device_map="auto")
    with pytest.raises(ConfigError, match="--teacher-samples"):
        TeacherConfig(run=runs[0], model="m", tensor_parallel=True, teacher_samples=1)
