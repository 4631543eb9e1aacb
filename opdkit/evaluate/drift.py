"""Drift of a model: on logged replies, on replies of the model before, and on text that no objective trains on."""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from opdkit.errors import ConfigError
from opdkit.evaluate.checks import read_text
from opdkit.model.memory import TooLargeError, budget_of
from opdkit.model.scoring import PromptResponse, response_logits_by_rows, score, token_logprobs
from opdkit.store.reading import read_all
from opdkit.store.stable_hash import stable_hash

T = TypeVar("T")

# Enough for an interval of a few hundredths of a nat.
MAX_TURNS, MAX_PASSAGES, PASSAGE_TOKENS = 512, 256, 512


@dataclass(frozen=True)
class Shift:
    """Sums of log-probs, and of KL(before || after), over the tokens of one reply or passage (nats)."""

    tokens: int
    before: float
    after: float
    kl: float = math.nan  # NaN: not computed

    @property
    def mean_kl(self) -> float | None:
        """KL per token; None where it is not finite."""
        return self.kl / self.tokens if math.isfinite(self.kl) else None


def choose_by_hash(items: Iterable[T], key: Callable[[T], str], most: int) -> list[T]:
    """Return the `most` items whose hashed key is smallest: the same ones on every run."""
    return sorted(items, key=lambda item: stable_hash(key(item)))[:most]


def reply_shifts(
    before: Any, after: Any, sequences: Sequence[PromptResponse], masks: Sequence[Tensor], batch_tokens: int
) -> list[Shift]:
    """Return for each reply the log-prob of its sampled tokens under both models."""
    old, new = (score(model, sequences, batch_tokens=batch_tokens) for model in (before, after))
    return [
        Shift(int(mask.sum()), float(b[mask].double().sum()), float(a[mask].double().sum()))
        for b, a, mask in zip(old, new, masks, strict=True)
    ]


def read_passages(run: Path, file: str | None) -> list[str]:
    """Return the lines of `file`, or else the messages of users in the logs: text that no objective trains on.

    Raises ConfigError when the file cannot be read or has no text.
    """
    if file is None:
        texts = [m["content"] for s in read_all(run, "sessions") for m in s["messages"] if m["role"] == "user"]
    else:
        texts = read_text("--neutral-text", Path(file)).splitlines()
    passages = {text for text in texts if text and text.strip()}
    if file is not None and not passages:
        raise ConfigError(f"--neutral-text {file} holds no text")
    return choose_by_hash(passages, str, MAX_PASSAGES)


def passage_sequences(tokenizer: PreTrainedTokenizerBase, passages: Sequence[str]) -> list[PromptResponse]:
    """Return passages as token ids, cut to 512. The first token has no probability: it is the prompt of the others.

    Control tokens in a passage are read as plain text.
    """
    encoded = (tokenizer(text, split_special_tokens=True)["input_ids"][:PASSAGE_TOKENS] for text in passages)
    return [PromptResponse(ids[:1], ids[1:]) for ids in encoded if len(ids) > 1]


def kl_shifts(before: Any, after: Any, sequences: Sequence[PromptResponse], batch_tokens: int) -> list[Shift]:
    """Return for each response its log-prob under both models, and the sum of KL(before || after) at its positions.

    The KL is over the whole vocabulary, at temperature 1. Equal sequences are read once: a confident model often
    samples the same reply again. Raises TooLargeError when memory runs out for a single sequence.
    """
    keys = [(*s.prompt_ids, -1, *s.response_ids) for s in sequences]
    distinct = dict(zip(keys, sequences, strict=True))
    shift_of: dict[tuple[int, ...], Shift] = {}
    items = list(distinct.items())
    lengths, budget = [len(s) for _, s in items], budget_of(before, "comparing two models")
    for attempt in budget.batches(lengths, batch_tokens):
        with attempt:
            shifts = _batch_shifts(before, after, [items[i][1] for i in attempt.items])
            shift_of.update(zip((items[i][0] for i in attempt.items), shifts, strict=True))
        if attempt.too_large:
            raise TooLargeError(f"a prompt and reply of {lengths[attempt.items[0]]:,} tokens", "try --dtype bfloat16")
    return [shift_of[key] for key in keys]


@torch.inference_mode()
def _batch_shifts(before: Any, after: Any, sequences: Sequence[PromptResponse]) -> list[Shift]:
    """Return the shifts of one batch."""
    lengths = [len(s.response_ids) for s in sequences]
    ids_N = torch.tensor([i for s in sequences for i in s.response_ids])
    numbers, start = [], 0
    logits = (response_logits_by_rows(model, sequences) for model in (before, after))
    for old_nV, new_nV in zip(*logits, strict=True):
        ids_n = ids_N[start : start + len(old_nV)].to(old_nV.device)
        new_nV = new_nV.to(old_nV.device)
        rows = token_logprobs(old_nV, ids_n), token_logprobs(new_nV, ids_n), kl_divergence(old_nV, new_nV)
        numbers.append(torch.stack(rows).double().cpu())
        start += len(old_nV)
    parts = torch.cat(numbers, dim=1).split(lengths, dim=1)
    return [Shift(n, *part_3n.sum(1).tolist()) for n, part_3n in zip(lengths, parts, strict=True)]


def kl_divergence(logits_p_NV: Tensor, logits_q_NV: Tensor) -> Tensor:
    """Return KL(p || q) of two softmaxes over the whole vocabulary (nats, [N])."""
    p_NV, q_NV = logits_p_NV.log_softmax(-1), logits_q_NV.log_softmax(-1)
    # Where p is 0 the term is 0, also where both logits are -inf and their difference is NaN.
    return torch.where(p_NV.isneginf(), 0.0, p_NV.exp() * (p_NV - q_NV)).sum(-1)
