"""Tests that a person's decision changes exactly its turn's target, and that striking it restores the old target."""

import random
import shutil

import pyarrow.parquet as pq
import pytest
from scored_runs import Said, Toy, toy_sessions, train_config, write_run

from opdkit.commands import status
from opdkit.commands.check.stage import examine
from opdkit.config.judge import JudgeConfig
from opdkit.config.status import StatusConfig
from opdkit.config.teacher import TeacherConfig
from opdkit.errors import ConfigError, OpdkitError
from opdkit.judge import stage as judge
from opdkit.model.sampling import sampler
from opdkit.store import reviews
from opdkit.store.counters import read_counters, read_inputs
from opdkit.store.reading import part_path, read_all, read_part
from opdkit.store.reviews import Review
from opdkit.teacher import stage as teacher
from opdkit.train import stage as train

TOYS = [
    *toy_sessions(4, replies=3),
    Toy("plain", [Said("red"), Said("green", None, "Say it in three letters.")]),  # the first reply has no signal
]
PARTS = (0, 1, 2)
NEW = "Say nothing but the word, in capital letters."


@pytest.fixture(scope="module")
def scored(tmp_path_factory, tiny_model_dir):
    return write_run(tmp_path_factory.mktemp("reviewed") / "run", tiny_model_dir, TOYS, per_part=2)


@pytest.fixture
def run(scored, tmp_path):
    return shutil.copytree(scored, tmp_path / "run")


@pytest.fixture
def again(tiny_model_dir):
    """Return a function that runs the teacher stage again with the same options."""

    def score(run):
        return teacher.run(TeacherConfig(run=run, model=str(tiny_model_dir), device="cpu", top_k=3, teacher_samples=0,
                                         shard="0/1"))  # fmt: skip

    return score


def rows(run) -> dict[str, dict]:
    return {row["turn_id"]: row for row in read_all(run, "targets")}


def contents(run) -> list[bytes]:
    return [part_path(run, "targets", part).read_bytes() for part in PARTS]


def healthy(run) -> None:
    """Assert that check finds nothing in teacher, train and reviews; the verdicts were written without counters."""
    actual = [f for f in examine(run).findings if f.stage in ("teacher", "train") or f.table == "reviews"]
    assert [(f.what, f.key) for f in actual] == []


DECISIONS = {
    "another reward": (Review("toy-1:3", True, 0), {"reward"}),
    "no reward": (Review("toy-0:3", True, None), {"reward"}),
    "another hint": (Review("toy-1:3", False, None, True, NEW),
                     {"hint", "teacher_logprobs", "support_teacher"}),
    "a hint where there was none": (Review("toy-0:1", False, None, True, NEW),
                                    {"hint", "teacher_logprobs", "support_teacher"}),
    "no hint": (Review("toy-1:3", False, None, True, None), {"hint", "teacher_logprobs", "support_teacher"}),
    "both": (Review("toy-1:3", True, -1, True, NEW), {"hint", "teacher_logprobs", "support_teacher", "reward"}),
}  # fmt: skip
ROUNDED = {"old_logprobs", "support_old"}  # change by rounding, as the turn is now read by itself


@pytest.mark.parametrize("name", DECISIONS)
def test_a_decision_changes_exactly_its_turn_s_target_and_a_strike_undoes_it(run, again, name):
    decided, columns = DECISIONS[name]
    before, files, order = rows(run), contents(run), [r["turn_id"] for r in read_all(run, "targets")]
    reviews.append(run, [decided])
    again(run)
    after = rows(run)
    assert [r["turn_id"] for r in read_all(run, "targets")] == order
    changed = {k for k in before if before[k] != after[k]}
    assert changed == {decided.turn_id}
    differing = {k for k in after[decided.turn_id] if before[decided.turn_id][k] != after[decided.turn_id][k]}
    assert columns <= differing <= columns | (ROUNDED if "hint" in columns else set())
    same = [part for part in PARTS if contents(run)[part] == files[part]]
    assert same == [1, 2], "the other parts are untouched, byte for byte"
    healthy(run)
    again(run)
    assert rows(run) == after
    reviews.append(run, [Review(decided.turn_id, action="strike")])
    again(run)
    assert rows(run) == before
    assert [read_inputs(part_path(run, "targets", part)) for part in PARTS] == [{}, {}, {}]
    healthy(run)


def test_a_turn_without_a_signal_gets_a_target_and_loses_it_again(run, again):
    before = rows(run)
    assert "plain:1" not in before
    counted = read_counters(part_path(run, "targets", 2))
    reviews.append(run, [Review("plain:1", True, 1)])
    again(run)
    assert rows(run).keys() - before.keys() == {"plain:1"}
    assert read_counters(part_path(run, "targets", 2)).dropped == {}
    healthy(run)
    reviews.append(run, [Review("plain:1", action="strike"), Review("plain:3", False, None, True, None)])
    again(run)
    assert before.keys() - rows(run).keys() == {"plain:3"}, "neither hint nor reward: nothing to train on"
    assert read_counters(part_path(run, "targets", 2)).dropped["no signal"] == counted.dropped["no signal"] + 1
    healthy(run)
    reviews.append(run, [Review("plain:3", action="strike")])
    again(run)
    assert rows(run) == before


def test_a_reward_loads_no_model(run, again, monkeypatch):
    reviews.append(run, [Review("toy-1:3", True, 0), Review("toy-2:1", True, 0)])

    def load(config):
        raise AssertionError("a model was loaded")

    monkeypatch.setattr("opdkit.teacher.stage.load_scorer", load)
    again(run)
    assert (rows(run)["toy-1:3"]["reward"], rows(run)["toy-2:1"]["reward"]) == (0, 0)


def test_who_accepts_a_turn_as_it_is_costs_nothing(run, again):
    files = contents(run)
    reviews.append(run, [Review("toy-1:3", note="fine")])
    again(run)
    assert contents(run) == files


TURNS = ["toy-0:1", "toy-0:3", "toy-1:1", "plain:1", "plain:3"]
DECIDED = [{}, {"reward": 1}, {"reward": None}, {"hint": NEW}, {"hint": None},
           {"reward": -1, "hint": "Say it in short."}, {"reward": None, "hint": None}]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
def test_the_targets_do_not_depend_on_how_the_decisions_came_about(run, again, tmp_path, seed):
    """Decisions made step by step give the same rows and counts as decisions made before the first target."""
    draw = random.Random(seed)
    at_once = shutil.copytree(run, tmp_path / "once")
    shutil.rmtree(at_once / "teacher")
    for _ in range(4):
        step = {name: draw.choice(DECIDED) for name in draw.sample(TURNS, 3)}
        decisions = [reviews.decision(n, d) if d else Review(n, action="strike") for n, d in step.items()]
        reviews.append(run, decisions)
        reviews.append(at_once, decisions)
        again(run)
    again(at_once)
    assert list(read_all(run, "targets")) == list(read_all(at_once, "targets"))
    assert counts(run) == counts(at_once)
    healthy(run)


def counts(run) -> list[tuple]:
    counted = [read_counters(part_path(run, "targets", part)) for part in PARTS]
    return [(c.rows_in, c.rows_out, c.dropped, c.total("with a hint"), c.total("decided by people")) for c in counted]


def test_what_a_person_wrote_is_not_selected_from(run, tiny_model_dir):
    reviews.append(run, [Review("toy-1:3", False, None, True, "Go.")])
    config = TeacherConfig(run=run, model=str(tiny_model_dir), device="cpu", top_k=3, teacher_samples=0,
                           teacher_hint="longest", overwrite=True, shard="0/1")  # fmt: skip
    teacher.run(config)
    assert rows(run)["toy-1:3"]["hint"] == "Go."


def test_train_wants_targets_that_show_the_decisions_and_notices_when_they_change(run, again, tiny_model_dir, capsys):
    config = train_config(run, tiny_model_dir)
    train.run(config)
    reviews.append(run, [Review("toy-1:3", True, 0)])
    status.run(StatusConfig(run=run))
    assert "turns reviewed by people: 1; parts of targets older than that: 1" in capsys.readouterr().out
    for name in (None, "b"):  # the targets of a named training are those of its run
        with pytest.raises(OpdkitError, match=rf"1 of 3 parts of {run}/teacher/.* `opdkit teacher {run} \.\.\.`"):
            train.run(train_config(run, tiny_model_dir, name=name))
    again(run)
    assert any("older than the review decisions" in finding.what for finding in examine(run).findings)
    status.run(StatusConfig(run=run))
    assert "trained on targets older than the review decisions" in " ".join(capsys.readouterr().out.split())
    with pytest.raises(ConfigError, match=r"inputs\.reviews"):
        train.run(config)
    reviews.append(run, [Review("toy-1:3", action="strike")])
    again(run)
    assert train.run(config).parts_done == 1
    healthy(run)
    status.run(StatusConfig(run=run))
    assert "older than" not in capsys.readouterr().out


def test_killed_while_a_part_is_replaced_the_part_is_the_old_or_the_new_one(run, again, monkeypatch):
    """The part is always complete, old or new, and the same command finishes the work."""
    import opdkit.store.part_writer

    before = contents(run)
    reviews.append(run, [Review("toy-1:3", True, 0)])

    def killed(*args):
        raise KeyboardInterrupt

    for name, there in (("record_digest", before[0]), ("forget_digest", None)):
        with monkeypatch.context() as patch:
            patch.setattr(opdkit.store.part_writer, name, killed)
            with pytest.raises(KeyboardInterrupt):
                again(run)
        assert there is None or contents(run)[0] == there
        pq.read_table(part_path(run, "targets", 0))
    healthy(run)
    again(run)
    assert rows(run)["toy-1:3"]["reward"] == 0


def test_a_decision_survives_a_re_run_of_the_judge(run, again):
    """What a person decided about a turn still holds after another judge gave other votes."""
    reviews.append(run, [Review("toy-1:3", True, 0, True, NEW)])
    judge.run(JudgeConfig(run=run, judge="rules", overwrite=True, shard="0/1"))
    shutil.rmtree(run / "teacher")
    again(run)
    actual = rows(run)
    assert (actual["toy-1:3"]["reward"], actual["toy-1:3"]["hint"]) == (0, NEW)
    verdicts = {row["turn_id"]: row for row in read_all(run, "verdicts")}
    for name, row in actual.items():
        if name != "toy-1:3":
            assert (row["reward"], row["hint"]) == (verdicts[name]["reward"], verdicts[name]["hint"])


def test_a_reply_to_a_decided_hint_has_the_room_of_the_part(run, tiny_model_dir, monkeypatch):
    """A sample's token limit comes from the part's hinted replies, not from the logged reply, which may be one word."""
    shutil.rmtree(run / "teacher")
    reviews.append(run, [Review("toy-0:3", False, None, True, NEW)])  # a reply of two words
    rooms, sample = [], sampler.sample
    monkeypatch.setattr(sampler, "sample", lambda *args, **options: (
        rooms.append(options["max_new_tokens"]), sample(*args, **options))[1])  # fmt: skip
    teacher.run(TeacherConfig(run=run, model=str(tiny_model_dir), device="cpu", shard="0/1"))
    hinted = [
        len(row["response_ids"]) for row in read_part(run, "targets", 0) if row["hint"] and row["written"] is None
    ]
    room = int(1.25 * max(hinted)) + 1
    assert rooms[:2] == [room, room]


def test_the_room_of_a_reply_does_not_depend_on_other_decisions(tmp_path, tiny_model_dir, monkeypatch):
    """A long reply that got its hint from a person raises the token limit of its own turn only."""
    long = "red green blue red green blue red green blue"
    said = [Said(long, 1), Said("green", None, "Say it in three letters."), Said("blue", None, "Say green.")]
    run = write_run(tmp_path / "run", tiny_model_dir, [Toy("a", said)])
    shutil.rmtree(run / "teacher")
    rooms, sample = [], sampler.sample
    monkeypatch.setattr(sampler, "sample", lambda *args, **options: (
        rooms.append(options["max_new_tokens"]), sample(*args, **options))[1])  # fmt: skip
    reviews.append(run, [Review(f"a:{n}", False, None, True, NEW) for n in (1, 5)])
    teacher.run(TeacherConfig(run=run, model=str(tiny_model_dir), device="cpu", shard="0/1"))
    of_part, of_long, of_short = rooms
    assert of_long > of_part == of_short


def test_what_the_teacher_writes_goes_with_the_hint(run, tiny_model_dir):
    """Samples with the decided hint replace those with the old hint, and come after all logged replies."""

    def score():
        config = TeacherConfig(run=run, model=str(tiny_model_dir), device="cpu", teacher_samples=1, max_new_tokens=5,
                               shard="0/1")  # fmt: skip
        counters, scored = teacher.run(config).counters, list(read_all(run, "targets"))
        assert counters.total("written by the teacher") == sum(row["written"] is not None for row in scored)
        assert counters.rows_in == counters.rows_out + counters.dropped.total()
        return scored

    shutil.rmtree(run / "teacher")
    before = score()
    reviews.append(run, [Review("toy-1:3", True, 0, True, NEW), Review("toy-0:3", True, None, True, None)])
    after = score()
    rows_of_turn = [row for row in after if row["turn_id"] == "toy-1:3"]
    assert [(row["written"], row["hint"], row["reward"]) for row in rows_of_turn] == [(None, NEW, 0), (0, NEW, None)]
    others = [[row for row in each if row["turn_id"] not in ("toy-1:3", "toy-0:3")] for each in (before, after)]
    assert others[0] == others[1]
    first_part = [
        row["written"] for row in after if row["turn_id"] in {f"toy-{s}:{i}" for s in (0, 1) for i in (1, 3, 5)}
    ]
    assert first_part == sorted(first_part, key=lambda number: number is not None)
    healthy(run)
    reviews.append(run, [Review("toy-1:3", action="strike"), Review("toy-0:3", action="strike")])
    assert score() == before
