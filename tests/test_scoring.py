"""opdkit/scoring.py: against a plain forward and gather, one sequence at a time."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from opdkit.models import load_model
from opdkit.scoring import Sequence, Target, batches, response_logits, score, score_session, token_logprobs

SMALL = {"vocab_size": 97, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "initializer_range": 0.3,
         "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8, "max_position_embeddings": 256}  # fmt: skip
FAMILIES = {
    "qwen3": ("Qwen3Config", {}),
    "llama": ("LlamaConfig", {"tie_word_embeddings": True}),
    "gemma2": ("Gemma2Config", {"final_logit_softcapping": 3.0, "sliding_window": 8, "query_pre_attn_scalar": 8}),
    "granite": ("GraniteConfig", {"logits_scaling": 4.0}),
    "gpt2": ("GPT2Config", {"n_positions": 256, "n_embd": 32, "n_layer": 2, "n_head": 4}),
}


def build(family: str, seed: int = 0):
    import transformers

    name, extra = FAMILIES[family]
    sizes = {"vocab_size": 97, "initializer_range": 0.3} if family == "gpt2" else SMALL
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        config = getattr(transformers, name)(**sizes, **extra)
        return transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()


def sequences(count: int = 7, vocabulary: int = 97) -> list[Sequence]:
    draw = torch.Generator().manual_seed(1)

    def ids(low: int, high: int) -> list[int]:
        length = int(torch.randint(low, high, (), generator=draw))
        return torch.randint(0, vocabulary, (length,), generator=draw).tolist()

    return [Sequence(ids(1, 30), ids(1, 20)) for _ in range(count)]


@torch.no_grad()
def oracle(model, sequence: Sequence) -> torch.Tensor:
    """The whole sequence on its own, no mask, all logits; then log-softmax and the token at the next position."""
    ids = torch.tensor([sequence.prompt_ids + sequence.response_ids])
    logprobs = model(ids).logits[0].float().log_softmax(-1)
    start = len(sequence.prompt_ids)
    return torch.stack([logprobs[start + t - 1, token] for t, token in enumerate(sequence.response_ids)])


@pytest.fixture(scope="module")
def tiny(tiny_model_dir):
    return load_model(str(tiny_model_dir), device="cpu", dtype="float32")


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("batch_tokens", [1, 100, 10_000])
def test_scores_equal_a_plain_forward_and_gather(family, batch_tokens):
    """pitfall 1: the whole response, in every family and every batch size; soft-capping and scaling included."""
    model, wanted = build(family), sequences()
    for found, sequence in zip(score(model, wanted, batch_tokens=batch_tokens), wanted, strict=True):
        assert found.dtype == torch.float32
        torch.testing.assert_close(found, oracle(model, sequence), atol=1e-5, rtol=0)


def test_a_response_of_one_token(tiny):
    """pitfall 1: R = 1 is not scored as certain (log-prob 0), and not from the position after it."""
    for token in (0, 5, 320):
        sequence = Sequence([3, 4, 5], [token])
        [found] = score(tiny, [sequence], batch_tokens=100)
        assert found.shape == (1,)
        assert found.item() < -1e-3
        torch.testing.assert_close(found, oracle(tiny, sequence), atol=1e-5, rtol=0)


def test_every_next_token_gets_its_share_of_probability_one(tiny):
    """pitfall 1: over the whole vocabulary the one-token scores are one distribution, temperature 1 (pitfall 5)."""
    vocabulary = tiny.config.vocab_size
    scored = score(tiny, [Sequence([3, 4, 5], [v]) for v in range(vocabulary)], batch_tokens=400)
    assert torch.cat(scored).double().exp().sum().item() == pytest.approx(1.0, abs=1e-5)


def test_a_score_is_the_same_in_any_company(tiny):
    wanted = sequences(12)
    alone = [score(tiny, [s], batch_tokens=1)[0] for s in wanted]
    for batch_tokens in (60, 200, 10_000):
        for found, expected in zip(score(tiny, wanted, batch_tokens=batch_tokens), alone, strict=True):
            torch.testing.assert_close(found, expected, atol=1e-5, rtol=0)


def test_what_comes_later_changes_nothing(tiny):
    """A causal model: the score of a token does not depend on the tokens after it, nor on the padding."""
    long = Sequence([1, 2, 3], [4, 5, 6, 7])
    short = Sequence([1, 2, 3], [4, 5])
    found = score(tiny, [long, short], batch_tokens=1000)
    torch.testing.assert_close(found[0][:2], found[1], atol=1e-5, rtol=0)


def test_the_end_token_counts_though_it_pads(tiny, tiny_tokenizer):
    """pitfall 6: pad token == end token; the one that was sampled is scored, in prompt and response."""
    end = tiny_tokenizer.eos_token_id
    assert tiny_tokenizer.pad_token_id == end == tiny.config.pad_token_id
    wanted = [Sequence([end, 7, end], [5, end]), Sequence([1] * 20, [2] * 9)]
    for found, sequence in zip(score(tiny, wanted, batch_tokens=1000), wanted, strict=True):
        torch.testing.assert_close(found, oracle(tiny, sequence), atol=1e-5, rtol=0)


def test_no_pad_token_is_needed():
    """pitfall 6: and none is invented."""
    model, wanted = build("llama"), sequences()
    model.config.pad_token_id = None
    for found, sequence in zip(score(model, wanted, batch_tokens=1000), wanted, strict=True):
        torch.testing.assert_close(found, oracle(model, sequence), atol=1e-5, rtol=0)


def test_the_log_softmax_is_taken_in_float32():
    """pitfall 7: bfloat16 logits, float32 log-probs; a bfloat16 log-softmax would be off by more than 1e-2."""
    draw = torch.Generator().manual_seed(0)
    logits = (torch.randn(64, 5000, generator=draw) * 4).bfloat16()
    ids = torch.randint(0, 5000, (64,), generator=draw)
    exact = logits.double().log_softmax(-1).gather(1, ids[:, None])[:, 0]
    found = token_logprobs(logits, ids)
    assert found.dtype == torch.float32
    torch.testing.assert_close(found.double(), exact, atol=1e-5, rtol=0)
    careless = logits.log_softmax(-1).gather(1, ids[:, None])[:, 0]
    assert (careless.double() - exact).abs().max() > 1e-2


def test_token_logprobs_by_hand():
    """softmax([ln 1, ln 2, ln 5]) = [1/8, 2/8, 5/8]."""
    logits = torch.tensor([[1.0, 2.0, 5.0], [5.0, 1.0, 2.0]]).log()
    expected = torch.tensor([2 / 8, 5 / 8]).log()
    torch.testing.assert_close(token_logprobs(logits, torch.tensor([1, 0])), expected)


def test_a_score_that_is_not_finite_stays_so():
    """pitfall 2: NaN is handed on as NaN, never as 0.0."""
    model = build("qwen3")
    with torch.no_grad():
        model.model.embed_tokens.weight[50] = float("nan")
    good, bad = score(model, [Sequence([1, 2], [3]), Sequence([1, 50], [3, 4])], batch_tokens=100)
    assert torch.isfinite(good).all()
    assert torch.isnan(bad).all()


def test_a_sequence_needs_both_its_parts():
    for prompt, response in (([], [1]), ([1], [])):
        with pytest.raises(ValueError, match="at least one"):
            Sequence(prompt, response)


# -- the differentiable core ----------------------------------------------------------------------------------------


def test_response_logits_are_the_rows_before_each_token(tiny):
    wanted = sequences(3)
    logits, lengths = response_logits(tiny, wanted)
    assert logits.dtype == torch.float32
    assert lengths == [len(s.response_ids) for s in wanted]
    for rows, sequence in zip(logits.split(lengths), wanted, strict=True):
        plain = tiny(torch.tensor([sequence.prompt_ids + sequence.response_ids])).logits[0]
        first = len(sequence.prompt_ids) - 1
        torch.testing.assert_close(rows, plain[first : first + len(rows)], atol=1e-5, rtol=1e-5)


def test_only_the_response_goes_through_the_output_layer(tiny):
    """pitfall 27: no logits for the prompt are ever computed."""
    seen = []
    handle = tiny.lm_head.register_forward_hook(lambda module, args, output: seen.append(tuple(output.shape)))
    score(tiny, [Sequence([1] * 500, [2] * 3), Sequence([1] * 400, [2] * 5)], batch_tokens=2000)
    handle.remove()
    assert seen == [(1, 8, tiny.config.vocab_size)]


def test_the_model_is_left_as_it_was(tiny):
    score(tiny, sequences(2), batch_tokens=100)
    assert not tiny.lm_head._forward_pre_hooks
    with pytest.raises(IndexError):
        score(tiny, [Sequence([1], [10**6, 1])], batch_tokens=100)
    assert not tiny.lm_head._forward_pre_hooks
    assert tiny(torch.tensor([[1, 2, 3]])).logits.shape == (1, 3, tiny.config.vocab_size)


def test_gradients_are_those_of_a_plain_forward():
    model, wanted = build("gemma2"), sequences(3)
    logits, _ = response_logits(model, wanted)
    token_logprobs(logits, torch.tensor([t for s in wanted for t in s.response_ids])).sum().backward()
    found = {name: p.grad.clone() for name, p in model.named_parameters()}
    model.zero_grad()
    for s in wanted:
        logprobs = model(torch.tensor([s.prompt_ids + s.response_ids])).logits[0].log_softmax(-1)
        rows = logprobs[len(s.prompt_ids) - 1 : -1]
        rows.gather(1, torch.tensor(s.response_ids)[:, None]).sum().backward()
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(found[name], parameter.grad, atol=1e-4, rtol=1e-4)


def test_wrapped_models_are_scored_the_same():
    class Wrapped(torch.nn.Module):
        def __init__(self, module):
            super().__init__()
            self.module = module

        def forward(self, **inputs):
            return self.module(**inputs)

    model, wanted = build("qwen3"), sequences(3)
    assert torch.equal(response_logits(Wrapped(model), wanted)[0], response_logits(model, wanted)[0])


def test_a_model_that_does_not_call_its_output_layer():
    model, wanted = build("llama"), sequences(3)
    expected, _ = response_logits(model, wanted)
    plain = model.forward

    def without_calling_the_head(**inputs):
        out = plain(**inputs, output_hidden_states=True)
        out.logits = torch.nn.functional.linear(out.hidden_states[-1], model.lm_head.weight)
        return out

    model.forward = without_calling_the_head
    torch.testing.assert_close(response_logits(model, wanted)[0], expected, atol=1e-5, rtol=1e-5)


# -- a session ------------------------------------------------------------------------------------------------------


def test_without_a_difference_in_the_input_there_is_none_in_the_scores(tiny):
    """Guard: teacher == student gives exactly 0, in whatever batches the sequences would have fallen."""
    base = sequences(9)
    targets = [Target(s, Sequence(list(s.prompt_ids), list(s.response_ids))) for s in base]
    targets += [Target(s, Sequence([9] * 11 + s.prompt_ids, s.response_ids)) for s in base]
    for batch_tokens in (1, 70, 10_000):
        scored = score_session(tiny, tiny, targets, batch_tokens=batch_tokens)
        assert all(torch.equal(student, teacher) for student, teacher in scored[:9])
        assert not any(torch.equal(student, teacher) for student, teacher in scored[9:])


def test_equal_sequences_are_scored_once(tiny):
    rows = []
    handle = tiny.lm_head.register_forward_hook(lambda module, args, output: rows.append(output.shape[1]))
    same, other = Sequence([1, 2], [3, 4, 5]), Sequence([1, 2, 3], [4])
    score_session(tiny, tiny, [Target(same, same), Target(same, other), Target(other, None)], batch_tokens=100)
    handle.remove()
    assert sum(rows) == 3 + 1


def test_a_session_with_two_models(tiny):
    other, base = build("qwen3", seed=5), sequences(4)
    targets = [Target(base[0], base[1]), Target(base[2], None), Target(base[3], base[3])]
    scored = score_session(tiny, other, targets, batch_tokens=100)
    assert scored[1][1] is None
    for (student, teacher), target in zip(scored, targets, strict=True):
        torch.testing.assert_close(student, oracle(tiny, target.student), atol=1e-5, rtol=0)
        if target.teacher is not None:
            torch.testing.assert_close(teacher, oracle(other, target.teacher), atol=1e-5, rtol=0)


def test_the_same_prompt_and_response_split_elsewhere_are_two_requests(tiny):
    a, b = Sequence([1, 2], [3, 4]), Sequence([1, 2, 3], [4])
    [(first, second)] = score_session(tiny, tiny, [Target(a, b)], batch_tokens=100)
    assert (len(first), len(second)) == (2, 1)
    torch.testing.assert_close(first[1:], second, atol=1e-5, rtol=0)


@given(lengths=st.lists(st.integers(1, 50), max_size=30), batch_tokens=st.integers(1, 200))
def test_batches_hold_every_sequence_once_within_the_budget(lengths, batch_tokens):
    found = batches(lengths, batch_tokens)
    assert sorted(i for batch in found for i in batch) == list(range(len(lengths)))
    for batch in found:
        assert len(batch) == 1 or len(batch) * max(lengths[i] for i in batch) <= batch_tokens
    assert [max(lengths[i] for i in b) for b in found] == sorted(
        (max(lengths[i] for i in b) for b in found), reverse=True
    )


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("family", FAMILIES)
def test_scores_on_a_gpu(family):
    model, wanted = build(family), sequences()
    expected = [oracle(model, s) for s in wanted]
    for found, cpu in zip(score(model.cuda(), wanted, batch_tokens=100), expected, strict=True):
        assert found.device.type == "cpu"
        torch.testing.assert_close(found, cpu, atol=1e-3, rtol=0)
