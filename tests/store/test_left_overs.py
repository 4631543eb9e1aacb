"""Tests that files of killed processes are removed (by the next process or `check --clean`) and files in use stay."""

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest
from checked_runs import PART_MB
from killed import killed
from sample_world import DATA

from opdkit.commands.check import stage as check
from opdkit.config.check import CheckConfig
from opdkit.config.extract import ExtractConfig
from opdkit.config.fields import StageConfig
from opdkit.errors import ConfigError
from opdkit.extract import stage as extract
from opdkit.store import failures
from opdkit.store.atomic import find_left_overs, host_name, is_gone, make_owned_name, replaced_file, replaced_folder
from opdkit.store.part_writer import Stage
from opdkit.store.plans import manifest
from opdkit.store.tables import REJECTED

LOG = str(DATA / "logs" / "openai.jsonl")


def extracted(run: Path, shard: str = "0/1", **options) -> None:
    extract.run(ExtractConfig(run=run, logs=(LOG,), limit=24, part_mb=PART_MB, shard=shard, **options))


def opened(run: Path, **options) -> Stage:
    return Stage.open(StageConfig(run=run, shard="0/1", **options), "extract", [REJECTED], parts=1)


def write(stage: Stage) -> None:
    with stage.writing(0) as out:
        out.add_rows("rejected", [{"source": "a", "line": 1, "reason": "not JSON", "detail": "", "raw": "x"}])


def entries(run: Path) -> set[str]:
    """Return all paths in a run but the folder of temporary files."""
    return {str(path.relative_to(run)) for path in run.rglob("*")} - {"extract/.tmp"}


def checked(run: Path, capsys: pytest.CaptureFixture[str], *, clean: bool = False) -> list[str]:
    """Check a run that has no damage; return the names of what is left, relative to the run."""
    assert check.run(CheckConfig(run=run, clean=clean, json=True))
    return [str(Path(path).relative_to(run)) for path in json.loads(capsys.readouterr().out)["left_over"]]


@pytest.mark.parametrize("after", [False, True])
def test_the_manifest_of_a_process_killed_before_or_after_it_is_in_place(tmp_path: Path, after: bool) -> None:
    run = tmp_path / "run"
    killed(lambda: opened(run), os, "link", after=after)
    (left,) = (run / "extract").glob(".manifest.json-*")
    assert (run / "extract" / "manifest.json").exists() == after
    opened(run)
    assert entries(run) == {"extract", "extract/manifest.json"}
    assert manifest(run, "extract")["plan"]["stage"] == "extract"
    assert not left.exists()


@pytest.mark.parametrize("after", [False, True])
def test_the_part_of_a_process_killed_before_or_after_it_is_in_place(tmp_path: Path, after: bool) -> None:
    run, whole = tmp_path / "run", tmp_path / "whole"
    write(opened(whole))
    killed(lambda: write(opened(run)), os, "link", when=lambda *paths: str(paths[1]).endswith(".parquet"), after=after)
    assert len(list((run / "extract" / ".tmp").iterdir())) == 2, "the file, and the mark of its process"
    if opened(run).todo():
        write(opened(run))
    assert {e for e in entries(run) if ".digests/" not in e} == {e for e in entries(whole) if ".digests/" not in e}


def test_what_overwriting_had_moved_away(tmp_path: Path) -> None:
    write(opened(tmp_path / "run"))
    killed(lambda: opened(tmp_path / "run", overwrite=True), shutil, "rmtree")
    assert [p.name.startswith(".extract-") for p in (tmp_path / "run").iterdir()] == [True]
    write(opened(tmp_path / "run"))
    assert [p.name for p in (tmp_path / "run").iterdir()] == ["extract"]


def test_overwriting_empties_a_stage_that_is_a_link_to_another_disk(tmp_path: Path) -> None:
    run, big = tmp_path / "run", tmp_path / "big"
    for folder in (run, big):
        folder.mkdir()
    (run / "extract").symlink_to(big)
    write(opened(run))
    killed(lambda: opened(run, overwrite=True), shutil, "rmtree")
    assert not (big / "manifest.json").exists()
    write(opened(run))
    write(opened(run, overwrite=True))
    assert [path.is_symlink() for path in run.iterdir() if path.name != ".failed"] == [True]
    assert entries(run / "extract") - {".tmp"} == entries(big) - {".tmp"}
    assert len(list(big.glob("rejected/part-*.parquet"))) == len(list((big / ".digests").iterdir())) == 1
    assert not list(big.glob(".extract-*"))


def test_the_record_of_a_failure(tmp_path: Path) -> None:
    def fail() -> None:
        with failures.record_failure("extract", StageConfig(run=tmp_path, shard="0/1")):
            raise ValueError

    opened(tmp_path)
    killed(fail, Path, "replace")
    assert len(list((tmp_path / ".failed").iterdir())) == 1
    opened(tmp_path)
    assert not list((tmp_path / ".failed").iterdir())


@pytest.mark.parametrize("next_shards", [("0/1",), ("0/3", "1/3", "2/3")])
def test_what_shards_had_surveyed(tmp_path: Path, next_shards: tuple[str, ...], capsys) -> None:
    """The survey is kept for the shards that resume, and removed when any number of shards has finished the stage."""
    run = tmp_path / "run"
    for shard in ("0/2", "1/2"):
        killed(lambda shard=shard: extracted(run, shard), extract, "write_part")
    assert list((run / "extract" / ".survey").iterdir())
    assert "extract/.survey" not in checked(run, capsys), "the next shard reads it"
    for shard in next_shards:
        assert (run / "extract" / ".survey").exists()
        extracted(run, shard)
    extracted(tmp_path / "whole")
    assert not [e for e in entries(run) ^ entries(tmp_path / "whole") if not e.startswith("extract/.digests/")]


def test_a_shard_that_came_late_and_was_killed(tmp_path: Path, capsys) -> None:
    """The stage is done, so its survey is not needed: `check` names it, and `--clean` or the next run removes it."""
    run = tmp_path / "run"
    extracted(run)
    for remove in (lambda: checked(run, capsys, clean=True), lambda: extracted(run, "1/2")):
        killed(lambda: extracted(run, "1/2"), Stage, "todo")
        before = entries(run)
        assert checked(run, capsys) == ["extract/.survey"]
        assert entries(run) == before, "a bare check removes nothing"
        remove()
        assert not (run / "extract" / ".survey").exists()
    assert checked(run, capsys) == []


def test_a_replaced_folder_leaves_what_belongs_to_others(tmp_path: Path) -> None:
    """Hidden folders of the user and of live processes stay; the folder of a dead process is removed."""
    kept = [tmp_path / ".model-3.11", tmp_path / make_owned_name(".model")]
    left = tmp_path / f".model-5f3a9c1e-{host_name()}-{dead_process()}"
    for folder in (*kept, left):
        (folder / "deep").mkdir(parents=True)
    with replaced_folder(tmp_path / "model") as folder:
        (folder / "weights").write_text("1")
    assert (tmp_path / "model/weights").read_text() == "1"
    assert [folder.exists() for folder in (*kept, left)] == [True, True, False]


def test_a_folder_that_cannot_be_written_leaves_nothing_and_what_was_there_stays(tmp_path: Path) -> None:
    def write(text: str, error: type[BaseException] | None = None) -> None:
        with replaced_folder(tmp_path / "model") as folder:
            (folder / "weights").write_text(text)
            if error:
                raise error

    write("1")
    for error in (OSError, KeyboardInterrupt):
        with pytest.raises(error):
            write("half", error)
    assert [path.name for path in tmp_path.iterdir()] == ["model"]
    assert (tmp_path / "model/weights").read_text() == "1"


def test_another_container_of_one_machine_is_another_host(monkeypatch) -> None:
    """A container has process ids of its own, so no process of another container is taken for dead."""
    host, dead = host_name(), dead_process()
    assert f"-{host}-" in make_owned_name("x")
    assert is_gone(host, dead)
    monkeypatch.setattr("opdkit.store.atomic.host_name", lambda: f"{host}0")
    assert not is_gone(host, dead)


def test_check_names_and_removes_all_of_it(tmp_path: Path, capsys) -> None:
    run, other = tmp_path / "run", f"elsewhere-{os.getpid()}"
    extracted(run)
    dead = f"5f3a9c1e-{host_name()}-{dead_process()}"
    old, left = time.time() - 4_000, [
        f".extract-{dead}", ".failed/.judge-0-of-1.json-" + dead, "extract/.manifest.json-" + dead,
        "extract/.manifest.json-" + "0" * 32, f"extract/.tmp/turns-00000-{dead}.parquet",
        f"extract/.tmp/turns-00000-{dead}.running", f"extract/.tmp/turns-00001-5f3a9c1e-{other}.parquet",
    ]  # fmt: skip
    kept = [
        "extract/" + make_owned_name(".manifest.json"), "extract/.tmp/" + make_owned_name("turns-00000", ".running"),
        f"extract/.tmp/turns-00002-5f3a9c1e-{other}.parquet", "extract/.tmp/foreign.parquet", "notes-5f3a9c1e.txt",
    ]  # fmt: skip
    for name in (*left, *kept):
        (run / name).parent.mkdir(exist_ok=True)
        (run / name).touch()
    (run / left[0]).unlink()
    (run / left[0] / "turns").mkdir(parents=True)
    os.utime(run / left[-1], (old, old))
    assert sorted(checked(run, capsys)) == sorted(left)
    check.run(CheckConfig(run=run))
    said = "".join(capsys.readouterr().err.split())
    assert all("".join(str(run / name).split()) in said for name in left)
    assert "--clean" in said
    assert sorted(checked(run, capsys, clean=True)) == sorted(left)
    assert not [name for name in left if (run / name).exists()]
    assert all((run / name).exists() for name in kept)
    assert checked(run, capsys) == []


def test_files_of_users_whose_names_hold_a_date(tmp_path: Path, capsys) -> None:
    """A named training, an export and a model stay, although their names look like left-overs of another machine."""
    run = tmp_path / "run"
    write(opened(run))
    kept = [run / "sweep-20251127-lr-3.training", run / "kto-20251127-run-2.jsonl", run / "extract/model-20251127-a-1"]
    for path in kept:
        path.mkdir()
        os.utime(path, (0, 0))
    opened(run)
    check.run(CheckConfig(run=run, clean=True, json=True))
    assert json.loads(capsys.readouterr().out)["left_over"] == []
    assert all(path.exists() for path in kept)


def test_the_file_of_a_killed_process_is_removed_by_the_next_that_writes_it(tmp_path: Path) -> None:
    """An export may be in a folder outside of any run, where `opdkit check --clean` does not look."""
    out, other = tmp_path / "kto.jsonl", tmp_path / make_owned_name(".kto.jsonl")

    def write_out() -> None:
        with replaced_file(out) as temporary:
            temporary.write_text("whole")

    killed(write_out, Path, "write_text", after=True)
    other.write_text("of the living")
    assert len(list(tmp_path.iterdir())) == 2
    write_out()
    assert sorted(tmp_path.iterdir()) == sorted([out, other])


def test_a_link_to_a_pipe_is_no_file(tmp_path: Path) -> None:
    reader, writer = os.pipe()
    link = tmp_path / "stdout"  # as /dev/stdout is in a pipe
    link.symlink_to(f"/proc/self/fd/{writer}")
    with pytest.raises(ConfigError, match="pipe"), replaced_file(link):
        pass
    os.close(reader)
    os.close(writer)


def dead_process() -> int:
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return process.pid


def test_copies_of_logs_outside_of_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A killed process leaves its temporary folder, perhaps with an unpacked log, and the next run removes it."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "tmp"))
    (tmp_path / "tmp" / make_owned_name("opdkit-extract-of-the-living")).mkdir(parents=True)
    killed(lambda: extracted(tmp_path / "run"), extract, "write_part")
    assert len(list((tmp_path / "tmp").iterdir())) == 2
    extracted(tmp_path / "run")
    assert len(list((tmp_path / "tmp").iterdir())) == 1
    assert find_left_overs(tmp_path / "tmp") == []
