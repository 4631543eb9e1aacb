"""Steps of a training run, and the token tensors they make."""

from collections import Counter

import numpy as np
import pytest
import torch

from opdkit.train.batches import Step, optimizer_steps, tokens_of
from opdkit.train.targets import Support, Turn, is_held_out
from opdkit.train.training_set import select_turns


def turn(
    turn_id: str = "a:1",
    *,
    old=(-1.0, -2.0),
    teacher=None,
    reward=None,
    sampled=(True, True),
    behavior=None,
    support=None,
) -> Turn:
    f32 = lambda x: None if x is None else np.asarray(x, np.float32)  # noqa: E731
    return Turn(turn_id, None, 3, 0, np.arange(len(old), dtype=np.int32), np.asarray(sampled), f32(old), f32(teacher),
                f32(behavior), reward, reward, support)  # fmt: skip


def steps_of(
    count: int, epochs: int = 1, *, seed: int = 1, order: str = "random", phases=None, strengths=None, sessions=None
):
    return optimizer_steps(phases or [0] * count, strengths or [0.0] * count, sessions, 4, epochs, seed, order)


def test_every_epoch_takes_every_turn_once_in_an_order_of_its_own() -> None:
    steps = steps_of(10, 3)
    assert [len(s.turns) for s in steps] == [4, 4, 2] * 3
    epochs = [[i for s in steps[n : n + 3] for i in s.turns] for n in (0, 3, 6)]
    assert all(sorted(e) == list(range(10)) for e in epochs)
    assert epochs[0] != epochs[1] != list(range(10))
    assert steps == steps_of(10, 3)
    assert steps != steps_of(10, 3, seed=2)
    assert steps[:3] == steps_of(10)


def test_turns_may_come_from_easy_to_hard() -> None:
    strengths = [0.3, 0.1, 0.2, 0.0, 0.5, 0.4]
    easy = [i for s in steps_of(6, strengths=strengths, order="easy-first") for i in s.turns]
    assert easy == [3, 1, 2, 0, 5, 4]
    assert [i for s in steps_of(6, strengths=strengths, order="hard-first") for i in s.turns] == easy[::-1]
    equal = [[i for s in steps_of(6, seed=seed, order="easy-first") for i in s.turns] for seed in (1, 2)]
    assert equal[0] != equal[1], "the seed decides between equals"


def test_steps_of_two_phases_take_turns() -> None:
    phases = [0] * 9 + [1] * 5
    steps = steps_of(14, 2, phases=phases)
    assert [s.phase for s in steps] == [0, 1, 0, 1, 0] * 2
    assert all({phases[i] for i in s.turns} == {s.phase} for s in steps)
    assert sorted(i for s in steps[:5] for i in s.turns) == list(range(14))
    assert steps_of(5, phases=[1] * 5)[0] == Step(1, steps_of(5)[0].turns), "a phase without turns is passed over"


def test_a_step_takes_whole_sessions_until_it_has_enough() -> None:
    sessions = ["a"] * 3 + ["b"] + ["c"] * 6 + ["d"] * 2
    steps = steps_of(12, 3, sessions=sessions)
    of = {name: [i for i, s in enumerate(sessions) if s == name] for name in "abcd"}
    for step in steps:
        names = list(dict.fromkeys(sessions[i] for i in step.turns))
        assert step.turns == [i for name in names for i in of[name]], "whole, and in order"
        assert len(step.turns) - len(of[names[-1]]) < 4, "the one before would have been enough"
    assert Counter(i for s in steps for i in s.turns) == dict.fromkeys(range(12), 3)
    assert steps == steps_of(12, 3, sessions=sessions)
    assert steps != steps_of(12, 3, sessions=sessions, seed=2)


def test_sessions_come_by_their_mean_strength_and_apart_by_phase() -> None:
    sessions, strengths = ["a", "a", "b", "b", "c", "c"], [0.9, 0.0, 0.5, 0.5, 0.0, 0.2]
    easy = [i for s in steps_of(6, sessions=sessions, strengths=strengths, order="easy-first") for i in s.turns]
    assert easy == [4, 5, 0, 1, 2, 3]
    steps = steps_of(6, sessions=sessions, phases=[0, 1, 0, 1, 0, 1])
    assert [s.phase for s in steps] == [0, 1]
    assert sorted(steps[0].turns) == [0, 2, 4]


def test_what_a_turn_does_not_have_is_nan() -> None:
    """Missing log-probs and rewards: never 0.0, which is probability 1."""
    tokens = tokens_of([turn(teacher=(-0.5, -0.25)), turn(reward=-1, sampled=(True, False))])
    assert tokens.teacher_logprobs_N[:2].tolist() == [-0.5, -0.25]
    assert tokens.teacher_logprobs_N[2:].isnan().all()
    assert tokens.reward_N[:2].isnan().all()
    assert tokens.reward_N[2:].tolist() == [-1, -1]
    assert tokens.sampled_N.tolist() == [True, True, True, False]
    assert tokens.behavior_logprobs_N.isnan().all()
    assert tokens.old_logprobs_N.dtype == torch.float32
    assert tokens.turn_N.tolist() == [0, 0, 1, 1]
    assert tokens.position_N.tolist() == [0, 1, 0, 1]
    assert tokens.support_ids_NK.shape == (4, 0)


def test_supports_stand_beside_turns_without_one() -> None:
    support = Support(np.array([[5, 6, 7], [7, 8, 9]], np.int32), np.full((2, 3), -1, np.float16),
                      np.full((2, 3), -2, np.float16))  # fmt: skip
    tokens = tokens_of([turn(reward=1), turn(teacher=(-1, -1), support=support, behavior=(-3, -4))])
    assert tokens.supported_N.tolist() == [False, False, True, True]
    assert tokens.support_ids_NK.tolist() == [[0, 0, 0]] * 2 + [[5, 6, 7], [7, 8, 9]]
    assert tokens.support_ids_NK.dtype == torch.int64
    assert tokens.support_old_NK[:2].isnan().all()
    assert tokens.support_teacher_NK[2:].tolist() == [[-2.0] * 3] * 2
    assert tokens.support_old_NK.dtype == torch.float32
    assert tokens.behavior_logprobs_N[2:].tolist() == [-3, -4]


def test_a_turn_that_cannot_train_says_why() -> None:
    nan = float("nan")
    turns = [
        turn("a:1", teacher=(-1, -1)),
        turn("a:3", reward=1),
        turn("a:5", teacher=(nan, -1)),
        turn("a:7", old=(nan, -1), teacher=(-1, -1), sampled=(False, True)),  # what is masked may be anything
        turn("a:9", teacher=(-1, -1), sampled=(False, False)),
        turn("a:11", teacher=(-1, -1), behavior=(nan, -1)),
    ]
    kept, dropped = select_turns(turns, ("teacher",), 0.0)
    assert [t.turn_id for t in kept] == ["a:1", "a:7"]
    assert dropped == {"no hint": 1, "log-prob not finite": 2, "nothing sampled": 1}
    assert select_turns(turns[:2], ("reward", "teacher"), 0.0)[1] == {}
    assert select_turns([turn()], ("reward", "teacher"), 0.0)[1] == {"no reward and no hint": 1}
    assert select_turns([turn()], ("support", "divergence"), 0.0)[1] == {"no hint": 1}


@pytest.mark.parametrize("share", [0.0, 0.2, 0.9])
def test_sessions_are_held_out_by_their_name_alone(share: float) -> None:
    names = [f"session-{n}" for n in range(4000)]
    out = {name for name in names if is_held_out(name, share)}
    assert len(out) / len(names) == pytest.approx(share, abs=0.03)
    assert out <= {name for name in names if is_held_out(name, min(1.0, share + 0.1))}
