"""Tests of opdkit/teacher/models.py: one teacher or several, averaged or named by the session."""

import shutil
from pathlib import Path

import pytest
import torch
from chat_templates import OPENS_THINKING
from conftest import CHATML_TOKENS, CHATML_WORDS, build_tokenizer, save_tiny_model
from judged_runs import (
    HINT,
    one_part,
    plain,
    prompts_of,
    talk,
    targets,
    turn,
    verdict,
    write_run,
)
from transformers import GenerationConfig

from opdkit.errors import ConfigError, OpdkitError
from opdkit.model.load import load_model
from opdkit.teacher import stage as teacher
from opdkit.teacher.models import load_scorer

# -- teachers -------------------------------------------------------------------------------------------------------


def test_without_the_hint_the_same_weights_say_the_same(run, config, tiny_model_dir, tiny_tokenizer, tmp_path):
    """Log-probs of the same weights are bit-identical, of others not; a turn without a hint has none of the teacher."""
    copy = shutil.copytree(tiny_model_dir, tmp_path / "copy")
    for options in ({}, {"teacher": (str(copy),)}):
        teacher.run(config(run, score_unhinted=True, overwrite=True, **options))
        assert all(row["unhinted_logprobs"] == row["old_logprobs"] for row in targets(run))
    other = save_tiny_model(tmp_path / "other", tiny_tokenizer, seed=7)
    teacher.run(config(run, score_unhinted=True, overwrite=True, teacher=(str(other),)))
    model = load_model(str(other), device="cpu", dtype="float32")
    for row in targets(run):
        prompt, _ = prompts_of(run, tiny_model_dir, row | {"hint": "x"}, "last-user")
        assert row["unhinted_logprobs"] == pytest.approx(plain(model, prompt, row["response_ids"]), abs=1e-5)
        assert row["unhinted_logprobs"] != row["old_logprobs"]
        assert (row["teacher_logprobs"] is None) == (row["hint"] is None)


def test_replies_of_another_teacher_end_with_each_of_its_stop_tokens(run, config, tiny_tokenizer, tmp_path):
    other = save_tiny_model(tmp_path / "other", tiny_tokenizer, seed=7)
    GenerationConfig(eos_token_id=[tiny_tokenizer.eos_token_id, 7]).save_pretrained(other)
    (chat,) = load_scorer(config(run, teacher=(str(other),))).teachers[""].chats
    assert 7 in chat.stop_ids


def test_averaged_teachers(run, config, tiny_model_dir, tiny_tokenizer, tmp_path):
    """The teacher's log-probs are log((3 p + q) / 4), with p and q from plain forward passes."""
    other = save_tiny_model(tmp_path / "other", tiny_tokenizer, seed=7)
    teacher.run(config(run, teacher=(f"big={other}", str(tiny_model_dir)), teacher_share=("big=3",)))
    models = [load_model(str(m), device="cpu", dtype="float32") for m in (other, tiny_model_dir)]
    for row in (r for r in targets(run) if r["hint"]):
        _, prompt = prompts_of(run, tiny_model_dir, row, "last-user")
        p, q = (torch.tensor(plain(m, prompt, row["response_ids"]), dtype=torch.float64).exp() for m in models)
        assert row["teacher_logprobs"] == pytest.approx(((3 * p + q) / 4).log().tolist(), abs=1e-5)


def test_each_of_several_teachers_must_have_the_students_tokens(run, config, tiny_model_dir, tmp_path, tiny_tokenizer):
    """A second teacher with other token ids is refused, also if the sessions name their teacher."""
    swapped = (CHATML_TOKENS[0], CHATML_TOKENS[2], CHATML_TOKENS[1])
    other = save_tiny_model(tmp_path / "other", build_tokenizer(tiny_tokenizer.chat_template, swapped, CHATML_WORDS))
    for options in ({}, {"teacher_route": "tier"}):
        with pytest.raises(ConfigError, match="tokenizer"):
            teacher.run(config(run, teacher=(f"a={tiny_model_dir}", f"b={other}"), overwrite=True, **options))


def test_a_session_names_its_teacher(tmp_path, config, tiny_model_dir, tiny_tokenizer, capsys):
    other = save_tiny_model(tmp_path / "other", tiny_tokenizer, seed=7)
    tiers = {"a": '{"tier": "gold"}', "b": '{"tier": 2}', "c": '{"tier": "lead"}', "d": "{}", "e": None}
    sessions = [talk(name) | {"metadata": metadata} for name, metadata in tiers.items()]
    ids = [f"{name}:{index}" for name in tiers for index in (2, 4)]

    def new(folder: str) -> Path:
        return write_run(tmp_path / folder, one_part(sessions, list(map(turn, ids)), [verdict(i, HINT) for i in ids]))

    run = new("run")
    roster = (f"gold={other}", f"2={tiny_model_dir}")
    summary = teacher.run(config(run, teacher=roster, teacher_route="tier"))
    assert summary.counters.dropped == {"session names an unknown teacher": 2, "session names no teacher": 4}
    assert summary.counters.total("sessions without a teacher") == 3
    assert summary.counters.rows_in == 10
    alone = {}
    for name, path in (("a", other), ("b", tiny_model_dir)):
        one = new(f"only-{name}")
        teacher.run(config(one, teacher=(str(path),)))
        alone |= {r["turn_id"]: r for r in targets(one) if r["turn_id"].startswith(name)}
    for row in targets(run):
        assert row["teacher_logprobs"] == pytest.approx(alone[row["turn_id"]]["teacher_logprobs"], abs=1e-5)
    capsys.readouterr()
    with pytest.raises(OpdkitError, match="session names no teacher"):
        teacher.run(config(new("nobody"), teacher=roster, teacher_route="team"))
    assert "no session's metadata field 'team' names a teacher" in capsys.readouterr().err


@pytest.mark.parametrize("thinker", ["student", "teacher"])
def test_both_begin_with_thinking_or_neither_does(run, config, tiny_tokenizer, tmp_path, thinker):
    """After a prompt that opens a think block, a reply without thinking would be scored as a thought."""
    thinking = build_tokenizer(OPENS_THINKING, CHATML_TOKENS, CHATML_WORDS)
    tokenizers = {"student": tiny_tokenizer, "teacher": tiny_tokenizer} | {thinker: thinking}
    paths = {name: str(save_tiny_model(tmp_path / name, tokenizer)) for name, tokenizer in tokenizers.items()}
    with pytest.raises(ConfigError, match=f"of {paths[thinker]} ends .* thought.*--teacher"):
        load_scorer(config(run, model=paths["student"], teacher=(paths["teacher"],)))
    copy = shutil.copytree(paths[thinker], tmp_path / "copy")
    load_scorer(config(run, model=paths[thinker], teacher=(str(copy),)))


@pytest.mark.parametrize("overwrite", [False, True])
def test_an_adapter_is_no_model_and_its_model_is_named(run, config, tiny_model_dir, tmp_path, overwrite):
    """`train --lora-rank` writes both side by side."""
    adapter = tmp_path / "train/adapter"
    adapter.mkdir(parents=True)
    (adapter / "adapter_config.json").write_text('{"base_model_name_or_path": "base"}')
    shutil.copytree(tiny_model_dir, tmp_path / "train/model")
    for options in ({"model": str(adapter)}, {"teacher": (str(adapter),)}):
        with pytest.raises(OpdkitError, match=f"adapter of base; {tmp_path}/train/model"):
            teacher.run(config(run, overwrite=overwrite, **options))
