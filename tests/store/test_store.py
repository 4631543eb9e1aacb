"""Tests of the run directory: one plan, whole parts, resume, shards, counters."""

import json
import os
import subprocess
import sys
import threading
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from runs import talk, write_extract

from opdkit import __version__
from opdkit.config.fields import StageConfig, option
from opdkit.errors import ConfigError, OpdkitError
from opdkit.store import plans
from opdkit.store.atomic import move_into_place
from opdkit.store.counters import Counters, Summary, mostly_dropped, read_counters
from opdkit.store.digests import digest_file, read_digests
from opdkit.store.part_writer import Stage
from opdkit.store.plans import check_options, differences, fingerprint, identify_model, manifest
from opdkit.store.reading import count_sessions_within, find_parts, part_path, read_all, read_part
from opdkit.store.run_table import RunTable
from opdkit.store.skip_reasons import NO_NEXT, READ_BEFORE
from opdkit.store.tables import REJECTED, SESSIONS, TURNS


@dataclass(frozen=True, kw_only=True)
class Config(StageConfig):
    knob: int = option(1, "something that decides the rows")
    speed: int = option(1, "something that does not", plan=False)


def opened(run: Path, parts: int = 4, inputs=None, **options) -> Stage:
    return Stage.open(Config(run=run, **options), "extract", [REJECTED], parts=parts, inputs=inputs)


def row(line: int) -> dict:
    return {"source": "a", "line": line, "reason": "not JSON", "detail": "", "raw": "x"}


def fill(stage: Stage, parts=None) -> None:
    for part in stage.todo() if parts is None else parts:
        with stage.writing(part) as out:
            out.add_rows("rejected", [row(part)])
            out.counters.rows_in += 2
            out.counters.drop("odd" if part % 2 else "even")
            out.counters.count("turns", part)


def test_counters_survive_json_and_add_up():
    one = Counters(2, 1, Counter(a=1), 0.5, {"turns": Counter({"": 3}), "skipped": Counter(side=1)})
    two = Counters.from_json(one.to_json().encode())
    assert one == two
    two.merge(Counters(1, 1, Counter(a=1, b=2), 0.25, {"turns": Counter({"": 1}), "votes": Counter({"": 4})}))
    counts = {"turns": Counter({"": 4}), "skipped": Counter(side=1), "votes": Counter({"": 4})}
    assert two == Counters(3, 2, Counter(a=2, b=2), 0.75, counts)


def test_the_closing_line_names_rows_reasons_and_what_is_missing(tmp_path):
    stage = opened(tmp_path)
    fill(stage, [0, 1, 2])
    line = stage.summary().line()
    assert line.startswith(
        "extract: 6 log sessions in, 3 sessions out, 3 lines or sessions dropped (even 2, odd 1), 3 of 4 parts, "
    )
    assert line.endswith(str(tmp_path / "extract" / "rejected"))
    assert stage.summary().text().splitlines() == ["extract: 3 turns", line]


def test_every_stage_says_what_it_counts(tmp_path):
    def line(stage: str, counters: Counters) -> str:
        return Summary(stage, counters, 1, 1, tmp_path).line().partition(", 0.0 s, ")[0]

    assert line("judge", Counters(3, 1, Counter(side=2))) == "judge: 3 turns in, 1 verdict out, 2 dropped (side 2)"
    assert line("teacher", Counters(1, 1)) == "teacher: 1 reply in, 1 target out, 0 dropped"
    assert line("train", Counters(2, 2)) == "train: 2 targets in, 2 trained replies out, 0 dropped"
    assert line("eval", Counters(2, 20)) == "eval: 2 prompts in, 20 replies out, 0 dropped"
    assert line("export trl-kto", Counters(1, 1)) == "export trl-kto: 1 turn in, 1 turn out, 0 dropped"
    dropped = "1 line or session dropped (not JSON 1)"  # inside a session that was read, so in and out do not show it
    assert line("extract", Counters(2, 2, Counter({"not JSON": 1}))).endswith(f"2 sessions out, {dropped}")


def test_copies_of_turns_that_were_taken_are_no_dropped_signal() -> None:
    """A night reads a session that continues as a whole: most of its turns were read before."""
    assert mostly_dropped("judge", Counters(217, 83, Counter({READ_BEFORE: 117, NO_NEXT: 17}))) == []
    (message,) = mostly_dropped("judge", Counters(217, 3, Counter({READ_BEFORE: 117, NO_NEXT: 97})))
    assert message == "judge dropped most of what it was given: no next state 97 of 100"
    in_branches = Counters(100, 20, Counter({"duplicate": 65, "no next state": 15}))
    assert mostly_dropped("judge", in_branches) == [], "each branch repeats the turns before it"


def test_parts_of_a_count_stand_behind_it_in_brackets(tmp_path):
    counters = Counters()
    for name, label, number in [
        ("votes", "", 9), ("failed votes", "cut off", 4), ("failed votes", "no answer", 1), ("hints", "", 1),
        ("flags", "loop", 2), ("rejected hints", "too short, or empty", 3), ("rewards", "+1", 1),
        ("lost replies", "too long", 0), ("skipped", "side", 2), ("skipped", "retry", 1),
        ("replies without the thinking", "", 1), ("with unusable behaviour log-probs", "", 1),
    ]:  # fmt: skip
        counters.count(name, number, label=label)
    assert counters.total("failed votes") == 5
    assert counters.total("lost replies") == 0
    assert counters.labels("skipped") == {"side": 2, "retry": 1}
    assert Summary("judge", counters, 1, 1, tmp_path).details() == (
        "5 failed votes (4 cut off, 1 no answer), 2 flags (2 loop), 1 hint, 3 rejected hints (3 too short, or empty), "
        "1 reply without the thinking, 1 reward (1 +1), 3 skipped (1 retry, 2 side), 9 votes, "
        "1 with unusable behaviour log-probs"
    )


def test_a_dry_run_names_no_folder_and_no_row_that_is_not_there():
    for stage, expected in {
        "extract": "3 log sessions in, 2 sessions expected, 1 line or session dropped (tie 1)",
        "judge": "3 turns in, 2 verdicts expected, 1 dropped (tie 1)",
        "teacher": "3 replies in, 2 targets expected, 1 dropped (tie 1)",
        "train": "3 targets in, 2 trained replies expected, 1 dropped (tie 1)",
    }.items():
        summary = Summary(f"{stage} --dry-run", Counters(3, 2, Counter(tie=1)), 0, 1, None)
        assert summary.text() == f"{stage} --dry-run: {expected}, nothing written"


def test_another_plan_is_refused_field_by_field(tmp_path):
    fill(opened(tmp_path, inputs={"log": {"bytes": 5, "sha256": "a"}}))
    with pytest.raises(ConfigError) as caught:
        opened(tmp_path, parts=5, inputs={"log": {"bytes": 6, "sha256": "a"}}, knob=2)
    message = str(caught.value)
    assert "config.knob: 1 -> 2" in message
    assert "inputs.log.bytes: 5 -> 6" in message
    assert "parts: 4 -> 5" in message
    assert "--overwrite" in message
    assert "sha256" not in message


def test_what_changes_no_row_is_no_part_of_the_plan(tmp_path):
    fill(opened(tmp_path))
    assert opened(tmp_path, speed=9).todo() == []


def test_overwrite_discards_what_another_plan_has_written(tmp_path):
    fill(opened(tmp_path))
    stage = opened(tmp_path, parts=2, knob=2, overwrite=True)
    assert stage.todo() == [0, 1]
    assert not list((tmp_path / "extract").rglob("*.parquet"))
    assert sorted(p.name for p in tmp_path.iterdir()) == ["extract"]


@pytest.mark.parametrize("overwrite", [False, True])
@pytest.mark.parametrize("name", ["own", "model"])
def test_a_folder_of_somebody_else_is_no_stage(tmp_path, name, overwrite):
    """People keep their data and models in folders such as train and eval."""
    own = tmp_path / "extract" / name / "part-00000.parquet"
    own.parent.mkdir(parents=True)
    own.write_text("mine")
    with pytest.raises(ConfigError, match=f"extract.*{name}"):
        check_options(Config(run=tmp_path, overwrite=overwrite), "extract")
    with pytest.raises(ConfigError, match=f"extract.*{name}"):
        opened(tmp_path, overwrite=overwrite)
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == [own]
    own.unlink()
    own.parent.rmdir()
    fill(opened(tmp_path, overwrite=overwrite))


def test_shards_that_begin_together_and_disks_are_nobody_else(tmp_path, monkeypatch):
    """Another shard may write the manifest between the question whether it is there and the look at the folder."""
    fill(opened(tmp_path))
    (tmp_path / "extract" / "lost+found").mkdir()
    monkeypatch.setattr(plans, "has_stage", lambda run, stage: False)
    plans.check_own_folder(tmp_path, "extract")
    plans.check_own_folder(tmp_path, "judge")


@pytest.mark.parametrize("knob", [1, 2])
def test_overwrite_is_refused_for_one_of_several_shards(tmp_path, knob):
    fill(opened(tmp_path))
    with pytest.raises(ConfigError, match="--overwrite"):
        opened(tmp_path, knob=knob, overwrite=True, shard="0/2")
    assert len(list((tmp_path / "extract" / "rejected").iterdir())) == 4


def test_parts_whose_manifest_is_gone_are_not_taken_over(tmp_path):
    fill(opened(tmp_path))
    (tmp_path / "extract" / "manifest.json").unlink()
    with pytest.raises(ConfigError, match="no manifest"):
        opened(tmp_path)
    assert opened(tmp_path, overwrite=True).todo() == [0, 1, 2, 3]


def test_a_damaged_manifest_says_what_to_do(tmp_path):
    opened(tmp_path)
    (tmp_path / "extract" / "manifest.json").write_text("{")
    with pytest.raises(OpdkitError, match="--overwrite"):
        opened(tmp_path)


def test_the_manifest_pins_version_configuration_and_inputs(tmp_path):
    opened(tmp_path, inputs={"log": {"bytes": 5}}, knob=3, speed=7)
    document = json.loads((tmp_path / "extract" / "manifest.json").read_text())
    assert document["plan"]["opdkit"] == __version__
    assert document["plan"]["schemas"] == {"rejected": 1}
    assert document["plan"]["config"] == {"knob": 3}
    assert document["configuration"]["speed"] == 7
    assert document["plan"]["inputs"] == {"log": {"bytes": 5}}
    assert document["fingerprint"] == fingerprint(document["plan"])


def test_the_manifest_keeps_a_file_name_that_is_not_utf_8(tmp_path):
    name = os.fsdecode(b"l\xff.jsonl")
    opened(tmp_path, inputs={"file": name})
    assert manifest(tmp_path, "extract")["plan"]["inputs"]["file"] == name
    opened(tmp_path, inputs={"file": name})


def test_a_stage_is_bound_to_the_plan_of_the_stage_before(tmp_path):
    with pytest.raises(OpdkitError, match="run `opdkit extract"):
        Stage.open(Config(run=tmp_path), "judge", [TURNS], parts=1, upstream=["extract"])
    opened(tmp_path)
    Stage.open(Config(run=tmp_path), "judge", [TURNS], parts=1, upstream=["extract"])
    opened(tmp_path, knob=2, overwrite=True)
    with pytest.raises(ConfigError, match=r"upstream\.extract"):
        Stage.open(Config(run=tmp_path), "judge", [TURNS], parts=1, upstream=["extract"])


def test_a_stage_that_is_older_than_its_source_is_no_source(tmp_path):
    """If extract was overwritten after judge, the verdicts are on turns that are gone, and no later stage uses them."""
    opened(tmp_path)
    Stage.open(Config(run=tmp_path), "judge", [TURNS], parts=1, upstream=["extract"])
    opened(tmp_path, knob=2, overwrite=True)
    with pytest.raises(
        OpdkitError, match=f"judge was computed from an older extract stage .* run `opdkit judge {tmp_path}"
    ):
        Stage.open(Config(run=tmp_path), "teacher", [TURNS], parts=1, upstream=["judge"])


def test_what_is_drawn_anew_is_another_source(tmp_path):
    """A server's votes differ after --overwrite, so the plan does too; a resume keeps the votes and the plan."""

    def judged(**options) -> Stage:
        return Stage.open(Config(run=tmp_path, **options), "judge", [REJECTED], parts=2, may_change=True)

    def scored() -> Stage:
        return Stage.open(Config(run=tmp_path), "teacher", [TURNS], parts=2, upstream=["judge"])

    first = judged()
    fill(first, [0])
    scored()
    assert (judged().fingerprint, judged().todo()) == (first.fingerprint, [1])
    scored()
    with pytest.raises(ConfigError, match=r"config\.knob: 1 -> 2") as refused:
        judged(knob=2)
    assert "  draw" not in str(refused.value)
    assert judged(overwrite=True).fingerprint != first.fingerprint
    with pytest.raises(ConfigError, match=r"upstream\.judge"):
        scored()


@dataclass(frozen=True, kw_only=True)
class Named(StageConfig):
    model: str = option("", "a path")
    others: tuple[str, ...] = option((), "paths")


def test_another_spelling_of_a_path_is_no_other_plan(tmp_path, monkeypatch):
    model, other = tmp_path / "model", tmp_path / "other"
    model.mkdir()
    other.mkdir()
    monkeypatch.chdir(tmp_path)
    first = Stage.open(Named(run=tmp_path, model="model", others=("model",)), "extract", [REJECTED], parts=1)
    fill(first)
    again = Named(run=tmp_path, model=str(model), others=("./model",))
    same = Stage.open(again, "extract", [REJECTED], parts=1)
    assert (same.fingerprint, same.todo()) == (first.fingerprint, [])
    with pytest.raises(ConfigError, match=r"config\.model"):
        Stage.open(Named(run=tmp_path, model="other", others=("model",)), "extract", [REJECTED], parts=1)
    with pytest.raises(ConfigError, match=r"config\.others"):
        Stage.open(Named(run=tmp_path, model="model", others=("model", "other")), "extract", [REJECTED], parts=1)


def test_a_model_that_lies_elsewhere_is_no_other_plan(tmp_path):
    """Models are compared by the digests of their files, also several teachers; other files are another model."""
    for folder, content in (("old/a", "1"), ("old/b", "2"), ("new/a", "1"), ("new/b", "2"), ("new/other", "3")):
        (tmp_path / folder).mkdir(parents=True)
        (tmp_path / folder / "config.json").write_text(content)

    def resume(model: str, others: tuple[str, ...]) -> Stage:
        model, *paths = (str(tmp_path / path) if "/" in path else path for path in (model, *others))
        config = Named(run=tmp_path / "run", model=model, others=(*paths, f"big={paths[0]}"))
        check_options(config, "extract")
        inputs = {"model": identify_model(model), "teachers": {path: identify_model(path) for path in paths}}
        return Stage.open(config, "extract", [REJECTED], parts=1, inputs=inputs)

    first = resume("old/a", ("old/b", "hub-name"))
    fill(first)
    again = resume("new/a", ("new/b", "hub-name"))
    assert (again.fingerprint, again.todo()) == (first.fingerprint, [])
    for model, others in (("new/other", ("new/b", "hub-name")), ("new/b", ("new/a", "hub-name")),
                          ("new/a", ("new/other", "hub-name")), ("new/a", ("new/b", "other-name"))):  # fmt: skip
        with pytest.raises(ConfigError, match=r"config\."):
            resume(model, others)
    (tmp_path / "new/a/config.json").write_text("4")
    with pytest.raises(ConfigError, match=r"config\.model"):
        resume("new/a", ("new/b", "hub-name"))


def test_of_two_plans_that_start_at_once_one_wins(tmp_path):
    """Eight threads with two plans may all find no manifest and write one; only one of the plans is kept."""
    barrier, outcomes = threading.Barrier(8), []

    def start(knob: int) -> None:
        barrier.wait()
        try:
            opened(tmp_path, knob=knob)
            outcomes.append(("open", knob))
        except ConfigError:
            outcomes.append(("refused", knob))

    threads = [threading.Thread(target=start, args=(i % 2 + 1,)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    winners = {knob for outcome, knob in outcomes if outcome == "open"}
    assert len(outcomes) == 8
    assert len(winners) == 1
    pinned = json.loads((tmp_path / "extract" / "manifest.json").read_text())["plan"]["config"]["knob"]
    assert winners == {pinned}


def test_without_hard_links_the_manifest_is_still_whole(tmp_path, monkeypatch):
    def no_links(*_args):
        raise OSError(95, "Operation not supported")

    monkeypatch.setattr(os, "link", no_links)
    opened(tmp_path, knob=5)
    assert manifest(tmp_path, "extract")["plan"]["config"]["knob"] == 5
    assert [p.name for p in (tmp_path / "extract").iterdir()] == ["manifest.json"]


def test_a_writer_that_fails_leaves_nothing(tmp_path):
    """The error reaches the caller, and no Parquet file is left at the final path."""
    stage = opened(tmp_path)
    with pytest.raises(ZeroDivisionError), stage.writing(0) as out:
        out.add_rows("rejected", [row(1), row(1 // 0)])
    with pytest.raises(OpdkitError, match="missing columns"), stage.writing(1) as out:
        out.add_rows("rejected", [{"source": "a"}])
    assert not list((tmp_path / "extract").rglob("*.parquet"))
    assert stage.todo() == [0, 1, 2, 3]


KILLED_WHILE_WRITING = """
import os, sys
from pathlib import Path
import pyarrow.parquet as pq
from tests_store_config import opened, row

def half(self, arrow):  # the file is open, the footer is not written
    os._exit(9)

stage = opened(Path(sys.argv[1]))
with stage.writing(0) as out:
    out.add_rows("rejected", [row(0)])
pq.ParquetWriter.write_table = half
with stage.writing(1) as out:
    out.add_rows("rejected", [row(1)])
"""


def test_a_process_killed_while_it_writes_leaves_the_final_path_free(tmp_path):
    """A part at the final path is whole, and the next process removes the temporary files of the dead process."""
    (tmp_path / "tests_store_config.py").write_text(Path(__file__).read_text(encoding="utf-8"), encoding="utf-8")
    run = tmp_path / "run"
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(map(str, (tmp_path, *Path(__file__).parents[1:3])))}
    command = [sys.executable, "-c", KILLED_WHILE_WRITING, str(run)]
    assert subprocess.run(command, check=False, env=environment).returncode == 9
    assert [p.name for p in (run / "extract" / "rejected").iterdir()] == ["part-00000.parquet"]
    left = sorted(p.suffix for p in (run / "extract" / ".tmp").iterdir())
    assert left == [".parquet", ".running"], "half a file, and the mark of the part under way"
    stage = opened(run)
    assert not list((run / "extract" / ".tmp").iterdir())
    assert stage.todo() == [1, 2, 3]
    fill(stage)
    assert [r["line"] for r in read_all(run, "rejected")] == [0, 1, 2, 3]


AT_THE_SAME_TIME = """
import sys, time
from pathlib import Path
from tests_store_config import opened, row

run, me = Path(sys.argv[1]), sys.argv[2]
stage = opened(run, parts=1)
assert stage.todo() == [0]
with stage.writing(0) as out:
    out.add_rows("rejected", [row(0) | {"detail": me}])
    (run / me).touch()
    while not all((run / name).exists() for name in ("first", "second")):  # both are in the part now
        time.sleep(0.005)
"""


def test_of_two_processes_on_one_part_one_result_stays(tmp_path):
    """Both compute the part and neither fails; one of the two results stays, whole and with its digest."""
    (tmp_path / "tests_store_config.py").write_text(Path(__file__).read_text(encoding="utf-8"), encoding="utf-8")
    run = tmp_path / "run"
    opened(run, parts=1)
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(map(str, (tmp_path, *Path(__file__).parents[1:3])))}
    processes = [
        subprocess.Popen([sys.executable, "-c", AT_THE_SAME_TIME, str(run), name], env=environment)
        for name in ("first", "second")
    ]
    try:
        assert [process.wait(timeout=600) for process in processes] == [0, 0]
    finally:
        for process in processes:
            process.kill()  # each waits for the other
    path = run / "extract" / "rejected" / "part-00000.parquet"
    assert read_part(run, "rejected", 0)[0]["detail"] in ("first", "second")
    assert read_counters(path).rows_out == 1
    assert digest_file(path) in read_digests(run / "extract")["rejected", 0]
    assert not list((run / "extract" / ".tmp").iterdir())


def test_the_first_of_two_results_stays(tmp_path):
    """A part that may have been read already is not replaced."""
    one, other = opened(tmp_path), opened(tmp_path)
    with other.writing(0) as slow:
        slow.add_rows("rejected", [row(0) | {"detail": "slow"}])
        with one.writing(0) as fast:
            fast.add_rows("rejected", [row(0) | {"detail": "fast"}])
    assert read_part(tmp_path, "rejected", 0)[0]["detail"] == "fast"
    temporary = tmp_path / "late"
    temporary.write_bytes(b"late")
    assert not move_into_place(temporary, part_path(tmp_path, "rejected", 0), replace=False)
    assert read_part(tmp_path, "rejected", 0)[0]["detail"] == "fast"


def test_a_damaged_page_is_not_read_as_numbers(tmp_path):
    """Each page has a CRC, so a single changed bit is an error and not another value."""
    stage = opened(tmp_path, parts=1)
    with stage.writing(0) as out:
        out.add_rows("rejected", [row(n) for n in range(2000)])
    path = part_path(tmp_path, "rejected", 0)
    column = pq.read_metadata(path).row_group(0).column(1)
    data = bytearray(path.read_bytes())
    data[(column.dictionary_page_offset or column.data_page_offset) + column.total_compressed_size - 1] ^= 1
    path.write_bytes(data)
    with pytest.raises(OpdkitError, match=r"cannot be read .*opdkit check .* --recompute"):
        read_part(tmp_path, "rejected", 0)


def test_a_digest_is_recorded_of_each_part(tmp_path):
    stage = opened(tmp_path)
    fill(stage)
    for part in range(4):
        assert read_digests(stage.folder)["rejected", part] == {digest_file(part_path(tmp_path, "rejected", part))}
    (stage.folder / ".digests" / "of somebody else").touch()
    assert len(read_digests(stage.folder)) == 4


def test_a_part_that_cannot_be_moved_into_place_leaves_no_digest(tmp_path, monkeypatch):
    stage = opened(tmp_path)

    def full(*_args, replace):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("opdkit.store.part_writer.move_into_place", full)
    with pytest.raises(OpdkitError, match=r"no space left on the disk of .*part-00000\.parquet: make room"):
        fill(stage, [0])
    assert read_digests(stage.folder) == {}
    assert not list((stage.folder / ".tmp").iterdir())


def test_files_of_others_among_the_temporary_ones_are_left(tmp_path):
    stage = opened(tmp_path)
    fill(stage)
    for name in ("foreign.parquet", f"rejected-00000-{'0' * 32}-elsewhere-1.parquet"):
        (stage.folder / ".tmp" / name).touch()
    opened(tmp_path)
    assert len(list((stage.folder / ".tmp").iterdir())) == 2


def test_the_summary_covers_what_earlier_runs_did(tmp_path):
    """Counters are summed over the footers of all parts, whichever process wrote the parts."""
    fill(opened(tmp_path), [0, 3])
    resumed = opened(tmp_path)
    assert resumed.todo() == [1, 2]
    fill(resumed)
    total = resumed.summary().counters
    assert (total.rows_in, total.rows_out, total.dropped) == (8, 4, Counter(even=2, odd=2))
    assert total.total("turns") == 6
    assert resumed.summary().parts_done == 4


@pytest.mark.parametrize("shards", [1, 2, 3, 5])
def test_shards_share_the_parts_without_overlap(tmp_path, shards):
    """Another number of shards on the same directory duplicates nothing."""
    fill(opened(tmp_path, parts=7), [4])
    for shard in range(shards):
        stage = opened(tmp_path, parts=7, shard=f"{shard}/{shards}")
        assert all(k % shards == shard for k in stage.todo())
        fill(stage)
    assert [r["line"] for r in read_all(tmp_path, "rejected")] == list(range(7))


def test_a_part_is_done_only_when_its_primary_table_is(tmp_path):
    stage = Stage.open(Config(run=tmp_path), "extract", [SESSIONS, REJECTED], parts=1)
    with stage.writing(0) as out:
        out.add_rows("rejected", [row(1)])
        out.counters.rows_in = 1
    part_path(tmp_path, "sessions", 0).unlink()
    assert stage.todo() == [0]


def test_the_footer_says_version_plan_and_counters(tmp_path):
    stage = opened(tmp_path)
    fill(stage)
    path = part_path(tmp_path, "rejected", 1)
    metadata = pq.read_schema(path).metadata
    assert metadata[b"opdkit.schema_version"] == b"1"
    assert metadata[b"opdkit.plan"].decode() == stage.fingerprint
    assert read_counters(path).dropped == Counter(odd=1)
    assert {p.name for p in path.parent.iterdir()} == {f"part-0000{k}.parquet" for k in range(4)}


def test_reading_says_which_stage_to_run_again(tmp_path):
    stage = opened(tmp_path)
    with pytest.raises(OpdkitError, match="has not finished"):
        read_part(tmp_path, "rejected", 0)
    fill(stage)
    path = part_path(tmp_path, "rejected", 0)
    arrow = pq.read_table(path)
    old = arrow.replace_schema_metadata({**arrow.schema.metadata, b"opdkit.schema_version": b"0"})
    pq.write_table(old, path)
    with pytest.raises(OpdkitError, match="another version"):
        read_part(tmp_path, "rejected", 0)
    pq.write_table(arrow.replace_schema_metadata({**arrow.schema.metadata, b"opdkit.plan": b"other"}), path)
    with pytest.raises(OpdkitError, match="another plan"):
        read_part(tmp_path, "rejected", 0)
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(OpdkitError, match="cannot be read"):
        read_part(tmp_path, "rejected", 0)


def test_a_stage_of_another_command_says_so(tmp_path):
    Stage.open(Config(run=tmp_path), "extract", [REJECTED], parts=1, command="rollout")
    with pytest.raises(OpdkitError, match=f"run `opdkit rollout {tmp_path} ...` again"):
        read_part(tmp_path, "rejected", 0)
    with pytest.raises(ConfigError, match='command: "rollout" -> null'):
        opened(tmp_path, parts=1)


def test_limit_counts_sessions_over_the_parts(tmp_path):
    stage = Stage.open(Config(run=tmp_path), "extract", [SESSIONS], parts=3)
    for part in range(3):
        with stage.writing(part) as out:
            out.add_rows("sessions", [
                {"session_id": f"{part}:{i}", "source": "a", "line": 1, "format": "openai", "model": None,
                 "messages": [], "tools": None, "metadata": None, "tree": None} for i in range(2)])  # fmt: skip
    assert count_sessions_within(tmp_path, 1, None) is None
    assert [count_sessions_within(tmp_path, part, 3) for part in range(3)] == [3, 1, 0]
    damaged = part_path(tmp_path, "sessions", 1)
    damaged.write_bytes(damaged.read_bytes()[:-9])
    with pytest.raises(OpdkitError, match="--recompute"):
        count_sessions_within(tmp_path, 2, 3)
    damaged.unlink()
    with pytest.raises(OpdkitError, match="does not exist"):
        count_sessions_within(tmp_path, 2, 3)


def test_a_damaged_part_of_the_turns_is_named(tmp_path):
    write_extract(tmp_path, {"a": talk("u", "a", "v")})
    assert find_parts(tmp_path, ["a:1"]) == {"a:1": 0}
    path = part_path(tmp_path, "turns", 0)
    path.write_bytes(path.read_bytes()[:-9])
    for read in (lambda: find_parts(tmp_path, ["a:1"]), lambda: len(RunTable(tmp_path, "turns"))):
        with pytest.raises(OpdkitError, match=str(path)):
            read()


def test_differences_say_what_came_and_went():
    assert differences({"a": 1, "b": {"c": [1]}}, {"b": {"c": [1, 2]}, "d": "x"}) == [
        "a: 1 -> null", "b.c: [1] -> [1, 2]", 'd: null -> "x"'
    ]  # fmt: skip
    assert differences({"a": 1}, {"a": 1}) == []


def test_an_option_that_is_off_is_no_difference_to_a_plan_from_before_it():
    assert differences({"config": {"votes": 5}}, {"config": {"votes": 5, "load_in_4bit": False}}) == []
    assert differences({"config": {}}, {"config": {"load_in_4bit": True}}) == ["config.load_in_4bit: null -> true"]
    assert differences({"config": {"redact": True}}, {"config": {"redact": False}}) != []


def test_an_option_that_was_not_set_is_none_that_is_0():
    old, new = ({"config": {"reward_weight": value}} for value in (None, 0.0))
    assert differences(old, new) == ["config.reward_weight: null -> 0.0"]


def test_model_identity_notices_one_changed_block(tmp_path):
    weights = tmp_path / "model.safetensors"
    weights.write_bytes(bytes(5 << 20))
    before = identify_model(str(tmp_path))
    data = bytearray(weights.read_bytes())
    data[: 1 << 16] = b"x" * (1 << 16)
    weights.write_bytes(data)
    assert identify_model(str(tmp_path)) != before
    assert identify_model("name/on-the-hub") == {"name": "name/on-the-hub"}


def test_rows_keep_their_order(tmp_path):
    stage = opened(tmp_path, parts=1)
    with stage.writing(0) as out:
        for line in (3, 1, 2):
            out.add_rows("rejected", [row(line)])
    assert pq.read_table(part_path(tmp_path, "rejected", 0)).column("line") == pa.chunked_array([[3, 1, 2]], pa.int64())


def test_a_path_where_no_model_is_binds_no_plan():
    with pytest.raises(OpdkitError, match="does not exist"):
        identify_model("/nowhere/model")
    assert identify_model("Qwen/Qwen3-4B") == {"name": "Qwen/Qwen3-4B"}


@pytest.mark.parametrize("content", [b"", b"{}", b"[]", b"\xff\xfe", b'{"fingerprint": 1, "plan": {}}'])
def test_a_damaged_manifest_is_said_to_be_one(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "judge").mkdir()
    (tmp_path / "judge" / "manifest.json").write_bytes(content)
    with pytest.raises(OpdkitError, match=r"judge/manifest\.json is damaged .*--overwrite"):
        manifest(tmp_path, "judge")
