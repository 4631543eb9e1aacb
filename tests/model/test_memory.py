"""Tests of opdkit/model/memory.py: a batch that runs out of memory is halved; an item too large alone is set aside."""

import gc
import subprocess
import sys
import weakref

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from opdkit.model.memory import (
    Attempt,
    Budget,
    TooLargeError,
    batch_by_length,
    find_budget,
    find_state,
    is_out_of_memory,
)

MANY = 1 << 46  # bytes: more than there are


def too_much() -> torch.Tensor:
    return torch.empty(MANY, dtype=torch.uint8)


def test_what_allocators_really_raise() -> None:
    """The errors of torch's allocators and of Python's own are recognised."""
    with pytest.raises(RuntimeError) as of_torch:
        too_much()
    assert is_out_of_memory(of_torch.value)
    with pytest.raises(MemoryError) as of_python:
        bytearray(MANY)
    assert is_out_of_memory(of_python.value)
    assert is_out_of_memory(torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB"))
    assert is_out_of_memory(RuntimeError("CUDA error: out of memory"))


@pytest.mark.parametrize("error", [RuntimeError("shape mismatch"), ValueError("out of memory"), OSError(28, "disk")])
def test_other_errors_are_none_of_it(error: Exception) -> None:
    assert not is_out_of_memory(error)
    with pytest.raises(type(error)), Attempt():
        raise error


def test_what_failed_work_held_is_let_go() -> None:
    """While an error is being handled, its traceback keeps the tensors of every frame alive."""
    held: list[weakref.ref] = []

    def work() -> None:
        big = torch.zeros(1000)
        held.append(weakref.ref(big))
        too_much()

    gc.disable()  # otherwise a collection by chance would hide it
    try:
        with Attempt() as attempt:
            work()
        assert attempt.failed
        assert held[0]() is None
    finally:
        gc.enable()


@given(lengths=st.lists(st.integers(1, 50), max_size=30), batch_tokens=st.integers(1, 200))
def test_batches_hold_every_sequence_once_within_the_budget(lengths, batch_tokens):
    actual = batch_by_length(lengths, batch_tokens)
    assert sorted(i for batch in actual for i in batch) == list(range(len(lengths)))
    for batch in actual:
        assert len(batch) == 1 or len(batch) * max(lengths[i] for i in batch) <= batch_tokens
    assert [max(lengths[i] for i in b) for b in actual] == sorted(
        (max(lengths[i] for i in b) for b in actual), reverse=True
    )


@given(st.lists(st.integers(1, 100), max_size=30), st.integers(1, 150), st.integers(1, 400))
def test_every_item_is_worked_on_once_or_set_aside(lengths: list[int], room: int, tokens: int) -> None:
    """This holds for any lengths and budget, on a machine with room for `room` tokens."""

    done, too_large = list[int](), set[int]()
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(gc, "collect", lambda: 0)  # a third of a second each, and nothing is held here
        for attempt in Budget("work").batches(lengths, tokens):
            with attempt:
                if len(attempt.items) * max(lengths[i] for i in attempt.items) > room:
                    raise torch.OutOfMemoryError
                done += attempt.items
            if attempt.too_large:
                too_large.update(attempt.items)
    assert sorted([*done, *too_large]) == list(range(len(lengths)))
    assert too_large == {i for i, length in enumerate(lengths) if length > room}


@given(st.lists(st.integers(1, 100), max_size=30), st.integers(1, 300))
def test_halves_are_tried_in_order_until_they_fit(lengths: list[int], room: int) -> None:
    done, too_large = list[int](), set[int]()
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(gc, "collect", lambda: 0)
        for attempt in Budget("work").halves(lengths):
            with attempt:
                if sum(lengths[i] for i in attempt.items) > room:
                    raise torch.OutOfMemoryError
                done += attempt.items
            if attempt.too_large:
                too_large.update(attempt.items)
    assert done == [i for i in range(len(lengths)) if i not in too_large]
    assert too_large == {i for i, length in enumerate(lengths) if length > room}


def test_in_lockstep_a_batch_does_not_shrink_in_one_process_alone() -> None:
    """The other processes may have had room, and would wait for forwards that this process does not make."""
    model = torch.nn.Linear(1, 1)
    find_state(model).lockstep = True
    attempt = next(find_budget(model, "work").batches([10, 10], 20))
    with pytest.raises(TooLargeError, match="--batch-tokens"), attempt:
        raise torch.OutOfMemoryError


def test_the_budget_is_remembered_and_said_once(capsys) -> None:
    sizes: list[int] = []
    model = torch.nn.Linear(1, 1)
    for _ in range(3):
        for attempt in find_budget(model, "work").batches([10] * 16, 160):
            with attempt:
                sizes.append(len(attempt.items))
                if len(attempt.items) > 5:
                    raise torch.OutOfMemoryError
    assert sizes == [16, 8, 4, 4, 4, 4] + 2 * [4, 4, 4, 4]
    assert capsys.readouterr().err.count("do not fit into memory; continuing with 40") == 1
    assert find_budget(torch.nn.Linear(1, 1), "work").max_tokens >= 160


LIMITED = """
import resource, sys, torch
from transformers import Qwen3Config, Qwen3ForCausalLM
from opdkit.model.scoring import PromptResponse, score
from opdkit.model.memory import find_budget

torch.manual_seed(0)
config = Qwen3Config(vocab_size=64, hidden_size=64, intermediate_size=4096, num_hidden_layers=2, head_dim=16,
                     num_attention_heads=4, num_key_value_heads=2)
model = Qwen3ForCausalLM(config).eval()
draw = torch.Generator().manual_seed(0)
some = [PromptResponse(*torch.randint(0, 64, (2, 128), generator=draw).tolist()) for _ in range(16)]
free = score(model, some, batch_tokens=1024)
size = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (size + (60 << 20), resource.RLIM_INFINITY))
tight = score(model, some, batch_tokens=1 << 20)
assert find_budget(model, "scoring").max_tokens < 16 * 256, "nothing was halved"
print(max(float((a - b).abs().max()) for a, b in zip(free, tight)))
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="needs RLIMIT_AS and /proc")
def test_a_process_that_may_not_have_more_memory() -> None:
    """The kernel refuses more memory: a batch of 4,096 tokens takes 67 MB at a time, repeatedly, and 60 MB are left."""
    done = subprocess.run([sys.executable, "-c", LIMITED], capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr
    assert float(done.stdout) < 1e-4
