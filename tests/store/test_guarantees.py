"""Tests of finished parts: bytes reach the disk before names, all tables are there, and rows are in order."""

import os
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from killed import killed
from runs import talk, write_extract
from small_logs import chat, jsonl, run, tables

from opdkit.config.judge import JudgeConfig
from opdkit.judge import judges
from opdkit.judge import stage as judge
from opdkit.judge.votes import Answer, Question
from opdkit.store import reviews
from opdkit.store.joined_turns import joined_turns
from opdkit.store.reading import part_path, read_all, read_part
from opdkit.store.reviews import Review

CHATS = [chat(*(f"{n} {k}" for k in range(27))) for n in range(3)]  # 13 replies each: "log:1:11" sorts before "log:1:3"


# -- on the disk ----------------------------------------------------------------------------------------------------


class Disk:
    """Log of what is synced and moved, by inode."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.events: list[tuple[str, Any]] = []
        fsync, link, replace, touch = os.fsync, os.link, os.replace, Path.touch

        def synced(handle: int) -> None:
            fsync(handle)
            self.events.append(("synced", os.fstat(handle).st_ino))

        def moved(move: Any) -> Any:
            def call(source: Any, target: Any) -> None:
                inode = Path(source).stat().st_ino
                move(source, target)
                self.events.append((str(target), inode))

            return call

        def touched(path: Path, *args: Any, **options: Any) -> None:
            touch(path, *args, **options)
            self.events.append((str(path), path.stat().st_ino))

        patch.setattr(os, "fsync", synced)
        patch.setattr(os, "link", moved(link))
        patch.setattr(os, "replace", moved(replace))
        patch.setattr(Path, "touch", touched)

    def check_durable(self, path: Path) -> int:
        """Assert that a file was synced before it was named, and its folder afterwards. Return the naming's index."""
        (at,) = [n for n, (what, _) in enumerate(self.events) if what == str(path)]
        assert ("synced", self.events[at][1]) in self.events[:at], f"{path} may be empty after a crash"
        assert ("synced", path.parent.stat().st_ino) in self.events[at:], f"{path} may be gone after a crash"
        return at


@pytest.mark.parametrize("links", [True, False])
def test_files_reach_the_disk_before_their_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, links: bool) -> None:
    """This holds for parts of every table, the manifest and reviews, on a file system with or without hard links."""
    log = jsonl(tmp_path / "log.jsonl", *CHATS)
    disk = Disk(monkeypatch)
    if not links:
        monkeypatch.setattr(os, "link", no_links)
    run(tmp_path / "run", log)
    reviews.append(tmp_path / "run", [Review("log:1:1", reward_decided=True, reward=1, hint_decided=False, hint=None)])
    disk.check_durable(tmp_path / "run" / "extract" / "manifest.json")
    decisions = reviews.reviews_dir(tmp_path / "run")
    synced = [inode for what, inode in disk.events if what == "synced"]
    assert synced[-2:] == [(decisions / reviews.FILE).stat().st_ino, decisions.stat().st_ino]
    digests = tmp_path / "run" / "extract" / ".digests"
    for table in ("sessions", "turns", "rejected"):
        at = disk.check_durable(part_path(tmp_path / "run", table, 0))
        (record,) = digests.glob(f"{table}-*")
        recorded = disk.events.index((str(record), record.stat().st_ino))
        assert ("synced", digests.stat().st_ino) in disk.events[recorded:at], (
            "a part without a digest counts as damaged"
        )


def no_links(*_paths: Any) -> None:
    raise OSError(95, "Operation not supported")


# -- whole ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("table", ["sessions", "turns", "rejected"])
def test_a_part_is_done_when_all_its_tables_are_there_and_not_before(tmp_path: Path, table: str, after: bool) -> None:
    """The process is killed just before or after one of the part's files gets its name."""
    log, killed_run = jsonl(tmp_path / "log.jsonl", *CHATS, b"{broken\n"), tmp_path / "run"
    run(tmp_path / "whole", log)
    name = "link" if table == "sessions" else "replace"

    def is_part(_source: Any, target: Any) -> bool:
        return Path(target) == part_path(killed_run, table, 0)

    killed(lambda: run(killed_run, log), os, name, when=is_part, after=after)
    there = {name for name in ("sessions", "turns", "rejected") if part_path(killed_run, name, 0).exists()}
    is_done = table == "sessions" and after
    assert ("sessions" in there) == is_done
    assert not is_done or there == {"sessions", "turns", "rejected"}
    assert run(killed_run, log).parts_done == 1
    assert tables(killed_run) == tables(tmp_path / "whole")


# -- in order -------------------------------------------------------------------------------------------------------


TURN_IDS = [f"log:{n}:{k}" for n in (1, 2, 3) for k in range(1, 27, 2)]


def ids(rows: Any) -> list[str]:
    return [row["turn_id"] for row in rows]


@pytest.fixture
def extracted(tmp_path: Path) -> Path:
    """Return a run with three sessions of 13 turns in one part."""
    run(tmp_path / "run", jsonl(tmp_path / "log.jsonl", *CHATS))
    return tmp_path / "run"


def test_turns_are_in_the_order_of_the_log(extracted: Path) -> None:
    assert ids(read_part(extracted, "turns", 0)) == TURN_IDS


def test_joined_turns_keep_it(extracted: Path) -> None:
    """All turns, those of the first sessions, and turns asked for in any order come in the order of the log."""
    columns = {"sessions": None, "turns": None}
    assert [turn.turn_id for turn in joined_turns(extracted, 0, columns)] == TURN_IDS
    assert [turn.turn_id for turn in joined_turns(extracted, 0, columns, limit=2)] == TURN_IDS[:26]
    some = [TURN_IDS[n] for n in (30, 2, 5, 1, 17)]
    assert [turn.turn_id for turn in joined_turns(extracted, 0, columns, turn_ids=some)] == [
        TURN_IDS[n] for n in (1, 2, 5, 17, 30)
    ]


def answer(questions: Sequence[Question]) -> list[list[Answer]]:
    """Return one answer per question; each names the turn of its question."""
    return [[Answer(f"\\boxed{{1}}\n[HINT_START]Say {q.turn_id}.[HINT_END]")] for q in questions]


@pytest.mark.parametrize("backend", ["rules", "endpoint"])
def test_verdicts_are_in_the_order_of_the_turns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, backend: str) -> None:
    """Votes stay with their own turns, even if several sessions are judged at once and some turns are skipped."""
    sessions = {f"log:{n}": talk(*(f"{n} {k} " * (k % 5 + 1) for k in range(27))) for n in (1, 2, 3)}
    skipped = {"log:2:3": {"trainable": False, "skip_reason": "side"}}
    write_extract(tmp_path / "run", sessions, per_part=2, turns=skipped)
    opened = SimpleNamespace(ask=lambda questions, **_: answer(questions))
    monkeypatch.setattr(judges, "load_function", lambda _target: lambda *_: opened)
    model = {"judge_model": "m", "judge_url": "http://localhost"} if backend == "endpoint" else {}
    judge.run(JudgeConfig(run=tmp_path / "run", judge=backend, votes=1, shard="0/1", **model))
    rows = list(read_all(tmp_path / "run", "verdicts"))
    assert ids(rows) == [name for name in TURN_IDS if name != "log:2:3"]
    if backend == "endpoint":
        assert all(f"Say {row['turn_id']}." in row["hint_votes"][0]["raw"] for row in rows)
