"""On-policy validation: how far fresh replies of the student are from the hinted teacher and the student before.

Logged replies do not show what training breaks, since the student no longer writes them. So replies are sampled for
prompts of sessions that are kept out of training, if there are enough. If the logged turn has a hint, the new reply is
compared with the teacher that reads the hint; if nobody complained, with the student before training. The score is the
sum of both mean KLs (nats per reply); less is better. The first mean is the loss of on-policy distillation (GKD,
Agarwal et al. 2024), the second the KL to the base, with which forgetting grows (Shenfeld et al. 2025).
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
from opdkit.train.student import autocast, set_train_mode
from opdkit.train.validation_turns import CHECKS, COST

TOP = 20  # the KL at a position is over the student's TOP most likely tokens and the rest
CAP, CAP_PER_TOKEN = 10.0, 0.25  # nats per reply, per token: the larger caps a reply's KL, so that no outlier decides
CHANGED = 1.0  # nats per reply: above it, a reply to a prompt without a hint is compared again, with other turns' hints
# Hints to try on such a reply: the commonest alone, then two more, then the rest, while its KL stays above CHANGED.
HINTS_IN_TURN = (slice(1), slice(1, 3), slice(3, None))
LOST = 0.4  # share of the cap: a reply to a prompt without a hint is lost if its KL is above
FEW = 5  # with at least this many prompts without a hint, a single lost reply counts as chance


@dataclass(frozen=True, eq=False)
class ValidationPrompt:
    """Prompt of a logged turn, and the prompts under which other models score the same reply."""

    turn_id: str
    prompt_ids: list[int]
    compared_ids: list[int]  # for the teacher, the prompt with the hint; without a hint, `prompt_ids` for the base
    other_hint_ids: list[list[int]]  # the prompt with other turns' hints, whose changes are wanted, too; [] if hinted
    hinted: bool


class ComparedReply(NamedTuple):
    """Reply of the student, with the other model that scores it and the prompt that this model reads."""

    reply: Sample
    model: Any
    prompt_ids: list[int]


@dataclass
class Validation:
    """Prompts that the student is validated on, and the measurements of a training so far."""

    prompts: Sequence[ValidationPrompt]
    cost: int  # tokens that a measurement reads and writes if replies are as long as the logged ones
    max_new_tokens: int
    chat: Chat
    config: TrainConfig
    accelerator: Accelerator
    base: Any  # the student before training
    teacher: Any  # the model that reads the hints; often the same as `base`
    folder: Path  # of the checkpoints and of the best state
    sharded: Policy | None  # the student, if its weights are sharded over the processes
    rows: list[JSON]  # of the table `validations`

    def save_if_best(self, student: nn.Module) -> None:
        """Save the weights of the student if the last row, which measured it, is that of the best state so far."""
        if find_best(self.rows) is self.rows[-1]:
            checkpoints.save_best(self.folder, student, self.rows[-1]["step"], main=self.accelerator.is_main_process)

    def restore_best(self, student: nn.Module) -> int:
        """Load the weights of the best state into the student. Return the step after which it was reached."""
        step: int = find_best(self.rows)["step"]
        self.accelerator.wait_for_everyone()  # until the file is written
        checkpoints.restore_best(self.folder, student, step)
        return step

    def measure(self, student: nn.Module, step: int) -> JSON:
        """Measure the student after `step` steps (0: before training). Append the row of `validations`, and return it.

        A prompt's reply always has the same random stream, so that only the student differs between measurements.
        Before training, prompts without a hint are skipped if others exist: their KL is 0 by definition.
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
                    results, tokens = self._measure_prompts(model, own)
                else:  # all processes run the same forwards, so each one measures all prompts
                    results, tokens = self.sharded.run(partial(self._measure_prompts, model, prompts))
                    release_weights(self.sharded)
                    if not accelerator.is_main_process:
                        results, tokens = [], 0
        finally:
            set_train_mode(student)
        row = _row(gather_object(results), sum(gather_object([tokens])), step)
        if not step and len(hinted) < len(self.prompts):  # the student is still the base
            row |= {"kept_kl": 0.0, "forgotten": 0.0}
        self.rows.append(row)
        return row

    def _measure_prompts(self, student: Any, prompts: Sequence[ValidationPrompt]) -> tuple[list[JSON], int]:
        """Return what `_measure_once` does. A reply can be lost by chance: then a second sample decides."""
        results, tokens = self._measure_once(student, prompts, 0)
        lost = [prompt for prompt in prompts if not prompt.hinted and results[prompt]["lost"]]
        second, more = self._measure_once(student, lost, 1)
        for prompt in lost:
            results[prompt]["lost"] = second[prompt]["lost"]
        return list(results.values()), tokens + more

    def _measure_once(
        self, student: Any, prompts: Sequence[ValidationPrompt], draw: int
    ) -> tuple[dict[ValidationPrompt, JSON], int]:
        """Sample and compare a reply to each prompt. Return the results, and the tokens that all models read and wrote.

        `draw` numbers the replies to a prompt. A reply that does not fit into memory counts as lost: otherwise a
        student whose replies cannot be measured would seem better.
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
        for hints in HINTS_IN_TURN:
            changed = [i for i, (prompt, _) in enumerate(answered) if not prompt.hinted and kls[i] > CHANGED]
            again = [(i, ids) for i in changed for ids in answered[i][0].other_hint_ids[hints]]
            kls_again, more = self._compare([ComparedReply(answered[i][1], self.teacher, ids) for i, ids in again])
            read += more
            for (i, _), kl in zip(again, kls_again, strict=True):
                kls[i] = min(kls[i], kl)
        unmeasured = {"kl": CAP, "lost": True, "ended": False, "looped": False, "broke_call": False}
        results = {p: self._describe(reply, kl) for (p, reply), kl in zip(answered, kls, strict=True)}
        results |= {prompt: unmeasured for prompt in prompts if prompt not in results}
        named = {p: {"turn_id": p.turn_id, "hinted": p.hinted} | result for p, result in results.items()}
        return named, tokens + read

    def _describe(self, reply: Sample, kl: float) -> JSON:
        """Return the KL of a reply, capped, and whether the reply is lost, ends, repeats itself, or breaks a call."""
        cap = max(CAP, CAP_PER_TOKEN * len(reply.ids))
        return {"kl": min(kl, cap), "lost": kl > LOST * cap, "ended": reply.finish_reason == "stop",
                "looped": ends_in_loop(np.array(reply.ids, np.int32)),
                "broke_call": has_broken_call(self.chat.text(reply.ids))}  # fmt: skip

    def _compare(self, replies: Sequence[ComparedReply]) -> tuple[list[float], int]:
        """Return KL(student || other model) of each reply (nats), and the tokens that were read for all of them.

        At each position, the KL is over the student's TOP most likely tokens and the rest. A KL that is not finite
        becomes inf, as does that of a reply that does not fit into memory.
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
    """Return the row of `validations` for the results of all replies, for which `tokens` were read or written."""

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
            "looped": mean("looped"), "broke_call": mean("broke_call"), "tokens_read": tokens,
            "went_back_to": None}  # fmt: skip


def choose_validation_steps(steps: int, tokens: int, cost: int) -> set[int]:
    """Return the steps after which to validate, evenly spaced and including the last one.

    There are as many as COST of the training's `tokens` pays for, at `cost` each: CHECKS to 20, and at most `steps`.
    """
    count = min(max(round(COST * tokens / max(cost, 1) - 0.5), CHECKS), 20, steps)
    return {round(steps * n / count) for n in range(1, count + 1)}
