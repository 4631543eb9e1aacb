"""Tests of `--load-in-4bit`: adapters train on the quantized weights that were scored, and merge into full ones."""

import json
import math
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from scored_runs import toy_sessions, train_and_kill, train_config, write_run
from torch import Tensor, nn
from transformers import AutoModelForCausalLM

from opdkit.commands import run as pipeline
from opdkit.config.evaluate import EvalConfig
from opdkit.config.judge import JudgeConfig
from opdkit.config.run import RunConfig
from opdkit.config.teacher import TeacherConfig
from opdkit.errors import ConfigError
from opdkit.evaluate import stage as evaluate
from opdkit.model.load import count_quantized, load_model
from opdkit.model.scoring import PromptResponse, score
from opdkit.store.plans import manifest
from opdkit.store.reading import read_all
from opdkit.train import stage as train
from opdkit.train import validation
from opdkit.train.student import load_student
from opdkit.train.targets import load_targets
from opdkit.train.trust_region import make_trust_region

peft = pytest.importorskip("peft")
bitsandbytes = pytest.importorskip("bitsandbytes")
OPTIONS = {"lora_rank": 4, "load_in_4bit": True}
SEQUENCES = [PromptResponse([5, 6, 7, 8], [9, 10, 11]), PromptResponse([5, 6], [7, 8, 12])]


def quantized(model: nn.Module) -> dict[str, Tensor]:
    """Return the bytes of the 4-bit weights, by the name of their layer in the model without adapters."""
    return {
        name.removeprefix("base_model.model.").replace(".base_layer", ""): parameter.data.clone()
        for name, parameter in model.named_parameters()
        if isinstance(parameter, bitsandbytes.nn.Params4bit)
    }


def same_tensors(a: dict[str, Tensor], b: dict[str, Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


@pytest.fixture(scope="module")
def scored_in_4bit(tmp_path_factory: pytest.TempPathFactory, plain_model_dir: Path) -> Path:
    folder = tmp_path_factory.mktemp("scored") / "run"
    return write_run(folder, plain_model_dir, toy_sessions(8), load_in_4bit=True)


@pytest.fixture
def quantized_run(scored_in_4bit: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(scored_in_4bit, tmp_path / "quantized"))


# -- loading -----------------------------------------------------------------------------------------------------------


def test_linear_layers_are_quantized_and_the_output_layer_is_not(plain_model_dir: Path) -> None:
    model: Any = load_model(str(plain_model_dir), device="cpu", dtype="bfloat16", load_in_4bit=True)
    weights = quantized(model)
    assert len(weights) == 14
    assert {x.dtype for x in weights.values()} == {torch.uint8}
    assert {p.dtype for n, p in model.named_parameters() if n not in weights} == {torch.bfloat16}
    assert {"lm_head.weight", "model.embed_tokens.weight"}.isdisjoint(weights)
    assert count_quantized(str(plain_model_dir)) == 2 * sum(x.numel() for x in weights.values())
    again = load_model(str(plain_model_dir), device="cpu", dtype="bfloat16", load_in_4bit=True)
    assert same_tensors(quantized(again), weights)


def test_a_model_that_was_evaluated_still_trains(quantized_run: Path, plain_model_dir: Path) -> None:
    """In evaluation mode bitsandbytes repacks weights on some CPUs, so that gradients no longer flow through them."""
    student = load_student(train_config(quantized_run, plain_model_dir, **OPTIONS))

    def gradients() -> list[Tensor]:
        student.zero_grad()
        student(input_ids=torch.arange(5, 25)[None]).logits.square().sum().backward()
        return [p.grad.clone() for p in student.parameters() if p.grad is not None]

    before = gradients()
    student.eval()
    with torch.inference_mode():
        student(input_ids=torch.arange(5, 25)[None])
    student.train()
    assert before
    assert all(torch.equal(a, b) for a, b in zip(before, gradients(), strict=True))


def test_the_largest_rate_is_that_of_the_weights_and_not_of_their_bytes(quantized_run, plain_model_dir) -> None:
    rates = [
        make_trust_region(config, load_student(config)).max_factor
        for options in ({"lora_rank": 4}, OPTIONS)
        for config in [train_config(quantized_run, plain_model_dir, learning_rate=None, step_limit=1.0, **options)]
    ]
    assert rates[1] == pytest.approx(rates[0], rel=0.02)


# -- training ----------------------------------------------------------------------------------------------------------


def test_training_moves_the_adapters_alone(quantized_run, plain_model_dir, monkeypatch) -> None:
    """The student begins as the model that was scored, and ends with the same quantized bytes and trained adapters."""
    students = []
    monkeypatch.setattr(train, "load_student", lambda *a, **k: students.append(load_student(*a, **k)) or students[-1])
    train.run(train_config(quantized_run, plain_model_dir, kl_coef=0.1, keep_epochs=True, **OPTIONS))
    (student,) = students
    assert {name.split(".")[-3] for name, p in student.named_parameters() if p.requires_grad} == {"lora_A", "lora_B"}
    scorer = load_model(str(plain_model_dir), device="cpu", dtype="auto", load_in_4bit=True)
    assert same_tensors(quantized(student), quantized(scorer))
    first, *_ = read_all(quantized_run, "metrics")
    assert first["approx_kl"] == pytest.approx(0.0, abs=1e-6), "ratios are 1 before the first step"

    # The adapter is that of the student, and the merged model has the weights as they were before quantization.
    adapter = quantized_run / "train/adapter"
    trained = peft.PeftModel.from_pretrained(scorer, adapter)
    for a, b in zip(
        score(trained, SEQUENCES, batch_tokens=64), score(student, SEQUENCES, batch_tokens=64), strict=True
    ):
        torch.testing.assert_close(a, b, atol=1e-5, rtol=0)
    whole = AutoModelForCausalLM.from_pretrained(plain_model_dir)
    merged = peft.PeftModel.from_pretrained(whole, adapter).merge_and_unload().state_dict()
    for folder in (quantized_run / "train/model", quantized_run / "train/epochs/001/model"):
        assert same_tensors(load_file(folder / "model.safetensors"), merged)
        assert "quantization_config" not in json.loads((folder / "config.json").read_text())
    plain = load_file(plain_model_dir / "model.safetensors")
    assert {n for n in plain if not torch.equal(plain[n], merged[n])} == set(quantized(scorer))


def test_a_killed_training_ends_with_the_same_bytes(quantized_run, plain_model_dir, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(train, "check_better", lambda *_: None)  # a hint means nothing to a model of random weights
    for module in (train, validation):
        monkeypatch.setattr(module, "find_best", lambda rows: rows[-1])
    whole = Path(shutil.copytree(quantized_run, tmp_path / "whole"))
    options = {"checkpoint_every": 1, "step_limit": 1.0, "validate": 4, "epochs": 2, **OPTIONS}
    train.run(train_config(whole, plain_model_dir, **options))
    config = train_config(quantized_run, plain_model_dir, **options)
    with monkeypatch.context() as patch:
        train_and_kill(config, 2, patch)
    train.run(config)
    for file in ("model/model.safetensors", "adapter/adapter_model.safetensors"):
        assert (quantized_run / "train" / file).read_bytes() == (whole / "train" / file).read_bytes()


def test_bfloat16_and_gradient_checkpointing_train_too(quantized_run, plain_model_dir, monkeypatch) -> None:
    students = []
    monkeypatch.setattr(train, "load_student", lambda *a, **k: students.append(load_student(*a, **k)) or students[-1])
    options = {"dtype": "bfloat16", "gradient_checkpointing": True}
    train.run(train_config(quantized_run, plain_model_dir, epochs=2, **options, **OPTIONS))
    (student,) = students
    assert any(getattr(module, "gradient_checkpointing", False) for module in student.modules())
    assert {p.dtype for p in student.parameters() if not p.requires_grad} == {torch.uint8, torch.bfloat16}
    rows = read_all(quantized_run, "metrics")
    assert all(math.isfinite(row["loss"]) and row["grad_norm"] > 0 for row in rows)


# -- the stages --------------------------------------------------------------------------------------------------------


def test_the_student_is_the_model_that_was_scored(run, quantized_run, plain_model_dir) -> None:
    """Quantized weights are another old policy, so train must load the student in the same way as the teacher stage."""
    with pytest.raises(ConfigError, match="--load-in-4bit"):
        train.run(train_config(run, plain_model_dir, **OPTIONS))
    with pytest.raises(ConfigError, match="--load-in-4bit"):
        train.run(train_config(quantized_run, plain_model_dir, lora_rank=4))
    assert not (run / "train").exists()
    assert manifest(quantized_run, "teacher")["plan"]["config"]["load_in_4bit"] is True
    pairs = zip(load_targets(run), load_targets(quantized_run), strict=True)
    assert max(float(abs(a.old_logprobs - b.old_logprobs).max()) for a, b in pairs) > 0.01
    with pytest.raises(ConfigError, match="--load-in-4bit"):
        pipeline.run(RunConfig(run=run / "new", logs=("none",), model="none", judge="rules",
                               set=("train.lora_rank=4", "train.load_in_4bit=true")))  # fmt: skip


def test_eval_compares_both_models_in_4_bits(quantized_run, plain_model_dir, tmp_path) -> None:
    train.run(train_config(quantized_run, plain_model_dir, epochs=2, **OPTIONS))
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text(json.dumps({"prompt": "say red", "check": {"match": ["."]}}) + "\n")
    shifts = {}
    for load_in_4bit in (False, True):
        config = EvalConfig(run=quantized_run, prompts=str(prompts), device="cpu", samples=0, max_new_tokens=4,
                            load_in_4bit=load_in_4bit, overwrite=True)  # fmt: skip
        evaluate.run(config)
        rows = read_all(quantized_run, "scores")
        shifts[load_in_4bit] = next((row["before"], row["after"]) for row in rows if row["metric"] == "logprob_good")
    for quantized, plain in zip(shifts[True], shifts[False], strict=True):
        assert quantized != pytest.approx(plain, abs=1e-3)
    assert manifest(quantized_run, "eval")["plan"]["config"]["load_in_4bit"] is True


def test_what_cannot_be_quantized_is_refused(run, plain_model_dir, monkeypatch) -> None:
    with pytest.raises(ConfigError, match="--lora-rank"):
        train_config(run, plain_model_dir, load_in_4bit=True)
    with pytest.raises(ConfigError, match="--sharding"):
        train_config(run, plain_model_dir, sharding="fsdp", **OPTIONS)
    with pytest.raises(ConfigError, match="--tensor-parallel"):
        TeacherConfig(run=run, model="none", load_in_4bit=True, tensor_parallel=True, teacher_samples=0)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    judge = JudgeConfig(run=run, judge="local", judge_model="none", load_in_4bit=True)
    with pytest.raises(ConfigError, match=r"pip install bitsandbytes$"):
        judge.check_inputs()
