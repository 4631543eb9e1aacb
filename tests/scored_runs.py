"""Runs with sessions and targets, scored for real with a tiny model: what training and evaluation start from."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from opdkit.chat import Chat, with_hint
from opdkit.models import load_model, load_tokenizer
from opdkit.scoring import Sequence, score
from opdkit.stages import ExtractConfig, TeacherConfig
from opdkit.store import Stage, model_identity
from opdkit.tables import REJECTED, SESSIONS, TARGETS, TURNS

WORDS = "red green blue old new small big first last other".split()


@dataclass
class Said:
    """One reply of a toy session, and what was made of it."""

    reply: str
    reward: int | None = None
    hint: str | None = None


@dataclass
class Toy:
    """A toy session: replies to "say WORD" one after the other."""

    session_id: str
    replies: list[Said] = field(default_factory=list)

    def messages(self) -> list[dict[str, Any]]:
        found = []
        for n, said in enumerate(self.replies):
            found += [message("user", f"say {WORDS[n % len(WORDS)]} ({self.session_id})")]
            found += [message("assistant", said.reply)]
        return [*found, message("user", "thanks")]


def message(role: str, content: str) -> dict[str, Any]:
    nothing = {"reasoning": None, "name": None, "tool_call_id": None, "tool_calls": []}
    return {"role": role, "content": content, **nothing}


def toy_sessions(count: int = 8, replies: int = 2) -> list[Toy]:
    """Every mixture of reward and hint, replies of many lengths."""
    rewards, toys = (1, -1, 0, None), []
    for s in range(count):
        said = []
        for r in range(replies):
            n = s * replies + r
            hint = f"Say it in {WORDS[n % 10]} letters." if n % 3 else None
            reward = rewards[n % 4] if hint else (1, -1)[n % 2]  # a target has a hint or a reward
            said.append(Said(" ".join(WORDS[(n + i) % 10] for i in range(1 + n % 5)), reward, hint))
        toys.append(Toy(f"toy-{s}", said))
    return toys


def write_run(run: Path, model_dir: Path, toys: list[Toy], parts: int = 2) -> Path:
    """The extract and teacher stages of a run, as the commands leave them."""
    model = load_model(str(model_dir), device="cpu", dtype="float32")
    chat = Chat(load_tokenizer(str(model_dir)), {})
    extract = Stage.open(
        ExtractConfig(run=run, logs=("toys",), shard="0/1"), "extract", [SESSIONS, TURNS, REJECTED], parts=parts
    )
    for part in range(parts):
        with extract.writing(part) as out:
            out.rows("sessions", [_session_row(toy) for toy in toys[part::parts]])
    config = TeacherConfig(run=run, model=str(model_dir), shard="0/1")
    identity = model_identity(str(model_dir))
    teacher = Stage.open(config, "teacher", [TARGETS], parts=parts, inputs={"model": identity},
                         upstream=["extract"])  # fmt: skip
    for part in range(parts):
        with teacher.writing(part) as out:
            out.rows("targets", [row for toy in toys[part::parts] for row in _target_rows(toy, chat, model)])
    return run


def _session_row(toy: Toy) -> dict[str, Any]:
    return {
        "session_id": toy.session_id,
        "source": "toys",
        "line": 1,
        "format": "openai",
        "model": None,
        "messages": toy.messages(),
        "tools": None,
        "metadata": None,
    }


def _target_rows(toy: Toy, chat: Chat, model: Any) -> list[dict[str, Any]]:
    rows, messages = [], toy.messages()
    for n, said in enumerate(toy.replies):
        index = 2 * n + 1
        prompt, reply = chat.prompt_ids(messages[:index]), chat.reply(messages, index)
        hinted = with_hint(messages[:index], said.hint, "last-user") if said.hint else None
        sequences = [Sequence(prompt, reply.ids)]
        sequences += [Sequence(chat.prompt_ids(hinted), reply.ids)] if hinted else []
        old, *teacher = (x.tolist() for x in score(model, sequences, batch_tokens=4096))
        rows.append({
            "turn_id": f"{toy.session_id}:{index}", "prompt_tokens": len(prompt), "cut_messages": 0,
            "response_ids": reply.ids, "response_mask": reply.mask, "old_logprobs": old,
            "teacher_logprobs": teacher[0] if teacher else None, "hint": said.hint, "reward": said.reward,
        })  # fmt: skip
    return rows
