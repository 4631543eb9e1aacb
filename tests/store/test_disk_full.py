"""Tests of each stage on a disk that fills up or turns read-only: a clear error, nothing half done, then the same rows.

The disk is a small tmpfs. The tests are skipped if they may not mount a tmpfs.
"""

import contextlib
import os
import shutil
import sqlite3
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from checked_runs import PART_MB
from sample_world import DATA, MODEL

from opdkit.commands.check.stage import examine
from opdkit.store.disk import explain_disk_error
from opdkit.store.plans import stage_dir
from opdkit.store.reading import part_path
from opdkit.store.tables import TABLES

pytestmark = pytest.mark.slow

LOG = str(DATA / "logs" / "openai.jsonl")
# Options of the real stages; --limit keeps them small.
STAGES = {
    "extract": [LOG, "--limit", "24", "--part-mb", str(PART_MB)],
    "judge": ["--judge", "rules"],
    "teacher": ["--model", str(MODEL), "--limit", "12"],
    "train": ["--model", str(MODEL), "--limit", "12", "--checkpoint-every", "1"],
}
PAGE = 4096
DISK = 64 << 20


@pytest.fixture(autouse=True)
def _warm(warm_path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", warm_path)


def opdkit(stage: str, run: Path) -> subprocess.CompletedProcess[str]:
    command = ["opdkit", stage, str(run), *STAGES[stage]]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "NO_COLOR": "1"}
    return subprocess.run(command, capture_output=True, text=True, timeout=600, env=environment)


def done(stage: str, run: Path) -> None:
    finished = opdkit(stage, run)
    assert finished.returncode == 0, finished.stderr


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the path of a run on a large disk, to which tests add the stages that they need."""
    return tmp_path_factory.mktemp("undisturbed") / "run"


def up_to(stage: str, run: Path) -> None:
    names = list(STAGES)
    for name in names[: names.index(stage) + 1]:
        if not (stage_dir(run, name) / "manifest.json").exists():
            done(name, run)


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """Mount a small disk for one test and return its folder."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mounted = mount("-t", "tmpfs", "-o", f"size={DISK}", "opdkit-test", str(folder))
    if mounted.returncode:
        pytest.skip(f"mounting a tmpfs is not allowed here: {mounted.stderr.strip()}")
    try:
        yield folder
    finally:
        subprocess.run(["umount", str(folder)], check=True)


def mount(*words: str) -> subprocess.CompletedProcess[str]:
    if shutil.which("mount") is None:
        pytest.skip("there is no mount here")
    return subprocess.run(["mount", *words], capture_output=True, text=True)


def size(folder: Path) -> int:
    """Return the bytes that a folder takes on a disk, in whole pages."""
    return sum(-(-p.stat().st_size // PAGE) * PAGE for p in folder.rglob("*") if p.is_file())


@contextlib.contextmanager
def room(disk: Path, left: int) -> Iterator[None]:
    """Fill the disk so that `left` bytes are free."""
    ballast = disk / "ballast"
    free = os.statvfs(disk)
    with ballast.open("wb") as handle:
        os.posix_fallocate(handle.fileno(), 0, free.f_bavail * free.f_bsize - left)
    try:
        yield
    finally:
        ballast.unlink()


def start(stage: str, undisturbed: Path, disk: Path) -> Path:
    """Return a run on the small disk that has all stages before `stage`."""
    up_to(stage, undisturbed)
    run = disk / "run"
    run.mkdir()
    for earlier in list(STAGES)[: list(STAGES).index(stage)]:
        shutil.copytree(stage_dir(undisturbed, earlier), stage_dir(run, earlier))
    return run


def tables(stage: str) -> list[str]:
    """Return the tables that a stage writes without options."""
    return [name for name, table in TABLES.items() if table.stage == stage and table.option is None]


def assert_nothing_half_done(stage: str, run: Path, undisturbed: Path) -> None:
    """Assert that each part is complete or absent, and that no temporary file is left to take up room."""
    for name in tables(stage):
        for path in (stage_dir(run, stage) / name).glob("*"):
            assert (
                pq.read_table(path).num_rows == pq.read_table(stage_dir(undisturbed, stage) / name / path.name).num_rows
            )
    assert not list((stage_dir(run, stage) / ".tmp").glob("*"))
    assert not list(stage_dir(run, stage).glob(".manifest*"))


# Columns that differ between any two runs of training.
TIMES = ("seconds", "tokens_per_second")


def assert_same_rows(stage: str, run: Path, undisturbed: Path) -> None:
    for name in tables(stage):
        ours, theirs = (pq.read_table(stage_dir(r, stage) / name) for r in (run, undisturbed))
        columns = [c for c in theirs.schema.names if c not in TIMES]
        assert ours.select(columns).equals(theirs.select(columns)), f"{name} differs"


@pytest.mark.parametrize("stage", STAGES)
def test_a_disk_that_fills_up(stage: str, undisturbed: Path, disk: Path) -> None:
    """The command fails with a clear error and leaves no half-written part; the same command later does the rest."""
    run = start(stage, undisturbed, disk)
    for left in (0, size(stage_dir(undisturbed, stage)) // 2 // PAGE * PAGE):
        with room(disk, left):
            full = opdkit(stage, run)
        assert full.returncode == 1, full.stderr
        said = " ".join(full.stderr.split())
        assert "no space left" in said
        assert str(run) in said
        assert "make room there, then start the same command again" in said
        assert "Traceback" not in said
        assert_nothing_half_done(stage, run, undisturbed)
    done(stage, run)
    assert_same_rows(stage, run, undisturbed)
    assert examine(run).findings == []


@pytest.mark.parametrize("stage", STAGES)
def test_a_disk_that_turns_read_only(stage: str, undisturbed: Path, disk: Path) -> None:
    run = start(stage, undisturbed, disk)
    assert mount("-o", "remount,ro", str(disk)).returncode == 0
    refused = opdkit(stage, run)
    said = " ".join(refused.stderr.split())
    assert refused.returncode == 1, said
    assert str(stage_dir(run, stage)) in said
    assert "cannot be written" in said
    assert "Traceback" not in said
    assert mount("-o", "remount,rw", str(disk)).returncode == 0
    done(stage, run)
    assert_same_rows(stage, run, undisturbed)


def test_a_finished_run_on_a_read_only_disk_is_read(undisturbed: Path, disk: Path) -> None:
    run = start("judge", undisturbed, disk)
    done("judge", run)
    assert mount("-o", "remount,ro", str(disk)).returncode == 0
    done("judge", run)  # nothing is left to do
    assert examine(run).findings == []
    assert part_path(run, "verdicts", 0).exists()


# -- error messages -------------------------------------------------------------------------------------------------


def test_what_libraries_make_of_a_full_disk_is_recognised() -> None:
    """safetensors and torch raise errors of their own, which quote the system's error or have it as their context."""
    folder = Path("runs/x")
    quoted = RuntimeError("Error while serializing: I/O error: No space left on device (os error 28)")
    assert "no space left on the disk of runs/x" in str(explain_disk_error(quoted, folder))
    late = RuntimeError("unexpected pos 64 vs 0")
    late.__context__ = OSError(28, "No space left on device", "runs/x/train/checkpoints/step-1")
    assert "runs/x/train/checkpoints/step-1" in str(explain_disk_error(late, folder))
    too_large = "Error while serializing: I/O error: File too large (os error 27)"  # beyond `ulimit -f`, or on FAT
    for error in (RuntimeError(too_large), OSError(27, "File too large"), sqlite3.OperationalError("disk I/O error")):
        assert "cannot grow on the disk of runs/x" in str(explain_disk_error(error, folder))
        assert "TMPDIR" in str(explain_disk_error(error)), "and is no bug in opdkit"
    copied = OSError(28, "No space left on device", "/tmp/news.sqlite", None, "runs/y/news.sqlite")
    assert "the disk of runs/y/news.sqlite" in str(explain_disk_error(copied, folder))
    in_tree = PermissionError(13, "Permission denied", "manifest.json")  # as shutil.rmtree names a file
    assert "runs/x cannot be written" in str(explain_disk_error(in_tree, folder))
    assert explain_disk_error(ValueError("something else"), folder) is None
    assert explain_disk_error(PermissionError(13, "Permission denied", __file__), folder) is None, (
        "it is there: a failed reading"
    )
    assert explain_disk_error(PermissionError(13, "Permission denied", "logs/a.jsonl")) is None, (
        "a file that may not be read"
    )
    late = PermissionError(13, "Permission denied", "logs/a.jsonl")
    assert "logs/a.jsonl cannot be written" in str(explain_disk_error(late, folder))
