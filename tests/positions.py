"""Made-up token positions of every kind, in float64, and a student that has moved away from the old policy."""

import dataclasses

import torch
from torch import Tensor

from opdkit.train.objective.terms import Tokens

NAN = float("nan")
VOCABULARY = 11


def t(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def mask(*values: int) -> Tensor:
    return torch.tensor(values, dtype=torch.bool)


def generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def logits(n: int, seed: int, vocabulary: int = VOCABULARY) -> Tensor:
    return 2 * torch.randn(n, vocabulary, generator=generator(seed), dtype=torch.float64)


def tokens(
    old: Tensor,
    *,
    sampled: Tensor | None = None,
    teacher: Tensor | None = None,
    reward: Tensor | None = None,
    behavior: Tensor | None = None,
    turn: Tensor | None = None,
) -> Tokens:
    """Return positions without a support; log-probs and rewards that are not passed are missing (NaN)."""
    n = len(old)
    none = torch.full((n,), NAN, dtype=old.dtype)
    return Tokens(
        turn_N=torch.zeros(n, dtype=torch.int64) if turn is None else turn,
        position_N=torch.arange(n),
        sampled_N=torch.ones(n, dtype=torch.bool) if sampled is None else sampled,
        old_logprobs_N=old,
        reference_N=old,
        teacher_logprobs_N=none if teacher is None else teacher,
        behavior_logprobs_N=none if behavior is None else behavior,
        reward_N=none if reward is None else reward,
        supported_N=torch.zeros(n, dtype=torch.bool),
        anchored_N=torch.zeros(n, dtype=torch.bool),
        praised_NK=torch.zeros(n, 0, dtype=torch.bool),
        support_ids_NK=torch.zeros(n, 0, dtype=torch.int64),
        support_old_NK=torch.zeros(n, 0, dtype=old.dtype),
        support_teacher_NK=torch.zeros(n, 0, dtype=old.dtype),
    )


@dataclasses.dataclass(frozen=True)
class Example:
    """N positions of several turns: log-probs stored from old policy and teacher, logits [N, V] of the student."""

    tokens: Tokens
    ids_N: Tensor
    student_NV: Tensor  # logits of the student now


def example(n: int = 60, k: int = 4, turns: int = 6, seed: int = 0) -> Example:
    """Return positions sampled or not, turns with and without hint, reward and logged log-probs, and a student that
    has moved far enough for both clips to take effect."""
    random = generator(seed)
    turn_N = torch.randint(turns, (n,), generator=random).sort().values
    ids_N = torch.randint(VOCABULARY, (n,), generator=random)
    old_NV, teacher_NV = (logits(n, seed + s).log_softmax(-1) for s in (1, 2))
    hinted_N, rewarded_N, logged_N = ((torch.rand(turns, generator=random) < p)[turn_N] for p in (0.6, 0.7, 0.5))
    hinted_N[turn_N == 0], rewarded_N[turn_N == turns - 1] = True, True
    pick = lambda x_NV: x_NV.gather(-1, ids_N[:, None])[:, 0]  # noqa: E731
    supports_NK = old_NV.topk(k).indices
    reward_T = torch.randint(-1, 2, (turns,), generator=random).double()
    anchored_N = ~hinted_N & (reward_T[turn_N] >= 0)
    stored_N1 = (hinted_N | anchored_N)[:, None]
    return Example(
        Tokens(
            turn_N=turn_N,
            position_N=torch.cat([torch.arange(int(c)) for c in torch.bincount(turn_N, minlength=turns)]),
            sampled_N=torch.rand(n, generator=random) < 0.8,
            old_logprobs_N=pick(old_NV),
            reference_N=pick(logits(n, seed + 4).log_softmax(-1)),
            teacher_logprobs_N=torch.where(hinted_N, pick(teacher_NV), NAN),
            behavior_logprobs_N=torch.where(logged_N, pick(logits(n, seed + 3).log_softmax(-1)), NAN),
            reward_N=torch.where(rewarded_N, reward_T[turn_N], NAN),
            supported_N=hinted_N,
            anchored_N=anchored_N,
            praised_NK=(reward_T[turn_N] > 0)[:, None] & stored_N1 & (supports_NK == ids_N[:, None]),
            support_ids_NK=torch.where(stored_N1, supports_NK, 0),
            support_old_NK=torch.where(stored_N1, old_NV.gather(-1, supports_NK), NAN),
            support_teacher_NK=torch.where(hinted_N[:, None], teacher_NV.gather(-1, supports_NK), NAN),
        ),
        ids_N,
        old_NV + 0.5 * torch.randn(n, VOCABULARY, generator=random, dtype=torch.float64),
    )


def part(whole: Tokens, some: slice | Tensor) -> Tokens:
    return Tokens(**{f.name: getattr(whole, f.name)[some] for f in dataclasses.fields(whole)})
