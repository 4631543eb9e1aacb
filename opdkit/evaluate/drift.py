"""Drift of a model: log-probs of logged replies, and the passages of neutral text, which no objective trains on."""

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, TypeVar

from torch import Tensor
from transformers import PreTrainedTokenizerBase

from opdkit.config.fields import read_text
from opdkit.errors import ConfigError
from opdkit.model.comparison import Shift
from opdkit.model.scoring import PromptResponse, score
from opdkit.store.reading import read_all
from opdkit.store.stable_hash import stable_hash

T = TypeVar("T")

# Enough for an interval that is a few hundredths of a nat wide.
MAX_TURNS, MAX_PASSAGES, PASSAGE_TOKENS = 512, 256, 512


def choose_by_hash(items: Iterable[T], key: Callable[[T], str], most: int) -> list[T]:
    """Return the `most` items with the smallest hashes of their keys: the same items on every run."""
    return sorted(items, key=lambda item: stable_hash(key(item)))[:most]


def measure_shifts(
    before: Any, after: Any, sequences: Sequence[PromptResponse], masks: Sequence[Tensor], batch_tokens: int
) -> list[Shift]:
    """Return, per reply, the log-prob of its sampled tokens (those in its mask) under both models."""
    old, new = (score(model, sequences, batch_tokens=batch_tokens) for model in (before, after))
    return [Shift(int(mask.sum()), float(b[mask].double().sum()), float(a[mask].double().sum()))
            for b, a, mask in zip(old, new, masks, strict=True)]  # fmt: skip


def read_passages(run: Path, file: str | None) -> list[str]:
    """Return up to MAX_PASSAGES distinct texts that no objective trains on, chosen by hash.

    They are lines of `file`; without it, user messages of the logs. Raises ConfigError for an unreadable or empty file.
    """
    if file is None:
        texts = [m["content"] for s in read_all(run, "sessions") for m in s["messages"] if m["role"] == "user"]
    else:
        texts = read_text(Path(file), "--neutral-text").splitlines()
    passages = {text for text in texts if text and text.strip()}
    if file is not None and not passages:
        raise ConfigError(f"--neutral-text {file} holds no text")
    return choose_by_hash(passages, str, MAX_PASSAGES)


def encode_passages(tokenizer: PreTrainedTokenizerBase, passages: Sequence[str]) -> list[PromptResponse]:
    """Return passages as token ids, cut to PASSAGE_TOKENS. The first token is the prompt: nothing predicts it.

    Control tokens in a passage are read as plain text.
    """
    encoded = (tokenizer(text, split_special_tokens=True)["input_ids"][:PASSAGE_TOKENS] for text in passages)
    return [PromptResponse(ids[:1], ids[1:]) for ids in encoded if len(ids) > 1]
