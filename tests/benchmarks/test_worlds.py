"""Worlds of the learning benchmark: held-out items stay out, labels are those of the turns, a seed decides all."""

import json
import random
from collections import Counter
from dataclasses import replace
from itertools import islice
from pathlib import Path

import pytest
import torch
from benchmarks.worlds import WORLDS, Built, World, build, measure
from benchmarks.worlds.pretraining import encode, lessons, make_tokenizer
from benchmarks.worlds.users import Talk, answer_by_habit, converse, hint_of
from benchmarks.worlds.world import passes

from opdkit.chat.messages import message
from opdkit.chat.openai_messages import openai_message
from opdkit.chat.template import Chat
from opdkit.config.extract import ExtractConfig
from opdkit.evaluate.checks import read_prompts
from opdkit.extract.stage import run as extract
from opdkit.judge.rules import judge
from opdkit.store.reading import read_all

pytestmark = pytest.mark.skipif(not hasattr(torch.optim, "Muon"), reason="the worlds are made with torch 2.9 or newer")


def wishes(world: World) -> list[tuple]:
    """Return (topic, wished style) of every group of users."""
    return [(t, group.wishes[t.name]) for group in world.groups for t in world.topics if t.name in group.wishes]


def scripted(world: World, seed: int, irrelevant: float) -> tuple[list, dict]:
    """Return a conversation in which the model answers as it is taught, and its labels."""
    rng = random.Random(seed)
    group = rng.choice(world.groups)
    talk = converse(Talk(world.topics, group.wishes, 4, irrelevant, system=group.systems[0]), rng)
    ask = next(talk)
    try:
        while True:
            ask = talk.send(answer_by_habit(ask, rng))
    except StopIteration as end:
        return ask.messages, end.value


def test_there_are_eight_worlds_of_three_sizes() -> None:
    assert {world.size for world in WORLDS.values()} == {"small", "medium", "large"}
    assert len(WORLDS) == 8
    assert sum(world.aside for world in WORLDS.values()) == 2


@pytest.mark.parametrize("world", WORLDS.values(), ids=WORLDS)
def test_checks_tell_what_is_wanted_from_all_else(world: World) -> None:
    for topic, wish in wishes(world):
        for item in topic.items[:20]:
            assert [s.name for s in topic.styles if passes(topic, item, wish, s.reply(item))] == [wish]


@pytest.mark.parametrize("world", WORLDS.values(), ids=WORLDS)
def test_pretraining_never_shows_what_is_held_out(world: World) -> None:
    held_out = {request.format(item) for topic in world.topics for item in topic.held_out for request in topic.requests}
    said = [m["content"] or "" for lesson in islice(lessons(world, random.Random(0)), 300) for m in lesson.messages]
    assert held_out
    assert not [text for text in said for request in held_out if request in text]


@pytest.mark.parametrize("world", WORLDS.values(), ids=WORLDS)
def test_lessons_are_rendered_as_opdkit_renders_prompts(world: World) -> None:
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
            read = judge(messages, index, (ends or [len(messages)])[0] - index - 1)
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
def built(tmp_path_factory: pytest.TempPathFactory) -> Built:
    """World that was hardly pretrained."""
    return build(replace(WORLDS["habit"], sessions=12, max_new_tokens=12), tmp_path_factory.mktemp("world"),
                 size="small", steps=2)  # fmt: skip


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


def test_accuracy_counts_both_kinds(built: Built) -> None:
    found = measure.accuracy(built.model, built.prompts, 0, samples=1, max_new_tokens=4)
    assert found == {"corrected": 0.0, "uncorrected": 0.0}


def test_thinking_and_calls_are_logged_apart_from_text() -> None:
    from benchmarks.worlds.users import reply_message

    topic = WORLDS["thinking"].topics[0]
    logged = openai_message(reply_message(topic.styles[1].reply(topic.items[0]), 1))
    assert "<think>" not in logged["content"]
    assert logged["reasoning_content"]
    topic = WORLDS["tools"].topics[0]
    [call] = openai_message(reply_message(topic.styles[1].reply("A12"), 1))["tool_calls"]
    assert call["function"] == {"name": "track_order", "arguments": {"order_id": "A12"}}
