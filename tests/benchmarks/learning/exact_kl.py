"""Exact KL to the student before training, which the estimators of `opdkit train --kl-estimator` approximate.

Shapes: N response positions, K requested ids at each, V vocabulary.
"""

import contextlib
import copy
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from unittest.mock import patch

import torch
from torch import Tensor, nn

from opdkit.chat.template import Chat
from opdkit.model.load import load_model, load_tokenizer
from opdkit.model.scoring import PromptResponse, response_logits
from opdkit.train import step
from opdkit.train.objective.losses import kl_to_reference
from opdkit.train.objective.terms import Objective, Term, Tokens
from opdkit.train.policy import Policy
from opdkit.train.targets import load_prompts, load_targets

ESTIMATORS = ("k1", "k2", "k3")
_BATCH = 16  # turns that are read together


def exact_kl(logprobs_NV: Tensor, reference_NV: Tensor) -> Tensor:
    """Return KL(student || reference), summed over the vocabulary (nats, [N])."""
    return (logprobs_NV.exp() * (logprobs_NV - reference_NV)).sum(-1)


@contextlib.contextmanager
def exact_kl_term() -> Iterator[None]:
    """Make the KL term of trainings in this process exact: `--kl-estimator` is not used, `--kl-coef` is.

    Mask and divisor of the term stay as they are.
    """
    kl_N = torch.zeros(0)
    estimated_loss = step.compute_loss

    class WithReference(Policy):
        """Policy that also runs its untrained copy, and keeps the KL of the two until `compute_loss` needs it."""

        def __init__(self, model: nn.Module) -> None:
            super().__init__(model)
            self.untrained = (Policy(copy.deepcopy(model).requires_grad_(False)),)  # a tuple: not a submodule

        def forward(self, trees: Sequence[Sequence[PromptResponse]], ids_NK: Tensor) -> tuple[Tensor, Tensor]:
            nonlocal kl_N
            vocabulary_NV = torch.arange(self.model.config.vocab_size).expand(len(ids_NK), -1)
            logprobs_NV, entropy_N = super().forward(trees, vocabulary_NV)
            with torch.no_grad():
                reference_NV, _ = self.untrained[0](trees, vocabulary_NV)
            kl_N = exact_kl(logprobs_NV, reference_NV)
            return logprobs_NV.gather(-1, ids_NK), entropy_N

    def exact_loss(
        logprobs_N: Tensor,
        support_NK: Tensor,
        tokens: Tokens,
        terms: Sequence[Term],
        totals: Mapping[str, int],
        objective: Objective,
    ) -> tuple[Tensor, dict[str, Tensor]]:
        others = [term for term in terms if term.name != "kl"]
        loss, metrics = estimated_loss(logprobs_N, support_NK, tokens, others, totals, objective)
        (term,) = (term for term in terms if term.name == "kl")
        kl_loss = (term.scale_N * kl_N).sum() / max(totals["kl"], 1)
        return loss + kl_loss, metrics | {"kl_loss": kl_loss.detach()}

    with patch.object(step, "compute_loss", exact_loss), patch("opdkit.train.stage.Policy", WithReference):
        yield


def kl_on_the_log(run: Path, reference: Path, student: Path) -> dict[str, float]:
    """Return the exact KL(student || reference) on the logged replies, and the value of each estimator.

    Both are means over all sampled tokens, in nats per token.
    """
    chat = Chat(load_tokenizer(str(reference)), {})
    models = [load_model(str(folder), device="cpu", dtype="float32") for folder in (student, reference)]
    turns = load_targets(run)
    prompts = load_prompts(run, turns, chat)
    sums, tokens = dict.fromkeys(("exact", *ESTIMATORS), 0.0), 0
    for start in range(0, len(turns), _BATCH):
        batch = turns[start : start + _BATCH]
        sequences = [PromptResponse(prompts[turn.turn_id].tolist(), turn.response_ids.tolist()) for turn in batch]
        sampled_N = torch.cat([torch.from_numpy(turn.sampled) for turn in batch])
        ids_N1 = torch.tensor([[token] for s in sequences for token in s.response_ids])[sampled_N]
        with torch.no_grad():
            now_NV, before_NV = (response_logits(m, sequences)[sampled_N].log_softmax(-1) for m in models)
        now_N, before_N = (logprobs_NV.gather(-1, ids_N1)[:, 0] for logprobs_NV in (now_NV, before_NV))
        sums["exact"] += float(exact_kl(now_NV, before_NV).sum())
        for name in ESTIMATORS:
            sums[name] += float(kl_to_reference(now_N, before_N, name).sum())
        tokens += len(ids_N1)
    return {name: total / tokens for name, total in sums.items()}
