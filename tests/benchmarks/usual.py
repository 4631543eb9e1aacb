"""Scoring of replies without opdkit: one sample per prompt, padded batches, logits of every token."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from opdkit.model.scoring import PromptResponse as ScoredSequence
from opdkit.model.windows import PACKED
from opdkit.teacher.scores import ReplyReadings

try:
    from trl.trainer.utils import selective_log_softmax

    NAME = "one sample per prompt, batches of 8, all logits, selective_log_softmax of TRL"
except ImportError:
    NAME = "one sample per prompt, batches of 8, all logits, log_softmax and gather"

    def selective_log_softmax(logits: Tensor, index: Tensor) -> Tensor:
        return logits.log_softmax(-1).gather(-1, index[..., None]).squeeze(-1)


BATCH = 8


def samples(targets: Sequence[ReplyReadings]) -> list[ScoredSequence]:
    """Return the sequences to read: each reply after the student's prompt, and after the teacher's prompts."""
    return [s for t in targets for s in (t.student, *(s for reading in t.hinted for s in reading))]


@contextmanager
def own_attention(model: Any) -> Iterator[None]:
    """Give a model the attention of transformers within the `with` block, even if opdkit has replaced it."""
    config = model.config.get_text_config(decoder=True)
    before = config._attn_implementation
    config._attn_implementation = {packed: own for own, packed in PACKED.items()}.get(before, before)
    try:
        yield
    finally:
        config._attn_implementation = before


def read(model: Any, sequences: Sequence[ScoredSequence]) -> Iterator[list[tuple[int, Tensor]]]:
    """Yield (index, log-probs [R]) of each response, one list per batch; batches are padded on the right."""
    order = sorted(range(len(sequences)), key=lambda i: len(sequences[i]))
    for start in range(0, len(order), BATCH):
        some = order[start : start + BATCH]
        ids_BL, mask_BL = torch.zeros(2, len(some), max(len(sequences[i]) for i in some), dtype=torch.long)
        for row, i in enumerate(some):
            ids = sequences[i].prompt_ids + sequences[i].response_ids
            ids_BL[row, : len(ids)], mask_BL[row, : len(ids)] = torch.tensor(ids), 1
        ids_BL, mask_BL = ids_BL.to(model.device), mask_BL.to(model.device)
        with own_attention(model):
            logits_BLV = model(input_ids=ids_BL, attention_mask=mask_BL, use_cache=False).logits
        logprobs_BL = selective_log_softmax(logits_BLV[:, :-1], ids_BL[:, 1:])
        places = [slice(len(sequences[i].prompt_ids) - 1, len(sequences[i]) - 1) for i in some]
        yield [(i, logprobs_BL[row, place]) for row, (i, place) in enumerate(zip(some, places, strict=True))]


@torch.no_grad()
def logprobs(model: nn.Module, sequences: Sequence[ScoredSequence]) -> list[Tensor]:
    """Return the log-probs [R] of each sequence's response, in the order of `sequences`."""
    found = {i: values_R.float().cpu() for batch in read(model, sequences) for i, values_R in batch}
    return [found[i] for i in range(len(sequences))]
