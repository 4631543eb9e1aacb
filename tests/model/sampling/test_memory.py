"""Tests of sampling with little memory: a sample has its own random stream, so a restarted sample is the same."""

import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
import transformers
from small_memory import Room, room_for

from opdkit.model.random_streams import make_random_stream
from opdkit.model.sampling import Request, Sample, sample

pytestmark = pytest.mark.slow

SIZES = {"vocab_size": 96, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "head_dim": 8,
         "initializer_range": 0.3, "num_attention_heads": 4, "num_key_value_heads": 2}  # fmt: skip
WAYS = {"shared": ("Qwen3Config", {}), "copied": ("MistralConfig", {"sliding_window": 8})}
PROMPTS = [list(range(3 + k, 23 + k)) + tail for k in range(4) for tail in ([40, 41, 42], [50])]


def build(way: str) -> Any:
    """Build a new model, because a model remembers what did not fit."""
    name, more = WAYS[way]
    with torch.random.fork_rng():
        torch.manual_seed(0)
        config = getattr(transformers, name)(**(SIZES | more))
        return transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()


def draws(model: Any, prompts: list[list[int]]) -> list[list[Sample]]:
    asked = [Request(p, [make_random_stream(0, *map(str, p), d) for d in range(3)]) for p in prompts]
    return sample(model, asked, temperature=1.0, max_new_tokens=10, stop_ids=frozenset(range(0, 96, 12)),
                  batch_tokens=4096, top=2)  # fmt: skip


@contextmanager
def full_twice(model: Any, *at: int) -> Iterator[Room]:
    """Let the forwards with these numbers, counted from 1, run out of memory."""
    room, calls, forward = Room(0), itertools.count(1), model.forward

    def limited(*args: Any, **kwargs: Any) -> Any:
        if next(calls) in at:
            room.refused += 1
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 MiB.")
        return forward(*args, **kwargs)

    model.forward = limited
    try:
        yield room
    finally:
        model.forward = forward


@pytest.mark.parametrize("way", WAYS)
def test_the_draws_are_those_of_a_large_machine(way: str) -> None:
    """Unfinished samples are restarted, finished ones are kept."""
    expected = draws(build(way), PROMPTS)
    model = build(way)
    draws(model, PROMPTS[:1])  # does the model's one-time check, with sequences of its own
    with full_twice(model, 7, 18) as room:
        actual = draws(model, PROMPTS)
    assert room.refused == 2
    for samples, others in zip(actual, expected, strict=True):
        for a, b in zip(samples, others, strict=True):
            assert (a.ids, a.finish_reason) == (b.ids, b.finish_reason)
            assert a.logprobs == pytest.approx(b.logprobs, abs=1e-5)
            assert a.top_ids == b.top_ids
            assert len(a.top) == len(a.ids), "those of the dropped tokens are dropped"


@pytest.mark.parametrize("way", WAYS)
def test_less_is_drawn_at_once_where_not_all_fits(way: str) -> None:
    """With room for the longest prompt and a few samples, all samples are made, some after others."""
    expected, model = draws(build(way), PROMPTS), build(way)
    draws(model, PROMPTS[:1])
    with room_for(30 if way == "shared" else 50) as room:
        actual = draws(model, PROMPTS * 4)
    assert room.refused
    assert [[d.ids for d in samples] for samples in actual] == [[d.ids for d in samples] for samples in expected] * 4


@pytest.mark.parametrize("way", WAYS)
def test_a_prompt_too_large_alone_is_set_aside(way: str) -> None:
    model, large = build(way), [50 + k % 40 for k in range(70)]
    expected = draws(build(way), PROMPTS)
    draws(model, PROMPTS[:1])
    with room_for(60):
        actual = draws(model, [*PROMPTS, large])
    assert actual[-1] == [Sample([], [], "memory")] * 3
    assert [[d.ids for d in samples] for samples in actual[:-1]] == [[d.ids for d in samples] for samples in expected]
