"""On-policy validation: replies that the student writes now, under the hinted teacher and under itself before training.

What a training breaks shows in no logged reply: the student no longer writes those. So replies are sampled to prompts
of sessions that are kept out of training. After a prompt whose logged reply was complained of, the reply is compared
with the student before training that reads the hint; after any other prompt, with the student before training. The
mean KL per reply of both is the score, in which a reply counts at most CAP; less is better. It is the loss of on-policy
distillation (GKD, Agarwal et al. 2024), and the KL to the base that forgetting grows with (Shenfeld et al. 2025).
"""

import contextlib
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from accelerate import Accelerator
from accelerate.utils import gather_object
from torch import nn

from opdkit.chat.hint_placement import with_hint
from opdkit.chat.markup import split_calls
from opdkit.chat.template import Chat
from opdkit.config.fields import JSON
from opdkit.config.train import TrainConfig
from opdkit.model.comparison import kl_shifts
from opdkit.model.load import context_length, load_model, resolve_device, token_generator
from opdkit.model.loops import ends_in_loop
from opdkit.model.sampling import Request, Sample, sample
from opdkit.model.scoring import PromptResponse
from opdkit.model.tree_reading import read_trees
from opdkit.store.plans import manifest, recorded_hint_text
from opdkit.store.reading import part_count, read_arrow, read_part
from opdkit.store.stable_hash import stable_hash
from opdkit.store.turn_ids import logged_session_id
from opdkit.train import checkpoints
from opdkit.train.best_state import best
from opdkit.train.student import compute_dtype
from opdkit.train.targets import Turn, prompt_messages

# Shares and counts, beside the limit of --validate.
MOST_SHARE = 0.1  # of the turns of a kind are kept out of training for validation, at most
FEWEST = 3  # with fewer prompts than this of a kind there is no validation
SAMPLES = 2  # replies to each prompt
CAP = 10.0  # nats that one reply counts at most: of few replies, one absurd one says little
COST = 0.12  # share of the training's tokens that validation may read and write
CHECKS = 3  # the fewest measurements; that before training comes to them, and costs half
_LONGEST, _ROOM = 512, 1.25  # tokens of a sampled reply: up to 1.25 times the longest logged one


@dataclass(frozen=True)
class ValidationPrompt:
    """Prompt of a logged turn as the student reads it, and as the teacher does: with the hint, or the same."""

    turn_id: str
    prompt_ids: list[int]
    teacher_ids: list[int]
    hinted: bool


@dataclass(frozen=True)
class Validation:
    """Prompts that the student is validated on, and the tokens that a training may spend on it."""

    prompts: Sequence[ValidationPrompt]
    cost: int  # tokens that a measurement reads and writes, where replies are as long as the logged ones
    max_new_tokens: int
    chat: Chat
    config: TrainConfig
    accelerator: Accelerator
    base: Any  # the student before training

    def measure(self, student: nn.Module, step: int) -> JSON:
        """Return the row of the table `validations` for the student after `step` steps (0: before training).

        The random stream of a prompt's reply is always the same: only the student differs. Before training, prompts
        that nobody complained of say nothing: the student is at no distance from itself.
        """
        accelerator, config = self.accelerator, self.config
        hinted = [prompt for prompt in self.prompts if prompt.hinted]
        prompts = hinted if hinted and not step else self.prompts
        half = compute_dtype(config) == torch.bfloat16
        autocast = torch.autocast(resolve_device(config.device).type, dtype=torch.bfloat16, enabled=half)
        mine = prompts[accelerator.process_index :: accelerator.num_processes]
        with _evaluating(student) as model, autocast:
            results, tokens = self._measure(model, mine) if mine else ([], 0)
        row = _row(gather_object(results), sum(gather_object([tokens])), step)
        return row if step or len(hinted) == len(self.prompts) else row | {"kept_kl": 0.0}

    def _measure(self, student: Any, prompts: Sequence[ValidationPrompt]) -> tuple[list[JSON], int]:
        """Return the results of the replies to `prompts`, and the tokens that both models read and wrote for them."""
        size = self.config.micro_batch_tokens
        answered = [(p, reply) for p, replies in zip(prompts, self._sample(student, prompts), strict=True)
                    for reply in replies if reply.ids]  # fmt: skip
        read = [PromptResponse(p.prompt_ids, reply.ids) for p, reply in answered]
        teacher_reads = [PromptResponse(p.teacher_ids, reply.ids) for p, reply in answered]
        trees = read_trees([(student, read), (self.base, teacher_reads)], size)
        shifts = kl_shifts(student, self.base, read, size, teacher_reads, trees.batch)
        results = []
        for (prompt, reply), shift in zip(answered, shifts, strict=True):
            results.append({
                "hinted": prompt.hinted,
                "kl": min(shift.kl, CAP) if math.isfinite(shift.kl) else CAP,
                "ended": reply.finish_reason == "stop",
                "looped": ends_in_loop(np.array(reply.ids, np.int32)),
                "broke_call": _breaks_call(self.chat.text(reply.ids)),
            })  # fmt: skip
        sampled = sum(len(p.prompt_ids) for p in prompts) + sum(len(reply.ids) for _, reply in answered)
        return results, sampled + trees.tokens

    def _sample(self, student: Any, prompts: Sequence[ValidationPrompt]) -> list[list[Sample]]:
        """Return the replies to each prompt; one that does not fit into memory has no tokens."""
        streams = [
            [token_generator(self.config.seed, "validation", p.turn_id, g) for g in range(SAMPLES)] for p in prompts
        ]
        return sample(student, [Request(p.prompt_ids, some) for p, some in zip(prompts, streams, strict=True)],
                      temperature=1.0, max_new_tokens=self.max_new_tokens, stop_ids=self.chat.stop_ids,
                      batch_tokens=self.config.micro_batch_tokens)  # fmt: skip


@dataclass
class Validations:
    """Measurements of a training so far, and the file of its best state."""

    validation: Validation
    steps: int  # of the whole training
    folder: Path  # of the checkpoints
    rows: list[JSON]

    def measure(self, student: nn.Module, step: int) -> JSON:
        """Return the row of the student after `step` steps, and keep its weights where it is the best state so far."""
        row = self.validation.measure(student, step)
        self.rows.append(row)
        if step < self.steps and best(self.rows) is row:
            main = self.validation.accelerator.is_main_process
            checkpoints.save_best(self.folder, student, step, main=main)
        return row

    def restore_best(self, student: nn.Module) -> int:
        """Load the weights of the best state into the student. Return the number of its steps."""
        step: int = best(self.rows)["step"]
        self.validation.accelerator.wait_for_everyone()  # until the file is written
        checkpoints.restore_best(self.folder, student, step)
        return step


@contextlib.contextmanager
def _evaluating(student: Any) -> Iterator[Any]:
    """Yield the model that is in training, without the wrapper of its adapters, in evaluation mode."""
    student.eval()
    try:
        yield student.get_base_model() if hasattr(student, "get_base_model") else student
    finally:
        student.train()


def _breaks_call(text: str) -> bool:
    """Return True for a reply with a tool call that cannot be read."""
    return "<tool_call>" in split_calls(text)[0]


def _row(results: Sequence[JSON], tokens: int, step: int) -> JSON:
    """Return the row of `validations` from the results of all replies, for which `tokens` were read."""

    def mean(name: str, hinted: bool | None = None) -> float | None:
        values = [float(r[name]) for r in results if hinted is None or r["hinted"] == hinted]
        return sum(values) / len(values) if values else None

    hint_kl, kept_kl = mean("kl", hinted=True), mean("kl", hinted=False)
    return {"step": step, "replies": len(results), "hint_kl": hint_kl, "kept_kl": kept_kl,
            "score": (hint_kl or 0.0) + (kept_kl or 0.0), "ended": mean("ended"), "looped": mean("looped"),
            "broke_call": mean("broke_call"), "tokens_read": tokens}  # fmt: skip


# -- prompts --------------------------------------------------------------------------------------------------------


def choose_turns(turns: Sequence[Turn], most: int, epochs: int) -> list[Turn]:
    """Return the turns whose prompts the student is validated on: at most `most` with a hint, and as many without.

    They come from whole sessions, drawn by a hash of their ids, which train on nothing. A kind with too few turns is
    left out, and the list is empty where that is the kind with hints. It is short enough that CHECKS measurements cost
    at most COST of the training's tokens, but has at least FEWEST turns of each kind.
    """
    kinds = {kind: [t for t in turns if _kind(t) == kind] for kind in ("hinted", "kept")}
    wanted = {kind: min(most, int(MOST_SHARE * len(members))) for kind, members in kinds.items()}
    wanted = {kind: number for kind, number in wanted.items() if number >= FEWEST}
    if kinds["hinted"] and "hinted" not in wanted:
        return []
    room = COST * tokens_to_train(turns, epochs) / (CHECKS + 0.5)
    members: dict[str, list[Turn]] = {}
    for turn in turns:
        members.setdefault(logged_session_id(turn.session_id), []).append(turn)
    chosen: dict[str, list[Turn]] = {kind: [] for kind in wanted}
    cost = 0
    for session in sorted(members, key=lambda s: stable_hash(f"validation:{s}")):
        for turn in members[session]:
            kind = _kind(turn)
            if kind not in chosen or len(chosen[kind]) == wanted[kind]:
                continue
            if cost + _cost(turn) <= room or len(chosen[kind]) < FEWEST:
                chosen[kind].append(turn)
                cost += _cost(turn)
    return [turn for some in chosen.values() for turn in some]


def _cost(turn: Turn) -> int:
    """Return the tokens of replies to the prompt of a turn: read and written to sample them, and read by two models."""
    return 3 * (turn.prompt_tokens + SAMPLES * len(turn.response_ids))


def _kind(turn: Turn) -> str | None:
    """Return "hinted", "kept" for a turn that nobody complained of, or None for any other."""
    if turn.written is not None or not turn.sampled.any():
        return None
    if turn.teacher_logprobs is not None:
        return "hinted"
    return "kept" if (turn.reward or 0) >= 0 else None


def tokens_to_train(turns: Sequence[Turn], epochs: int) -> int:
    """Estimate the tokens that a training reads: turns of a session share almost all of their beginnings."""
    longest: dict[str, int] = {}
    for turn in turns:
        longest[turn.session_id] = max(longest.get(turn.session_id, 0), len(turn))
    return epochs * (sum(longest.values()) + sum(len(turn.response_ids) for turn in turns) // 2)


def open_validation(turns: Sequence[Turn], chat: Chat, config: TrainConfig, accelerator: Accelerator) -> Validation:
    """Render the prompts of `turns`, and load the student before training beside the one in training.

    Prompts that leave no room for a reply are left out.
    """
    by_session: dict[str, list[Turn]] = {}
    for turn in turns:
        by_session.setdefault(turn.session_id, []).append(turn)
    longest = max(len(turn.response_ids) for turn in turns)
    room, prompts = min(_LONGEST, int(_ROOM * longest) + 1), list[ValidationPrompt]()
    base = load_model(config.model, device=config.device, dtype=config.dtype)
    context = context_length(base)
    placement = manifest(config.run, "teacher")["plan"]["config"]["hint_placement"]
    hint_text = recorded_hint_text(config.run)
    for part in range(part_count(config.run, "teacher")):
        hints = {
            row["turn_id"]: row["hint"]
            for row in read_arrow(config.run, "targets", part, ["turn_id", "written", "hint"]).to_pylist()
            if row["written"] is None
        }
        for session in read_part(config.run, "sessions", part):
            for turn in by_session.get(session["session_id"], ()):
                messages, hint = prompt_messages(session, turn), hints[turn.turn_id]
                ids = teacher_ids = chat.prompt_ids(messages, session["tools"])
                if hint is not None:
                    teacher_ids = chat.prompt_ids(with_hint(messages, hint, placement, hint_text), session["tools"])
                if max(len(ids), len(teacher_ids)) + room <= context:
                    prompts.append(ValidationPrompt(turn.turn_id, ids, teacher_ids, hint is not None))
    return Validation(prompts, sum(map(_cost, turns)), room, chat, config, accelerator, base)


def steps_to_check(steps: int, tokens: int, cost: int) -> set[int]:
    """Return the steps after which to validate, the last one among them: as many as `tokens` of training pay for.

    `cost` are the tokens of one measurement.
    """
    count = min(max(round(COST * tokens / max(cost, 1) - 0.5), CHECKS), 20, steps)
    return {round(steps * n / count) for n in range(1, count + 1)}
