"""Runs with targets, scored by the real teacher stage with a tiny model: the input of training and evaluation."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from runs import Messages, talk, write_extract

from opdkit.chat.template import Chat
from opdkit.config.judge import JudgeConfig
from opdkit.config.teacher import TeacherConfig
from opdkit.config.train import TrainConfig
from opdkit.model.load import load_model, load_tokenizer
from opdkit.model.scoring import PromptResponse, response_logits
from opdkit.store.part_writer import Stage
from opdkit.store.tables import VERDICTS
from opdkit.teacher import stage as teacher
from opdkit.train import stage as train
from opdkit.train.objective.losses import logprobs_and_entropy
from opdkit.train.targets import Support, load_prompts, load_targets

# Options of a training in which only the objective moves the weights, and every turn is trained on.
ALONE = {"anchor_weight": 0.0, "step_limit": 0.0, "epsilon": 0.0, "validate": 0}
WORDS = "red green blue old new small big first last other".split()


@dataclass(frozen=True)
class Said:
    """Reply of a toy session, with its reward and hint."""

    reply: str
    reward: int | None = None
    hint: str | None = None


@dataclass(frozen=True)
class Toy:
    """Toy session: requests "say WORD" and their replies."""

    name: str  # part of each request
    replies: Sequence[Said]
    session: str = ""  # session id, if not `name`: sessions of one name have the same prompts

    @property
    def session_id(self) -> str:
        return self.session or self.name

    def messages(self) -> Messages:
        asked = [f"say {WORDS[n % len(WORDS)]} ({self.name})" for n in range(len(self.replies))]
        return talk(
            *(text for ask, said in zip(asked, self.replies, strict=True) for text in (ask, said.reply)), "thanks"
        )

    def verdicts(self) -> list[dict[str, Any]]:
        return [_verdict(f"{self.session_id}:{2 * n + 1}", said) for n, said in enumerate(self.replies)]


def toy_sessions(count: int, replies: int = 2) -> list[Toy]:
    """Return sessions with every mixture of reward and hint, and replies of many lengths."""
    said = []
    for n in range(count * replies):
        hint = f"Say it in {WORDS[n % 10]} letters." if n % 3 else None
        reward = (1, -1, 0, None)[n % 4] if hint else (1, -1)[n % 2]  # a target has a hint or a reward
        said.append(Said(" ".join(WORDS[(n + i) % 10] for i in range(1 + n % 5)), reward, hint))
    return [Toy(f"toy-{s}", said[s * replies : (s + 1) * replies]) for s in range(count)]


def write_run(
    run: Path,
    model_dir: Path,
    toys: Sequence[Toy],
    *,
    per_part: int = 4,
    support: int = 3,
    samples: int = 0,
    load_in_4bit: bool = False,
    turns: Mapping[str, Mapping[str, Any]] | None = None,
    metadata: Mapping[str, Mapping[str, Any]] | None = None,
) -> Path:
    """Write the extract, judge and teacher stages of a run, with `support` tokens at each position.

    The teacher samples `samples` replies per hint.
    `turns` (turn_id -> fields) overrides fields of the turns table; `metadata` adds to the metadata of sessions.
    """
    messages = {toy.session_id: toy.messages() for toy in toys}
    write_extract(run, messages, per_part=per_part, turns=turns, metadata=metadata)
    parts = [toys[i : i + per_part] for i in range(0, len(toys), per_part)]
    config = JudgeConfig(run=run, judge="rules", shard="0/1")
    judge = Stage.open(config, "judge", [VERDICTS], parts=len(parts), upstream=["extract"])
    for part, some in enumerate(parts):
        with judge.writing(part) as out:
            out.add_rows("verdicts", [row for toy in some for row in toy.verdicts()])
    teacher.run(TeacherConfig(run=run, model=str(model_dir), device="cpu", top_k=support,
                              teacher_samples=samples, load_in_4bit=load_in_4bit, shard="0/1"))  # fmt: skip
    return run


def train_config(run: Path, model: Path, **options: Any) -> TrainConfig:
    """Return the options of a training: the simplest objective alone, at a rate whose effect shows at once."""
    defaults = {"objective": "opd", "batch_turns": 4, "epochs": 1, "learning_rate": 1e-2, "device": "cpu"}
    return TrainConfig(run=run, model=str(model), **(defaults | ALONE | options))


def _verdict(turn_id: str, said: Said) -> dict[str, Any]:
    return {
        "turn_id": turn_id,
        "hint_votes": [],
        "reward_votes": [],
        "reward": said.reward,
        "reward_status": "no_quorum" if said.reward is None else "ok",
        "reward_agreement": None,
        "hints": [said.hint] if said.hint else [],
        "hint": said.hint,
        "hint_status": "ok" if said.hint else "none",
    }


def train_and_kill(config: TrainConfig, steps: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Start a training that is interrupted after `steps` optimizer steps."""
    step, seen = train.take_optimizer_step, []

    def killed(*args):
        if len(seen) == steps:
            raise KeyboardInterrupt
        seen.append(1)
        return step(*args)

    monkeypatch.setattr(train, "take_optimizer_step", killed)
    with pytest.raises(KeyboardInterrupt):
        train.run(config)
    monkeypatch.setattr(train, "take_optimizer_step", step)


def read_supports(run: Path, model: Path) -> dict[str, tuple[Support, np.ndarray]]:
    """Return turn_id -> (support with the teacher's log-probs, log-probs of the support's tokens under `model`)."""
    turns = [t for t in load_targets(run, supports="needed") if t.support and t.support.teacher is not None]
    prompts = load_prompts(run, turns, Chat(load_tokenizer(str(model)), {}))
    loaded = load_model(str(model), device="cpu", dtype="float32")
    found = {}
    with torch.no_grad():
        for t in turns:
            logits = response_logits(loaded, [PromptResponse(prompts[t.turn_id].tolist(), t.response_ids.tolist())])
            values = logprobs_and_entropy(logits, torch.from_numpy(t.support.ids.astype(np.int64)))[0]
            found[t.turn_id] = t.support, values.numpy()
    return found
