"""Findings about the student: whether it is complete, the memory it will take, the arguments of its chat template."""

import json
import re
from collections.abc import Iterator
from math import prod
from pathlib import Path
from typing import Any

import psutil
import torch
from jinja2 import TemplateError, nodes
from jinja2.meta import find_undeclared_variables
from jinja2.sandbox import ImmutableSandboxedEnvironment

from opdkit.chat.messages import message
from opdkit.chat.template import ChatError
from opdkit.commands.check.weights import read_header
from opdkit.commands.doctor.finding import NOTE, OK, PROBLEM, Finding, format_gb
from opdkit.errors import ConfigError, OpdkitError
from opdkit.model.folder import check_model_folder, read_config
from opdkit.model.load import count_quantized, load_template, resolve_device, resolve_dtype

# Bytes per parameter: weights, gradients and AdamW's two moments, each in float32.
_FULL_TRAINING = 16
_QUANTIZED = 4.127 / 8  # bytes per 4-bit parameter, with its share of the scales (Dettmers et al. 2023)
_ACTIVATIONS = "activations come on top: lower --micro-batch-tokens, or --gradient-checkpointing"
# Names that every template is given, or that templates define themselves if nobody passes them.
_GIVEN = {"messages", "tools", "add_generation_prompt", "documents", "raise_exception", "strftime_now", "range",
          "namespace", "continue_final_message", "tools_in_user_message", "custom_tools"}  # fmt: skip
_ASKS = {"defined", "undefined", "default", "d"}  # tests and filters of a name that may not be passed


def examine(name: str, device: str, dtype: str, lora_rank: int, load_in_4bit: bool = False) -> Iterator[Finding]:
    """Yield findings about the model `name`, without loading its weights."""
    try:
        check_model_folder(name)
    except OpdkitError as error:
        yield Finding("model", PROBLEM, str(error), "pass the folder of a complete model")
        return
    folder = Path(name)
    if not folder.is_dir():
        remedy = "pass the folder of a downloaded model to have it checked; a stage downloads a model of the hub itself"
        yield Finding("model", NOTE, f"{name} is not a local folder, so it was not checked", remedy)
        return
    yield from _examine_weights(folder, device, dtype, lora_rank, load_in_4bit)
    try:
        chat = load_template(name, ())
        tokenizer: Any = chat.tokenizer
    except (ConfigError, OpdkitError) as error:
        remedy = "copy tokenizer and template from the chat version of the model"
        yield Finding("tokenizer", PROBLEM, str(error), remedy)
        return
    stops = ", ".join(sorted(map(repr, tokenizer.convert_ids_to_tokens(sorted(chat.stop_ids)))))
    yield Finding("tokenizer", OK, f"{len(tokenizer):,} tokens; a reply ends with {stops}")
    try:
        chat.prompt_ids([message("user", "Are you there?")])
    except ChatError as error:
        yield Finding("template", PROBLEM, f"one question cannot be rendered: {error}", "mend the chat template, or "
                      "copy that of the chat version of the model")  # fmt: skip
        return
    template = tokenizer.chat_template
    known = arguments("\n".join(template.values()) if isinstance(template, dict) else template)
    if not known:
        yield Finding("template", OK, "takes no arguments")
        return
    remedy = "say what the replies in your logs were served with: --template-arg NAME=VALUE for teacher"
    if "enable_thinking" in known:
        remedy += " (enable_thinking=false where they do not think)"
    yield Finding("template", NOTE, f"takes {', '.join(sorted(known))}", remedy)


def _examine_weights(folder: Path, device: str, dtype: str, lora_rank: int, load_in_4bit: bool) -> Iterator[Finding]:
    kind = read_config(folder)["model_type"]
    try:
        headers = [read_header(file)[0] for file in _list_weights(folder)]
        shapes = [tensor["shape"] for header in headers for tensor in header.values()]
        quantized = count_quantized(str(folder)) if load_in_4bit else 0
    except (OpdkitError, OSError, ValueError, KeyError, TypeError) as error:
        yield Finding("model", PROBLEM, f"the weights in {folder} cannot be read: {error}", "copy the model again")
        return
    parameters = sum(map(prod, shapes))
    yield Finding("model", OK, f"{folder}: {kind}, {parameters / 1e6:,.1f} million parameters")
    try:
        place = resolve_device(device)
    except ConfigError:
        return  # already a finding about the device
    width = resolve_dtype(dtype, place).itemsize
    if place.type == "cuda":
        free, where = float(torch.cuda.mem_get_info(place)[0]), str(place)
    else:
        free, where = float(psutil.virtual_memory().available), "memory"
    weights = (parameters - quantized) * width + quantized * _QUANTIZED
    option, quantize = (" --load-in-4bit", "") if load_in_4bit else ("", "--load-in-4bit, ")
    scoring = f"judge, teacher{option}", weights, f"--dtype bfloat16, {quantize}or a smaller model"
    # Training also holds the model from before training, which validation needs.
    training = "train", parameters * (_FULL_TRAINING + width), "--lora-rank 32, or more GPUs with --sharding fsdp"
    if lora_rank:
        adapters = sum(lora_rank * sum(shape) for shape in shapes if len(shape) == 2)
        less = f"{quantize}a smaller model{'' if load_in_4bit else ', or more GPUs with --sharding fsdp'}"
        training = f"train --lora-rank {lora_rank}{option}", 2 * weights + adapters * _FULL_TRAINING, less
    for command, needed, smaller in (scoring, training):
        what = f"{command}: {format_gb(needed)} of {format_gb(free)} free on {where}, without activations"
        if needed > free:
            yield Finding("memory", PROBLEM, what, smaller)
        elif needed > free / 2:
            yield Finding("memory", NOTE, what, _ACTIVATIONS)
        else:
            yield Finding("memory", OK, what)


def _list_weights(folder: Path) -> list[Path]:
    """Return the files that transformers loads; Mistral's folders also have the weights in consolidated.safetensors."""
    if (whole := folder / "model.safetensors").exists():
        return [whole]
    if (index := folder / "model.safetensors.index.json").exists():
        return sorted({folder / name for name in json.loads(index.read_text("utf-8"))["weight_map"].values()})
    return sorted(folder.glob("*.safetensors"))


def arguments(template: str) -> set[str]:
    """Return the names that a chat template reads beside those that every template is given: its own arguments.

    Jinja takes a variable that nested conditions set, such as Qwen3's `content`, for undeclared. A template that sets
    the default of an argument asks first whether it is defined.
    """
    environment = ImmutableSandboxedEnvironment(extensions=["jinja2.ext.loopcontrols"])
    marks = r"\{%[-+]?\s*(?:end)?generation\s*[-+]?%\}"  # of what the model wrote; only transformers knows them
    try:
        tree = environment.parse(re.sub(marks, "", template))
        names = find_undeclared_variables(tree)
    except TemplateError:
        return set()  # it has tags or filters that Jinja does not know
    asked = {getattr(test.node, "name", "") for test in tree.find_all((nodes.Test, nodes.Filter)) if test.name in _ASKS}
    own = {name.name for name in tree.find_all(nodes.Name) if name.ctx == "store"} - asked
    return {name for name in names - own if name not in _GIVEN and not name.endswith("_token")}
