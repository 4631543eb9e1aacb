"""Tests of sampling/shared_cache.py: samples are those of prompts read one by one, with less read and held."""

from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pytest
import torch
import transformers
from torch import nn
from transformers.integrations.sdpa_attention import sdpa_attention_forward

import opdkit.model.sampling
from opdkit.model.random_streams import make_random_stream
from opdkit.model.sampling import Request, Sample, attention, batches, sample, shared_cache

SIZES = {"vocab_size": 96, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "head_dim": 8,
         "initializer_range": 0.3, "num_attention_heads": 4, "num_key_value_heads": 2}  # fmt: skip
FAMILIES = {
    "grouped queries": ("Qwen3Config", {}),
    "one key for all": ("LlamaConfig", {"num_key_value_heads": 1}),
    "a key a query": ("LlamaConfig", {"num_key_value_heads": 4}),
    "eager": ("Qwen3Config", {"attn_implementation": "eager"}),
    "experts": ("Qwen3MoeConfig", {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16}),
    "window": ("MistralConfig", {"sliding_window": 8}),
    "window, then all": ("Gemma3TextConfig", {"sliding_window": 8,
                                              "layer_types": ["sliding_attention", "full_attention"]}),
    "keys of other layers": ("Gemma4TextConfig", {
        "sliding_window": 8, "layer_types": ["sliding_attention", "full_attention"] * 2, "num_hidden_layers": 4,
        "num_kv_shared_layers": 2, "hidden_size_per_layer_input": 8, "vocab_size_per_layer_input": 96,
        "global_head_dim": 8}),
    "views of what attention returns": ("AfmoeConfig", {"num_dense_layers": 2, "sliding_window": 8}),
    "attention code of its own": ("FalconConfig", {"bias": True}),
}  # fmt: skip
PLAIN = {
    "states": ("Mamba2Config", {"num_heads": 8, "state_size": 8, "n_groups": 1, "chunk_size": 8}),
    "convolutions": ("Lfm2Config", {"layer_types": ["conv", "full_attention"]}),
}
COMMON = [list(range(3 + 5 * k, 33 + 5 * k)) for k in range(3)]
# Two questions about each of three turns, a prompt that others begin with, a repeated prompt, and one by itself.
PROMPTS = [c + tail for c in COMMON for tail in ([40, 41, 42, 43], [50, 51])] + [COMMON[0], COMMON[1] + [50, 51], [9]]
NEVER = frozenset[int]()


def build(name: str, extra: dict) -> Any:
    extra = dict(extra)
    way = extra.pop("attn_implementation", None)
    sizes = {key: size for key, size in SIZES.items() if key != "head_dim" or name != "FalconConfig"}
    with torch.random.fork_rng():
        torch.manual_seed(0)
        config = getattr(transformers, name)(**(sizes | extra))
        return transformers.AutoModelForCausalLM.from_config(
            config, dtype=torch.float32, attn_implementation=way
        ).eval()


@pytest.fixture(scope="module")
def model() -> Any:
    """Return a model that has been sampled from: the first time, made-up prompts are read, too."""
    model = build(*FAMILIES["grouped queries"])
    draw(model, [[1, 2, 3]])
    return model


def draw(model: Any, prompts=PROMPTS, draws: int = 3, **options: Any) -> list[list[Sample]]:
    defaults = {"temperature": 1.0, "max_new_tokens": 10, "stop_ids": frozenset(range(0, 96, 12)), "batch_tokens": 4096}
    asked = [Request(p, [make_random_stream(0, *map(str, p), d) for d in range(draws)]) for p in prompts]
    return sample(model, asked, **(defaults | options))


def alike(actual: list[list[Sample]], expected: list[list[Sample]]) -> None:
    for samples, others in zip(actual, expected, strict=True):
        for a, b in zip(samples, others, strict=True):
            assert (a.ids, a.finish_reason) == (b.ids, b.finish_reason)
            assert a.logprobs == pytest.approx(b.logprobs, abs=1e-5)


@dataclass
class Call:
    """Forward pass: tokens read, rows, and slots attended to."""

    tokens: int
    rows: int
    slots: int


@contextmanager
def calls(model: Any):
    seen: list[Call] = []

    def note(module: Any, args: Any, kwargs: dict) -> None:
        rows, n = kwargs["input_ids"].shape
        mask = kwargs.get("attention_mask")
        seen.append(Call(rows * n, rows, n if mask is None else mask.shape[-1]))

    hook = model.register_forward_pre_hook(note, with_kwargs=True)
    try:
        yield seen
    finally:
        hook.remove()


# -- the same draws -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("batch_tokens", [1, 130, 4096])
def test_draws_are_those_of_prompts_read_one_by_one(family, batch_tokens, monkeypatch) -> None:
    """Samples do not depend on what shares their batch, prefix or row."""
    model = build(*FAMILIES[family])
    actual = draw(model, batch_tokens=batch_tokens)
    assert {s.finish_reason for samples in actual for s in samples} == {"stop", "length"}
    monkeypatch.setattr(opdkit.model.sampling, "check_tree_reading", lambda _: False)
    alike(actual, draw(model, batch_tokens=1))


def test_log_probs_are_those_of_a_plain_forward(model) -> None:
    """This holds for the sampled tokens and for the most likely ones."""
    for prompt, samples in zip(PROMPTS, draw(model, top=4), strict=True):
        for drawn in samples:
            with torch.no_grad():
                logits = model(input_ids=torch.tensor([prompt + drawn.ids])).logits[0, len(prompt) - 1 : -1]
            expected = logits.log_softmax(-1)
            own = expected.gather(-1, torch.tensor(drawn.ids)[:, None])[:, 0]
            assert drawn.logprobs == pytest.approx(own.tolist(), abs=1e-5)
            assert drawn.top_ids == expected.topk(4).indices.tolist()
            assert torch.tensor(drawn.top) == pytest.approx(expected.topk(4).values, abs=1e-5)
    assert draw(model)[0][0].top == []


@pytest.mark.parametrize("most", [1, 2, 6])
def test_how_many_share_a_row_changes_no_draw(model, most, monkeypatch) -> None:
    expected = draw(model)
    monkeypatch.setattr(batches, "count_samples_per_copy", lambda tokens, new_tokens: most)
    alike(draw(model), expected)


def test_the_draws_do_not_depend_on_the_order_of_the_requests(model) -> None:
    alike(draw(model, PROMPTS[::-1])[::-1], draw(model))


# -- what is read and held ------------------------------------------------------------------------------------------


def test_what_two_questions_share_is_read_once_whatever_the_votes(model) -> None:
    """The common text of a turn is read once, and not once per question or per vote."""
    two = PROMPTS[:2]  # 30 tokens in common, then 4 and 2
    for votes in (1, 5):
        with calls(model) as seen:
            draw(model, two, draws=votes, max_new_tokens=4, stop_ids=NEVER)
        assert [c.tokens for c in seen] == [30, 6] + [2 * votes] * 3
        assert [c.slots for c in seen] == [30, 36] + [36 + 2 * votes * step for step in (1, 2, 3)]


def test_the_budget_bounds_what_is_held_prompts_and_draws(model) -> None:
    """Keys and values are held for rows x slots tokens, and each row holds its prompt once."""
    longest = 2 * 3 * 10 + 36  # two questions with three votes each
    for rows in (1, 2, 3):
        with calls(model) as seen:
            draw(model, PROMPTS[:6], stop_ids=NEVER, batch_tokens=rows * longest)
        assert max(c.rows * c.slots for c in seen) <= rows * longest
        assert max(c.rows for c in seen) == rows


def test_draws_that_do_not_fit_together_are_made_apart(model) -> None:
    with calls(model) as seen:
        actual = draw(model, PROMPTS[:2], stop_ids=NEVER, batch_tokens=34 + 2 * 10)
    assert max(c.rows * c.slots for c in seen) <= 54
    alike(actual, draw(model, PROMPTS[:2], stop_ids=NEVER))


def test_a_waiting_prompt_takes_the_place_of_one_that_has_ended(model) -> None:
    prompts = [[60 + k] * 12 for k in range(8)]
    options = {"draws": 1, "max_new_tokens": 12, "stop_ids": frozenset(range(0, 96, 5)), "batch_tokens": 2 * 24}
    with calls(model) as seen:
        lengths = [len(s.ids) for [s] in draw(model, prompts, **options)]
    steps = [c for c in seen if c.slots > 12]
    assert len(set(lengths)) > 2
    in_pairs = sum(max(pair) - 1 for pair in zip(lengths[::2], lengths[1::2], strict=True))
    assert len(steps) < in_pairs  # the steps of pairs that wait for their longer sample
    assert sum(c.rows for c in steps) == sum(lengths) - len(lengths)  # no sample is read after its end


def test_slots_of_ended_draws_are_used_again(model) -> None:
    [drawn] = actual = draw(model, [PROMPTS[0]], draws=12)
    with calls(model) as seen:
        alike(draw(model, [PROMPTS[0]], draws=12), actual)
    reads = [len(s.ids) - 1 for s in drawn]
    held = max(step * sum(r >= step for r in reads) for step in range(1, 10))  # by the samples that are not finished
    assert max(c.slots for c in seen) == 34 + held < 34 + sum(reads)


# -- models that cannot share ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", PLAIN)
def test_a_cache_that_cannot_be_shared_reads_each_prompt_alone(kind) -> None:
    model = build(*PLAIN[kind])
    drawn = draw(model, PROMPTS[:4], temperature=0, draws=1)
    for prompt, [one] in zip(PROMPTS[:4], drawn, strict=True):
        ids = list(prompt)
        for token in one.ids:
            with torch.no_grad():
                assert token == int(model(input_ids=torch.tensor([ids])).logits[0, -1].argmax())
            ids.append(token)


@pytest.mark.parametrize("budget", [1, 100, 1000])
def test_copies_stay_within_the_budget(model, budget, monkeypatch) -> None:
    expected = draw(model)
    monkeypatch.setattr(opdkit.model.sampling, "check_tree_reading", lambda _: False)
    assert opdkit.model.sampling.copied_cache.check_batches(model)  # it reads made-up prompts, once
    with calls(model) as seen:
        alike(draw(model, batch_tokens=budget), expected)
    assert all(c.rows == 1 or c.rows * c.slots <= budget for c in seen)


@pytest.mark.parametrize("fault", ["tokens of others are seen", "an error"])
def test_a_model_that_cannot_share_a_cache_gets_copies(fault, monkeypatch, capsys) -> None:
    """Its samples are those that scoring gives, and it says what that takes."""
    model, expected = build(*FAMILIES["grouped queries"]), draw(build(*FAMILIES["grouped queries"]))
    if fault == "an error":
        monkeypatch.setattr(shared_cache, "_run_batch", lambda *_: [].pop())
    else:
        monkeypatch.setattr(shared_cache, "make_additive_mask", lambda seen, dtype: torch.zeros_like(seen, dtype=dtype))
    for _ in range(2):
        alike(draw(model), expected)
    assert capsys.readouterr().err.count("copies a prompt's cache") == 1


# -- attention ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("heads", "keys"), [(4, 2), (8, 1), (4, 4)])
@pytest.mark.parametrize("queries", [1, 5])
@pytest.mark.parametrize("masked", [True, False])
def test_grouped_heads_give_the_numbers_of_sdpa(heads, keys, queries, masked) -> None:
    draws = torch.Generator().manual_seed(0)
    module = nn.Module()
    module.num_key_value_groups = heads // keys
    query = torch.randn(3, heads, queries, 8, generator=draws)
    key, value = torch.randn(2, 3, keys, 20, 8, generator=draws)
    mask = torch.randn(3, 1, queries, 20, generator=draws) if masked else None
    actual, _ = attention._attention(module, query, key, value, mask, scaling=0.3)
    expected, _ = sdpa_attention_forward(module, query, key, value, mask, scaling=0.3)
    assert actual.shape == expected.shape == (3, queries, heads, 8)
    torch.testing.assert_close(actual, expected, atol=1e-6, rtol=0)


def test_the_model_is_left_as_it_was(model, monkeypatch) -> None:
    draw(model)
    before = model.config._attn_implementation

    def fail(*args: Any, **kwargs: Any) -> None:
        raise RuntimeError("out of memory")

    monkeypatch.setattr(opdkit.model.sampling.shared_cache._Rows, "read_last_tokens", fail)
    with pytest.raises(RuntimeError):
        draw(model)
    assert model.config._attn_implementation == before
