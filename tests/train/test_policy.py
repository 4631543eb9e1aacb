"""Tests of the student's log-probs some rows at a time: the same numbers and gradients, without all rows' logits."""

import copy

import pytest
import torch
from model_families import FAMILIES, STATES, build

from opdkit.model.packed_reading import Pack, enable_packing, read_packed
from opdkit.model.scoring import PromptResponse
from opdkit.train import policy
from opdkit.train.policy import Policy, logprobs_by_rows

TREES = [
    [PromptResponse([1, 2, 3], [4, 5]), PromptResponse([1, 2, 3, 4, 5, 6], [7] * 11)],
    [PromptResponse([9, 8], [7, 6, 5])],
]
N = sum(len(s.response_ids) for tree in TREES for s in tree)
IDS_NK = torch.randint(0, 360, (N, 3), generator=torch.Generator().manual_seed(0))


def gradients(model, loss) -> list[torch.Tensor]:
    model.zero_grad()
    loss.backward()
    return [p.grad.clone() for p in model.parameters() if p.grad is not None]


def test_some_rows_at_a_time_give_the_same_numbers_and_gradients() -> None:
    model = build(*FAMILIES["scaled logits"]).double()
    assert enable_packing(model) is None
    found, seen = {}, []
    for rows in (N, 4, 1):
        hidden_NH, output_layer = read_packed(model, Pack.of(TREES, model.device))

        def watched(hidden_nH, layer=output_layer):
            seen.append(len(hidden_nH))
            return layer(hidden_nH)

        seen.clear()
        logprobs_NK, entropy_N = logprobs_by_rows(watched, hidden_NH, IDS_NK, rows)
        weights_NK = torch.linspace(-1, 1, N * 3, dtype=torch.float64).view(N, 3)
        found[rows] = (logprobs_NK, entropy_N, *gradients(model, (logprobs_NK * weights_NK).sum()))
        assert max(seen) <= rows
        assert sum(seen) == (N if rows == N else 2 * N), "made again in the backward pass, not kept"
    for rows in (4, 1):
        for a, b in zip(found[rows], found[N], strict=True):
            torch.testing.assert_close(a, b, atol=1e-12, rtol=1e-9)
    assert not found[4][1].requires_grad


@pytest.mark.parametrize("family", ["grouped queries", "window, then all", "LFM2"])
def test_packed_and_padded_reading_agree(family, monkeypatch) -> None:
    """Models that cannot be packed read chains, and those that cannot read chains are padded, with the same numbers."""
    model = build(*(FAMILIES | STATES)[family])
    student = Policy(copy.deepcopy(model))
    assert (student.packed, student.chains) == (family in FAMILIES, family not in FAMILIES)
    for name in ("enable_packing", "find_chain_problem"):
        monkeypatch.setattr(policy, name, lambda model: "for a reason")
    plain = Policy(model)
    assert (plain.packed, plain.chains) == (False, False)
    (a, entropy_a), (b, entropy_b) = student(TREES, IDS_NK), plain(TREES, IDS_NK)
    torch.testing.assert_close(a, b, atol=1e-5, rtol=0)
    torch.testing.assert_close(entropy_a, entropy_b, atol=1e-5, rtol=0)
    for x, y in zip(gradients(student, a.sum()), gradients(plain, b.sum()), strict=True):
        torch.testing.assert_close(x, y, atol=1e-5 * float(y.abs().max()), rtol=1e-5)
