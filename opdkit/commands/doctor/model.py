"""Findings about the student: complete or not, memory that it will take, arguments of its chat template."""

from collections.abc import Iterator
from math import prod
from pathlib import Path
from typing import Any

import psutil
import torch
from jinja2 import TemplateError
from jinja2.meta import find_undeclared_variables
from jinja2.sandbox import ImmutableSandboxedEnvironment

from opdkit.chat.messages import message
from opdkit.chat.template import Chat, ChatError
from opdkit.commands.check.weights import read_header
from opdkit.commands.doctor.finding import NOTE, OK, PROBLEM, Finding, in_gb
from opdkit.errors import ConfigError, OpdkitError
from opdkit.model.folder import check_model_folder, read_config
from opdkit.model.load import load_tokenizer, resolve_device, resolve_dtype

# Bytes per parameter: weights, gradients and AdamW's two moments, each in float32.
_FULL_TRAINING = 16
_ACTIVATIONS = "activations come on top: lower --micro-batch-tokens, or --gradient-checkpointing"
# Names that every template gets, or defines by looking for them.
_GIVEN = {"messages", "tools", "add_generation_prompt", "documents", "raise_exception", "strftime_now", "range",
          "namespace", "continue_final_message", "tools_in_user_message", "custom_tools"}  # fmt: skip


def examine(name: str, device: str, dtype: str, lora_rank: int) -> Iterator[Finding]:
    """Yield findings about the model `name`, without loading its weights."""
    try:
        check_model_folder(name)
    except OpdkitError as error:
        yield Finding("model", PROBLEM, str(error), "pass the folder of a complete model")
        return
    folder = Path(name)
    if folder.is_dir():
        yield from _weights(folder, device, dtype, lora_rank)
    else:
        yield Finding("model", NOTE, f"{name} is not on this disk", "it is downloaded when a stage first needs it; on "
                      "nodes without a network, download it before")  # fmt: skip
        return
    try:
        tokenizer: Any = load_tokenizer(name)
        chat = Chat(tokenizer, {})
    except (ConfigError, OpdkitError) as error:
        yield Finding(
            "tokenizer", PROBLEM, str(error), "copy tokenizer and template from the chat version of the model"
        )
        return
    stops = ", ".join(sorted(map(repr, tokenizer.convert_ids_to_tokens(sorted(chat.stop_ids)))))
    yield Finding("tokenizer", OK, f"{len(tokenizer):,} tokens; a reply ends with {stops}")
    try:
        chat.prompt_ids([message("user", "Are you there?")])
    except ChatError as error:
        yield Finding("template", PROBLEM, f"one question cannot be rendered: {error}", "mend the chat template, or "
                      "copy that of the chat version of the model")  # fmt: skip
        return
    yield from _template(tokenizer.chat_template)


def _weights(folder: Path, device: str, dtype: str, lora_rank: int) -> Iterator[Finding]:
    kind = read_config(folder)["model_type"]
    try:
        headers = [read_header(file)[0] for file in sorted(folder.glob("*.safetensors"))]
        shapes = [tensor["shape"] for header in headers for tensor in header.values()]
    except (OSError, ValueError, KeyError, TypeError) as error:
        yield Finding("model", PROBLEM, f"the weights in {folder} cannot be read: {error}", "copy the model again")
        return
    parameters = sum(map(prod, shapes))
    yield Finding("model", OK, f"{folder}: {kind}, {parameters / 1e6:,.1f} million parameters")
    try:
        place = resolve_device(device)
    except ConfigError:
        return  # a finding of the device already
    width = resolve_dtype(dtype, place).itemsize
    if place.type == "cuda":
        free, where = float(torch.cuda.mem_get_info(place)[0]), str(place)
    else:
        free, where = float(psutil.virtual_memory().available), "memory"
    yield _fits("judge, teacher", parameters * width, free, where, "--dtype bfloat16, or a smaller model")
    if lora_rank:
        adapters = sum(lora_rank * sum(shape) for shape in shapes if len(shape) == 2)
        size = parameters * width + adapters * _FULL_TRAINING
        yield _fits(f"train --lora-rank {lora_rank}", size, free, where, "a smaller model, or more GPUs with "
                    "--sharding fsdp")  # fmt: skip
    else:
        yield _fits("train", parameters * _FULL_TRAINING, free, where, "--lora-rank 32, or more GPUs with "
                    "--sharding fsdp")  # fmt: skip


def _fits(stage: str, size: float, free: float, where: str, remedy: str) -> Finding:
    what = f"{stage}: {in_gb(size)} of {in_gb(free)} free on {where}"
    if size > free:
        return Finding("memory", PROBLEM, what, remedy)
    return Finding("memory", NOTE if size > free / 2 else OK, what, _ACTIVATIONS if size > free / 2 else "")


def _template(template: Any) -> Iterator[Finding]:
    text = "\n".join(template.values()) if isinstance(template, dict) else template
    known = arguments(text)
    if not known:
        yield Finding("template", OK, "takes no arguments")
        return
    remedy = "say what the replies in your logs were served with: --template-arg NAME=VALUE for teacher"
    if "enable_thinking" in known:
        remedy += " (enable_thinking=false where they do not think)"
    yield Finding("template", NOTE, f"takes {', '.join(sorted(known))}", remedy)


def arguments(template: str) -> set[str]:
    """Return the names that a chat template reads, and that not every template is given."""
    environment = ImmutableSandboxedEnvironment(extensions=["jinja2.ext.loopcontrols"])
    try:
        found = find_undeclared_variables(environment.parse(template))
    except TemplateError:
        return set()  # of tags that only transformers knows
    return {name for name in found if name not in _GIVEN and not name.endswith("_token")}
