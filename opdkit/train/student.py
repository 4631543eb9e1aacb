"""The student in training: its weights, its optimizer, its learning rate, and how it is saved."""

import math
import os
import shutil
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers import AutoConfig, PreTrainedModel, PreTrainedTokenizerBase

from opdkit.config.train import TrainConfig
from opdkit.model.load import load_model, resolve_device, resolve_dtype

FULL_LEARNING_RATE, LORA_LEARNING_RATE = 1e-5, 1e-4


def load_student(config: TrainConfig, *, on_cpu: bool = False) -> nn.Module:
    """The model to train: all weights in float32, or LoRA adapters in float32 over frozen weights in `--dtype`.

    bfloat16 keeps 8 bits: a step of 1e-5 on a weight of 0.02 would round to nothing, so what is trained is float32 and
    bfloat16 is left to the arithmetic of the forward. Dropout is off, as it was when the old policy was scored.
    """
    device = "cpu" if on_cpu else config.device
    if not config.lora_rank:
        model: Any = load_model(config.model, device=device, dtype="float32")
    else:
        model = _with_lora(
            load_model(config.model, device=device, dtype=str(compute_dtype(config)).removeprefix("torch.")), config
        )
    if config.gradient_checkpointing:
        _recompute_activations(model)
    model.train()  # gradient checkpointing is off in evaluation mode
    _switch_off_dropout(model)
    return model


def _recompute_activations(model: Any) -> None:
    options = {"use_reentrant": False}
    if hasattr(model, "activation_checkpointing_enable"):  # its name since transformers 5.23
        model.activation_checkpointing_enable(activation_checkpointing_kwargs=options)
    else:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs=options)


def _with_lora(base: PreTrainedModel, config: TrainConfig) -> nn.Module:
    from peft import LoraConfig, get_peft_model

    torch.manual_seed(config.seed)  # the adapters' first matrices are random, and the same in every process
    lora = LoraConfig(
        r=config.lora_rank, lora_alpha=config.lora_alpha, target_modules="all-linear", task_type="CAUSAL_LM"
    )
    return get_peft_model(base, lora)


def _switch_off_dropout(model: nn.Module) -> None:
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
        elif isinstance(getattr(module, "attention_dropout", None), float):
            module.attention_dropout = 0.0


def compute_dtype(config: TrainConfig) -> torch.dtype:
    """The precision of the forward: bfloat16 where `--dtype` says so (auto: on a GPU), else float32."""
    return resolve_dtype(config.dtype, resolve_device(config.device))


def autocast(config: TrainConfig) -> torch.autocast:
    """The forward in `compute_dtype`."""
    enabled = compute_dtype(config) == torch.bfloat16
    return torch.autocast(resolve_device(config.device).type, dtype=torch.bfloat16, enabled=enabled)


# -- optimizer ------------------------------------------------------------------------------------------------------


def trained(model: nn.Module) -> dict[str, nn.Parameter]:
    """The parameters that get a gradient, by name."""
    return {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}


def make_optimizer(model: nn.Module, config: TrainConfig) -> torch.optim.AdamW:
    """AdamW; weight decay pulls on matrices only, not on norms and biases."""
    parameters = trained(model).values()
    groups = [
        {"params": [p for p in parameters if p.ndim >= 2], "weight_decay": config.weight_decay},
        {"params": [p for p in parameters if p.ndim < 2], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW([g for g in groups if g["params"]], lr=0.0, betas=(config.beta1, config.beta2))


def learning_rate(config: TrainConfig, step: int, steps: int) -> float:
    """The learning rate of a step (from 1) of `steps`: a linear rise from 0, then constant or half a cosine to 0."""
    default = LORA_LEARNING_RATE if config.lora_rank else FULL_LEARNING_RATE
    peak = default if config.learning_rate is None else config.learning_rate
    if step <= config.warmup_steps:
        return peak * step / config.warmup_steps
    if config.schedule == "constant":
        return peak
    progress = (step - 1 - config.warmup_steps) / max(1, steps - config.warmup_steps)
    return peak * 0.5 * (1 + math.cos(math.pi * progress))


# -- saving ---------------------------------------------------------------------------------------------------------


def epoch_home(home: Path, epoch: int) -> Path:
    """Where the student is kept as it is after an epoch (from 1)."""
    return home / "epochs" / f"{epoch:03d}"


def save_student(model: nn.Module, tokenizer: PreTrainedTokenizerBase, config: TrainConfig, home: Path) -> None:
    """Write `home`/model, a folder that AutoModelForCausalLM loads, in the dtype of the student's own files.

    With LoRA the adapters are merged into the weights, and kept apart in `home`/adapter. `model` is spent afterwards.
    """
    saved: Any = model
    if config.lora_rank:
        _replace_folder(home / "adapter", lambda folder: saved.save_pretrained(folder))
        saved = saved.merge_and_unload()
    saved.to(AutoConfig.from_pretrained(config.model).dtype or torch.float32)

    def write(folder: Path) -> None:
        saved.save_pretrained(folder)
        tokenizer.save_pretrained(folder)

    _replace_folder(home / "model", write)


def _replace_folder(final: Path, write: Any) -> None:
    """Fill a folder beside its place, then move it there: whoever finds it finds all of it."""
    temporary = final.with_name(f".{final.name}-{os.getpid()}")
    final.parent.mkdir(parents=True, exist_ok=True)
    for left_over in final.parent.glob(f".{final.name}-*"):
        shutil.rmtree(left_over)
    write(temporary)
    if final.exists():
        shutil.rmtree(final)
    temporary.replace(final)
