"""On-policy validation: replies that the student writes now, under the hinted teacher and under itself before training.

Logged replies do not show what training breaks: the student no longer writes them. So replies are sampled to prompts of
sessions that are kept out of training. After a prompt whose logged reply was complained about, the reply is compared
with the teacher that reads the hint; after one of a session without a complaint, with the student before training. The
mean KL per reply of both is the score; less is better. It is the loss of on-policy distillation (GKD, Agarwal et al.
2024), and the KL to the base that forgetting grows with (Shenfeld et al. 2025).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from accelerate import Accelerator
from accelerate.utils import gather_object
from torch import nn

from opdkit.chat.markup import has_broken_call
from opdkit.chat.template import Chat
from opdkit.config.fields import JSON
from opdkit.config.train import TrainConfig
from opdkit.model.loops import ends_in_loop
from opdkit.model.random_streams import make_random_stream
from opdkit.model.sampling import Request, Sample, sample
from opdkit.model.scoring import LogprobQuery, PromptResponse
from opdkit.model.tree_reading import logprobs_in_trees
from opdkit.train import checkpoints
from opdkit.train.best_state import find_best
from opdkit.train.objective.losses import divergence
from opdkit.train.policy import Policy
from opdkit.train.sharding import release_weights
from opdkit.train.student import autocast
from opdkit.train.validation_turns import CHECKS, COST

TOP = 20  # the student's most likely tokens at each position; the KL is over them and the rest
CAP, CAP_PER_TOKEN = 10.0, 0.25  # nats, the larger caps the KL of a reply: else one outlier of few decides the mean
CHANGED = 1.0  # nats per reply: a larger KL on an uncriticised prompt is compared again with hints of other turns
FIRST_HINTS = 3  # that such a reply is read again with; where they do not explain it, with the others as well
LOST = 0.4  # of the cap (CAP, CAP_PER_TOKEN): a reply to an uncriticised prompt is lost where its KL is above
FEW = 5  # of so many prompts without a complaint, a single one that is lost counts as chance


@dataclass(frozen=True, eq=False)
class ValidationPrompt:
    """Prompt of a logged turn, and the prompts after which other models read the same reply."""

    turn_id: str
    prompt_ids: list[int]
    compared_ids: list[int]  # with the hint, for the teacher; without one the prompt itself, for the untrained student
    other_hint_ids: list[list[int]]  # with hints of other turns, which it was to learn, too; [] for a hinted prompt
    hinted: bool


class ComparedReply(NamedTuple):
    """Reply of the student, and what it is compared with: another model, after another prompt."""

    reply: Sample
    model: Any
    prompt_ids: list[int]


@dataclass
class Validation:
    """Prompts that the student is validated on, and its measurements in a training so far."""

    prompts: Sequence[ValidationPrompt]
    cost: int  # tokens that a measurement reads and writes, where replies are as long as the logged ones
    max_new_tokens: int
    chat: Chat
    config: TrainConfig
    accelerator: Accelerator
    base: Any  # the student before training
    teacher: Any  # the model that reads the hints; often the same
    folder: Path  # of the checkpoints, where the best state is kept
    sharded: Policy | None  # the student, where the processes share its weights
    rows: list[JSON]  # of the table `validations`

    def save_if_best(self, student: nn.Module) -> None:
        """Save the weights of the student if its row, the last one, is that of the best state so far."""
        if find_best(self.rows) is self.rows[-1]:
            checkpoints.save_best(self.folder, student, self.rows[-1]["step"], main=self.accelerator.is_main_process)

    def restore_best(self, student: nn.Module) -> int:
        """Load the weights of the best state into the student. Return the number of its steps."""
        step: int = find_best(self.rows)["step"]
        self.accelerator.wait_for_everyone()  # until the file is written
        checkpoints.restore_best(self.folder, student, step)
        return step

    def measure(self, student: nn.Module, step: int) -> JSON:
        """Measure the student after `step` steps (0: before training). Append the row of `validations`, and return it.

        The random stream of a prompt's reply is always the same: only the student differs. Before training, prompts
        without a hint say nothing: the student is at no distance from itself.
        """
        accelerator = self.accelerator
        hinted = [prompt for prompt in self.prompts if prompt.hinted]
        prompts = hinted if hinted and not step else self.prompts
        model = getattr(student, "get_base_model", lambda: student)()  # without peft's wrapper
        student.eval()
        try:
            with autocast(self.config):
                if self.sharded is None:
                    own = prompts[accelerator.process_index :: accelerator.num_processes]
                    results, tokens = self._answer_twice(model, own)
                else:  # all processes run the same forwards, so each measures all prompts
                    results, tokens = self.sharded.run(partial(self._answer_twice, model, prompts))
                    release_weights(self.sharded)
                    if not accelerator.is_main_process:
                        results, tokens = [], 0
        finally:
            student.train()
        row = _row(gather_object(results), sum(gather_object([tokens])), step)
        self.rows.append(row if step or len(hinted) == len(self.prompts) else row | {"kept_kl": 0.0, "forgotten": 0.0})
        return self.rows[-1]

    def _answer_twice(self, student: Any, prompts: Sequence[ValidationPrompt]) -> tuple[list[JSON], int]:
        """Return the results and tokens of `_answer`. A reply can be lost by chance: where one is, a second decides."""
        results, tokens = self._answer(student, prompts, 0)
        lost = [prompt for prompt in prompts if not prompt.hinted and results[prompt]["lost"]]
        again, more = self._answer(student, lost, 1)
        for prompt in lost:
            results[prompt]["lost"] = again[prompt]["lost"]
        return list(results.values()), tokens + more

    def _answer(
        self, student: Any, prompts: Sequence[ValidationPrompt], draw: int
    ) -> tuple[dict[ValidationPrompt, JSON], int]:
        """Return the result of a reply to each prompt, and the tokens that all models read and wrote for them.

        `draw` numbers the replies to a prompt. A reply that does not fit into memory counts as one that is lost: else
        a student would seem the better, the less of it can be measured.
        """
        if not prompts:
            return {}, 0
        size, seed = self.config.micro_batch_tokens, self.config.seed
        requests = [Request(p.prompt_ids, [make_random_stream(seed, "validation", p.turn_id, draw)]) for p in prompts]
        samples = sample(student, requests, temperature=1.0, max_new_tokens=self.max_new_tokens,
                         stop_ids=self.chat.stop_ids, batch_tokens=size, top=TOP)  # fmt: skip
        answered = [(p, reply) for p, (reply,) in zip(prompts, samples, strict=True) if reply.ids]
        tokens = sum(len(p.prompt_ids) for p in prompts) + sum(len(reply.ids) for _, reply in answered)
        kls, read = self._compare([ComparedReply(reply, self.teacher if p.hinted else self.base, p.compared_ids)
                                   for p, reply in answered])  # fmt: skip
        for hints in (slice(FIRST_HINTS), slice(FIRST_HINTS, None)):
            changed = [i for i, (prompt, _) in enumerate(answered) if not prompt.hinted and kls[i] > CHANGED]
            again = [(i, ids) for i in changed for ids in answered[i][0].other_hint_ids[hints]]
            kls_again, more = self._compare([ComparedReply(answered[i][1], self.teacher, ids) for i, ids in again])
            read += more
            for (i, _), kl in zip(again, kls_again, strict=True):
                kls[i] = min(kls[i], kl)
        unmeasured = {"kl": CAP, "lost": True, "ended": False, "looped": False, "broke_call": False}
        results: dict[ValidationPrompt, JSON] = {}
        for (prompt, reply), kl in zip(answered, kls, strict=True):
            cap = max(CAP, CAP_PER_TOKEN * len(reply.ids))
            results[prompt] = {"kl": min(kl, cap), "lost": kl > LOST * cap, "ended": reply.finish_reason == "stop",
                               "looped": ends_in_loop(np.array(reply.ids, np.int32)),
                               "broke_call": has_broken_call(self.chat.text(reply.ids))}  # fmt: skip
        results |= {prompt: unmeasured for prompt in prompts if prompt not in results}
        named = {p: {"turn_id": p.turn_id, "hinted": p.hinted} | result for p, result in results.items()}
        return named, tokens + read

    def _compare(self, replies: Sequence[ComparedReply]) -> tuple[list[float], int]:
        """Return KL(student || other model) of each reply (nats), and the tokens that were read for all of them.

        The KL is over the student's TOP most likely tokens at each position and the rest. One that is not finite is
        infinite, and so is that of a reply that does not fit into memory.
        """
        kls, tokens = [math.inf] * len(replies), 0
        for model in {id(each.model): each.model for each in replies}.values():
            own = [i for i, each in enumerate(replies) if each.model is model]
            queries = [LogprobQuery((PromptResponse(prompt_ids, reply.ids),), torch.tensor(reply.top_ids))
                       for reply, _, prompt_ids in (replies[i] for i in own)]  # fmt: skip
            answers, read = logprobs_in_trees(model, queries, self.config.micro_batch_tokens, "validation")
            for k, answer in answers.items():
                kl = float(divergence(torch.tensor(replies[own[k]].reply.top), answer.at, 1.0).sum())
                kls[own[k]] = kl if math.isfinite(kl) else math.inf
            tokens += read
        return kls, tokens


def _row(results: Sequence[JSON], tokens: int, step: int) -> JSON:
    """Return the row of `validations` from the results of all replies, for which `tokens` were read."""

    def mean(name: str, hinted: bool | None = None) -> float | None:
        values = [float(r[name]) for r in results if hinted is None or r["hinted"] == hinted]
        return sum(values) / len(values) if values else None

    hint_kl, kept_kl = mean("kl", hinted=True), mean("kl", hinted=False)
    lost = [bool(r["lost"]) for r in results if not r["hinted"]]
    is_chance = sum(lost) == 1 and len(lost) >= FEW
    forgotten = 0.0 if is_chance else mean("lost", hinted=False)
    hint_kls = [{"turn_id": r["turn_id"], "kl": r["kl"]} for r in results if r["hinted"]]
    return {"step": step, "replies": len(results), "hint_kl": hint_kl, "hint_kls": hint_kls, "kept_kl": kept_kl,
            "forgotten": forgotten, "score": (hint_kl or 0.0) + (kept_kl or 0.0), "ended": mean("ended"),
            "looped": mean("looped"), "broke_call": mean("broke_call"), "tokens_read": tokens}  # fmt: skip


def choose_validation_steps(steps: int, tokens: int, cost: int) -> set[int]:
    """Return the steps after which to validate, the last one among them: as many as `tokens` of training pay for.

    `cost` are the tokens of one measurement.
    """
    count = min(max(round(COST * tokens / max(cost, 1) - 0.5), CHECKS), 20, steps)
    return {round(steps * n / count) for n in range(1, count + 1)}
