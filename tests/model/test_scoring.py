"""Tests of opdkit/model/scoring.py against a plain forward and gather, one sequence at a time."""

import model_families
import pytest
import torch
from transformers.modeling_outputs import CausalLMOutput

from opdkit.model import scoring
from opdkit.model.comparison import measure_kl_shifts
from opdkit.model.load import load_model
from opdkit.model.scoring import (
    LogprobQuery,
    Mixture,
    PromptResponse,
    logprobs_of,
    most_likely,
    response_logits,
    score,
    token_logprobs,
)
from opdkit.train.forwards import plan_forwards
from opdkit.train.policy import Policy

SMALL = {"vocab_size": 97, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "initializer_range": 0.3,
         "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8, "max_position_embeddings": 256}  # fmt: skip
FAMILIES = {
    "qwen3": ("Qwen3Config", {}),
    "llama": ("LlamaConfig", {"tie_word_embeddings": True}),
    "gemma2": ("Gemma2Config", {"final_logit_softcapping": 3.0, "sliding_window": 8, "query_pre_attn_scalar": 8}),
    # Its output layer is called "decoder".
    "modernbert": ("ModernBertDecoderConfig", {"sliding_window": 8, "pad_token_id": 0}),
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


def sequences(count: int = 7, vocabulary: int = 97) -> list[PromptResponse]:
    draw = torch.Generator().manual_seed(1)

    def ids(low: int, high: int) -> list[int]:
        length = int(torch.randint(low, high, (), generator=draw))
        return torch.randint(0, vocabulary, (length,), generator=draw).tolist()

    return [PromptResponse(ids(1, 30), ids(1, 20)) for _ in range(count)]


@torch.no_grad()
def oracle(model, sequence: PromptResponse) -> torch.Tensor:
    """Return the log-probs from one forward over the sequence alone: no mask, log-softmax of all logits, next token."""
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
    """This holds for the whole response, every family and any size of batch, with soft-capping and scaling."""
    model, given = build(family), sequences()
    for actual, sequence in zip(score(model, given, batch_tokens=batch_tokens), given, strict=True):
        assert actual.dtype == torch.float32
        torch.testing.assert_close(actual, oracle(model, sequence), atol=1e-5, rtol=0)


def test_a_response_of_one_token(tiny):
    """A response of one token is not scored as certain (log-prob 0), nor from the position after it."""
    for token in (0, 5, 320):
        sequence = PromptResponse([3, 4, 5], [token])
        [actual] = score(tiny, [sequence], batch_tokens=100)
        assert actual.shape == (1,)
        assert actual.item() < -1e-3
        torch.testing.assert_close(actual, oracle(tiny, sequence), atol=1e-5, rtol=0)


def test_every_next_token_gets_its_share_of_probability_one(tiny):
    """Over the whole vocabulary, the one-token scores are one distribution, at temperature 1."""
    vocabulary = tiny.config.vocab_size
    scored = score(tiny, [PromptResponse([3, 4, 5], [v]) for v in range(vocabulary)], batch_tokens=400)
    assert torch.cat(scored).double().exp().sum().item() == pytest.approx(1.0, abs=1e-5)


def test_a_score_is_the_same_in_any_company(tiny):
    given = sequences(12)
    alone = [score(tiny, [s], batch_tokens=1)[0] for s in given]
    for batch_tokens in (60, 200, 10_000):
        for actual, expected in zip(score(tiny, given, batch_tokens=batch_tokens), alone, strict=True):
            torch.testing.assert_close(actual, expected, atol=1e-5, rtol=0)


def test_a_longer_turn_does_not_change_the_positions_of_a_shorter_one(capsys):
    """LongRoPE scales a batch's positions by its longest row, so scoring, comparison and training read turn by turn."""
    model = model_families.build(*model_families.PLAIN["LongRoPE"])
    short, long = PromptResponse([1, 2, 3] * 8, [4, 5, 6] * 4), PromptResponse([7, 8] * 60, [9, 1])
    alone, beside = score(model, [short], batch_tokens=1000)[0], score(model, [short, long], batch_tokens=1000)[0]
    assert torch.equal(alone, beside)
    assert (response_logits(model, [short, long])[:12] - response_logits(model, [short])).abs().max() > 0.01
    other = model_families.build(*model_families.PLAIN["LongRoPE"], seed=1)
    (one,), (same, _) = (measure_kl_shifts(model, other, given, 1000) for given in ([short], [short, long]))
    assert one == same
    policy = Policy(model)
    forwards, _ = plan_forwards([short, long], ["a", "b"], 1000, 0, 1, packed=policy.packed, chains=policy.chains)
    assert [len(forward) for forward in forwards] == [1, 1]
    assert " ".join(capsys.readouterr().err.split()).count("trains on turns, each from its beginning, one by one") == 1


def test_what_comes_later_changes_nothing(tiny):
    """The score of a token depends neither on the tokens after it nor on the padding, as the model is causal."""
    long = PromptResponse([1, 2, 3], [4, 5, 6, 7])
    short = PromptResponse([1, 2, 3], [4, 5])
    actual = score(tiny, [long, short], batch_tokens=1000)
    torch.testing.assert_close(actual[0][:2], actual[1], atol=1e-5, rtol=0)


def test_the_end_token_counts_though_it_pads(tiny, tiny_tokenizer):
    """An end token is not masked as padding: it is read in the prompt and scored in the response."""
    end = tiny_tokenizer.eos_token_id
    assert tiny_tokenizer.pad_token_id == end == tiny.config.pad_token_id
    given = [PromptResponse([end, 7, end], [5, end]), PromptResponse([1] * 20, [2] * 9)]
    for actual, sequence in zip(score(tiny, given, batch_tokens=1000), given, strict=True):
        torch.testing.assert_close(actual, oracle(tiny, sequence), atol=1e-5, rtol=0)


def test_no_pad_token_is_needed():
    """A model without a pad token gives the log-probs of a plain forward, too."""
    model, given = build("llama"), sequences()
    model.config.pad_token_id = None
    for actual, sequence in zip(score(model, given, batch_tokens=1000), given, strict=True):
        torch.testing.assert_close(actual, oracle(model, sequence), atol=1e-5, rtol=0)


def test_the_log_softmax_is_taken_in_float32():
    """A log-softmax in bfloat16 would be off by more than 1e-2, so log-probs of bfloat16 logits are float32."""
    draw = torch.Generator().manual_seed(0)
    logits = (torch.randn(64, 5000, generator=draw) * 4).bfloat16()
    ids = torch.randint(0, 5000, (64,), generator=draw)
    exact = logits.double().log_softmax(-1).gather(1, ids[:, None])[:, 0]
    actual = token_logprobs(logits, ids)
    assert actual.dtype == torch.float32
    torch.testing.assert_close(actual.double(), exact, atol=1e-5, rtol=0)
    careless = logits.log_softmax(-1).gather(1, ids[:, None])[:, 0]
    assert (careless.double() - exact).abs().max() > 1e-2


def test_token_logprobs_by_hand():
    """softmax([ln 1, ln 2, ln 5]) = [1/8, 2/8, 5/8]."""
    logits = torch.tensor([[1.0, 2.0, 5.0], [5.0, 1.0, 2.0]]).log()
    expected = torch.tensor([2 / 8, 5 / 8]).log()
    torch.testing.assert_close(token_logprobs(logits, torch.tensor([1, 0])), expected)


def test_a_score_that_is_not_finite_stays_so():
    """NaN is returned as NaN, and never as 0.0."""
    model = build("qwen3")
    with torch.no_grad():
        model.model.embed_tokens.weight[50] = float("nan")
    good, bad = score(model, [PromptResponse([1, 2], [3]), PromptResponse([1, 50], [3, 4])], batch_tokens=100)
    assert torch.isfinite(good).all()
    assert torch.isnan(bad).all()


def test_a_sequence_needs_both_its_parts():
    for prompt, response in (([], [1]), ([1], [])):
        with pytest.raises(ValueError, match="at least one"):
            PromptResponse(prompt, response)


# -- the differentiable core ----------------------------------------------------------------------------------------


def test_response_logits_are_the_rows_before_each_token(tiny):
    given = sequences(3)
    logits, lengths = response_logits(tiny, given), [len(s.response_ids) for s in given]
    assert logits.dtype == torch.float32
    for rows, sequence in zip(logits.split(lengths), given, strict=True):
        plain = tiny(torch.tensor([sequence.prompt_ids + sequence.response_ids])).logits[0]
        first = len(sequence.prompt_ids) - 1
        torch.testing.assert_close(rows, plain[first : first + len(rows)], atol=1e-5, rtol=1e-5)


def test_only_the_response_goes_through_the_output_layer(tiny):
    """No logits are computed for the prompt."""
    seen = []
    handle = tiny.lm_head.register_forward_hook(lambda module, args, output: seen.append(tuple(output.shape)))
    score(tiny, [PromptResponse([1] * 500, [2] * 3), PromptResponse([1] * 400, [2] * 5)], batch_tokens=2000)
    handle.remove()
    assert seen == [(1, 8, tiny.config.vocab_size)]


def test_the_model_is_left_as_it_was(tiny):
    score(tiny, sequences(2), batch_tokens=100)
    assert not tiny.lm_head._forward_pre_hooks
    with pytest.raises(IndexError):
        score(tiny, [PromptResponse([1], [10**6, 1])], batch_tokens=100)
    assert not tiny.lm_head._forward_pre_hooks
    assert tiny(torch.tensor([[1, 2, 3]])).logits.shape == (1, 3, tiny.config.vocab_size)


@torch.no_grad()
@pytest.mark.parametrize("family", ["llama", "gemma2"])
def test_logits_of_a_few_rows_at_a_time_come_from_one_pass(family, monkeypatch):
    """However long the replies are, the logits of only a few rows are in memory at once."""
    model, given = build(family), sequences(3)
    whole = response_logits(model, given)
    heads, bodies = [], []
    handles = [
        model.lm_head.register_forward_hook(lambda module, args, output: heads.append(output.shape[1])),
        model.get_decoder().layers[0].register_forward_hook(lambda *_: bodies.append(1)),
    ]
    monkeypatch.setattr("opdkit.model.scoring._LOGITS", 4 * model.config.vocab_size + 1)
    logprobs = torch.cat(score(model, given, batch_tokens=10**6))
    for handle in handles:
        handle.remove()
    expected = token_logprobs(whole, torch.tensor([t for s in given for t in s.response_ids]))
    torch.testing.assert_close(logprobs, expected, atol=1e-5, rtol=1e-5)
    assert logprobs.dtype == torch.float32
    assert len(whole) > 4 == max(heads)
    assert len(bodies) == 1


def test_gradients_are_those_of_a_plain_forward():
    model, given = build("gemma2"), sequences(3)
    logits = response_logits(model, given)
    token_logprobs(logits, torch.tensor([t for s in given for t in s.response_ids])).sum().backward()
    actual = {name: p.grad.clone() for name, p in model.named_parameters()}
    model.zero_grad()
    for s in given:
        logprobs = model(torch.tensor([s.prompt_ids + s.response_ids])).logits[0].log_softmax(-1)
        rows = logprobs[len(s.prompt_ids) - 1 : -1]
        rows.gather(1, torch.tensor(s.response_ids)[:, None]).sum().backward()
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(actual[name], parameter.grad, atol=1e-4, rtol=1e-4)


def test_a_model_that_does_not_call_its_output_layer():
    model, given = build("llama"), sequences(3)
    expected = response_logits(model, given)

    def without_calling_the_head(**inputs):
        out = model.model(**inputs)
        return CausalLMOutput(logits=torch.nn.functional.linear(out.last_hidden_state, model.lm_head.weight))

    model.forward = without_calling_the_head
    torch.testing.assert_close(response_logits(model, given), expected, atol=1e-5, rtol=1e-5)


# -- supports and mixtures ------------------------------------------------------------------------------------------


@torch.no_grad()
def full(model, sequence: PromptResponse) -> torch.Tensor:
    """Return the [R, V] log-softmax at every position of the response, from one plain forward pass."""
    logits = model(torch.tensor([sequence.prompt_ids + sequence.response_ids])).logits[0].float()
    return logits[len(sequence.prompt_ids) - 1 : -1].log_softmax(-1)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("limit", [1, 97 * 3, 1 << 26])
def test_the_most_likely_tokens_equal_a_plain_topk(family, limit, monkeypatch):
    """This holds for any chunks of positions in the output layer, with soft-capping and scaling."""
    monkeypatch.setattr(scoring, "_LOGITS", limit)
    model, given = build(family), sequences()
    at = [torch.randint(0, 97, (len(s.response_ids), 1 + i % 3)) for i, s in enumerate(given)]
    at[2] = None
    questions = [LogprobQuery((s,), a) for s, a in zip(given, at, strict=True)]
    for answer, sequence, ids in zip(
        logprobs_of(Mixture((model,)), questions, batch_tokens=100, top=5), given, at, strict=True
    ):
        expected = full(model, sequence)
        torch.testing.assert_close(answer.logprobs, oracle(model, sequence), atol=1e-5, rtol=0)
        torch.testing.assert_close(answer.top, expected.topk(5).values, atol=1e-5, rtol=0)
        torch.testing.assert_close(expected.gather(1, answer.top_ids), answer.top, atol=1e-5, rtol=0)
        asked = expected[:, :0] if ids is None else expected.gather(1, ids)
        torch.testing.assert_close(answer.at, asked, atol=1e-5, rtol=0)


@pytest.mark.parametrize("family", FAMILIES)
def test_the_layers_run_once_however_many_chunks(family, monkeypatch):
    """Logits are computed for a few positions at a time, and no layer runs twice for this."""
    model, seen, layers = build(family), [], []
    model.lm_head.register_forward_hook(lambda module, args, output: seen.append(output.shape[1]))
    next(m for m in model.modules() if type(m).__name__.endswith(("MLP", "Mlp"))).register_forward_hook(
        lambda *_: layers.append(1)
    )
    monkeypatch.setattr(scoring, "_LOGITS", 97 * 4)
    score(model, [PromptResponse([1, 2, 3], [4] * 9), PromptResponse([1], [5, 6])], batch_tokens=100)
    assert (seen, len(layers)) == ([4, 4, 3], 1)
    assert "forward" not in vars(model.get_decoder())


def test_most_likely_first_and_ties_by_the_lower_id():
    """Worked by hand, then compared with a stable sort of log-probs with many ties, as bfloat16 logits have."""
    rows = torch.tensor(
        [[-2.0, -1.0, -2.0, -1.0, -2.0], [-3.0, -3.0, -3.0, -3.0, -3.0], [-5.0, -4.0, -3.0, -2.0, -1.0]]
    )
    ids, values = most_likely(rows, 3)
    assert ids.tolist() == [[1, 3, 0], [0, 1, 2], [4, 3, 2]]
    assert values.tolist() == [[-1.0, -1.0, -2.0], [-3.0, -3.0, -3.0], [-1.0, -2.0, -3.0]]
    draw = torch.Generator().manual_seed(0)
    logprobs = (torch.randn(50, 300, generator=draw) * 2).bfloat16().float().log_softmax(-1)
    logprobs[:10] = logprobs[:10].round()
    expected = logprobs.sort(dim=-1, descending=True, stable=True)
    for count in (1, 4, 50, 299, 300):
        ids, values = most_likely(logprobs, count)
        assert torch.equal(ids, expected.indices[:, :count])
        assert torch.equal(values, expected.values[:, :count])


def test_a_support_stays_within_the_vocabulary(tiny):
    """A model may have more rows than its tokenizer has tokens."""
    questions = [LogprobQuery((s,)) for s in sequences(4, vocabulary=10)]
    for answer in logprobs_of(Mixture((tiny,)), questions, batch_tokens=100, top=7, vocabulary=10):
        assert answer.top_ids.max() < 10
        assert [len(set(row)) for row in answer.top_ids.tolist()] == [7] * len(answer.logprobs)


def test_averaged_models_by_hand():
    """The average is 0.25 p + 0.75 q of probabilities, in float64, with each model after its own prompt."""
    models, weights = (build("qwen3"), build("llama", seed=3)), (0.25, 0.75)
    first_prompts = sequences(4)
    second_prompts = [PromptResponse([9] * (1 + i) + s.prompt_ids, s.response_ids) for i, s in enumerate(first_prompts)]
    at = torch.tensor([[3, 50]])
    questions = [
        LogprobQuery(pair, at.expand(len(pair[0].response_ids), 2))
        for pair in zip(first_prompts, second_prompts, strict=True)
    ]
    answers = logprobs_of(Mixture(models, weights), questions, batch_tokens=60, top=4)
    for answer, question in zip(answers, questions, strict=True):
        p, q = (full(m, s).double().exp() for m, s in zip(models, question.sequences, strict=True))
        expected = (0.25 * p + 0.75 * q).log().float()
        own = torch.tensor(question.sequences[0].response_ids)[:, None]
        torch.testing.assert_close(answer.logprobs, expected.gather(1, own)[:, 0], atol=1e-5, rtol=0)
        torch.testing.assert_close(answer.top, expected.topk(4).values, atol=1e-5, rtol=0)
        torch.testing.assert_close(answer.at, expected[:, [3, 50]], atol=1e-5, rtol=0)


def test_one_model_read_twice_in_a_mixture(tiny):
    """The same weights read two prompts, as with two templates: what one reading keeps must not reach the other."""
    a, b = PromptResponse([1, 2, 3], [4, 5]), PromptResponse([7], [4, 5])
    [answer] = logprobs_of(Mixture((tiny, tiny), (0.5, 0.5)), [LogprobQuery((a, b))], batch_tokens=100)
    expected = torch.stack([oracle(tiny, a), oracle(tiny, b)]).logsumexp(0) - torch.tensor(2.0).log()
    torch.testing.assert_close(answer.logprobs, expected, atol=1e-5, rtol=0)


def test_models_of_one_tokenizer_with_more_and_fewer_rows(tiny):
    """Embeddings are padded to round sizes: each model has its own softmax, and the average is over common ids."""
    wide = build("qwen3", seed=2)
    narrow = build("llama", seed=4)
    wide.resize_token_embeddings(128)
    [answer] = logprobs_of(
        Mixture((wide, narrow), (0.5, 0.5)), [LogprobQuery((s, s)) for s in sequences(1)], batch_tokens=100, top=97
    )
    p, q = (full(m, sequences(1)[0]).double().exp()[:, :97] for m in (wide, narrow))
    torch.testing.assert_close(
        answer.top.double(), ((p + q) / 2).log().sort(-1, descending=True).values, atol=1e-5, rtol=0
    )


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("family", FAMILIES)
def test_scores_on_a_gpu(family):
    model, given = build(family), sequences()
    expected = [oracle(model, s) for s in given]
    for actual, cpu in zip(score(model.cuda(), given, batch_tokens=100), expected, strict=True):
        assert actual.device.type == "cpu"
        torch.testing.assert_close(actual, cpu, atol=1e-3, rtol=0)
