"""Tests of `opdkit check`: silence on a healthy run, every kind of damage found and named, and recomputing."""

import dataclasses
import itertools
import json
import os
import re
import shutil
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from checked_runs import PART_MB, recommit, whole_run
from runs import talk, write_extract

from opdkit.commands.check import stage as check
from opdkit.commands.check.finding import Finding, Report
from opdkit.commands.check.stage import examine
from opdkit.config.check import CheckConfig
from opdkit.config.extract import ExtractConfig
from opdkit.config.judge import JudgeConfig
from opdkit.config.train import TrainConfig
from opdkit.errors import OpdkitError
from opdkit.extract import stage as extract
from opdkit.judge import stage as judge
from opdkit.store import reviews
from opdkit.store.atomic import make_owned_name, sync
from opdkit.store.digests import digest_file, forget_digest, record_digest
from opdkit.store.part_writer import Stage
from opdkit.store.plans import fingerprint, has_stage, stage_dir
from opdkit.store.reading import part_path, read_all
from opdkit.store.reviews import Review
from opdkit.store.tables import TABLES
from opdkit.train import stage as train

LOGS = str(Path(__file__).parents[2] / "sample_data" / "logs" / "openai.jsonl")


@pytest.fixture(scope="module")
def healthy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return whole_run(tmp_path_factory.mktemp("healthy") / "run")


@pytest.fixture
def run(healthy: Path, tmp_path: Path) -> Path:
    """Return a copy to damage. No manifest pins the path of the original run."""
    return Path(shutil.copytree(healthy, tmp_path / "run"))


def contents(run: Path) -> dict[str, bytes]:
    return {str(p.relative_to(run)): p.read_bytes() for p in sorted(run.rglob("*")) if p.is_file()}


def test_a_healthy_run_has_nothing_wrong(healthy: Path) -> None:
    report = examine(healthy, deep=True)
    assert report.findings == []
    assert report.parts == {"extract": (3, 3), "judge": (3, 3), "teacher": (3, 3), "train": (1, 1), "eval": (1, 1)}
    written = [name for name, table in TABLES.items() if table.option is None]
    assert report.rows == sum(1 for table in written for _ in read_all(healthy, table)) > 100


def test_a_part_that_may_not_be_read_is_not_taken_for_damaged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """--recompute used to remove such a part, with the votes in it."""
    run, opened = tmp_path / "run", pq.ParquetFile
    write_extract(run, {"s": talk("do it", "done", "thanks")})
    part = part_path(run, "turns", 0)

    def open_part(path: Path, **options: Any) -> pq.ParquetFile:
        if path == part:
            raise PermissionError(13, "Permission denied", str(path))
        return opened(path, **options)

    monkeypatch.setattr(pq, "ParquetFile", open_part)
    with pytest.raises(OpdkitError, match=f"{part}.*readable"):
        check.run(CheckConfig(run=run, recompute=True))
    assert part.exists()


# -- kinds of damage ------------------------------------------------------------------------------------------------

Damage = Callable[[Path], Any]


def flip(path: Path, at: float) -> None:
    data = bytearray(path.read_bytes())
    data[int(at * len(data))] ^= 0x10
    path.write_bytes(data)


def edit_manifest(run: Path, stage: str, change: Callable[[dict], Any], *, pinned: bool = False) -> None:
    path = stage_dir(run, stage) / "manifest.json"
    document = json.loads(path.read_text(encoding="utf-8"))
    change(document)
    if pinned:
        document["fingerprint"] = fingerprint(document["plan"])
    path.write_text(json.dumps(document), encoding="utf-8")


def forget_digests(run: Path, stage: str) -> None:
    shutil.rmtree(stage_dir(run, stage) / ".digests")


def rewrite_file(path: Path) -> None:
    """Rewrite a part without its metadata, as `df.to_parquet` does."""
    pq.write_table(pq.read_table(path).replace_schema_metadata(None), path)


def first(field: str, value: Any) -> Callable[[list[dict]], None]:
    def change(rows: list[dict]) -> None:
        rows[0][field] = value(rows[0]) if callable(value) else value

    return change


def doubled(rows: list[dict]) -> None:
    rows.append(rows[0])


def support_of_other_width(rows: list[dict]) -> None:
    for name in ("support_ids", "support_old"):
        rows[0][name] = [values[:-1] if n == 0 else values for n, values in enumerate(rows[0][name])]


def other_part(run: Path) -> None:
    shutil.copy(part_path(run, "verdicts", 1), part_path(run, "verdicts", 0))


def other_part_recorded(run: Path) -> None:
    other_part(run)
    name = next(p.name for p in (stage_dir(run, "judge") / ".digests").glob("verdicts-00001-*"))
    (stage_dir(run, "judge") / ".digests" / name.replace("00001", "00000")).touch()


def nan_in_weights(run: Path) -> None:
    """Write NaN into the weights, with no file pinned, as an older opdkit would have left it."""
    path = stage_dir(run, "train") / "model" / "model.safetensors"
    with path.open("r+b") as handle:
        start = 8 + struct.unpack("<Q", handle.read(8))[0]
        handle.seek(start)
        handle.write(b"\xff" * 8)
    unpin(run)


def unpin(run: Path) -> None:
    path, home = part_path(run, "metrics", 0), stage_dir(run, "train")
    arrow = pq.read_table(path)
    kept = {k: v for k, v in arrow.schema.metadata.items() if k != b"opdkit.files"}
    pq.write_table(arrow.replace_schema_metadata(kept), path)
    forget_digest(home, "metrics", 0)
    record_digest(home, "metrics", 0, digest_file(path))


def another_version(run: Path) -> None:
    recommit(run, "verdicts", 0, spec=dataclasses.replace(TABLES["verdicts"], version=99))


def session_in_two_parts(run: Path) -> None:
    stolen = pq.read_table(part_path(run, "sessions", 1))["session_id"][0].as_py()
    recommit(run, "sessions", 2, first("session_id", stolen))


def at(stage: str, *names: str) -> Callable[[Path], Path]:
    return lambda run: stage_dir(run, stage).joinpath(*names)


WEIGHTS = at("train", "model", "model.safetensors")

# name -> (damage, stage, table, what the finding says)
DAMAGE: dict[str, tuple[Damage, str, str | None, str]] = {
    # files
    "one bit of a page": (lambda r: flip(part_path(r, "targets", 1), 0.3), "teacher", "targets", "damaged|read"),
    "one bit near the footer": (lambda r: flip(part_path(r, "sessions", 0), 0.98), "extract", "sessions", "read|damag"),
    "a file cut short": (lambda r: os.truncate(part_path(r, "verdicts", 0), 500), "judge", "verdicts", "be read"),
    "an empty file": (lambda r: part_path(r, "turns", 2).write_bytes(b""), "extract", "turns", "be read"),
    "another part in its place": (other_part, "judge", "verdicts", "damaged or replaced"),
    "another part with its digest": (other_part_recorded, "judge", "verdicts", "its footer says that it is verdicts/1"),
    "written over by pandas": (lambda r: rewrite_file(part_path(r, "metrics", 0)), "train", "metrics", "replaced"),
    "a part deleted": (lambda r: part_path(r, "verdicts", 1).unlink(), "judge", "verdicts", "targets has"),
    "a secondary table's part deleted": (lambda r: part_path(r, "turns", 1).unlink(), "extract", "turns", "although"),
    "the last stage's part deleted": (lambda r: part_path(r, "replies", 0).unlink(), "eval", "replies", "gone"),
    "a target's part deleted": (lambda r: part_path(r, "targets", 2).unlink(), "teacher", "targets", "metrics has"),
    "digests deleted": (lambda r: forget_digests(r, "judge"), "judge", "verdicts", "digest is gone"),
    "a stray file": (lambda r: at("judge", "verdicts", "notes.txt")(r).touch(), "judge", "verdicts", "every reader"),
    "a part too many": (lambda r: shutil.copy(part_path(r, "turns", 0), part_path(r, "turns", 7)),
                        "extract", "turns", "every reader"),
    "a folder among the parts": (lambda r: at("teacher", "targets", "old")(r).mkdir(), "teacher", "targets", "reader"),
    # manifests
    "no manifest": (lambda r: at("judge", "manifest.json")(r).unlink(), "judge", None, "there is no manifest"),
    "a manifest cut short": (lambda r: os.truncate(at("extract", "manifest.json")(r), 40), "extract", None, "be read"),
    "a manifest that is a list": (lambda r: at("eval", "manifest.json")(r).write_text("[]"), "eval", None, "no plan"),
    "an edited plan": (lambda r: edit_manifest(r, "judge", lambda d: d["plan"]["config"].update(votes=9)),
                       "judge", None, "plan in the manifest was changed"),
    "another stage's manifest": (lambda r: shutil.copy(at("extract", "manifest.json")(r),
                                                       at("judge", "manifest.json")(r)), "judge", None, "that of the"),
    "another plan before it": (lambda r: edit_manifest(r, "judge", lambda d: d["plan"]["config"].update(votes=9),
                                                       pinned=True), "teacher", None, "from an older judge stage"),
    "another number of parts": (lambda r: edit_manifest(r, "teacher", lambda d: d["plan"].update(parts=2), pinned=True),
                                "teacher", None, "2 parts, extract has 3"),
    "a table of another version": (lambda r: edit_manifest(
        r, "train", lambda d: d["plan"]["schemas"].update(metrics=1), pinned=True), "train", "metrics", "version 1"),
    "another student": (lambda r: edit_manifest(
        r, "train", lambda d: d["plan"]["inputs"]["model"]["files"].update({"tokenizer.json": "1:0"}), pinned=True),
        "train", None, "another tokenizer"),
    "a stage removed": (lambda r: shutil.rmtree(stage_dir(r, "judge")), "teacher", None, "the judge stage .* is gone"),
    # footers
    "another plan's part": (lambda r: recommit(r, "verdicts", 0, plan="0" * 16), "judge", "verdicts", "the manifest's"),
    "a part of another version": (another_version, "judge", "verdicts", "schema version 99; this opdkit reads 2"),
    "a column too few": (lambda r: recommit(r, "scores", 0, arrow=lambda a: a.drop_columns(["low"])),
                         "eval", "scores", "other columns .*: low"),
    "a column of another type": (lambda r: recommit(r, "rejected", 0, arrow=lambda a: a.set_column(
        1, "line", pa.array([1.5] * len(a)))), "extract", "rejected", "other columns .*: line"),
    "rows that nobody counted": (lambda r: recommit(r, "verdicts", 0, counters=lambda c: setattr(c, "rows_out", 1)),
                                 "judge", "verdicts", "rows: 1 counted"),
    "drops that nobody counted": (lambda r: recommit(r, "targets", 0, counters=lambda c: c.drop("odd")),
                                  "teacher", "targets", "rows in: "),
    "a negative counter": (lambda r: recommit(r, "replies", 0, counters=lambda c: setattr(c, "rows_in", -1)),
                           "eval", "replies", "a counter is negative"),
    # keys
    "a session twice": (session_in_two_parts, "extract", "sessions", "not unique in the run"),
    "a turn twice": (lambda r: recommit(r, "turns", 0, doubled), "extract", "turns", "turn id is not unique"),
    "a turn of no session": (lambda r: recommit(r, "turns", 0, first("session_id", "nobody")), "extract", "turns",
                             "not in the same part of sessions"),
    "a turn of another name": (lambda r: recommit(r, "turns", 0, first("turn_id", "x:1")), "extract", "turns",
                               "not session_id:message_index"),
    "a verdict of no turn": (lambda r: recommit(r, "verdicts", 0, first("turn_id", "x:1")), "judge", "verdicts",
                             "not a trainable turn"),
    "a verdict twice": (lambda r: recommit(r, "verdicts", 0, doubled), "judge", "verdicts", "two verdicts"),
    "a verdict lost": (lambda r: recommit(r, "verdicts", 2, lambda rows: rows.pop()), "judge", "verdicts",
                       "trainable turns without a verdict"),
    "a target of no verdict": (lambda r: recommit(r, "targets", 0, first("turn_id", "x:1")), "teacher", "targets",
                               "not in the same part of verdicts"),
    "a target twice": (lambda r: recommit(r, "targets", 0, doubled), "teacher", "targets", "not unique"),
    "a step on no target": (lambda r: recommit(r, "metrics", 0, first("turn_ids", lambda m: ["x:1"] * m["turns"])),
                            "train", "metrics", "a turn that is not a target"),
    "a reply too few": (lambda r: recommit(r, "replies", 0, lambda rows: rows.pop(),
                                           counters=lambda c: c.count("replies", -1)), "eval", "replies", "lacks"),
    "a score twice": (lambda r: recommit(r, "scores", 0, doubled), "eval", "scores", "domain.* is not unique"),
    # ranges
    "a message that is none": (lambda r: recommit(r, "turns", 0, lambda rows: rows[0].update(
        message_index=99, turn_id=f"{rows[0]['session_id']}:99")), "extract", "turns", "that of an assistant"),
    "a wrong next": (lambda r: recommit(r, "turns", 0, first("next_count", 70)), "extract", "turns", "next_co"),
    "trainable and not": (lambda r: recommit(r, "turns", 0, first("skip_reason", "tired")), "extract", "turns",
                          "does not fit skip_reason"),
    "metadata that is no JSON": (lambda r: recommit(r, "sessions", 0, first("metadata", "{")), "extract", "sessions",
                                 "metadata is not JSON"),
    "a reward of 2": (lambda r: recommit(r, "verdicts", 0, first("reward", 2)), "judge", "verdicts", "not -1, 0 or 1"),
    "a reward against the votes": (lambda r: recommit(r, "verdicts", 0, first("reward_votes", [
        {"score": None, "raw": "", "error": "odd"}])), "judge", "verdicts", "votes add up to|fit"),
    "agreement over 1": (lambda r: recommit(r, "verdicts", 0, first("reward_agreement", 1.5)), "judge", "verdicts",
                         r"not in \[0, 1\]"),
    "a hint from nowhere": (lambda r: recommit(r, "verdicts", 0, lambda rows: rows[0].update(
        hint="Be brief, please.", hint_status="ok", hints=[])), "judge", "verdicts", "hint is not one of hints"),
    "a log-prob that is no number": (lambda r: recommit(r, "targets", 0, first(
        "old_logprobs", lambda t: [float("nan")] * len(t["old_logprobs"]))), "teacher", "targets", "not finite, or"),
    "a log-prob over 0": (lambda r: recommit(r, "targets", 0, first(
        "old_logprobs", lambda t: [0.7] * len(t["old_logprobs"]))), "teacher", "targets", "old_logprobs holds"),
    "log-probs too few": (lambda r: recommit(r, "targets", 0, first("old_logprobs", [])), "teacher", "targets",
                          "old_logprobs is not as long as the reply"),
    "a mask too long": (lambda r: recommit(r, "targets", 0, first(
        "response_mask", lambda t: [*t["response_mask"], True])), "teacher", "targets", "response_mask is not as long"),
    "a mask of nothing": (lambda r: recommit(r, "targets", 0, first(
        "response_mask", lambda t: [False] * len(t["response_mask"]))), "teacher", "targets", "is false everywhere"),
    "a negative token": (lambda r: recommit(r, "targets", 0, first(
        "response_ids", lambda t: [-1] * len(t["response_ids"]))), "teacher", "targets", "outside the vocabulary"),
    "a token of another model": (lambda r: recommit(r, "targets", 0, first(
        "response_ids", lambda t: [10**6] * len(t["response_ids"]))), "teacher", "targets", "outside the vocabulary"),
    "supports of two widths": (lambda r: recommit(r, "targets", 0, support_of_other_width), "teacher", "targets", "K"),
    "a support of mass 3": (lambda r: recommit(r, "targets", 0, first(
        "support_old", lambda t: [[0.0] * len(v) for v in t["support_old"]])), "teacher", "targets", "more than 1"),
    "overlap over 1": (lambda r: recommit(r, "targets", 0, first("overlap", 2.0)), "teacher", "targets", "overlap"),
    "a step left out": (lambda r: recommit(r, "metrics", 0, lambda rows: rows.pop(1),
                                           counters=lambda c: c.count("steps", -1)), "train", "metrics", "1, 2, 3"),
    "a loss that is no number": (lambda r: recommit(r, "metrics", 0, first("loss", float("inf"))), "train", "metrics",
                                 "loss is not finite"),
    "no validation before training": (lambda r: recommit(r, "validations", 0, lambda rows: rows.pop(0)), "train",
                                      "validations", "first row is not step 0"),
    "a validation twice": (lambda r: recommit(r, "validations", 0, lambda rows: rows[2].update(step=2)), "train",
                           "validations", "steps do not increase"),
    "a validation after the end": (lambda r: recommit(r, "validations", 0, lambda rows: rows[2].update(step=5)),
                                   "train", "validations", "a step that the training did not take"),
    "back to what was not yet": (lambda r: recommit(r, "validations", 0, lambda rows: rows[1].update(went_back_to=2)),
                                 "train", "validations", "went back to a step that is not earlier"),
    "a negative KL": (lambda r: recommit(r, "validations", 0, first("hint_kl", -0.25)), "train", "validations",
                      "hint_kl is negative"),
    "a KL that is no number": (lambda r: recommit(r, "validations", 0, first("kept_kl", float("nan"))), "train",
                               "validations", "kept_kl is not finite"),
    "a score of other numbers": (lambda r: recommit(r, "validations", 0, first("score", 0.5)), "train", "validations",
                                 "score is not the sum"),
    "a KL of other prompts": (lambda r: recommit(r, "validations", 0, first("hint_kls", [{"turn_id": "a:1:1",
        "kl": 9.0}])), "train", "validations", "hint_kl is not the mean"),
    "a KL that is gone": (lambda r: recommit(r, "validations", 0, lambda rows: rows[0].update(
        hint_kl=None, hint_kls=[{"turn_id": "a:1:1", "kl": 9.0}])), "train", "validations", "hint_kl is not the mean"),
    "a share over 1": (lambda r: recommit(r, "validations", 0, first("ended", 1.5)), "train", "validations",
                       r"ended is not in \[0, 1\]"),
    "fewer than no replies": (lambda r: recommit(r, "validations", 0, first("replies", -1)), "train", "validations",
                              "replies is negative"),
    "an interval upside down": (lambda r: recommit(r, "scores", 0, first("low", 5.0)), "eval", "scores", "low is more"),
    # the model
    "no model": (lambda r: shutil.rmtree(at("train", "model")(r)), "train", None, "the folder is gone"),
    "weights cut short": (lambda r: os.truncate(WEIGHTS(r), 9999), "train", None, "not the file that training wrote"),
    "one bit of the weights": (lambda r: flip(WEIGHTS(r), 0.5), "train", None, "not the file that training wrote"),
    "another tokenizer": (lambda r: flip(at("train", "model", "tokenizer.json")(r), 0.5), "train", None, "not the"),
    "a file of the model deleted": (lambda r: at("train", "model", "config.json")(r).unlink(), "train", None, "gone"),
    "weights that are no numbers": (nan_in_weights, "train", None, "numbers that are not finite"),
    "unpinned weights cut short": (lambda r: (os.truncate(WEIGHTS(r), 9999), unpin(r)), "train", None, "cut|its"),
}  # fmt: skip


@pytest.mark.parametrize("kind", DAMAGE)
def test_damage_is_found_and_named(kind: str, run: Path) -> None:
    """Each damage gives a finding in the right place that says what to do, and checking changes no file."""
    damage, stage, table, words = DAMAGE[kind]
    damage(run)
    before = contents(run)
    findings = examine(run, deep=True).findings
    assert any(fits(f, stage, table, words) for f in findings), [dataclasses.astuple(f) for f in findings]
    assert all(f.todo for f in findings), "each finding says what to do"
    assert contents(run) == before, "checking changes nothing"


def fits(finding: Finding, stage: str, table: str | None, words: str) -> bool:
    same = finding.stage == stage and (table is None or finding.table == table)
    return same and re.search(words, finding.what) is not None


def test_what_is_of_another_plan_has_one_remedy_and_no_training(run: Path) -> None:
    """After judging again, all targets must be recomputed, so removing some of them would not help."""
    judge.run(JudgeConfig(run=run, judge="rules", max_hint_chars=50, overwrite=True, shard="0/1"))
    outdated = {f.stage: f for f in examine(run).findings}
    assert list(outdated) == ["teacher", "train", "eval"]
    assert outdated["train"].what == "computed from the teacher stage, which is to be run again"
    assert (outdated["train"].todo or "").endswith("--overwrite`")
    flip(part_path(run, "targets", 0), 0.5)
    found = [finding for finding in examine(run).findings if finding.stage == "teacher"]
    assert len(found) > 1
    assert {(f.todo or "").partition(" --")[0] for f in found} == {f"run `opdkit teacher {run}"}
    assert all((f.todo or "").endswith("--overwrite`") for f in found)
    with pytest.raises(OpdkitError, match="teacher was computed from an older judge stage"):
        train.run(TrainConfig(run=run, model="any"))


def test_there_are_at_least_thirty_kinds_of_damage() -> None:
    assert len(DAMAGE) >= 30


# -- what is no damage ----------------------------------------------------------------------------------------------


def test_an_unfinished_run_is_no_damaged_one(tmp_path: Path) -> None:
    """A kill leaves missing parts, a half-written temporary file, and a secondary table without its primary table."""
    run = tmp_path / "run"
    config = ExtractConfig(run=run, logs=(LOGS,), limit=24, part_mb=PART_MB, shard="1/3")
    extract.run(config)
    (stage_dir(run, "extract") / ".tmp" / "sessions-00000-host-1.parquet").write_bytes(b"PAR1")
    shutil.copy(part_path(run, "turns", 1), part_path(run, "turns", 2))
    report = examine(run)
    assert report.findings == []
    assert report.parts == {"extract": (1, 3)}


@pytest.mark.parametrize("stage", ["extract", "judge"])
def test_an_interrupt_while_a_part_is_put_in_place_is_no_damage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stage: str
) -> None:
    """Ctrl-C comes after each flush to the disk in turn: they take the longest."""
    flushed, after = 0, -1

    def flush_and_interrupt(path: Path) -> None:
        nonlocal flushed
        sync(path)
        flushed += 1
        if flushed == after:
            raise KeyboardInterrupt

    monkeypatch.setattr("opdkit.store.atomic.sync", flush_and_interrupt)
    monkeypatch.setattr("opdkit.store.digests.sync", flush_and_interrupt)
    for after in itertools.count(1):
        run, flushed = tmp_path / str(after), 0
        try:
            extract.run(ExtractConfig(run=run, logs=(LOGS,), limit=4, shard="0/1"))
            flushed = flushed if stage == "extract" else 0
            judge.run(JudgeConfig(run=run, judge="rules", shard="0/1"))
        except KeyboardInterrupt:
            assert not has_stage(run, stage) or examine(run).findings == []
        else:
            break
    assert after > 5


def test_a_kill_while_a_part_is_put_in_place_is_no_damage(run: Path) -> None:
    """The half-written file tells it from a part that was lost."""
    path = part_path(run, "replies", 0)
    path.replace(path.parents[1] / ".tmp" / make_owned_name("replies-00000", ".parquet"))
    assert examine(run).findings == []


def test_a_folder_of_somebody_else_is_no_stage(tmp_path: Path) -> None:
    run = write_extract(tmp_path, {"a": talk("hi", "yo", "thanks")})
    (run / "train").mkdir()
    (run / "train" / "data.csv").write_text("a,b")
    assert examine(run).findings == []


def test_rows_of_other_stages_than_a_finished_run(tmp_path: Path) -> None:
    run = write_extract(tmp_path, {"a": talk("hi", "yo", "thanks"), "b": talk("hi", "yo", "no")}, per_part=1)
    assert examine(run).findings == []


def test_adapters_beside_the_model_are_looked_at_too(run: Path) -> None:
    """LoRA writes two folders. The adapter folder needs no tokenizer, but damage to it must be found."""
    adapter = stage_dir(run, "train") / "adapter"
    adapter.mkdir()
    shutil.copy(WEIGHTS(run), adapter / "adapter_model.safetensors")
    (adapter / "adapter_config.json").write_text("{}")
    recommit(run, "metrics", 0)
    assert examine(run).findings == []
    flip(adapter / "adapter_model.safetensors", 0.5)
    assert [f.key for f in examine(run).findings] == ["adapter/adapter_model.safetensors"]


# -- what is shown --------------------------------------------------------------------------------------------------


def test_lines_for_a_pipe_and_json(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    recommit(run, "verdicts", 1, first("reward", 2))
    assert not check.run(CheckConfig(run=run))
    head, *lines = capsys.readouterr().out.splitlines()
    assert head.split("\t") == ["stage", "table", "part", "row", "key", "what", "todo"]
    name = next(r["turn_id"] for r in read_all(run, "verdicts") if r["reward"] == 2)
    assert any(line.split("\t")[:5] == ["judge", "verdicts", "1", "0", name] for line in lines)
    assert not check.run(CheckConfig(run=run, json=True))
    document = json.loads(capsys.readouterr().out)
    assert document["stages"]["judge"] == {"done": 3, "parts": 3}
    assert document["findings"][0].keys() == {"stage", "table", "part", "row", "key", "what", "todo"}


def test_a_run_that_is_none(tmp_path: Path) -> None:
    with pytest.raises(OpdkitError, match="holds no run: start one"):
        check.run(CheckConfig(run=tmp_path))


def test_many_wrong_rows_are_one_finding(run: Path) -> None:
    def change(rows: list[dict]) -> None:
        for row in rows:
            row["reward_agreement"] = 7.0

    recommit(run, "verdicts", 0, change)
    found = [f for f in examine(run).findings if "agreement" in f.what]
    assert len(found) == 1
    assert (
        f"(and in {len(list(pq.read_table(part_path(run, 'verdicts', 0))['reward'])) - 1} more rows)" in found[0].what
    )


# -- recomputing ----------------------------------------------------------------------------------------------------


def rows_of(run: Path) -> dict[str, list[dict]]:
    return {table: list(read_all(run, table)) for table in ("sessions", "turns", "rejected", "verdicts")}


def test_what_is_damaged_is_computed_again_and_nothing_else(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = rows_of(run)
    flip(part_path(run, "verdicts", 1), 0.5)
    untouched = {p: p.stat().st_mtime_ns for p in run.rglob("part-0000[02].parquet") if p.parent.name != "metrics"}
    assert not check.run(CheckConfig(run=run, recompute=True))
    said = capsys.readouterr().err
    assert f"opdkit judge {run}" in said
    assert f"opdkit teacher {run} --model" in said
    gone = [("verdicts", 1), ("targets", 1), ("metrics", 0), ("validations", 0), ("replies", 0), ("scores", 0)]
    assert not any(part_path(run, table, part).exists() for table, part in gone)
    assert (stage_dir(run, "train") / "model" / "model.safetensors").exists(), "a model is never removed"
    config = JudgeConfig(run=run, judge="rules", shard="0/1")
    assert judge.run(config).parts_done == 3
    assert rows_of(run) == before
    kept = {p: t for p, t in untouched.items() if p.parent.name not in ("validations", "replies", "scores")}
    assert {p: p.stat().st_mtime_ns for p in kept} == kept, "the other parts are those that were there"
    assert examine(run).findings == []
    assert examine(run).parts["teacher"] == (2, 3)


def test_the_first_stage_to_run_again_is_that_of_the_lost_part(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The stage is named first although the lost file is not there to be removed."""
    part_path(run, "sessions", 1).unlink()
    assert not check.run(CheckConfig(run=run, recompute=True))
    lines = [line.split()[:2] for line in capsys.readouterr().err.partition("run again")[2].splitlines()]
    assert [name for word, *name in filter(None, lines) if word == "opdkit"] == [
        ["extract"], ["judge"], ["teacher"], ["train"], ["eval"]
    ]  # fmt: skip


def test_a_lost_table_of_a_part_is_computed_again(run: Path) -> None:
    """No stage reads `rejected`, so later stages keep their parts."""
    before = rows_of(run)
    part_path(run, "rejected", 0).unlink()
    assert not check.run(CheckConfig(run=run, recompute=True))
    assert not part_path(run, "sessions", 0).exists(), "the table that says that the part is done"
    assert part_path(run, "verdicts", 0).exists()
    extract.run(ExtractConfig(run=run, logs=(LOGS,), limit=24, part_mb=PART_MB, shard="0/1"))
    assert rows_of(run) == before
    assert check.run(CheckConfig(run=run))


def test_what_recomputing_cannot_mend_is_left(run: Path) -> None:
    edit_manifest(run, "judge", lambda d: d["plan"]["config"].update(votes=9))
    (stage_dir(run, "judge") / "verdicts" / "notes.txt").touch()
    before = contents(run)
    assert not check.run(CheckConfig(run=run, recompute=True))
    assert contents(run) == before


def test_report_counts_what_was_read(healthy: Path) -> None:
    report = examine(healthy)
    assert isinstance(report, Report)
    assert report.files == 3 * 5 + 4


def test_what_was_removed_is_to_do(run: Path) -> None:
    flip(part_path(run, "sessions", 2), 0.4)
    check.run(CheckConfig(run=run, recompute=True))
    config = ExtractConfig(run=run, logs=(LOGS,), limit=24, part_mb=PART_MB, shard="0/1")
    plan = json.loads((stage_dir(run, "extract") / "manifest.json").read_text())["plan"]
    stage = Stage.open(config, "extract", [TABLES[t] for t in ("sessions", "turns", "rejected")], parts=3,
                       inputs=plan["inputs"])  # fmt: skip
    assert stage.todo() == [2]
    assert not np.any([part_path(run, t, 2).exists() for t in ("sessions", "verdicts", "targets")])


# -- decisions of people ---------------------------------------------------------------------------------------------


def decided(run: Path, *decisions: Review) -> list[str]:
    reviews.append(run, decisions)
    return [finding.what for finding in examine(run).findings]


def test_decisions_are_nothing_wrong(run: Path) -> None:
    (turn, *_) = [row["turn_id"] for row in read_all(run, "verdicts")]
    assert decided(run, Review(turn, True, 0), Review(turn, action="strike")) == []


def test_a_decision_on_a_turn_that_is_not_there_is_a_finding_and_no_stranger(run: Path) -> None:
    assert decided(run, Review("nobody:1", True, 0)) == ["a decision on a missing turn"]
    part_path(run, "turns", 0).unlink()
    assert not any("decision" in finding.what for finding in examine(run).findings), "who can say?"


def test_damage_to_decisions_is_found(run: Path) -> None:
    (turn, *_) = [row["turn_id"] for row in read_all(run, "verdicts")]
    reviews.append(run, [Review(turn, True, 0)])
    path = reviews.reviews_dir(run) / reviews.FILE
    path.with_name("mine.csv").touch()
    flip(path, 0.1)
    found = examine(run).findings
    assert [(f.table, f.key) for f in found] == [("reviews", "mine.csv"), ("reviews", None)]
    assert path.name in found[1].what


def test_a_reward_that_nobody_decided_is_still_found(run: Path) -> None:
    row = next(r for r in read_all(run, "targets"))
    recommit(run, "targets", 0, first("reward", 1 if row["reward"] != 1 else -1))
    assert "reward is not that of its verdict" in decided(run, Review(row["turn_id"], True, 1))[0]
