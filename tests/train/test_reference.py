"""Tests of a frozen reference for the KL: its values, which models may be one, and that no training changes it."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from chat_templates import CHATML
from conftest import CHATML_TOKENS, CHATML_WORDS, build_tokenizer, save_tiny_model
from scored_runs import train_and_kill, train_config
from small_memory import room_for
from transformers import AutoModelForCausalLM

from opdkit.chat.template import Chat
from opdkit.commands import run as pipeline
from opdkit.config.run import RunConfig
from opdkit.config.teacher import TeacherConfig
from opdkit.errors import ConfigError, OpdkitError
from opdkit.model.load import load_tokenizer
from opdkit.store.plans import manifest
from opdkit.store.reading import read_all
from opdkit.teacher import stage as teacher
from opdkit.train import reference as reference_module
from opdkit.train import stage as train
from opdkit.train.targets import load_prompts, load_targets


@pytest.fixture(scope="module")
def reference(tmp_path_factory, plain_tokenizer) -> Path:
    return save_tiny_model(tmp_path_factory.mktemp("reference") / "model", plain_tokenizer, seed=1)


def differences(run: Path, model: Path, reference: Path) -> np.ndarray:
    """Return log p(token) - log p_ref(token) of every trained token of `opd`, from plain forwards of both models."""
    turns = [turn for turn in load_targets(run) if turn.teacher_logprobs is not None]
    prompts = load_prompts(run, turns, Chat(load_tokenizer(str(model)), {}))
    found = []
    for turn in turns:
        ids = torch.tensor([[*prompts[turn.turn_id].tolist(), *turn.response_ids.tolist()]])
        values = []
        for folder in (model, reference):
            loaded = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
            with torch.no_grad():
                logprobs = loaded(ids).logits[0, turn.prompt_tokens - 1 : -1].log_softmax(-1)
            values.append(logprobs.gather(-1, ids[0, turn.prompt_tokens :, None])[:, 0].numpy())
        found.append((values[0] - values[1])[turn.sampled])
    return np.concatenate(found)


@pytest.mark.parametrize(("estimator", "expected"), [
    ("k1", lambda r: r), ("k2", lambda r: r**2 / 2), ("k3", lambda r: np.exp(-r) - 1 + r),
])  # fmt: skip
def test_the_kl_is_that_to_the_reference(run, plain_model_dir, reference, estimator, expected) -> None:
    """Before the first step the student is the old policy, so rho is 1."""
    options = {"kl_coef": 0.5, "kl_estimator": estimator, "batch_turns": 100}
    train.run(train_config(run, plain_model_dir, reference=str(reference), **options))
    (row,) = read_all(run, "metrics")
    wanted = 0.5 * expected(differences(run, plain_model_dir, reference)).mean()
    assert abs(wanted) > 0.05
    assert row["kl_loss"] == pytest.approx(wanted, rel=1e-4)
    assert row["approx_kl"] == pytest.approx(0, abs=1e-7)  # this KL is still to the old policy
    train.run(train_config(run, plain_model_dir, overwrite=True, **options))
    assert next(iter(read_all(run, "metrics")))["kl_loss"] == pytest.approx(0, abs=1e-5)


@pytest.mark.parametrize("lora_rank", [0, 4])
def test_it_pulls_the_student_to_it(run, tmp_path, plain_model_dir, reference, lora_rank) -> None:
    free = Path(shutil.copytree(run, tmp_path / "free"))
    options = {"learning_rate": 3e-3, "epochs": 4, "kl_coef": 20.0, "lora_rank": lora_rank}
    train.run(train_config(free, plain_model_dir, **options))
    train.run(train_config(run, plain_model_dir, reference=str(reference), **options))
    apart = [np.square(differences(where, where / "train/model", reference)).mean() for where in (free, run)]
    assert apart[1] < 0.8 * apart[0]


def test_a_resumed_training_keeps_its_reference(run, tmp_path, plain_model_dir, reference, monkeypatch) -> None:
    """The reference is not the policy that it resumes from: the losses are those of an uninterrupted training."""
    other = Path(shutil.copytree(run, tmp_path / "other"))
    options = {"kl_coef": 0.5, "reference": str(reference), "checkpoint_every": 1, "epochs": 2}
    train.run(train_config(run, plain_model_dir, **options))
    train_and_kill(train_config(other, plain_model_dir, **options), 3, monkeypatch)
    moved = save_tiny_model(tmp_path / "moved", load_tokenizer(str(reference)), seed=2)
    with pytest.raises(ConfigError, match="reference"):
        train.run(train_config(other, plain_model_dir, **(options | {"reference": str(moved)})))
    train.run(train_config(other, plain_model_dir, **options))
    values = [[(r["loss"], r["kl_loss"]) for r in read_all(where, "metrics")] for where in (run, other)]
    assert values[0] == values[1]
    assert (run / "train/model/model.safetensors").read_bytes() == (
        other / "train/model/model.safetensors"
    ).read_bytes()


def test_its_path_and_its_files_are_in_the_manifest(run, plain_model_dir, reference) -> None:
    train.run(train_config(run, plain_model_dir, kl_coef=0.1, reference=str(reference)))
    plan = manifest(run, "train")["plan"]
    assert plan["config"]["reference"] == str(reference)
    assert plan["inputs"]["reference"]["files"]["model.safetensors"]
    assert plan["inputs"]["reference"]["files"] != plan["inputs"]["model"]["files"]


@pytest.mark.parametrize("remedy", ["--max-tokens", "--dtype float32"])
def test_what_it_cannot_read_says_what_to_do(run, plain_model_dir, reference, remedy, monkeypatch) -> None:
    """The error names an option if a turn is beyond the reference's context, or if its weights are not finite."""
    load = reference_module.load_model

    def load_broken(*args, **options):
        model = load(*args, **options)
        if remedy == "--max-tokens":
            model.config.max_position_embeddings = 5
        else:
            model.model.norm.weight.data.fill_(torch.nan)
        return model

    monkeypatch.setattr(reference_module, "load_model", load_broken)
    with pytest.raises(OpdkitError, match=remedy):
        train.run(train_config(run, plain_model_dir, kl_coef=0.1, reference=str(reference)))


def test_little_memory_gives_the_same_numbers(run, tmp_path, plain_model_dir, reference) -> None:
    whole = Path(shutil.copytree(run, tmp_path / "whole"))
    options = {"kl_coef": 0.5, "reference": str(reference), "batch_turns": 100}
    train.run(train_config(whole, plain_model_dir, **options))
    with room_for(200) as room:
        train.run(train_config(run, plain_model_dir, **options))
    assert room.refused
    rows = [next(iter(read_all(where, "metrics"))) for where in (whole, run)]
    assert rows[1]["kl_loss"] == pytest.approx(rows[0]["kl_loss"], rel=1e-5)


# -- which models may be a reference --------------------------------------------------------------------------------


def test_another_tokenizer_is_refused(run, tmp_path, plain_model_dir) -> None:
    """The tokenizer has as many tokens, with different ids."""
    other = build_tokenizer(CHATML, [CHATML_TOKENS[0], *reversed(CHATML_TOKENS[1:])], CHATML_WORDS)
    folder = save_tiny_model(tmp_path / "other", other)
    with pytest.raises(ConfigError, match="im_start"):
        train.run(train_config(run, plain_model_dir, kl_coef=0.1, reference=str(folder)))
    assert not (run / "train").exists()


def test_what_cannot_be_a_reference_is_refused(run, tmp_path, plain_model_dir, reference) -> None:
    with pytest.raises(ConfigError, match="--kl-coef"):
        train_config(run, plain_model_dir, reference=str(reference))
    with pytest.raises(OpdkitError, match="nowhere"):
        train.run(train_config(run, plain_model_dir, kl_coef=0.1, reference=str(tmp_path / "nowhere")))
    assert not (run / "train").exists()
    short, broken = (Path(shutil.copytree(reference, tmp_path / name)) for name in ("short", "broken"))
    config = json.loads((short / "config.json").read_text())
    (short / "config.json").write_text(json.dumps(config | {"max_position_embeddings": 8}))
    with pytest.raises(ConfigError, match="at most 8 tokens"):
        train.run(train_config(run, plain_model_dir, kl_coef=0.1, reference=str(short)))
    model = AutoModelForCausalLM.from_pretrained(broken)
    with torch.no_grad():
        model.model.norm.weight[0] = float("nan")
    model.save_pretrained(broken)
    with pytest.raises(OpdkitError, match=r"turn toy-\d+:\d"):
        train.run(train_config(run, plain_model_dir, kl_coef=0.1, reference=str(broken), overwrite=True))
    assert not (run / "train/metrics").exists()


@pytest.mark.parametrize("option", ["model", "reference"])
def test_overwrite_does_not_remove_the_model_that_it_needs(run, plain_model_dir, option) -> None:
    train.run(train_config(run, plain_model_dir))
    own = run / "train" / "model"
    if option == "model":
        teacher.run(TeacherConfig(run=run, model=str(own), device="cpu", teacher_samples=0, overwrite=True))
        again = train_config(run, own, overwrite=True)
    else:
        again = train_config(run, plain_model_dir, kl_coef=0.1, reference=str(own), overwrite=True)
    with pytest.raises(ConfigError, match=f"--{option}"):
        train.run(again)
    assert (own / "model.safetensors").exists()


def test_a_run_looks_for_the_reference_before_it_begins(plain_model_dir, tmp_path) -> None:
    options = (f"train.reference={tmp_path / 'nowhere'}", "train.kl_coef=0.1")
    config = RunConfig(run=tmp_path / "new", logs=("none",), model=str(plain_model_dir), judge="rules", set=options)
    with pytest.raises(OpdkitError, match="nowhere"):
        pipeline.run(config)
    assert not (tmp_path / "new").exists()
