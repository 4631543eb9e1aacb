"""Tests of opdkit/model/packed_reading.py: a packed row has the numbers and gradients of each turn read alone."""

from collections.abc import Sequence as Items

import pytest
import torch
from model_families import EAGER, FAMILIES, PLAIN, STATES, build
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from opdkit.model.packed_reading import Pack, _choose_kernels, enable_packing, find_chain_problem, read_packed
from opdkit.model.scoring import PromptResponse, read_chains, response_logits, token_logprobs

CPU = torch.device("cpu")


def ids(length: int, seed: int) -> list[int]:
    return torch.randint(0, 360, (length,), generator=torch.Generator().manual_seed(seed)).tolist()


A, B, C, D = (ids(9, seed) for seed in range(4))
CHAIN = [PromptResponse(A, B), PromptResponse(A + B + C, D), PromptResponse(A + B + C + D + A, C)]
FORKED = [
    PromptResponse(A, B),
    PromptResponse(A + B[:4] + C, D),
    PromptResponse(A + B[:4] + D, C),
    PromptResponse(A, B[:2]),
]
TREES = [CHAIN, FORKED, [PromptResponse(D, A)]]


def packed(model: nn.Module, trees: Items[Items[PromptResponse]]) -> Tensor:
    """Return the log-probs of all response tokens, read as one packed row."""
    hidden_NH, output_layer = read_packed(model, Pack.of(trees, CPU))
    return token_logprobs(output_layer(hidden_NH), responses(trees))


def plain(model: nn.Module, trees: Items[Items[PromptResponse]]) -> Tensor:
    parts = [response_logits(model, [s]) for tree in trees for s in tree]
    return token_logprobs(torch.cat(parts), responses(trees))


def responses(trees: Items[Items[PromptResponse]]) -> Tensor:
    return torch.tensor([i for tree in trees for s in tree for i in s.response_ids])


def gradients(model: nn.Module, logprobs_N: Tensor) -> list[Tensor]:
    """Return the gradients of a sum that weighs every token differently."""
    model.zero_grad()
    (logprobs_N * torch.linspace(-1, 2, len(logprobs_N), dtype=logprobs_N.dtype)).sum().backward()
    return [p.grad.clone() for p in model.parameters() if p.grad is not None]


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("trees", [TREES, [CHAIN], [FORKED]], ids=["many", "a chain", "branches"])
def test_numbers_and_gradients_are_those_of_each_turn_alone(family, trees) -> None:
    """The common prefixes of turns are read once, and nothing else changes."""
    model = build(*FAMILIES[family])
    if family not in ("experts", "DeepSeek-V3", "sinks"):  # torch multiplies groups only in single precision
        model = model.double()
    assert enable_packing(model) is None
    actual, expected = packed(model, trees), plain(model, trees)
    torch.testing.assert_close(actual, expected, atol=1e-5, rtol=0)  # the log-softmax is float32
    for a, b in zip(gradients(model, actual), gradients(model, expected), strict=True):
        torch.testing.assert_close(a, b, atol=1e-5 * float(b.abs().max()), rtol=1e-5)


def test_values_smaller_than_keys_are_read_by_fast_attention() -> None:
    """For DeepSeek, transformers' own call falls back to products that hold scores of rows x keys, six times slower."""
    model = build(*FAMILIES["DeepSeek-V3"])
    expected = plain(model, TREES)
    assert enable_packing(model) is None
    with sdpa_kernel(SDPBackend.FLASH_ATTENTION):  # raises if another kernel is needed
        torch.testing.assert_close(packed(model, TREES), expected, atol=1e-5, rtol=0)
        torch.testing.assert_close(plain(model, TREES), expected, atol=1e-5, rtol=0)


def test_a_row_holds_every_token_once() -> None:
    pack = Pack.of(TREES, CPU)
    assert pack.ids_1n.shape[1] == 54 + (9 + 9 + 9 + 9 + 9 + 9) + 18
    assert pack.positions_1n[0, :54].tolist() == list(range(54))
    assert len(pack.nodes_N) == sum(len(s.response_ids) for tree in TREES for s in tree)
    chain, forked, single = pack.blocks
    assert (chain.mask, single.mask) == (None, None)
    assert (forked.start, forked.stop, forked.keys) == (54, 108, (range(54, 108),))
    assert forked.mask is not None
    assert forked.mask.shape == (1, 1, 54, 54)


def test_branches_see_the_trunk_up_to_where_they_leave_it(monkeypatch) -> None:
    """In a long tree, the trunk needs no mask, and a branch reads the keys before its fork and its own."""
    monkeypatch.setattr("opdkit.model.packed_reading.PACK_TOKENS", 20)
    trunk, short, long = Pack.of([FORKED], CPU).blocks
    assert (trunk.mask, trunk.start, trunk.stop) == (None, 0, 31)
    assert (short.start, short.stop, short.keys) == (31, 36, (range(13), range(31, 36)))
    assert (long.start, long.stop, long.keys) == (36, 54, (range(13), range(36, 54)))
    assert long.positions.tolist() == [*range(13), *range(13, 31)]


@pytest.mark.parametrize("family", ["grouped queries", "window, then all", *EAGER])
def test_long_trees_are_read_some_rows_at_a_time(family, monkeypatch) -> None:
    """The mask of a block ends where its rows end: a triangle, not a square."""
    model = build(*FAMILIES[family])
    assert enable_packing(model) is None
    whole = packed(model, TREES)
    monkeypatch.setattr("opdkit.model.packed_reading._BLOCK", 7)
    pack = Pack.of(TREES, CPU)
    assert max(b.mask.shape[2] for b in pack.blocks if b.mask is not None) == 7
    assert all(b.mask.shape[3] == sum(map(len, b.keys)) for b in pack.blocks if b.mask is not None)
    torch.testing.assert_close(packed(model, TREES), whole, atol=1e-5, rtol=0)


@pytest.mark.parametrize("family", ["grouped queries", "window", "window, then all", *EAGER])
@pytest.mark.parametrize("pack_tokens", [1, 6, 20])
def test_trunks_and_branches_have_the_numbers_of_each_turn_alone(family, pack_tokens, monkeypatch) -> None:
    """This holds for any cut of the branches; a branch may be a trunk itself."""
    model = build(*FAMILIES[family]).double() if family != "sinks" else build(*FAMILIES[family])
    assert enable_packing(model) is None
    expected = plain(model, TREES)
    monkeypatch.setattr("opdkit.model.packed_reading.PACK_TOKENS", pack_tokens)
    actual = packed(model, TREES)
    torch.testing.assert_close(actual, expected, atol=1e-5, rtol=0)
    for a, b in zip(gradients(model, actual), gradients(model, expected), strict=True):
        torch.testing.assert_close(a, b, atol=1e-5 * float(b.abs().max()), rtol=1e-5)


@pytest.mark.parametrize("family", ["grouped queries", "window, then all", "eager"])
def test_a_trunk_that_is_filled_up_as_on_a_gpu_changes_nothing(family, monkeypatch) -> None:
    """A trunk is filled up to a round length with the rows after it or, at the end of the row, with made-up ones."""
    model = build(*FAMILIES[family])
    assert enable_packing(model) is None
    before = packed(model, TREES)
    expected = gradients(model, before)
    monkeypatch.setattr("opdkit.model.packed_reading._ON_GRID", {"cpu"})
    monkeypatch.setattr("opdkit.model.packed_reading._GRID", 64)
    assert Pack.of(TREES, CPU).ids_1n.shape[1] == 108 + 64
    actual = packed(model, TREES)
    torch.testing.assert_close(actual, before, atol=1e-5, rtol=0)
    for a, b in zip(gradients(model, actual), expected, strict=True):
        torch.testing.assert_close(a, b, atol=1e-6 * float(b.abs().max()), rtol=1e-4)


def test_a_gpu_plans_no_kernel_for_the_form_of_a_mask() -> None:
    """cuDNN plans again for each shape, for up to a second, so it reads only trunks: rounded lengths and no mask."""
    gpu = torch.device("cuda")
    with _choose_kernels(gpu, None):
        assert torch.backends.cuda.cudnn_sdp_enabled()
    with _choose_kernels(gpu, torch.ones(1, 1, 2, 2, dtype=torch.bool)):
        assert not torch.backends.cuda.cudnn_sdp_enabled()
        assert torch.backends.cuda.mem_efficient_sdp_enabled()


@pytest.mark.parametrize("family", ["grouped queries", *EAGER])
def test_layers_that_are_computed_again_have_the_same_gradients(family) -> None:
    """With --gradient-checkpointing, a layer is computed again, and in some models its scores once more."""
    model = build(*FAMILIES[family])
    assert enable_packing(model) is None
    expected = gradients(model, packed(model, TREES))
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    model.train()  # gradient checkpointing is off in evaluation mode; no layer here has dropout
    for a, b in zip(gradients(model, packed(model, TREES)), expected, strict=True):
        torch.testing.assert_close(a, b, atol=1e-6 * float(b.abs().max()), rtol=1e-5)


@pytest.mark.parametrize("family", EAGER)
def test_scores_are_not_kept_for_the_backward_pass(family, monkeypatch) -> None:
    """An attention that writes its scores to memory holds those of one block at a time."""
    monkeypatch.setattr("opdkit.model.packed_reading._BLOCK", 16)
    model, kept = build(*FAMILIES[family]), list[tuple[int, ...]]()
    assert enable_packing(model) is None
    with torch.autograd.graph.saved_tensors_hooks(lambda x: kept.append(tuple(x.shape)) or x, lambda x: x):
        packed(model, TREES)
        assert kept
        assert not [shape for shape in kept if len(shape) == 4 and min(shape[-2:]) >= 16]
        kept.clear()
        model(input_ids=torch.tensor([A + B + C + D]))
        assert [shape for shape in kept if len(shape) == 4 and min(shape[-2:]) >= 16], "a plain forward keeps them"


def test_a_window_reads_no_keys_that_it_is_done_with(monkeypatch) -> None:
    monkeypatch.setattr("opdkit.model.packed_reading._BLOCK", 7)
    chain, *_ = Pack.of(TREES, CPU).blocks
    cut = list(chain.cut(8))
    assert [(b.keys[0].start, b.start, b.stop) for b in cut[:3]] == [(0, 0, 7), (0, 7, 14), (7, 14, 21)]
    assert cut[-1].stop == chain.stop
    for b in cut:
        assert b.mask is not None
        rows, keys = torch.arange(b.start, b.stop)[:, None], torch.arange(b.keys[0].start, b.stop)
        assert torch.equal(b.mask[0, 0], (keys <= rows) & (rows - keys < 8))


def test_a_window_that_the_layers_do_not_have_is_found_out(monkeypatch) -> None:
    model = build(*FAMILIES["window, then all"])
    monkeypatch.setattr("opdkit.model.packed_reading.find_windows", lambda model: [None, None])
    assert "would differ by" in str(enable_packing(model))


def test_trees_do_not_see_each_other() -> None:
    model = build(*FAMILIES["grouped queries"])
    assert enable_packing(model) is None
    embedded = []
    model.get_input_embeddings().register_forward_hook(lambda _m, _a, out: embedded.append(out) or out.retain_grad())
    hidden_NH, _ = read_packed(model, Pack.of(TREES, CPU))
    hidden_NH[: 3 * 9].sum().backward()  # the chain's responses
    (gradient,) = (e.grad for e in embedded)
    assert gradient[0, :53].abs().amin(-1).gt(0).all()
    assert gradient[0, 53:].eq(0).all(), "the last token of the chain predicts nothing, the rest is not its own"


@pytest.mark.parametrize("family", ["grouped queries", *EAGER])
def test_an_unpacked_forward_is_what_it_was(family) -> None:
    model = build(*FAMILIES[family])
    before = model(input_ids=torch.tensor([A, B]), attention_mask=torch.ones(2, 9)).logits
    assert enable_packing(model) is None
    assert torch.equal(model(input_ids=torch.tensor([A, B]), attention_mask=torch.ones(2, 9)).logits, before)


def test_the_way_of_attending_is_not_saved(tmp_path) -> None:
    model = build(*FAMILIES["grouped queries"])
    assert enable_packing(model) is None
    model.save_pretrained(tmp_path)
    assert "opdkit" not in (tmp_path / "config.json").read_text()


@pytest.mark.parametrize("family", ["LFM2", "Mamba-2"])
def test_what_cannot_be_packed_stays_as_it_is(family) -> None:
    model = build(*STATES[family])
    before = model.config._attn_implementation
    assert "some of its layers" in str(enable_packing(model))
    assert model.config._attn_implementation == before


@pytest.mark.parametrize("family", [*STATES, *EAGER])
def test_chains_have_the_numbers_and_gradients_of_each_turn_alone(family) -> None:
    """A session whose turns continue each other is read as one plain sequence, for any kind of layers."""
    model = build(*(FAMILIES | STATES)[family])
    assert find_chain_problem(model) is None
    trees = [CHAIN, *([s] for s in FORKED), [PromptResponse(D, A)]]
    hidden_NH, output_layer = read_chains(model, trees)
    actual, expected = token_logprobs(output_layer(hidden_NH), responses(trees)), plain(model, trees)
    torch.testing.assert_close(actual, expected, atol=1e-4, rtol=0)
    a, b = (torch.cat([g.flatten() for g in gradients(model, x)]) for x in (actual, expected))
    assert float((a - b).norm()) <= 1e-5 * float(b.norm())


def test_positions_that_depend_on_the_length_rule_out_chains() -> None:
    assert "depend on the number of tokens" in str(find_chain_problem(build(*PLAIN["dynamic positions"])))


def test_a_model_that_keeps_the_blocks_to_itself_is_found_out(monkeypatch) -> None:
    model = build(*FAMILIES["grouped queries"])
    body = model.get_decoder()
    forward = body.forward
    monkeypatch.setattr(body, "forward", lambda *a, packed_blocks=None, **k: forward(*a, **k))
    assert "would differ by" in str(enable_packing(model))
    assert model.config._attn_implementation == "sdpa"
