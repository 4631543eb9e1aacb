"""Tests of how turns are drawn into optimizer steps, and of the token tensors of a step."""

from collections import Counter
from dataclasses import replace

import numpy as np
import torch
from toy_turns import toy_turn

from opdkit.train.batches import Step, collect_ids, collect_tokens, count_steps, draw_steps
from opdkit.train.targets import Support


def steps_of(
    count: int, epochs: int = 1, *, seed: int = 1, order: str = "random", phases=None, strengths=None, sessions=None
):
    phases, strengths = phases or [0] * count, strengths or [0.0] * count
    return draw_steps(phases, strengths, sessions, 4, range(epochs), seed, order)


def test_every_epoch_takes_every_turn_once_in_an_order_of_its_own() -> None:
    steps = steps_of(10, 3)
    assert [len(s.replies) for s in steps] == [4, 4, 2] * 3
    epochs = [[i for s in steps[n : n + 3] for i in s.replies] for n in (0, 3, 6)]
    assert all(sorted(e) == list(range(10)) for e in epochs)
    assert epochs[0] != epochs[1] != list(range(10))
    assert steps == steps_of(10, 3)
    assert steps != steps_of(10, 3, seed=2)
    assert steps[:3] == steps_of(10)
    assert steps[3:] == draw_steps([0] * 10, [0.0] * 10, None, 4, range(1, 3), 1), "those of later epochs alone"


def test_the_steps_of_an_epoch_are_counted_in_whole_sessions() -> None:
    """A session of 100 turns is one step, even if --batch-turns is smaller."""
    assert count_steps(None, 200, 16) == 13
    assert count_steps(["a"] * 100 + ["b"] * 100, 200, 16) == 2
    assert count_steps([f"{n // 2}" for n in range(200)], 200, 16) == len(
        draw_steps([0] * 200, [0.0] * 200, [f"{n // 2}" for n in range(200)], 16, range(1), 0)
    )


def test_turns_may_come_from_easy_to_hard() -> None:
    strengths = [0.3, 0.1, 0.2, 0.0, 0.5, 0.4]
    easy = [i for s in steps_of(6, strengths=strengths, order="easy-first") for i in s.replies]
    assert easy == [3, 1, 2, 0, 5, 4]
    assert [i for s in steps_of(6, strengths=strengths, order="hard-first") for i in s.replies] == easy[::-1]
    equal = [[i for s in steps_of(6, seed=seed, order="easy-first") for i in s.replies] for seed in (1, 2)]
    assert equal[0] != equal[1], "the seed decides between equals"


def test_the_first_step_has_an_advantage_where_any_has() -> None:
    """The first step finds the learning rate, and turns that only the anchor holds have nothing but rounding errors."""
    strengths = [0.0] * 39 + [0.7]
    for order in ("random", "easy-first"):
        steps = steps_of(40, 2, strengths=strengths, order=order)
        assert 39 in steps[0].replies
        assert Counter(i for s in steps for i in s.replies) == dict.fromkeys(range(40), 2)
    assert steps_of(40)[1:] == steps_of(40, strengths=[1.0] * 40)[1:], "else the order is as drawn"


def test_steps_of_two_phases_take_turns() -> None:
    phases = [0] * 9 + [1] * 5
    steps = steps_of(14, 2, phases=phases)
    assert [s.phase for s in steps] == [0, 1, 0, 1, 0] * 2
    assert all({phases[i] for i in s.replies} == {s.phase} for s in steps)
    assert sorted(i for s in steps[:5] for i in s.replies) == list(range(14))
    assert steps_of(5, phases=[1] * 5)[0] == Step(1, steps_of(5)[0].replies), "a phase without turns is passed over"


def test_a_step_takes_whole_sessions_until_it_has_enough() -> None:
    sessions = ["a"] * 3 + ["b"] + ["c"] * 6 + ["d"] * 2
    steps = steps_of(12, 3, sessions=sessions)
    of = {name: [i for i, s in enumerate(sessions) if s == name] for name in "abcd"}
    for step in steps:
        names = list(dict.fromkeys(sessions[i] for i in step.replies))
        assert step.replies == [i for name in names for i in of[name]], "whole, and in order"
        assert len(step.replies) - len(of[names[-1]]) < 4, "the one before would have been enough"
    assert Counter(i for s in steps for i in s.replies) == dict.fromkeys(range(12), 3)
    assert steps == steps_of(12, 3, sessions=sessions)
    assert steps != steps_of(12, 3, sessions=sessions, seed=2)


def test_sessions_come_by_their_mean_strength_and_apart_by_phase() -> None:
    sessions, strengths = ["a", "a", "b", "b", "c", "c"], [0.9, 0.0, 0.5, 0.5, 0.0, 0.2]
    easy = [i for s in steps_of(6, sessions=sessions, strengths=strengths, order="easy-first") for i in s.replies]
    assert easy == [4, 5, 0, 1, 2, 3]
    steps = steps_of(6, sessions=sessions, phases=[0, 1, 0, 1, 0, 1])
    assert [s.phase for s in steps] == [0, 1]
    assert sorted(steps[0].replies) == [0, 2, 4]


def test_what_a_turn_does_not_have_is_nan() -> None:
    """Missing log-probs and rewards are NaN and never 0.0, which as a log-prob is probability 1."""
    tokens = collect_tokens([toy_turn(teacher=(-0.5, -0.25)), toy_turn(reward=-1, sampled=(True, False))])
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
    turns = [toy_turn(reward=1), toy_turn(teacher=(-1, -1), support=support, behavior=(-3, -4))]
    tokens = collect_tokens(turns)
    assert tokens.supported_N.tolist() == [False, False, True, True]
    assert tokens.support_ids_NK.tolist() == [[0, 0, 0]] * 2 + [[5, 6, 7], [7, 8, 9]]
    assert tokens.support_ids_NK.dtype == torch.int64
    ids = collect_ids(turns, tokens)
    assert ids[:, 0].tolist() == [token for turn in turns for token in turn.response_ids.tolist()]
    assert torch.equal(ids[:, 1:], tokens.support_ids_NK)
    assert tokens.support_old_NK[:2].isnan().all()
    assert tokens.support_teacher_NK[2:].tolist() == [[-2.0] * 3] * 2
    assert tokens.support_old_NK.dtype == torch.float32
    assert tokens.behavior_logprobs_N[2:].tolist() == [-3, -4]


def test_praise_marks_the_tokens_of_the_reply_in_its_support() -> None:
    """Shaped rewards count: a reward equal to its group's mean is not praise. The second token is in no support."""
    support = Support(np.array([[3, 0], [2, 5]], np.int32), np.full((2, 2), -1, np.float16), None)
    praised = toy_turn("praised", reward=1, support=support)
    turns = [praised, replace(praised, shaped_reward=0.0), toy_turn("neutral", reward=0, support=support),
             toy_turn("bare", reward=1)]  # fmt: skip
    assert praised.response_ids.tolist() == [0, 1]
    assert collect_tokens(turns).praised_NK.tolist() == [[False, True], *[[False, False]] * 7]
