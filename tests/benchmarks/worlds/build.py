"""Builds a world: its model, its log, its held-out prompts, and the truth about the log."""

import json
import random
from dataclasses import asdict, dataclass, field
from pathlib import Path

from opdkit.chat.openai_messages import Message, openai_message
from opdkit.chat.template import Chat
from opdkit.config.fields import JSON
from opdkit.model.load import load_model, load_tokenizer, token_generator
from opdkit.model.sampling import Request, sample

from .pretraining import pretrain
from .small_talk import SMALL_TALK
from .users import Ask, Conversation, Labels, Talk, converse
from .world import World

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
) -> Built:
    """Make what is missing of a world in `folder`. The same arguments make the same bytes."""
    built = Built(world, folder)
    if not (built.model / "config.json").exists():
        pretrain(built.model, world, size or world.size, seed, steps)
    if not built.labels.exists():  # the last file that is written
        built.logs.mkdir(parents=True, exist_ok=True)
        writer, model = world, built.model
        if world.writer:
            writer, model = world.writer, folder / "writer"
            pretrain(model, writer, writer.size, seed, steps)
        sessions = play(writer, model, irrelevant, seed)
        _write(built.logs / "log.jsonl", [_line(messages, k, writer) for k, (messages, _) in enumerate(sessions, 1)])
        _write(built.prompts, held_out_prompts(world, seed))
        _write(built.labels, [
            {"turn_id": f"log:{k}:{index}", **asdict(label)}
            for k, (_, labels) in enumerate(sessions, 1)
            for index, label in labels.items()
        ])  # fmt: skip
    return built


def _write(path: Path, rows: list[JSON]) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


def _line(messages: list[Message], number: int, world: World) -> JSON:
    tools = {"tools": list(world.tools)} if world.tools else {}
    return {"id": f"chat-{number}", "model": world.name, "messages": [_logged(m) for m in messages], **tools}


def _logged(row: Message) -> Message:
    message = openai_message(row, arguments_as_text=True)
    return {key: value for key, value in message.items() if key != "thinking"}  # reasoning_content says the same


def play(world: World, folder: Path, irrelevant: float, seed: int) -> list[tuple[list[Message], Labels]]:
    """Return conversations with the pretrained model, sampled at temperature 1, all of them one step at a time."""
    model = load_model(str(folder), device="cpu", dtype="float32")
    chat = Chat(load_tokenizer(str(folder)), {}, model.generation_config.eos_token_id)
    tools = json.dumps(world.tools)
    talks: dict[int, Conversation] = {}
    asks: dict[int, Ask] = {}
    played: dict[int, tuple[list[Message], Labels]] = {}
    for k in range(world.sessions):
        rng = random.Random(f"log:{seed}:{k}")
        group = world.groups[k % len(world.groups)]
        talk = Talk(world.topics, group.wishes, rng.choice(world.turns), irrelevant, system=rng.choice(group.systems))
        talks[k] = converse(talk, rng)
        asks[k] = next(talks[k])
    while asks:
        requests = [
            Request(chat.prompt_ids(ask.messages, tools), [token_generator(seed, "log", k, len(ask.messages))])
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
    """Return first requests about items that neither the log nor pretraining has, with the check of the log's users."""
    rows = []
    for group_number, group in enumerate(world.groups):
        asked = [(topic, group.wishes[topic.name]) for topic in world.topics if topic.name in group.wishes]
        for topic, style in [*asked, *((topic, topic.styles[0].name) for topic in SMALL_TALK)]:
            corrected = topic in world.topics
            kind = len(asked) if corrected else len(SMALL_TALK)
            rng = random.Random(f"prompts:{seed}:{group_number}:{topic.name}")
            wordings = [(item, request) for item in topic.asked_items(held_out=True) for request in topic.requests]
            count = HELD_OUT_PROMPTS // kind // len(world.groups)
            for number, (item, request) in enumerate(rng.sample(wordings, min(count, len(wordings)))):
                system = rng.choice(group.systems)
                messages = [{"role": "system", "content": system}] if system else []
                rows.append({
                    "id": f"{topic.name}-{group_number}-{number}", "domain": topic.name,
                    "check": topic.check(item, style), "corrected": corrected, "about": topic.about,
                    "messages": [*messages, {"role": "user", "content": request.format(item)}],
                })  # fmt: skip
    return rows
