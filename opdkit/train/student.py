"""Student in training: its weights, its precision and its optimizer."""

import warnings
from collections import Counter
from typing import Any

import torch
from torch import nn

from opdkit.config.train import TrainConfig
from opdkit.errors import ConfigError
from opdkit.model.load import load_model, resolve_device, resolve_dtype
from opdkit.model.output_layer import find_decoder
from opdkit.train.sharding import find_trained_parameters

_RANDOM_ROUTER = "PhimoeTopKRouter"  # draws experts in training mode
# Parts of the names of weights that only choose: experts (DeepSeek-V3, AFMoE), or keys (DeepSeek-V3.2, GLM-5).
_CHOOSERS = ("e_score_correction_bias", "expert_bias", ".indexer.")
# Kind of a module -> linear layer without an adapter: read directly, or (a router) with more than one output.
NOT_ADAPTED = {"Gemma3nTextAltUp": "correction_coefs", "LongcatFlashTopkRouter": "classifier",
               "Llama4Router": "router", _RANDOM_ROUTER: "router"}  # fmt: skip


def load_student(config: TrainConfig, *, on_cpu: bool = False) -> nn.Module:
    """Load the model to train: all weights in float32, or LoRA adapters in float32 over frozen weights in `--dtype`.

    With `--load-in-4bit`, the frozen weights are quantized as they were in the teacher stage.

    bfloat16 has 8 significant bits: a step of 1e-5 on a weight of 0.02 would round to 0. So trained weights are
    float32, and only the forward computes in bfloat16. Dropout and noise are off, as when the old policy was scored.
    """
    device = "cpu" if on_cpu else config.device
    dtype = str(choose_compute_dtype(config)).removeprefix("torch.") if config.lora_rank else "float32"
    model: Any = load_model(config.model, device=device, dtype=dtype, load_in_4bit=config.load_in_4bit,
                            compiled=config.compile)  # fmt: skip
    if getattr(model, "is_quantized", False) and not config.load_in_4bit:
        raise ConfigError(f"{config.model} has quantized weights, which cannot be trained: pass the unquantized model")
    if config.lora_rank:
        from peft import LoraConfig, get_peft_model

        torch.manual_seed(config.seed)  # the random initial adapters must be equal in all processes
        modules = dict(model.named_modules())
        kinds = {type(module).__name__ for module in modules.values()}
        is_mamba = any(hasattr(module, "A_log") and hasattr(module, "D") for module in modules.values())
        excluded = ["out_proj", "dt_proj", "x_proj"] if is_mamba else []  # read directly, bypassing adapters
        excluded += [name for kind, name in NOT_ADAPTED.items() if kind in kinds]
        # Each module of a shared weight would get an adapter of its own, and all would be merged into that weight.
        linears = {name: module for name, module in modules.items() if isinstance(module, nn.Linear)}
        uses = Counter(id(module.weight) for module in linears.values())
        excluded += [name for name, module in linears.items() if uses[id(module.weight)] > 1]
        lora = LoraConfig(r=config.lora_rank, lora_alpha=config.lora_alpha, target_modules="all-linear",
                          exclude_modules=excluded or None, task_type="CAUSAL_LM")  # fmt: skip
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", FutureWarning)  # peft reads a name that transformers has changed
                model = get_peft_model(model, lora)
        except ValueError as error:
            raise ConfigError(f"--lora-rank: peft cannot adapt {config.model}: {error}") from error
    if config.gradient_checkpointing:
        options = {"use_reentrant": False}
        try:
            if hasattr(model, "activation_checkpointing_enable"):  # the name since transformers 5.23
                model.activation_checkpointing_enable(activation_checkpointing_kwargs=options)
            else:
                model.gradient_checkpointing_enable(gradient_checkpointing_kwargs=options)
        except ValueError as error:
            raise ConfigError(f"--gradient-checkpointing: {error}") from error
    set_train_mode(model)
    for module in model.modules():  # not only nn.Dropout: a module may pass its own rate to a function
        if type(module).__name__ == _RANDOM_ROUTER:  # its jitter is a threshold, too
            continue
        for name, value in list(vars(module).items()):
            if isinstance(value, float) and (name == "p" or "drop" in name or "jitter" in name):
                setattr(module, name, 0.0)
    freeze_unread(model)
    return model


def set_train_mode(model: nn.Module) -> None:
    """Put a student in training mode, since gradient checkpointing is off in evaluation mode, but no random router."""
    model.train()
    for module in model.modules():
        if type(module).__name__ == _RANDOM_ROUTER:
            module.eval()


def freeze_unread(model: Any) -> None:
    """Freeze weights that never get a gradient: text input does not use them, or they only choose experts or keys."""
    base = model.get_base_model() if hasattr(model, "get_base_model") else model
    body, head = find_decoder(base), base.get_output_embeddings()
    if body is None:
        return
    read = {id(p) for module in (body, head) if module is not None for p in module.parameters()}
    for name, parameter in model.named_parameters():
        if id(parameter) not in read or any(part in name for part in _CHOOSERS):
            parameter.requires_grad_(False)


def choose_compute_dtype(config: TrainConfig) -> torch.dtype:
    """Return the dtype of the forward: bfloat16 if `--dtype` says so (auto: on a GPU), else float32."""
    return resolve_dtype(config.dtype, resolve_device(config.device))


def autocast(config: TrainConfig) -> torch.autocast:
    """Return the context in which forwards compute in the dtype of `choose_compute_dtype`."""
    half = choose_compute_dtype(config) == torch.bfloat16
    return torch.autocast(resolve_device(config.device).type, dtype=torch.bfloat16, enabled=half)


def make_optimizer(model: nn.Module, config: TrainConfig) -> torch.optim.AdamW:
    """Return AdamW with weight decay on matrices, not on norms and biases. Its learning rate is set at each step."""
    parameters = find_trained_parameters(model).values()
    groups = [
        {"params": [p for p in parameters if p.ndim >= 2], "weight_decay": config.weight_decay},
        {"params": [p for p in parameters if p.ndim < 2], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW([g for g in groups if g["params"]], lr=0.0, betas=(config.beta1, config.beta2))
