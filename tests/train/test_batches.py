"""Steps, shares and forwards of a training run, and the token tensors they make."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from opdkit.train.batches import deal, micro_batches, optimizer_steps, tokens_of
from opdkit.train.targets import Turn, held_out, select

LENGTHS = st.lists(st.integers(1, 500), min_size=1, max_size=40)


def turn(turn_id: str = "a:1", *, old=(-1.0, -2.0), teacher=None, reward=None, sampled=(True, True)) -> Turn:
    f32 = lambda x: np.asarray(x, np.float32)  # noqa: E731
    return Turn(turn_id, 3, 0, np.arange(len(old), dtype=np.int32), np.asarray(sampled), f32(old),
                None if teacher is None else f32(teacher), reward)  # fmt: skip


def test_every_epoch_takes_every_turn_once_in_an_order_of_its_own() -> None:
    steps = optimizer_steps(10, 4, 3, seed=1)
    assert [len(s) for s in steps] == [4, 4, 2] * 3
    epochs = [[i for s in steps[n : n + 3] for i in s] for n in (0, 3, 6)]
    assert all(sorted(e) == list(range(10)) for e in epochs)
    assert epochs[0] != epochs[1] != list(range(10))
    assert steps == optimizer_steps(10, 4, 3, seed=1)
    assert steps != optimizer_steps(10, 4, 3, seed=2)
    assert steps[:3] == optimizer_steps(10, 4, 1, seed=1)


def test_the_longest_turns_are_dealt_first() -> None:
    assert deal([5, 9, 4, 1], 2) == [[1, 3], [0, 2]]
    assert deal([7], 3) == [[0], [], []]


@given(lengths=LENGTHS, max_tokens=st.integers(1, 1000), processes=st.integers(1, 5))
def test_each_turn_is_read_once_and_all_processes_run_as_many_forwards(lengths, max_tokens, processes) -> None:
    """pitfall 8: no turn twice, none lost; pitfall 27: and no forward padded beyond the budget."""
    shares = [micro_batches(lengths, max_tokens, p, processes) for p in range(processes)]
    assert sorted(i for share in shares for group in share for i in group) == list(range(len(lengths)))
    assert len({len(share) for share in shares}) == 1
    groups = [group for share in shares for group in share if len(group) > 1]
    assert all(len(group) * max(lengths[i] for i in group) <= max_tokens for group in groups)


def test_what_a_turn_does_not_have_is_nan() -> None:
    """pitfall 2: never 0.0."""
    tokens = tokens_of([turn(teacher=(-0.5, -0.25)), turn(reward=-1, sampled=(True, False))])
    assert tokens.teacher_logprobs_N[:2].tolist() == [-0.5, -0.25]
    assert tokens.teacher_logprobs_N[2:].isnan().all()
    assert tokens.reward_N[:2].isnan().all()
    assert tokens.reward_N[2:].tolist() == [-1, -1]
    assert tokens.sampled_N.tolist() == [True, True, True, False]
    assert tokens.old_logprobs_N.dtype == torch.float32


def test_a_turn_that_cannot_train_says_why() -> None:
    nan = float("nan")
    turns = [
        turn("a:1", teacher=(-1, -1)),
        turn("a:3", reward=1),
        turn("a:5", teacher=(nan, -1)),
        turn("a:7", old=(nan, -1), teacher=(-1, -1), sampled=(False, True)),  # what is masked may be anything
        turn("a:9", teacher=(-1, -1), sampled=(False, False)),
    ]
    kept, dropped = select(turns, ("teacher",), 0.0)
    assert [t.turn_id for t in kept] == ["a:1", "a:7"]
    assert dropped == {"no hint": 1, "log-prob not finite": 1, "nothing sampled": 1}
    assert select(turns[:2], ("reward", "teacher"), 0.0)[1] == {}
    assert select([turn()], ("reward", "teacher"), 0.0)[1] == {"no reward and no hint": 1}


@pytest.mark.parametrize("share", [0.0, 0.2, 0.9])
def test_sessions_are_held_out_by_their_name_alone(share: float) -> None:
    names = [f"session-{n}" for n in range(4000)]
    out = {name for name in names if held_out(name, share)}
    assert len(out) / len(names) == pytest.approx(share, abs=0.03)
    assert out <= {name for name in names if held_out(name, min(1.0, share + 0.1))}
