"""Tests of how far a model has moved, against plain loops over the whole vocabulary."""

import math

import pytest
import torch
from conftest import save_tiny_model

from opdkit.errors import ConfigError
from opdkit.evaluate.drift import (
    choose_by_hash,
    encode_passages,
    measure_shifts,
    read_passages,
)
from opdkit.model.comparison import kl_divergence, measure_kl_shifts
from opdkit.model.load import load_model
from opdkit.model.scoring import PromptResponse


@pytest.fixture(scope="module")
def models(tmp_path_factory, plain_tokenizer):
    folder = tmp_path_factory.mktemp("models")
    return [load_model(str(save_tiny_model(folder / str(seed), plain_tokenizer, seed)), device="cpu", dtype="float32")
            for seed in (0, 1)]  # fmt: skip


def test_kl_worked_by_hand_and_against_torch() -> None:
    p, q = torch.tensor([0.5, 0.5, 0.0]).log(), torch.tensor([0.25, 0.75, 0.0]).log()
    expected = 0.5 * math.log(2) + 0.5 * math.log(2 / 3)
    assert kl_divergence(p[None], q[None]).item() == pytest.approx(expected, abs=1e-6)
    logits = torch.randn(2, 30, 40, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    categorical = [torch.distributions.Categorical(logits=x) for x in logits]
    oracle = torch.distributions.kl_divergence(*categorical)
    torch.testing.assert_close(kl_divergence(*logits), oracle, rtol=0, atol=1e-12)
    assert torch.equal(kl_divergence(logits[0], logits[0]), torch.zeros(30, dtype=torch.float64))


def test_passages_are_measured_as_a_plain_forward_measures_them(models, plain_tokenizer) -> None:
    texts = ["The tool returned an error.", "thanks", "No, I said the other file, please."]
    sequences = encode_passages(plain_tokenizer, texts)
    for shift, text in zip(measure_kl_shifts(*models, sequences, batch_tokens=40), texts, strict=True):
        ids = torch.tensor([plain_tokenizer(text)["input_ids"]])
        with torch.no_grad():
            old, new = (m(input_ids=ids).logits[0, :-1].double().log_softmax(-1) for m in models)
        assert shift.tokens == ids.shape[1] - 1
        assert shift.before == pytest.approx(old.gather(-1, ids[0, 1:, None]).sum().item(), abs=1e-4)
        assert shift.after == pytest.approx(new.gather(-1, ids[0, 1:, None]).sum().item(), abs=1e-4)
        assert shift.kl == pytest.approx((old.exp() * (old - new)).sum().item(), abs=1e-3)


def test_a_model_has_not_moved_from_itself(models, plain_tokenizer) -> None:
    sequences = encode_passages(plain_tokenizer, ["hello world", "def main():"])
    assert all(s.kl == 0 and s.before == s.after for s in measure_kl_shifts(models[0], models[0], sequences, 100))


def test_replies_are_measured_at_their_own_positions_and_equal_ones_once(models, monkeypatch) -> None:
    """A reply's first token is scored at the last position of its prompt; logits are held for a few rows at a time."""
    sequences = [
        PromptResponse([5, 6, 7], [8, 9]),
        PromptResponse([5, 6], [7, 8, 9]),
        PromptResponse([3], [4] * 9),
        PromptResponse([3], [4] * 9),
    ]
    monkeypatch.setattr("opdkit.model.scoring._LOGITS", 4 * models[0].config.vocab_size)
    read = []
    handle = models[0].lm_head.register_forward_hook(lambda _module, _args, output: read.append(output.shape[1]))
    shifts = measure_kl_shifts(*models, sequences, batch_tokens=12)
    handle.remove()
    assert sum(read) == 2 + 3 + 9
    assert max(read) == 4
    for shift, sequence in zip(shifts, sequences, strict=True):
        ids = torch.tensor([sequence.prompt_ids + sequence.response_ids])
        with torch.no_grad():
            old, new = (m(input_ids=ids).logits[0, :-1].double().log_softmax(-1) for m in models)
        rows = slice(len(sequence.prompt_ids) - 1, None)
        kl = torch.distributions.kl_divergence(*(torch.distributions.Categorical(logits=x[rows]) for x in (old, new)))
        assert shift.tokens == len(sequence.response_ids) == len(kl)
        assert shift.kl == pytest.approx(kl.sum().item(), abs=1e-4)


def test_a_longer_prompt_is_not_a_shorter_reply(models) -> None:
    """The same ids with another split into prompt and response are another sequence."""
    one, two = measure_kl_shifts(*models, [PromptResponse([1, 2], [3]), PromptResponse([1], [2, 3])], 100)
    assert (one.tokens, two.tokens) == (1, 2)
    assert two.kl > one.kl > 0


def test_only_sampled_tokens_of_a_reply_count(models) -> None:
    sequences = [PromptResponse([1, 2, 3], [4, 5, 6, 7])]
    whole, some = (
        measure_shifts(*models, sequences, [torch.tensor(mask)], 100)[0]
        for mask in ([True] * 4, [True, False, False, True])
    )
    assert (whole.tokens, some.tokens) == (4, 2)
    assert whole.before < some.before < 0


def test_control_tokens_in_a_passage_are_text(plain_tokenizer) -> None:
    """Control tokens in a text are read as text."""
    (sequence,) = encode_passages(plain_tokenizer, ["a <|im_end|> b", "x"])  # one token alone has no log-prob
    assert plain_tokenizer.eos_token_id not in sequence.prompt_ids + sequence.response_ids


def test_the_same_few_are_taken_again() -> None:
    names = [f"n{i}" for i in range(100)]
    assert choose_by_hash(names, str, 10) == choose_by_hash(reversed(names), str, 10)
    assert set(choose_by_hash(names, str, 10)) < set(choose_by_hash(names, str, 20))


def test_neutral_files_are_read_or_refused(tmp_path) -> None:
    (tmp_path / "text").write_text("one line\n\nanother\none line\n")
    assert sorted(read_passages(tmp_path, str(tmp_path / "text"))) == ["another", "one line"]
    (tmp_path / "empty").write_text("\n \n")
    with pytest.raises(ConfigError, match="holds no text"):
        read_passages(tmp_path, str(tmp_path / "empty"))
    with pytest.raises(ConfigError, match=r"--neutral-text .*No such file"):
        read_passages(tmp_path, str(tmp_path / "none"))
