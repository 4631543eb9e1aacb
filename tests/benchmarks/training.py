"""How long a training step takes with each session read once, and with every turn a padded row of its own.

    python -m tests.benchmarks.training

On real sessions (tau-bench, ../shared/data): as many, evenly spread over the log, as a step of 16 turns takes. The
usual way: one sample a turn, batches of 8 sorted by length and padded on the right, logits at every position, TRL's
`selective_log_softmax` where trl is installed. Loss and optimizer are the same on both sides, the weights untrained:
the time depends on sizes, not on values. The gradients of both ways are compared before anything is timed.
"""

import argparse
import time
from collections.abc import Sequence as Items

import torch
from torch import Tensor, nn

from opdkit.chat import Chat
from opdkit.models import load_tokenizer
from opdkit.objective import policy_gradient
from opdkit.scoring import Sequence
from opdkit.train.forwards import reading
from opdkit.train.policy import Policy

from .pairs import PAIRS, Comparison, save, turn_about
from .scoring import LOG, ROOT, SIZES, build, sessions

PADDED = 8  # turns in a batch of the usual way
USUAL = f"a row a turn, padded batches of {PADDED} sorted by length, all logits"
BUDGET = 8192  # tokens in a forward, the default of `opdkit train`


def selective(logits_BLV: Tensor, ids_BL: Tensor) -> Tensor:
    """[B, L] log-probs of `ids_BL`."""
    try:
        from trl.trainer.utils import selective_log_softmax
    except ImportError:
        return torch.log_softmax(logits_BLV, -1).gather(-1, ids_BL.unsqueeze(-1)).squeeze(-1)
    found: Tensor = selective_log_softmax(logits_BLV, ids_BL)
    return found


def loss_of(logprobs_N: Tensor, tokens: int) -> Tensor:
    """The clipped policy gradient of the first step, where old and new are the same; some advantages of both signs."""
    advantages_N = torch.linspace(-1, 1, len(logprobs_N))
    return policy_gradient(logprobs_N, logprobs_N.detach(), advantages_N, 0.2, 0.28)[0].sum() / tokens


def usual_step(model: nn.Module, turns: Items[Sequence], optimizer: torch.optim.Optimizer) -> None:
    """The step as most trainers take it."""
    optimizer.zero_grad()
    tokens = sum(len(t.response_ids) for t in turns)
    order = sorted(turns, key=len)
    for start in range(0, len(order), PADDED):
        batch = order[start : start + PADDED]
        longest = max(map(len, batch))
        ids_BL = torch.tensor([t.prompt_ids + t.response_ids + [0] * (longest - len(t)) for t in batch])
        mask_BL = torch.arange(longest) < torch.tensor([len(t) for t in batch])[:, None]
        logits_BLV = model(input_ids=ids_BL, attention_mask=mask_BL.long(), use_cache=False).logits
        logprobs_BL = selective(logits_BLV[:, :-1], ids_BL[:, 1:])
        reply_BL = mask_BL & (torch.arange(longest) >= torch.tensor([len(t.prompt_ids) for t in batch])[:, None])
        (loss_of(logprobs_BL[reply_BL[:, 1:]], tokens)).backward()
    optimizer.step()


def our_step(
    policy: Policy, turns: Items[Sequence], of: Items[str], optimizer: torch.optim.Optimizer, budget: int
) -> None:
    """The step as `opdkit train` takes it."""
    optimizer.zero_grad()
    tokens = sum(len(t.response_ids) for t in turns)
    for trees in reading(turns, of, budget, 0, 1, packed=policy.packed).forwards:
        read = [[turns[i] for i in tree.turns] for tree in trees]
        ids_N1 = torch.tensor([[i] for tree in read for t in tree for i in t.response_ids])
        logprobs_N1, _ = policy(read, ids_N1)
        loss_of(logprobs_N1[:, 0], tokens).backward()
    optimizer.step()


def gradients(policy: Policy, turns: Items[Sequence], of: Items[str], budget: int) -> float:
    """The largest difference between the gradients of the two ways, relative to the norm of the gradient.

    The replies' mean log-prob is the loss here: which advantage a token has depends on the order of reading.
    """
    model = policy.model
    found = []
    for way in ("usual", "ours"):
        model.zero_grad()
        if way == "usual":
            for t in turns:
                logits_1LV = model(input_ids=torch.tensor([t.prompt_ids + t.response_ids]), use_cache=False).logits
                logprobs_1R = selective(logits_1LV[:, len(t.prompt_ids) - 1 : -1], torch.tensor([t.response_ids]))
                (-logprobs_1R.sum()).backward()
        else:
            for trees in reading(turns, of, budget, 0, 1, packed=policy.packed).forwards:
                read = [[turns[i] for i in tree.turns] for tree in trees]
                ids_N1 = torch.tensor([[i] for tree in read for t in tree for i in t.response_ids])
                (-policy(read, ids_N1)[0].sum()).backward()
        found.append(torch.cat([p.grad.flatten() for p in model.parameters()]))
    return float((found[0] - found[1]).norm() / found[0].norm())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sessions", type=int, default=2, help="that many of tau-bench")
    parser.add_argument("--tokens", type=int, default=6000, help="longest session")
    parser.add_argument("--pairs", type=int, default=PAIRS)
    parser.add_argument("--size", choices=SIZES, default="10m")
    parser.add_argument("--save", action="store_true", help="write the figures for docs/performance.md")
    options = parser.parse_args()
    if not LOG.is_dir():
        print(f"skipped: the sessions are not there ({LOG})")
        return
    tokenizer = load_tokenizer(str(ROOT / "sample_data" / "model"))
    model = build(options.size, len(tokenizer))
    chosen = sessions(Chat(tokenizer, {}), LOG, options.sessions, options.tokens)
    turns = [t.student for some in chosen for t in some]
    of = [str(n) for n, some in enumerate(chosen) for _ in some]
    usual_optimizer = torch.optim.AdamW(model.parameters(), lr=0.0)
    policy = Policy(model)
    difference = gradients(policy, turns, of, BUDGET)
    seconds = turn_about(
        lambda: usual_step(model, turns, usual_optimizer),
        lambda: our_step(policy, turns, of, usual_optimizer, BUDGET),
        options.pairs,
        time.process_time,
    )
    once = reading(turns, of, BUDGET, 0, 1, packed=True).tokens
    found = Comparison(
        f"a training step, {options.size} weights",
        USUAL,
        *seconds,
        facts={
            "sessions": len(chosen),
            "turns": len(turns),
            "tokens of the turns": sum(map(len, turns)),
            "tokens read once": once,
            "largest difference of the gradient, relative": f"{difference:.1g}",
        },
    )
    print(found.line())
    if options.save:
        save("training", [found])


if __name__ == "__main__":
    main()
