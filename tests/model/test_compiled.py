"""Tests of opdkit/model/compiled.py: fused operations give the model's own numbers and gradients."""

import shutil

import pytest
import torch
from model_families import FAMILIES, build
from transformers.models.gemma3 import modeling_gemma3
from transformers.models.qwen3 import modeling_qwen3

from opdkit.model.compiled import compile_small_operations
from opdkit.model.packed_reading import Pack, enable_packing, read_packed
from opdkit.model.scoring import LogprobQuery, Mixture, PromptResponse, logprobs_of, token_logprobs

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(shutil.which("g++") is None, reason="torch.compile needs a compiler"),
]


@pytest.fixture(autouse=True)
def _uncompiled(monkeypatch):
    """Restore the rotation of positions after each test, for the other tests of this process."""
    for code in (modeling_qwen3, modeling_gemma3):
        monkeypatch.setattr(code, "apply_rotary_pos_emb", code.apply_rotary_pos_emb)


TREE = [PromptResponse([1, 2, 3], [4, 5]), PromptResponse([1, 2, 6], [7, 8, 9])]


@pytest.mark.parametrize("family", ["grouped queries", "window, then all"])
def test_a_compiled_model_has_the_same_numbers_and_gradients(family) -> None:
    plain, compiled = build(*FAMILIES[family]), build(*FAMILIES[family])
    compile_small_operations(compiled)
    found = []
    for model in (plain, compiled):
        assert enable_packing(model) is None
        hidden_NH, output_layer = read_packed(model, Pack.of([TREE], torch.device("cpu")))
        logprobs_N = token_logprobs(output_layer(hidden_NH), torch.tensor([4, 5, 7, 8, 9]))
        logprobs_N.sum().backward()
        found.append([logprobs_N.detach(), *(p.grad for p in model.parameters() if p.grad is not None)])
    assert any(module._compiled_call_impl is not None for module in compiled.modules())
    for a, b in zip(*found, strict=True):
        torch.testing.assert_close(a, b, atol=1e-5 * max(1.0, float(b.abs().max())), rtol=1e-5)


def test_a_compiled_model_in_half_precision_rounds_as_the_model_does() -> None:
    plain = build(*FAMILIES["grouped queries"]).bfloat16()
    compiled = build(*FAMILIES["grouped queries"]).bfloat16()
    compile_small_operations(compiled)
    queries = [LogprobQuery((s,)) for s in TREE]
    a, b = (logprobs_of(Mixture((model,)), queries, batch_tokens=100) for model in (plain, compiled))
    for x, y in zip(a, b, strict=True):
        torch.testing.assert_close(x.logprobs, y.logprobs, atol=0.1, rtol=0)
