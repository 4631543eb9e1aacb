"""Tests of `opdkit status` on made-up runs: what is done, running or failed, and what a killed process leaves."""

import os
import re
import shutil
import subprocess
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from runs import talk, write_extract

from opdkit.commands import status
from opdkit.config.judge import JudgeConfig
from opdkit.config.status import StatusConfig
from opdkit.config.train import TrainConfig
from opdkit.errors import ConfigError, OpdkitError
from opdkit.store import failures, reviews
from opdkit.store.atomic import host_name
from opdkit.store.counters import Counters, Summary
from opdkit.store.part_writer import Stage
from opdkit.store.progress_marks import BEAT, STALE, find_live_claims, mark_part, read_claim
from opdkit.store.reading import summary_of
from opdkit.store.reviews import Review
from opdkit.store.tables import METRICS, VERDICTS


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """Return a run with extract done in 3 parts, and part 0 of the judge stage done."""
    write_extract(tmp_path / "run", {f"s{n}": talk("do it", "done", "thanks") for n in range(6)})
    stage = judge(tmp_path / "run")
    with stage.writing(0) as out:
        out.counters.rows_in = 2
        out.counters.drop("tie", 2)
    return tmp_path / "run"


def judge(run: Path, shard: str = "0/1") -> Stage:
    return Stage.open(
        JudgeConfig(run=run, judge="rules", shard=shard), "judge", [VERDICTS], parts=3, upstream=["extract"]
    )


def row(run: Path, stage: str = "judge") -> dict[str, str]:
    failed = sum(f["stage"] == stage for f in failures.read_failures(run))
    return dict(zip(status.COLUMNS[1:], status._row(run, summary_of(run, stage), failed), strict=True))


def dead_process() -> int:
    process = subprocess.Popen(["true"])
    process.wait()
    return process.pid


def test_what_is_done_and_what_runs(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert (row(run, "extract")["parts"], row(run, "extract")["time left"]) == ("3/3", "done")
    with judge(run).writing(1):
        shown = row(run)
        assert (shown["parts"], shown["running"]) == ("1/3", "1")
    assert row(run)["parts"] == "2/3"
    assert row(run)["running"] == "0"
    status.run(StatusConfig(run=run))
    out = capsys.readouterr().out
    assert "judge: 2 turns in, 0 verdicts out, 2 dropped (tie 2)" in out
    assert max(len(line) for line in out.splitlines() if not line.startswith("Next")) <= 80


def test_the_next_command_is_named_unless_a_part_is_running(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def last_line(run: Path = run) -> str:
        status.run(StatusConfig(run=run))
        return capsys.readouterr().out.splitlines()[-1]

    assert last_line().startswith(f"Next: run `opdkit judge {run} ...` again")
    with judge(run).writing(1):
        assert not last_line().startswith("Next")
    shutil.rmtree(run / "judge")
    assert last_line().startswith(f"Next: `opdkit judge {run} --judge ")
    night = Path(shutil.copytree(run, run.parent / "nights" / "0001"))
    (run / "slurm").mkdir()
    (run / "slurm" / "submit.sh").touch()
    assert f"`opdkit slurm {run} ... --submit`" in last_line()
    assert last_line(night).startswith("Next")
    (run.parent / "ledger.sqlite").touch()  # `opdkit night` continues a night
    assert not last_line(night).startswith("Next")
    assert last_line().startswith("Next")  # the run is no night, though it lies beside them
    shutil.rmtree(run / "slurm")
    (run / "extract" / "sessions" / "part-00002.parquet").unlink()
    assert last_line().startswith(f"Next: run `opdkit extract {run} ...` again as before: ")


def test_after_an_error_no_next_command_is_named(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(OpdkitError), failures.record_failure("judge", JudgeConfig(run=run, judge="rules")):
        raise OpdkitError("no disk space left; judge again with --overwrite")
    status.run(StatusConfig(run=run))
    out = capsys.readouterr().out
    assert "no disk space left" in out
    assert "Next" not in out


@pytest.mark.parametrize("columns", [None, "80"])
def test_the_long_name_of_a_training_hides_no_number(run: Path, columns: str | None, monkeypatch, capsys) -> None:
    name = "lora-rank-64-learning-rate-1e-5-objective-distill-seed-3-of-the-second-round"
    training = run / f"{name}.training"
    Stage.open(TrainConfig(run=training, model="m"), "train", [METRICS], parts=1)
    monkeypatch.delenv("COLUMNS", raising=False)
    if columns is not None:
        monkeypatch.setenv("COLUMNS", columns)
    status.run(StatusConfig(run=run))
    out = capsys.readouterr().out
    assert re.search(r"extract +3/3 +0 +0 ", out)
    assert name in out.replace("\n", "") if columns else re.search(rf"train {name} +0/1 ", out)
    assert columns is None or max(map(len, out.partition("extract:")[0].splitlines())) <= 80


def test_the_sentence_of_a_named_training_is_one_line_in_a_pipe(run: Path, monkeypatch, capsys) -> None:
    training, sentence = run / "b.training", "Better: " + " and ".join(["more of the replies are right"] * 4)
    answer = SimpleNamespace(sentence=sentence)
    monkeypatch.delenv("COLUMNS", raising=False)
    monkeypatch.setattr(status, "list_trainings", lambda _: {"b": training})
    monkeypatch.setattr(status, "read_conclusion", lambda path: answer if path == training else None)
    status.run(StatusConfig(run=run))
    assert f"b: {sentence}" in capsys.readouterr().out.splitlines()


def test_marks_of_the_dead_count_for_nothing(run: Path) -> None:
    """A killed process leaves its mark. On this host its pid is gone; on another host its mark is no longer touched."""
    folder = run / "judge" / ".tmp"
    (folder / f"verdicts-00001-5f3a9c1e-{host_name()}-{dead_process()}.running").touch()
    other = folder / "verdicts-00002-5f3a9c1e-another-host.example-17.running"
    other.touch()
    assert [claim.part for claim in find_live_claims(folder)] == [2]
    old = time.time() - STALE - 1
    os.utime(other, (old, old))
    assert find_live_claims(folder) == []
    judge(run)
    assert [p.name for p in folder.iterdir()] == [other.name], "the next command sweeps what is certainly dead"


def test_a_mark_is_touched_while_its_process_lives(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert 3 * BEAT < STALE
    monkeypatch.setattr("opdkit.store.progress_marks.BEAT", 0.01)
    with mark_part(tmp_path, "verdicts", 3):
        (path,) = tmp_path.iterdir()
        os.utime(path, (0, 0))
        end = time.monotonic() + 600
        while not find_live_claims(tmp_path):
            assert time.monotonic() < end
            time.sleep(0.01)
        claim = read_claim(path)
        assert claim
        assert (claim.table, claim.part, claim.pid) == ("verdicts", 3, os.getpid())
    assert not list(tmp_path.iterdir())


def test_a_file_of_another_kind_is_no_claim() -> None:
    assert read_claim(Path("notes.txt")) is None
    assert read_claim(Path("verdicts-x-host-1.running")) is None


# -- failures -------------------------------------------------------------------------------------------------------


def fail(run: Path, shard: str, error: Exception) -> None:
    with pytest.raises(type(error)), failures.record_failure("judge", JudgeConfig(run=run, judge="rules", shard=shard)):
        raise error


def test_the_last_error_of_a_failed_shard(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fail(run, "1/2", OpdkitError("the first one"))
    fail(run, "1/2", OpdkitError("the server \x1b[31mis gone"))
    fail(run, "0/2", ZeroDivisionError("by zero"))
    assert row(run)["failed"] == "2 shards"
    status.run(StatusConfig(run=run))
    out = capsys.readouterr().out
    assert "judge --shard 1/2 failed" in out
    assert "is gone" in out
    assert "\x1b" not in out, "an error may quote a log"
    assert "ZeroDivisionError: by zero" in out
    assert "the first one" not in out
    with failures.record_failure("judge", JudgeConfig(run=run, judge="rules", shard="1/2")):
        pass
    assert row(run)["failed"] == "1 shard"
    failures.forget_failures(run, "judge")
    assert row(run)["failed"] == "0"


def test_an_error_is_forgotten_if_the_next_attempt_prints_to_a_pager_that_is_left(run: Path) -> None:
    """Rich raises SystemExit where the reader of stdout has gone, as in `opdkit eval RUN | head`."""
    fail(run, "0/1", OpdkitError("the judge is away"))
    with pytest.raises(SystemExit), failures.record_failure("judge", JudgeConfig(run=run, judge="rules", shard="0/1")):
        raise SystemExit(1)
    assert failures.read_failures(run) == []


def test_a_wrong_command_is_no_failure_of_the_run(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only in a batch job is a wrong command recorded, because nobody would see it otherwise."""
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    fail(run, "0/1", ConfigError("another plan"))
    assert failures.read_failures(run) == []
    monkeypatch.setenv("SLURM_JOB_ID", "17")
    fail(run, "0/1", ConfigError("another plan"))
    (record,) = failures.read_failures(run)
    assert (record["job"], record["error"]) == ("17", "another plan")


def test_a_folder_of_nights_or_of_runs_is_told_from_an_empty_one(tmp_path: Path, capsys) -> None:
    for folder, words in (
        ("nights/0001", f"opdkit models {tmp_path}/home"),
        ("monday", f"{tmp_path}/home/monday"),
        (".", f"opdkit extract {tmp_path}/home"),
    ):
        home = tmp_path / "home"
        if folder != ".":
            write_extract(home / folder, {"s": talk("do it", "done", "thanks")})
            status.run(StatusConfig(run=home / folder))
        with pytest.raises(OpdkitError) as caught:
            status.run(StatusConfig(run=home))
        assert words in str(caught.value)
        shutil.rmtree(home, ignore_errors=True)


def test_a_run_whose_jobs_wait_is_told_from_none(tmp_path: Path) -> None:
    (tmp_path / "slurm").mkdir()
    (tmp_path / "slurm" / "submit.sh").touch()
    with pytest.raises(OpdkitError, match="squeue"):
        status.run(StatusConfig(run=tmp_path))


def test_a_run_that_is_not_there_stays_so(tmp_path: Path) -> None:
    fail(tmp_path / "nowhere", "0/1", OpdkitError("no"))
    assert not any(tmp_path.iterdir())


# -- the time that is left ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("done", "running", "words"), [
    (0, 1, "?"), (4, 0, "done"), (1, 0, "30 s of work, none running"), (1, 2, "15 s"), (2, 1, "20 s"),
])  # fmt: skip
def test_time_left(done: int, running: int, words: str) -> None:
    """Parts take 10 s each. The remaining parts take this mean, divided by the number of running processes."""
    found = Summary("judge", Counters(seconds=10.0 * done), done, 4, Path())
    assert status.estimate_time_left(found, running) == words


def test_durations() -> None:
    assert [status.duration(s) for s in (0.4, 59, 90, 3600, 7260)] == ["0 s", "59 s", "2 min", "1 h 0 min", "2 h 1 min"]


def test_what_people_decided_is_counted(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status.run(StatusConfig(run=run))
    assert "turns reviewed" not in capsys.readouterr().out
    reviews.append(run, [Review("s0:1", True, 1), Review("s1:1", True, 1), Review("s1:1", action="strike")])
    status.run(StatusConfig(run=run))
    assert "turns reviewed by people: 1" in capsys.readouterr().out.splitlines()
