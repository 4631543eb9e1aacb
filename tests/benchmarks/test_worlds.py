"""Worlds of the learning benchmark: held-out items stay out, labels match the turns, a seed decides every byte."""

import json
import random
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import islice
from pathlib import Path

import pytest
import torch
from benchmarks.learning import runs
from benchmarks.learning.cells import recorded, write_record
from benchmarks.worlds import WORLDS, Built, World, build, built_in, measure, trainings
from benchmarks.worlds.benchmark import (
    DEFAULT,
    RATES,
    SEARCH,
    SEEDS,
    best,
    copy_same_trainings,
    first_cells,
    last_cells,
    seemingly_worse,
)
from benchmarks.worlds.pretraining import encode, lessons, make_tokenizer
from benchmarks.worlds.small_talk import small_talk_of
from benchmarks.worlds.users import Talk, answer_by_habit, converse, hint_of
from benchmarks.worlds.world import Topic, passes

from opdkit.chat.messages import message
from opdkit.chat.openai_messages import openai_message
from opdkit.chat.template import Chat
from opdkit.config.extract import ExtractConfig
from opdkit.errors import OpdkitError
from opdkit.evaluate.checks import HeldOutPrompt, read_prompts
from opdkit.extract.stage import run as extract
from opdkit.judge.reply_in_context import ReplyInContext
from opdkit.judge.rules import judge
from opdkit.store.reading import read_all
from opdkit.train import validation_turns

pytestmark = pytest.mark.skipif(not hasattr(torch.optim, "Muon"), reason="the worlds are made with torch 2.9 or newer")


def wishes(world: World) -> list[tuple]:
    """Return (topic, wished style) for every group of users."""
    return [(t, group.wishes[t.name]) for group in world.groups for t in world.topics if t.name in group.wishes]


def scripted(world: World, seed: int, irrelevant: float) -> tuple[list, dict]:
    """Return a conversation in which every reply is one that the model is taught, and its labels."""
    rng = random.Random(seed)
    group = rng.choice(world.groups)
    talk = converse(Talk(world.topics, group.wishes, 4, irrelevant, system=group.systems[0],
                         small_talk=small_talk_of(world)), rng)  # fmt: skip
    ask = next(talk)
    try:
        while True:
            ask = talk.send(answer_by_habit(ask, rng))
    except StopIteration as end:
        return ask.messages, end.value


def test_there_are_eleven_worlds_of_three_sizes() -> None:
    assert {world.size for world in WORLDS.values()} == {"small", "medium", "large"}
    assert len(WORLDS) == 11
    assert sum(world.aside for world in WORLDS.values()) == 2


@pytest.mark.parametrize("world", WORLDS.values(), ids=WORLDS)
def test_checks_tell_what_is_wanted_from_all_else(world: World) -> None:
    for topic, wish in wishes(world):
        for item in topic.items[:20]:
            assert [s.name for s in topic.styles if passes(topic, item, wish, s.reply(item))] == [wish]


def requests(topics: Iterable[Topic]) -> set[str]:
    """Return all requests about the held-out items of topics."""
    return {request.format(item) for topic in topics for item in topic.held_out for request in topic.requests}


def mentioned(requests: set[str], conversations: Iterable[list]) -> set[str]:
    said = [m["content"] or "" for messages in conversations for m in messages]
    return {request for request in requests if any(request in text for text in said)}


@pytest.mark.parametrize("world", WORLDS.values(), ids=WORLDS)
def test_neither_pretraining_nor_log_shows_what_is_held_out(world: World) -> None:
    """Facts are known by heart, so pretraining shows them all."""
    taught = [lesson.messages for lesson in islice(lessons(world, random.Random(0)), 300)]
    logged = [scripted(world, seed, 0.1)[0] for seed in range(100)]
    unknown = requests(topic for topic in world.topics if not topic.known)
    known = requests(topic for topic in (*world.topics, *small_talk_of(world)) if topic.known)
    assert not mentioned(unknown, taught)
    assert len(mentioned(known, taught)) > 0.3 * len(known)
    assert not mentioned(unknown | known, logged)


@pytest.mark.parametrize("world", WORLDS.values(), ids=WORLDS)
def test_lessons_are_rendered_as_opdkit_renders_prompts_and_only_replies_are_learned(world: World) -> None:
    taught = list(islice(lessons(world, random.Random(0)), 60))
    tokenizer = make_tokenizer(taught)
    chat = Chat(tokenizer, {})
    for lesson in taught:
        rows = [message(m["role"], "") | m for m in lesson.messages]
        tools = json.dumps(lesson.tools) if lesson.tools else None
        prompt, reply = chat.prompt_ids(rows[:-1], tools), chat.reply(rows, len(rows) - 1, tools)
        ids, learned = encode(tokenizer, lesson)
        assert ids == prompt + reply.ids
        assert all(learned[len(prompt) :])
        assert not learned[len(prompt) - 1]
        replies = [tokenizer.decode([token]) for token, is_learned in zip(ids, learned, strict=True) if is_learned]
        assert "<|im_start|>" not in replies
        assert replies.count("<|im_end|>") == (1 if lesson.only_last else [m["role"] for m in rows].count("assistant"))


@pytest.mark.parametrize("world", WORLDS.values(), ids=WORLDS)
def test_rules_read_what_users_ask_for(world: World) -> None:
    for topic, wish in wishes(world):
        role = "tool" if topic.corrected_by_tool else "user"
        wordings = topic.style(wish).wordings()
        assert sum(hint_of(w, role) is not None for w in wordings) >= 0.9 * len(wordings)


@pytest.mark.parametrize("world", WORLDS.values(), ids=WORLDS)
def test_rules_agree_with_the_labels(world: World) -> None:
    right = Counter()
    for seed in range(60):
        messages, labels = scripted(world, seed, 0.0)
        for index, label in labels.items():
            ends = [k for k in range(index + 1, len(messages)) if messages[k]["role"] == "assistant"]
            read = judge(ReplyInContext(messages, index, messages[index + 1 : (ends or [len(messages)])[0]]))
            right[read.reward == label.reward] += 1
    assert right[True] >= 0.93 * right.total()


def test_irrelevant_reactions_replace_that_share() -> None:
    def reactions(irrelevant: float) -> Counter:
        labels = [label for seed in range(400) for label in scripted(WORLDS["habit"], seed, irrelevant)[1].values()]
        return Counter(label.irrelevant for label in labels if label.irrelevant or label.reward)

    assert reactions(0.0)[True] == 0
    half = reactions(0.5)
    assert half[True] / half.total() == pytest.approx(0.5, abs=0.07)


def files(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Yield a folder of the benchmark with a world whose model was hardly pretrained."""
    work, small = tmp_path_factory.mktemp("work"), replace(WORLDS["habit"], sessions=12, max_new_tokens=12, samples=1)
    build(small, work / "worlds" / "habit", size="small", steps=2)
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(WORLDS, "habit", small)
        yield work


@pytest.fixture
def built(work: Path) -> Built:
    return built_in(work, "habit")


def test_a_seed_decides_every_byte(built: Built, tmp_path: Path) -> None:
    again = build(built.world, tmp_path / "again", size="small", steps=2)
    other = build(built.world, tmp_path / "other", size="small", steps=2, seed=1)
    assert files(again.folder) == files(built.folder)
    assert {"model/config.json", "model/model.safetensors", "logs/log.jsonl"} <= files(built.folder).keys()
    assert all(files(other.folder)[name] != data for name, data in files(built.folder).items()
               if name.endswith((".safetensors", "log.jsonl", "prompts.jsonl")))  # fmt: skip


def test_what_is_there_is_not_built_again(built: Built) -> None:
    before = {path: path.stat().st_mtime_ns for path in built.folder.rglob("*")}
    build(built.world, built.folder, size="small", steps=2)
    assert {path: path.stat().st_mtime_ns for path in built.folder.rglob("*")} == before


def test_a_folder_of_other_settings_is_refused(built: Built) -> None:
    with pytest.raises(ValueError, match="irrelevant"):
        build(built.world, built.folder, size="small", steps=2, irrelevant=0.5)


def test_a_model_is_shared_by_logs_with_other_reactions(built: Built, tmp_path: Path) -> None:
    noisy = build(built.world, tmp_path, size="small", steps=2, irrelevant=0.5, models_of=built)
    assert noisy.model.resolve() == built.model.resolve()
    assert noisy.labels.read_text(encoding="utf-8").count('"irrelevant": true')
    assert noisy.prompts.read_bytes() == built.prompts.read_bytes()


def test_held_out_prompts_are_not_in_the_log(built: Built) -> None:
    log = built.logs.joinpath("log.jsonl").read_text(encoding="utf-8")
    prompts = read_prompts(built.prompts)
    assert {p.corrected for p in prompts} == {True, False}
    assert not [p.id for p in prompts if json.dumps(p.messages[-1]["content"])[1:-1] in log]


def test_labels_are_those_of_the_turns(built: Built, tmp_path: Path) -> None:
    extract(ExtractConfig(run=tmp_path / "run", logs=(str(built.logs),)))
    turns = {t["turn_id"] for t in read_all(tmp_path / "run", "turns") if t["next_role"]}
    labels = [json.loads(line) for line in built.labels.read_text(encoding="utf-8").splitlines()]
    assert {label["turn_id"] for label in labels} == turns
    assert len(labels) == len(turns)


def test_accuracy_counts_both_kinds(built: Built, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each reply to a corrected prompt is replaced by the right one. The model's own replies are never right."""
    topics, (group,), check = {t.name: t for t in built.world.topics}, built.world.groups, runs.check_replies

    def right(prompt: HeldOutPrompt) -> str:
        topic = topics[prompt.domain]
        replies = map(topic.style(group.wishes[topic.name]).reply, topic.items)
        return next(text for text in replies if prompt.check.passes(text))

    monkeypatch.setattr(runs, "check_replies", lambda replies, config: check(
        [replace(r, seen=right(r.prompt)) if r.prompt.corrected else r for r in replies], config))  # fmt: skip
    found = measure.measure_model(built, built.model, 0)
    assert (found["corrected"], found["uncorrected"]) == (1.0, 0.0)
    assert found["prompt_tokens"] > found["reply_tokens"] > 0


def test_thinking_and_calls_are_logged_apart_from_text() -> None:
    from benchmarks.worlds.users import reply_message

    topic = WORLDS["thinking"].topics[0]
    logged = openai_message(reply_message(topic.styles[1].reply(topic.items[0]), 1))
    assert "<think>" not in logged["content"]
    assert logged["reasoning_content"]
    topic = WORLDS["tools"].topics[0]
    [call] = openai_message(reply_message(topic.styles[1].reply("A12"), 1))["tool_calls"]
    assert call["function"] == {"name": "track_order", "arguments": {"order_id": "A12"}}


# -- cells ----------------------------------------------------------------------------------------------------------


NOISY = ["habit-0.1", "groups-0.5"]


def numbers_of(cells) -> dict:
    """Return numbers of cells; those of a training at any rate but 3.2e-4 are worse than before."""
    kept = {cell.name: 0.9 if cell.settings.get("rate", 3.2e-4) == 3.2e-4 else 0.0 for cell in cells}
    return {cell.name: cell.settings | {"corrected": 0.8, "uncorrected": kept[cell.name]} for cell in cells}


def test_every_cell_has_its_own_name_and_the_default_other_seeds_than_the_search() -> None:
    assert SEARCH not in SEEDS
    first = first_cells(list(WORLDS), NOISY)
    found = numbers_of(first)
    last = last_cells(list(WORLDS), NOISY, found)
    tuned = [cell for cell in last if not cell.settings.get("again")]
    assert {(c.settings["seed"], c.settings["objective"], c.settings["rate"]) for c in tuned} == {
        (seed, DEFAULT, 3.2e-4) for seed in SEEDS
    }, "the rate that ended best"
    assert last[len(tuned) :] == seemingly_worse(first, found)
    names = [cell.name for cell in first + last]
    assert len(set(names)) == len(names)
    assert all(name == Path(name).name for name in names)
    tuned = [cell for cell in first if cell.settings.get("rate") or "way" in cell.settings]
    assert {cell.settings["seed"] for cell in tuned} == {SEARCH}
    own = [c for c in first if c.measure is trainings.measure_training and c.settings["rate"] is None]
    assert {(c.settings["world"], c.settings["seed"]) for c in own} == {
        (w, s) for w in (*WORLDS, *NOISY) for s in SEEDS
    }
    assert {built_in(Path("work"), cell.settings["world"]).world.name
            for cell in first if "world" in cell.settings} == set(WORLDS)  # fmt: skip


def test_what_seems_worse_is_measured_once_more() -> None:
    worse, better, refused, raw = (
        trainings.training_cell("habit", SEARCH, objective, 1e-3, source)
        for objective, source in (("opd", "run"), ("topk", "run"), ("distill", "run"), ("opd", "run-ways/reaction"))
    )
    before = trainings.before_cell("habit", SEARCH)
    lost = {"model": True, "corrected": 0.9, "uncorrected": 0.94}
    found = {before.name: {"corrected": 0.2, "uncorrected": 0.95}, worse.name: lost, raw.name: lost,
             better.name: lost | {"uncorrected": 0.946}, refused.name: {"model": False}}  # fmt: skip
    cells = seemingly_worse([worse, better, refused, raw], found)
    assert [cell.name for cell in cells] == [f"again-{before.name}", f"again-{worse.name}"]
    assert all(cell.settings["again"] for cell in cells)


def test_a_training_that_was_refused_is_never_the_best() -> None:
    values = (1e-4, 1e-3, 1e-2)
    cells = [trainings.training_cell("habit", SEARCH, DEFAULT, value) for value in values]
    found = dict(zip([cell.name for cell in cells], [
        {"model": False, "corrected": 1.0, "uncorrected": 1.0},
        {"model": True, "corrected": 0.0, "uncorrected": 0.3},
        {"model": False},
    ], strict=True))  # fmt: skip
    assert best(cells, found) == cells[1]
    found[cells[2].name] = {"corrected": 0.4, "uncorrected": 0.0}
    assert best(cells, found) == cells[2]
    del found[cells[0].name]
    assert best(cells, found) is None, "one is missing"


def test_rates_above_the_largest_one_of_opdkit_are_measured_once(
    work: Path, built: Built, monkeypatch: pytest.MonkeyPatch
) -> None:
    lower, highest = (trainings.training_cell("habit", SEARCH, "opd", rate) for rate in RATES[-2:])
    write_record(lower, {"model": True}, work)
    with monkeypatch.context() as patch:
        patch.setattr("opdkit.train.trust_region.MAX_RATE_TO_WEIGHTS", 1.0)  # weights are about 0.1 here
        copy_same_trainings(work, [lower, highest])
    assert recorded(highest, work) is None
    copy_same_trainings(work, [lower, highest, trainings.path_cell("habit", SEARCH, "opd", RATES[-1])])
    assert recorded(highest, work) == {"model": True}

    own, tuned = (trainings.training_cell("habit", SEEDS[0], DEFAULT, rate) for rate in (None, RATES[-2]))
    write_record(own, {"model": False}, work)
    copy_same_trainings(work, [own, trainings.again(tuned)])
    assert recorded(trainings.again(tuned), work) is None, "it is measured on other replies"
    copy_same_trainings(work, [tuned])
    assert recorded(tuned, work) == {"model": False}


def test_a_training_is_measured_and_its_run_removed(work: Path, built: Built, monkeypatch) -> None:
    run = measure.prepared(built, built.folder / "run")
    assert any(row["written"] is not None for row in read_all(run, "targets")), "as a user's run"
    monkeypatch.setattr(trainings.stage, "check_better", lambda *_: None)
    monkeypatch.setattr(trainings.stage, "find_best", lambda rows, **_: rows[-1])
    cell = trainings.training_cell("habit", 3, DEFAULT, 1e-3)
    numbers = cell.measure(work, **cell.settings)
    assert numbers["model"]
    assert 0 < numbers["peak_rate"] <= 1e-3
    assert numbers["tokens"]["trained"] > 0 < numbers["tokens"]["scored"]
    assert 0 <= numbers["corrected"] <= 1
    assert not list((work / "runs").iterdir())

    def refuse(config) -> None:
        raise OpdkitError("no better")

    monkeypatch.setattr(trainings.stage, "run", refuse)
    assert cell.measure(work, **cell.settings) == {"model": False}
    assert not list((work / "runs").iterdir())


def test_a_path_is_measured_to_its_end(work: Path, built: Built, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("MOST_SHARE", "MOST_KEPT_OUT"):  # the log is short
        monkeypatch.setattr(validation_turns, name, 0.5)
    measure.prepared(built, built.folder / "run")
    cell = trainings.path_cell("habit", SEARCH, DEFAULT, 1e-3)
    numbers = cell.measure(work, **cell.settings)
    assert numbers["error"] is None
    assert numbers["trained"] > 0
    steps = [mark["step"] for mark in numbers["marks"]]
    assert steps == sorted(set(steps))
    assert steps[0] == 0 < len(steps) - 1 <= len(trainings.MARKS)
    assert all({"score", "alarm", "corrected", "uncorrected"} <= mark.keys() for mark in numbers["marks"])


def test_a_world_is_judged_before_anything_trains(work: Path, built: Built) -> None:
    run = measure.prepared(built, built.folder / "run")
    right = measure.judged_right(built, run)
    assert right["turns"] >= right["hints"] > 0
    assert right["rewards_right"] > 0.5 < right["hints_right"]
