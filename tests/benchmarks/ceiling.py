"""How close scoring and training come to the matrix multiplications that they cannot avoid.

    python -m tests.benchmarks.ceiling

The operations are counted by hand: the layers' weights per token that is read, attention to the tokens before it, the
output layer per token of a reply; a backward pass counts as two forward passes. The ceiling is the rate that this
machine reaches, in the same process, with matrix products alone, of the model's own sizes. The data is a session of
tau-bench. The results keep the rows of other CPUs.
"""

import argparse
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import torch
from transformers import PreTrainedModel

from opdkit.config.train import TrainConfig
from opdkit.model.tree import plan_passes
from opdkit.model.tree_reading import PACK_TOKENS
from opdkit.teacher.scores import ReplyReadings
from opdkit.train.policy import Policy

from . import training, usual
from .models import add_model_options, build_for, weights
from .pairs import PAIRS, RESULTS, clock_of, machine, save_rows
from .scoring import once
from .sessions import length, taubench

# Tokens per product: about as many as a pass over branches or over a piece of a trunk has; a GPU reads a whole row.
ROWS = {"cpu": 1024, "cuda": 8192}


def products(model: PreTrainedModel, paths: Sequence[Sequence[int]], replies: int) -> float:
    """Return the operations (a multiplication and an addition per weight) of a forward pass over these paths' tree.

    `replies` counts the tokens whose logits are needed.
    """
    config = model.config
    layers = sum(p.numel() for name, p in model.named_parameters() if p.dim() == 2 and "embed" not in name)
    output = config.vocab_size * config.hidden_size
    if not config.tie_word_embeddings:
        layers -= output
    plan = plan_passes(paths, PACK_TOKENS)
    seen = sum(position + 1 for one in plan.passes for position in one.positions)
    width = config.num_attention_heads * config.head_dim * config.num_hidden_layers
    return 2.0 * (layers * plan.tokens + output * replies) + 4.0 * width * seen


def product_rate(model: PreTrainedModel) -> float:
    """Return the operations per second of matrix products of this model's MLP size, the best of ten."""
    hidden, wide = model.config.hidden_size, model.config.intermediate_size
    place, half = model.device.type, torch.is_autocast_enabled(model.device.type)
    options: dict[str, Any] = {"dtype": torch.bfloat16 if half else model.dtype, "device": model.device}
    rows = ROWS[place]
    left, right = torch.randn(rows, hidden, **options), torch.randn(hidden, wide, **options)
    repeats = max(1, int((2e10 if place == "cpu" else 2e13) / (2 * rows * hidden * wide)))
    product = left @ right

    def multiply() -> None:
        for _ in range(repeats):
            torch.mm(left, right, out=product)

    best = min(seconds(multiply, model.device) for _ in range(10))
    return 2 * rows * hidden * wide * repeats / best


def seconds(work: Callable[[], object], device: torch.device) -> float:
    clock = clock_of(device)
    start = clock()
    work()
    return clock() - start


def share(name: str, work: Callable[[], object], needed: float, model: PreTrainedModel, pairs: int) -> dict[str, Any]:
    """Measure the share of the ceiling that `work` reaches; the ceiling is measured again before each run."""
    work()
    found = [(product_rate(model), needed / seconds(work, model.device)) for _ in range(pairs)]
    row = {"work": name, "needed": needed, "ceiling": median(c for c, _ in found),
           "reached": median(r for _, r in found), "shares": sorted(r / c for c, r in found)}  # fmt: skip
    print(f"{name}: {median(row['shares']):.2f} of {row['ceiling'] / 1e9:.0f} billion per second", flush=True)
    return row


def measure(
    work: str, model: PreTrainedModel, session: Sequence[ReplyReadings], pairs: int, policy: Policy | None = None
) -> dict[str, Any]:
    """Measure the share of the ceiling that scoring a session reaches, or a training step of `policy` on it."""
    if policy is None:
        samples = usual.samples(session)
        paths = [s.prompt_ids + s.response_ids for s in samples]
        needed = products(model, paths, sum(len(s.response_ids) for s in samples))
        return share(work, lambda: once(model, [list(session)]), needed, model, pairs)
    step = training.Step([t.student for t in session], ["0"] * len(session))
    optimizer = torch.optim.SGD(policy.parameters(), lr=0.0)
    needed = 3 * products(model, [t.prompt_ids + t.response_ids for t in step.turns], step.tokens)
    return share(work, lambda: training.take(training.our_losses(policy, step), optimizer), needed, model, pairs)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, default=8000, help="the session whose length is nearest")
    parser.add_argument("--pairs", type=int, default=PAIRS)
    add_model_options(parser, "100m")
    parser.add_argument("--results", type=Path, default=RESULTS)
    options = parser.parse_args()
    tokenizer, sessions = taubench()
    session = min(sessions, key=lambda s: abs(length(s) - options.tokens))
    model = build_for(options, len(tokenizer))
    print(f"{len(session)} turns, {length(session):,} tokens, {weights(model)} weights", flush=True)
    cpu, kept = machine()["cpu"], options.results / "ceiling.json"
    others = json.loads(kept.read_text(encoding="utf-8"))["rows"] if kept.exists() else []
    rows = [measure(f"scoring, {cpu}", model, session, options.pairs),
            measure(f"training, {cpu}", model, session, options.pairs, Policy(model))]  # fmt: skip
    facts = {"turns": len(session), "tokens": length(session), "weights": weights(model), "dtype": options.dtype,
             "threads": torch.get_num_threads(), "budget": TrainConfig.micro_batch_tokens}  # fmt: skip
    rows = [facts | row for row in rows]
    names = {row["work"] for row in rows}
    print(save_rows("ceiling", [*(row for row in others if row["work"] not in names), *rows], options.results))


if __name__ == "__main__":
    main()
