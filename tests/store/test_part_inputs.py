"""Tests of parts that are computed again because inputs outside the plan changed, and of finding the part of a turn."""

import json

import pytest
from runs import talk, write_extract

from opdkit.config.judge import JudgeConfig
from opdkit.store.counters import read_counters, read_inputs
from opdkit.store.digests import digest_file, read_digests
from opdkit.store.part_writer import Stage
from opdkit.store.reading import find_parts, part_path
from opdkit.store.tables import VERDICTS


def test_a_part_computed_from_something_else_is_to_do_again_and_the_others_stay(tmp_path):
    given = {0: {}, 1: {"said": "yes"}}

    def stage() -> Stage:
        return Stage.open(
            JudgeConfig(run=tmp_path, judge="rules", shard="0/1"),
            "judge",
            [VERDICTS],
            parts=2,
            part_inputs=lambda part: given[part],
        )

    def write(some: Stage) -> list[int]:
        todo = some.todo()
        for part in todo:
            with some.writing(part) as out:
                out.counters.rows_in = len(json.dumps(given[part]))
        return todo

    assert write(stage()) == [0, 1]
    kept = [part_path(tmp_path, "verdicts", part).read_bytes() for part in (0, 1)]
    assert write(stage()) == []
    given[1] = {"said": "no"}
    assert write(stage()) == [1]
    assert part_path(tmp_path, "verdicts", 0).read_bytes() == kept[0]
    assert read_inputs(part_path(tmp_path, "verdicts", 1)) == {"said": "no"}
    names = {key: digests for key, digests in read_digests(tmp_path / "judge").items() if key[1] == 1}
    assert names == {("verdicts", 1): {digest_file(part_path(tmp_path, "verdicts", 1))}}, "the old one is forgotten"
    given[1] = {"said": "yes"}
    assert write(stage()) == [1]


def test_of_two_processes_that_replace_a_part_both_leave_one_with_its_digest(tmp_path):
    given = {"said": 1}
    config = JudgeConfig(run=tmp_path, judge="rules", shard="0/1")
    stages = [Stage.open(config, "judge", [VERDICTS], parts=1, part_inputs=lambda part: dict(given)) for _ in range(2)]
    with stages[0].writing(0):
        pass
    given["said"] = 2
    with stages[0].writing(0) as first, stages[1].writing(0) as second:
        first.counters.rows_in, second.counters.rows_in = 1, 2
    path = part_path(tmp_path, "verdicts", 0)
    assert digest_file(path) in read_digests(tmp_path / "judge")["verdicts", 0]
    assert read_counters(path).rows_in == 2, "the one that was ready first stays"


@pytest.mark.parametrize("wanted", [["a:1", "d:3"], ["b:1", "nobody:1"], [], ["zz", "", "a:1"], ["a:1", "a:1"]])
def test_the_part_of_a_turn(tmp_path, wanted):
    run = write_extract(tmp_path / "run", {name: talk("x", "y", "z", "w") for name in "abcd"}, per_part=1)
    expected = {name: "abcd".index(name[0]) for name in wanted if name[:1] in tuple("abcd") and len(name) == 3}
    assert find_parts(run, wanted) == expected


def test_the_part_of_a_turn_is_found_without_reading_the_others(tmp_path, monkeypatch):
    import opdkit.store.reading

    run = write_extract(tmp_path / "run", {name: talk("x", "y", "z", "w") for name in "abcd"}, per_part=1)
    read, whole = [], opdkit.store.reading.read_arrow

    def counted(run, table, part, columns):
        read.append((part, columns))
        return whole(run, table, part, columns)

    monkeypatch.setattr(opdkit.store.reading, "read_arrow", counted)
    assert find_parts(run, ["c:1"]) == {"c:1": 2}
    assert read == [(2, ["turn_id"])]
