"""Tests of blame, what a small step on one turn changes, against gradients, steps and trainings without a turn."""

import copy
import dataclasses
import re

import numpy as np
import pyarrow as pa
import pytest
import torch
from toy_turns import toy_turn
from transformers import Qwen3Config, Qwen3ForCausalLM

from opdkit.evaluate.blame import WeightedReply, blame_turns, choose_weights, find_worse_prompts, measure_turn_losses
from opdkit.model.scoring import PromptResponse, response_logits
from opdkit.train.batches import collect_tokens
from opdkit.train.objective.losses import logprobs_and_entropy
from opdkit.train.objective.terms import PRESETS, Objective, compute_loss, count_totals, make_terms
from opdkit.train.policy import Policy
from opdkit.train.training_set import build_training_set

VOCABULARY, TURNS = 12, 8
OBJECTIVE = Objective({"reward": 1.0}, negative_below=1.0)
# -- what got worse -------------------------------------------------------------------------------------------------


def replies_table(*rows: tuple[str, str, str, int, bool | None], probe: str | None = None) -> pa.Table:
    names = ("prompt_id", "domain", "model", "sample", "passed")
    return pa.Table.from_pylist([dict(zip(names, row, strict=True)) | {"probe": probe} for row in rows])


def test_worse_prompts_are_of_the_domains_that_fell() -> None:
    rows = [("a1", "a", "before", 1, True), ("a1", "a", "before", 2, True), ("a1", "a", "after", 1, False),
            ("a1", "a", "after", 2, True), ("b1", "b", "before", 1, True), ("b1", "b", "after", 1, False),
            ("b2", "b", "before", 1, False), ("b2", "b", "after", 1, True), ("a2", "a", "before", 1, None),
            ("a2", "a", "after", 1, False), ("a1", "a", "before", 0, False)]  # fmt: skip
    domains, prompts = find_worse_prompts(replies_table(*rows))
    assert domains == [{"domain": "a", "prompts": 1, "before": 1.0, "after": 0.5},
                       {"domain": "b", "prompts": 2, "before": 0.5, "after": 0.5}]  # fmt: skip
    (worse,) = prompts
    assert (worse.prompt_id, worse.share) == ("a1", 0.5)
    assert [row["sample"] for row in worse.passing] == [1, 2]
    assert [row["sample"] for row in worse.failing] == [1]
    assert find_worse_prompts(replies_table(*rows), "b")[1] == []
    assert find_worse_prompts(replies_table(*rows), "c") == ([], [])
    probes = [("a1:push_back", "a", model, 1, model == "before") for model in ("before", "after")]
    probed = pa.concat_tables([replies_table(*rows), replies_table(*probes, probe="push_back")],
                              promote_options="permissive")  # fmt: skip
    assert find_worse_prompts(probed) == (domains, prompts)
    fell_more = [("z1", "z", model, 1, model == "before") for model in ("before", "after")]
    assert [row["domain"] for row in find_worse_prompts(replies_table(*rows, *fell_more))[0]] == ["z", "a", "b"]


# -- which turns taught it ------------------------------------------------------------------------------------------


@pytest.fixture
def model() -> Qwen3ForCausalLM:
    torch.manual_seed(0)
    config = Qwen3Config(vocab_size=VOCABULARY, hidden_size=16, intermediate_size=24, num_hidden_layers=2,
                         num_attention_heads=2, num_key_value_heads=1, head_dim=8,
                         tie_word_embeddings=False)  # fmt: skip
    return Qwen3ForCausalLM(config).eval()


def logprobs(model: Qwen3ForCausalLM, sequence: PromptResponse) -> torch.Tensor:
    logits = response_logits(model, [sequence])
    return logprobs_and_entropy(logits, torch.tensor(sequence.response_ids)[:, None])[0][:, 0]


@pytest.fixture
def world(model: Qwen3ForCausalLM):
    """Return a training set of rewarded replies, its prompts, and the prompt whose reply 1 2 3 was lost to 7 8 9.

    After that prompt, turn 0 has the reward +1 for 7 8 9, turn 1 has +1 for 1 2 3, and turn 2 has -1 for 1 2 3.
    """
    rng = np.random.default_rng(0)
    prompt, right, wrong = [4, 5, 6], [1, 2, 3], [7, 8, 9]
    replies = [(prompt, wrong, 1), (prompt, right, 1), (prompt, right, -1)]
    replies += [(rng.integers(0, VOCABULARY, 3).tolist(), rng.integers(0, VOCABULARY, 3).tolist(), reward)
                for reward in (1, -1, 1, -1, 1)]  # fmt: skip
    turns, prompts = [], {}
    for n, (before, reply, reward) in enumerate(replies):
        with torch.no_grad():
            old = logprobs(model, PromptResponse(before, reply)).numpy()
        turn = toy_turn(f"s{n}:1", old=old, reward=reward)
        turns.append(dataclasses.replace(turn, response_ids=np.array(reply, np.int32)))
        prompts[turn.turn_id] = np.array(before, np.int32)
    data = build_training_set(turns, [OBJECTIVE], TURNS, {})
    lost = [WeightedReply(PromptResponse(prompt, wrong), 1.0), WeightedReply(PromptResponse(prompt, right), -1.0)]
    return data, prompts, lost


def lost_behaviour(model: Qwen3ForCausalLM, lost: list[WeightedReply]) -> torch.Tensor:
    return sum(reply.weight * logprobs(model, reply.sequence).sum() for reply in lost)  # type: ignore[return-value]


def test_blame_is_the_product_of_gradients(model, world) -> None:
    """Blame is -g . grad l_i: g is the gradient of the lost behaviour, and l_i is -A log p summed over a turn's tokens,
    divided by the mean number of tokens per turn."""
    data, prompts, lost = world
    weights = choose_weights(model)
    g = torch.autograd.grad(lost_behaviour(model, lost), weights)
    expected = []
    for turn in data.replies:
        loss = -turn.reward * logprobs(model, PromptResponse(prompts[turn.turn_id].tolist(),
                                                             turn.response_ids.tolist())).sum() / 3  # fmt: skip
        expected.append(-sum(float((a * b).sum()) for a, b in zip(g, torch.autograd.grad(loss, weights), strict=True)))
    found = blame_turns(copy.deepcopy(model), lost, data, prompts, [OBJECTIVE], 64)
    assert found == pytest.approx(expected, rel=1e-2, abs=1e-3 * max(map(abs, expected)))
    assert found.argmax() in (0, 2)
    assert found[0] > 0 > found[1]
    assert found[1] == pytest.approx(-found[2], rel=1e-2)
    in_small_forwards = blame_turns(copy.deepcopy(model), lost, data, prompts, [OBJECTIVE], 1)
    assert in_small_forwards == pytest.approx(found, rel=1e-2, abs=1e-3 * max(found))


def test_blame_ranks_turns_as_trainings_without_them_do(model, world) -> None:
    """The oracle trains on all turns and on all but one: without a turn that is to blame, less is lost."""
    data, prompts, lost = world

    def loss_after_training(left_out: int | None) -> float:
        student = copy.deepcopy(model)
        optimizer = torch.optim.SGD(choose_weights(student), lr=0.02)
        for _ in range(10):
            optimizer.zero_grad()
            for n, turn in enumerate(data.replies):
                if n != left_out:
                    sequence = PromptResponse(prompts[turn.turn_id].tolist(), turn.response_ids.tolist())
                    (-turn.reward * (logprobs(student, sequence) - torch.from_numpy(turn.old_logprobs)).exp().sum()
                     / 3 / TURNS).backward()  # fmt: skip
            optimizer.step()
        return lost_behaviour(student, lost).item()

    whole = loss_after_training(None)
    effects = [whole - loss_after_training(n) for n in range(TURNS)]
    found = blame_turns(copy.deepcopy(model), lost, data, prompts, [OBJECTIVE], 64)
    assert np.corrcoef(found, effects)[0, 1] > 0.95
    assert set(np.argsort(found)[-2:]) == set(np.argsort(effects)[-2:]) == {0, 2}


def test_only_the_last_half_of_the_layers_is_looked_at(model) -> None:
    names = {id(p): name for name, p in model.named_parameters()}
    assert {re.search(r"\.(\d+)\.", names[id(p)])[1] for p in choose_weights(model)} == {"1"}
    flat = torch.nn.Linear(2, 2)
    assert len(choose_weights(flat)) == 2, "without layers, all weights"


def test_the_loss_of_a_turn_at_the_old_policy_is_minus_its_reward(model, world) -> None:
    """Every ratio is 1 there, so the loss of turn i is -A_i."""
    data, prompts, _ = world
    losses = measure_turn_losses(Policy(model), data, prompts, [OBJECTIVE], 64)
    assert losses == pytest.approx([-turn.reward for turn in data.replies], abs=1e-5)


@pytest.mark.parametrize("aggregation", ["token-mean", "turn-mean"])
@pytest.mark.parametrize("objective", ["combine", "alternate"])
def test_losses_sum_to_that_of_a_step_where_hints_are_rare(model, objective: str, aggregation: str) -> None:
    """Of 40 turns with a reward, four have a hint. The mean of the turns' losses is the loss of one step on all."""
    rng = np.random.default_rng(1)
    turns, prompts, now = [], {}, []
    for n in range(40):
        reply, before = rng.integers(0, VOCABULARY, 1 + n % 5), rng.integers(0, VOCABULARY, 3)
        with torch.no_grad():
            now.append(logprobs(model, PromptResponse(before.tolist(), reply.tolist())))
        old = now[-1].numpy() + rng.normal(0, 0.05, len(reply))
        turn = toy_turn(f"s{n}:1", old=old, reward=1 - 2 * (n % 3 == 0), teacher=old - 1 if n % 10 == 0 else None)
        turns.append(dataclasses.replace(turn, response_ids=reply.astype(np.int32)))
        prompts[turn.turn_id] = before.astype(np.int32)
    objectives = [Objective(weights, aggregation=aggregation, negative_below=1.0) for weights in PRESETS[objective]]
    data = build_training_set(turns, objectives, len(turns), {})
    losses = measure_turn_losses(Policy(model), data, prompts, objectives, 64)
    for phase, each in enumerate(objectives):
        members = [i for i, p in enumerate(data.phases) if p == phase]
        tokens = collect_tokens([data.replies[i] for i in members])
        of_turn = {turn.turn_id: x_N for turn, x_N in zip(turns, now, strict=True)}
        now_N = torch.cat([of_turn[data.replies[i].turn_id] for i in members])
        terms = make_terms(each, tokens)
        whole, _ = compute_loss(now_N, torch.zeros(len(now_N), 0), tokens, terms,
                             count_totals(terms, tokens, aggregation), each)  # fmt: skip
        assert losses[members].mean() == pytest.approx(float(whole), abs=1e-5)
