"""Tests of the sampler: the right distribution, a random stream per sample, and no dependence on the batch."""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from model_families import PLAIN, STATES, build

from opdkit.errors import OpdkitError
from opdkit.model.load import load_model
from opdkit.model.random_streams import make_random_stream
from opdkit.model.sampling import Request, Sample, count_prompt_tokens, sample
from opdkit.model.scoring import PromptResponse, score

PROMPTS = [[5, 6, 7], [9], list(range(20, 45)), [8, 8, 8, 8, 8, 8]]
NEVER = frozenset[int]()


@pytest.fixture(scope="module")
def model(tiny_model_dir: Path) -> Any:
    return load_model(str(tiny_model_dir), device="cpu", dtype="float32")


def requests(prompts: Sequence[list[int]], draws: int = 3, seed: int = 0) -> list[Request]:
    return [Request(p, [make_random_stream(seed, i, d) for d in range(draws)]) for i, p in enumerate(prompts)]


def draw(model: Any, asked: list[Request], **options: Any) -> list[list[Sample]]:
    defaults = {"temperature": 1.0, "max_new_tokens": 12, "stop_ids": NEVER, "batch_tokens": 4096}
    return sample(model, asked, **(defaults | options))


def plain_logits(model: Any, ids: list[int]) -> torch.Tensor:
    with torch.no_grad():
        return model(input_ids=torch.tensor([ids])).logits[0, -1].float()


def test_greedy_equals_a_plain_loop_without_cache(model: Any) -> None:
    for prompt, [drawn] in zip(PROMPTS, draw(model, requests(PROMPTS, draws=1), temperature=0), strict=True):
        ids = list(prompt)
        for token, logprob in zip(drawn.ids, drawn.logprobs, strict=True):
            logits = plain_logits(model, ids)
            assert token == int(logits.argmax())
            assert logprob == pytest.approx(float(logits.log_softmax(-1)[token]), abs=1e-4)
            ids.append(token)


def test_a_draw_does_not_depend_on_its_batch(model: Any) -> None:
    together = draw(model, requests(PROMPTS))
    one_by_one = draw(model, requests(PROMPTS), batch_tokens=1)
    assert [[s.ids for s in r] for r in together] == [[s.ids for s in r] for r in one_by_one]
    reversed_order = draw(model, requests(PROMPTS)[::-1])[::-1]
    assert [[s.ids for s in r] for r in together] == [[s.ids for s in r] for r in reversed_order]


def test_draws_of_one_prompt_differ_and_repeat(model: Any) -> None:
    first, again = draw(model, requests(PROMPTS[:1])), draw(model, requests(PROMPTS[:1]))
    assert first == again
    assert len({tuple(s.ids) for s in first[0]}) == 3
    assert draw(model, requests(PROMPTS[:1], seed=1)) != first


@pytest.mark.parametrize("temperature", [0.6, 1.0, 1.7])
def test_tokens_come_from_the_softmax(model: Any, temperature: float) -> None:
    n = 4000
    [drawn] = draw(model, requests([[5, 6]], draws=n), temperature=temperature, max_new_tokens=1)
    counts = Counter(s.ids[0] for s in drawn)
    expected = torch.softmax(plain_logits(model, [5, 6]) / temperature, -1)
    for token, p in enumerate(expected.tolist()):
        assert abs(counts[token] - n * p) <= 5 * (n * p * (1 - p)) ** 0.5 + 1, f"token {token}"


def test_a_row_ends_with_its_stop_token_and_the_others_go_on(model: Any) -> None:
    [free] = draw(model, requests(PROMPTS[:1]))
    stop = free[0].ids[4]
    ended = draw(model, requests(PROMPTS[:1]), stop_ids=frozenset([stop]))[0]
    for whole, cut in zip(free, ended, strict=True):
        end = whole.ids.index(stop) + 1 if stop in whole.ids else len(whole.ids)
        assert (cut.ids, cut.finish_reason) == (whole.ids[:end], "stop" if stop in whole.ids else "length")
        assert len(cut.logprobs) == len(cut.ids)
    assert ended[0].finish_reason == "stop"


def test_requests_may_want_different_numbers_of_draws(model: Any) -> None:
    counts_by_prompt = (1, 4, 2, 3)

    def asked() -> list[Request]:
        pairs = enumerate(zip(PROMPTS, counts_by_prompt, strict=True))
        return [Request(prompt, [make_random_stream(i, d) for d in range(n)]) for i, (prompt, n) in pairs]

    drawn = draw(model, asked())
    assert tuple(len(r) for r in drawn) == counts_by_prompt
    assert [s.ids for s in draw(model, asked()[1:2])[0]] == [s.ids for s in drawn[1]]


# Its cache keeps states outside of its layers, and its padding changes the states.
MINIMAX = {"MiniMax": ("MiniMaxConfig", {"num_local_experts": 2, "num_experts_per_tok": 1, "block_size": 16,
                                         "layer_types": ["linear_attention", "full_attention"]})}  # fmt: skip


@pytest.mark.parametrize("family", [*STATES, *MINIMAX])
def test_log_probs_of_models_with_states_are_those_of_scoring(family: str) -> None:
    model = build(*(STATES | MINIMAX)[family])
    for prompt, samples in zip(PROMPTS, draw(model, requests(PROMPTS)), strict=True):
        scored = score(model, [PromptResponse(prompt, s.ids) for s in samples], batch_tokens=1)
        for drawn, logprobs in zip(samples, scored, strict=True):
            assert drawn.logprobs == pytest.approx(logprobs.tolist(), abs=2e-2)  # Nemotron-H itself rounds by 5e-3


def test_only_models_that_batches_change_are_sampled_from_one_sample_at_a_time(capsys: Any) -> None:
    for family, are_single in (("Mamba", False), ("Jamba", False), ("MiniMax", True)):
        model, rows = build(*(STATES | MINIMAX)[family]), set[int]()
        draw(model, requests(PROMPTS))
        model.register_forward_pre_hook(lambda *a, rows=rows: rows.add(len(a[2]["input_ids"])), with_kwargs=True)
        draw(model, requests(PROMPTS))
        assert (rows == {1}) == are_single
        assert ("one by one" in capsys.readouterr().err) == are_single


def test_padding_that_changes_one_sample_of_three_is_found(capsys: Any) -> None:
    """Here the convolutions read the padding, which changes a shorter prompt by 0.04 nats per token."""
    model, expected = build(*STATES["LFM2"]), draw(build(*STATES["LFM2"]), requests(PROMPTS), batch_tokens=1)
    forward = model.forward

    def read_padding(*args: Any, attention_mask: Any = None, **kwargs: Any) -> Any:
        return forward(*args, attention_mask=None if attention_mask is None else attention_mask | 1, **kwargs)

    model.forward = read_padding
    drawn = draw(model, requests(PROMPTS))
    assert "one by one" in capsys.readouterr().err
    assert [[s.ids for s in samples] for samples in drawn] == [[s.ids for s in samples] for samples in expected]


def test_a_model_that_cannot_continue_from_its_cache_says_so() -> None:
    with pytest.raises(OpdkitError, match=r"RecurrentGemma.*--teacher-samples 0"):
        draw(build(*PLAIN["states in the layers"]), requests(PROMPTS))


@pytest.mark.parametrize(("family", "longest"), [("LongRoPE", 100), ("dynamic positions", 600)])
def test_a_longer_prompt_does_not_change_the_positions_of_a_shorter_one(family: str, longest: int) -> None:
    model, prompts, read = build(*PLAIN[family]), [[5, 6, 7] * 10, [8, 9] * (longest // 2)], list[int]()
    alone = draw(model, requests(prompts[:1]))[0]
    model.register_forward_pre_hook(lambda *a: read.append(a[2]["input_ids"].numel()), with_kwargs=True)
    assert draw(model, requests(prompts))[0] == alone
    expected = count_prompt_tokens(model, prompts, samples=3, max_new_tokens=12, batch_tokens=4096)
    assert expected == sum(n for n in read if n > 1)
