"""Build a world: its model, its log, its held-out prompts, and the truth about the log."""

import json
import random
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path

import torch

from opdkit.chat.messages import message
from opdkit.chat.openai_messages import Message, openai_message
from opdkit.chat.template import Chat
from opdkit.config.fields import JSON
from opdkit.model.load import load_model, load_tokenizer
from opdkit.model.random_streams import make_random_stream
from opdkit.model.sampling import Request, sample
from opdkit.store.atomic import replaced_folder, write_text

from .pretraining import pretrain
from .small_talk import small_talk_of
from .users import Ask, Conversation, Labels, Talk, converse, reply_message
from .world import Topic, World

HELD_OUT_PROMPTS = 48  # of each kind, corrected or not


@dataclass(frozen=True)
class Built:
    """Files of a world that was built."""

    world: World
    folder: Path
    model: Path = field(init=False)
    logs: Path = field(init=False)
    prompts: Path = field(init=False)
    labels: Path = field(init=False)

    def __post_init__(self) -> None:
        for name in ("model", "logs", "prompts.jsonl", "labels.jsonl"):
            object.__setattr__(self, name.removesuffix(".jsonl"), self.folder / name)


def build(
    world: World,
    folder: Path,
    *,
    size: str | None = None,
    irrelevant: float = 0.0,
    seed: int = 0,
    steps: int | None = None,
    models_of: Built | None = None,
) -> Built:
    """Make what a world in `folder` lacks; the same arguments make the same bytes.

    `irrelevant`: share of the users' reactions that have nothing to do with the reply. `steps`: of pretraining; by
    default those of the size. `models_of`: a build of the same world, size and seed, whose models are reused. Raise
    ValueError if the folder was built with other arguments.
    """
    built = Built(world, folder)
    settings = {"world": world.name, "size": size or world.size, "irrelevant": irrelevant, "seed": seed, "steps": steps}
    record = folder / "settings.json"
    if not record.exists():
        folder.mkdir(parents=True, exist_ok=True)
        write_text(record, json.dumps(settings))
    elif json.loads(record.read_text(encoding="utf-8")) != settings:
        raise ValueError(f"{folder} was built with other settings: {record.read_text(encoding='utf-8')}")
    models = {"model": world} | ({"writer": world.writer} if world.writer else {})
    for name, pretrained in models.items():
        if not (folder / name).exists() and models_of:
            (folder / name).symlink_to((models_of.folder / name).resolve(), target_is_directory=True)
        elif not (folder / name).exists():
            with _one_thread(), replaced_folder(folder / name) as unfinished:
                pretrain(unfinished, pretrained, size or pretrained.size, seed, steps)
    if not built.labels.exists():  # the file that is written last
        with _one_thread():
            sessions = play(world.writer or world, folder / ("writer" if world.writer else "model"), irrelevant, seed)
        lines = [_line(messages, k, world.writer or world) for k, (messages, _) in enumerate(sessions, 1)]
        labels = [
            {"turn_id": f"log:{k}:{index}", **asdict(label)}
            for k, (_, labels) in enumerate(sessions, 1)
            for index, label in labels.items()
        ]
        built.logs.mkdir(exist_ok=True)
        for path, rows in (
            (built.logs / "log.jsonl", lines),
            (built.prompts, held_out_prompts(world, seed)),
            (built.labels, labels),
        ):
            write_text(path, "".join(json.dumps(row) + "\n" for row in rows))
    return built


@contextmanager
def _one_thread() -> Iterator[None]:
    """Compute with one thread, so that sums, and with them all bytes, do not depend on the number of cores."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def _line(messages: list[Message], number: int, world: World) -> JSON:
    tools = {"tools": list(world.tools)} if world.tools else {}
    return {"id": f"chat-{number}", "model": world.name, "messages": [_logged(m) for m in messages], **tools}


def _logged(row: Message) -> Message:
    message = openai_message(row, arguments_as_text=True)
    return {key: value for key, value in message.items() if key not in ("thinking", "reasoning")}  # kept under one name


def play(world: World, folder: Path, irrelevant: float, seed: int) -> list[tuple[list[Message], Labels]]:
    """Sample conversations with the pretrained model at temperature 1, one reply of each at a time."""
    model = load_model(str(folder), device="cpu", dtype="float32")
    chat = Chat(load_tokenizer(str(folder)), {}, model.generation_config.eos_token_id)
    tools = json.dumps(world.tools)
    talks: dict[int, Conversation] = {}
    asks: dict[int, Ask] = {}
    played: dict[int, tuple[list[Message], Labels]] = {}
    for k in range(world.sessions):
        rng = random.Random(f"log:{seed}:{k}")
        group = world.groups[k % len(world.groups)]
        topics = world.topics if group.topics is None else group.topics
        talk = Talk(topics, group.wishes, rng.choice(world.turns), irrelevant, system=rng.choice(group.systems),
                    small_talk=small_talk_of(world))  # fmt: skip
        talks[k] = converse(talk, rng)
        asks[k] = next(talks[k])
    while asks:
        requests = [
            Request(chat.prompt_ids(ask.messages, tools), [make_random_stream(seed, "log", k, len(ask.messages))])
            for k, ask in asks.items()
        ]
        replies = sample(model, requests, temperature=1.0, max_new_tokens=world.max_new_tokens, stop_ids=chat.stop_ids,
                         batch_tokens=16384)  # fmt: skip
        for k, [reply] in zip(list(asks), replies, strict=True):
            ids = reply.ids[:-1] if reply.finish_reason == "stop" else reply.ids
            try:
                asks[k] = talks[k].send(chat.text(ids))
            except StopIteration as end:
                played[k] = (asks.pop(k).messages, end.value)
    return [played[k] for k in range(world.sessions)]


def held_out_prompts(world: World, seed: int) -> list[JSON]:
    """Return requests about held-out items with the checks of the log's users, on corrected and uncorrected topics.

    Nobody corrects small talk and, in worlds with tools, what the assistant says after a right call.
    """
    rows: list[JSON] = []
    for number, group in enumerate(world.groups):
        wished = [(topic, group.wishes[topic.name]) for topic in world.topics]
        called = [(topic, wish) for topic, wish in wished if topic.tool]
        small = [(topic, topic.styles[0].name) for topic in small_talk_of(world)]
        for corrected, asked in ((True, wished), (False, [*small, *called])):
            for topic, wish in asked:
                rng = random.Random(f"prompts:{seed}:{number}:{corrected}:{topic.name}")
                count = HELD_OUT_PROMPTS // len(asked) // len(world.groups)
                questions = [(i, r) for i in topic.asked_items(held_out=True) for r in topic.requests]
                for k, (item, request) in enumerate(rng.sample(questions, min(count, len(questions)))):
                    system = rng.choice(group.systems)
                    messages = [message("system", system)] if system else []
                    messages.append(message("user", request.format(item)))
                    rows.append(_prompt(f"{number}-{k}", topic, item, wish, corrected, messages))
    return [row | {"tools": list(world.tools)} if world.tools else row for row in rows]


def _prompt(name: str, topic: Topic, item: str, wish: str, corrected: bool, messages: list[Message]) -> JSON:
    """Return a row of the prompts file; if the topic has a tool and is not `corrected`, the prompt has a right call."""
    if topic.tool and not corrected:
        messages = [*messages, reply_message(topic.style(wish).reply(item), len(messages))]
        call_id = messages[-1]["tool_calls"][0]["id"]
        messages.append(message("tool", topic.tool.run(item), tool_call_id=call_id))
        topic = topic.tool.answer
        wish = topic.styles[0].name
    return {"id": f"{topic.name}-{name}", "domain": topic.name, "check": topic.check(item, wish),
            "corrected": corrected, "wish": wish, "about": topic.about,
            "messages": [_logged(m) for m in messages]}  # fmt: skip
