"""Loading of models and tokenizers from a folder or the hub."""

import contextlib
import logging
import math
import os
from collections.abc import Sequence
from inspect import signature
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import nn
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoTokenizer,
    BitsAndBytesConfig,
    GenerationConfig,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)
from transformers.distributed import DistributedConfig
from transformers.pytorch_utils import Conv1D
from transformers.utils import find_adapter_config_file
from transformers.utils import logging as transformers_logging

from opdkit.chat.template import Chat
from opdkit.config.fields import parse_pairs
from opdkit.console import counted, verb
from opdkit.errors import ConfigError, OpdkitError
from opdkit.model.compiled import compile_small_operations
from opdkit.model.folder import MERGE, check_exists, check_model_folder, read_config
from opdkit.model.memory import TooLargeError, find_state, is_out_of_memory

transformers_logging.disable_progress_bar()  # while weights load; opdkit shows its own progress
logging.getLogger("bitsandbytes").setLevel(logging.ERROR)  # otherwise each import warns about a CPU kernel


def load_tokenizer(name: str) -> PreTrainedTokenizerBase:
    """Load the tokenizer of a model folder or a hub name.

    Raises OpdkitError when it is missing, and ConfigError when it has no fast backend (`tokenizer.json`), which opdkit
    needs to keep text from logs apart from control tokens.
    """
    path, any_of = Path(name), ("tokenizer.json", "tokenizer.model", "vocab.json", "tekken.json")
    check_exists(name)
    if path.is_dir() and not any((path / file).is_file() for file in any_of):
        raise OpdkitError(f"{name} holds no tokenizer: it has no {' or '.join(any_of)}; copy them from the base model")
    if (path / "config.json").is_file():
        _check_class(name)
    try:
        tokenizer = AutoTokenizer.from_pretrained(name, trust_remote_code=False)
    except Exception as error:  # the library may raise anything, from OSError to errors of the Rust parser
        raise OpdkitError(f"the tokenizer of {name} cannot be loaded: {_first_line(error)}") from error
    if not hasattr(tokenizer, "backend_tokenizer"):
        raise ConfigError(f"the tokenizer of {name} is not a fast one; save it once with a tokenizer.json beside it")
    return tokenizer


def load_template(name: str, template_args: Sequence[str], student: Chat | None = None) -> Chat:
    """Load the chat template of a model, with the arguments of `--template-arg` and all tokens that end its replies.

    With `student`, both tokenizers must be the same, and `student` itself is returned if the model has no template.
    Raises what `load_tokenizer` and `check_same_tokenizer` raise, and ConfigError if only one of both templates opens a
    think block in its prompts. Then the model would take the student's replies for thinking, or its thinking for
    replies.
    """
    tokenizer, eos_ids = load_tokenizer(name), None
    if student is not None:
        check_same_tokenizer(student.tokenizer, tokenizer)
        if not tokenizer.chat_template:
            return student
    with contextlib.suppress(OSError, ValueError):  # the folder may hold only a tokenizer
        try:
            eos_ids = GenerationConfig.from_pretrained(name).eos_token_id
        except OSError:
            config = AutoConfig.from_pretrained(name, trust_remote_code=False)
            eos_ids = GenerationConfig.from_model_config(config).eos_token_id
    chat = Chat(tokenizer, parse_pairs(template_args, "--template-arg"), eos_ids)
    if student is not None and chat.begins_with_thinking != student.begins_with_thinking:
        pair = [tokenizer.name_or_path, student.tokenizer.name_or_path]
        thinks, answers = pair if chat.begins_with_thinking else pair[::-1]
        raise ConfigError(
            f"the chat template of {thinks} ends its prompts with an open thought, and that of {answers} does not, so "
            "one would read the other's replies as thinking: pass a --teacher that begins as the student does; some "
            "templates have an argument for that, as --template-arg enable_thinking=false"
        )
    return chat


# Suffixes of the names of tensors by which quantized weights are multiplied.
_SCALES = ("scale", "scale_inv", "scales", "absmax")


def load_model(
    name: str,
    *,
    device: str,
    dtype: str,
    load_in_4bit: bool = False,
    device_map: str | dict[str, str | int] | None = None,
    tensor_parallel: bool = False,
    compiled: bool = False,
) -> PreTrainedModel:
    """Load a causal language model in evaluation mode, from safetensors. Code in the folder is never run.

    `device` and `dtype` are passed to `resolve_device` and `resolve_dtype`. With `load_in_4bit`, linear layers except
    the output layer are quantized while loading; they compute in `dtype`, the dtype of all other weights. `device_map`
    spreads the layers over devices as accelerate does: "auto" fills all GPUs, then main memory, then disk; a dict maps
    layer names to devices. With `tensor_parallel`, each process of the default process group holds a share of every
    layer. With `compiled`, small operations are fused in the first forwards.

    Raises OpdkitError, naming what `name` lacks, ConfigError for a missing device, TooLargeError if memory runs out.
    """
    check_model_folder(name)
    place = resolve_device(device)
    weights_dtype = resolve_dtype(dtype, place)
    options: dict[str, Any] = {}  # no None values: they would override the folder's configuration
    if load_in_4bit:
        if PreTrainedConfig.get_config_dict(name)[0].get("quantization_config"):
            raise ConfigError(f"--load-in-4bit: the weights of {name} are quantized already; pass the unquantized "
                              "model")  # fmt: skip
        # NF4 with quantized scales, as in QLoRA (Dettmers et al. 2023).
        nf4 = {"bnb_4bit_quant_type": "nf4", "bnb_4bit_use_double_quant": True, "bnb_4bit_compute_dtype": weights_dtype}
        options["quantization_config"] = BitsAndBytesConfig(load_in_4bit=True, **nf4)
        device_map = device_map or {"": str(place)}  # 4-bit weights are not moved later: load them onto their device
    if device_map:
        options["device_map"] = device_map
    if tensor_parallel:
        options["distributed_config"] = DistributedConfig(tp_plan="auto")
    if place.type == "cuda":  # cuDNN plans a kernel for each new batch length, which takes longer than the forward
        torch.backends.cuda.enable_cudnn_sdp(False)
    advice = ". Is it complete? Copy or download it again"
    try:
        _check_class(name)
        if PreTrainedConfig.get_config_dict(name)[0].get("quantization_config"):
            advice = "; or pass the unquantized model"  # the error names a package or a GPU
        model, report = AutoModelForCausalLM.from_pretrained(
            name,
            dtype=weights_dtype,
            use_safetensors=True,
            trust_remote_code=False,
            output_loading_info=True,
            **options,
        )
        if missing := sorted(report["missing_keys"]):
            other = [kind for kind in model.config.architectures or () if kind != type(model).__name__]
            advice = (
                f"pass a language model: its config.json names {other[0]}" if other else "copy or download it again"
            )
            raise OpdkitError(f"{name} lacks weights, which would be random: {len(missing)}, such as {missing[0]}; "
                              f"{advice}")  # fmt: skip
        if scales := [key for key in report["unexpected_keys"] if key.endswith(_SCALES)]:
            raise OpdkitError(f"{name}: the scales of its quantized weights were not read, such as {scales[0]}; pass "
                              "the unquantized model")  # fmt: skip
        for layer in (module for module in model.modules() if hasattr(module, "support_avx512bf16_for_cpu")):
            # Otherwise, in evaluation mode on a CPU, bitsandbytes repacks (rounds) weights and loses later gradients.
            layer.support_avx512bf16_for_cpu = False
        find_state(model).lockstep = tensor_parallel
        if compiled:
            compile_small_operations(model)
        return (model if device_map or tensor_parallel else model.to(place)).eval()
    except OpdkitError:
        raise
    except Exception as error:
        if is_out_of_memory(error):
            raise TooLargeError(f"the model {name} on {place}", "try --dtype bfloat16, or --device cpu") from None
        is_complete = isinstance(error, ImportError) and advice.startswith(".")  # only a package is missing
        raise _make_loading_error(name, error, "" if is_complete else advice) from error


def find_cache_name(model: Any) -> str:
    """Return the name of the forward's cache argument; the output holds the cache under the same name.

    It is `cache` since transformers 5.24, which warns of older names; some models with a state ignore the older names.
    """
    parameters = signature(model.forward).parameters
    return next((name for name in ("cache", "cache_params") if name in parameters), "past_key_values")


def load_skeleton(name: str) -> PreTrainedModel:
    """Return a model without its weights, on torch's device "meta": it has sizes and limits but cannot compute.

    Raises what `load_model` raises for a folder that is not a model.
    """
    check_model_folder(name)
    try:
        _check_class(name)
        config = AutoConfig.from_pretrained(name, trust_remote_code=False)
        with torch.device("meta"):
            model: PreTrainedModel = AutoModelForCausalLM.from_config(config, trust_remote_code=False)
        with contextlib.suppress(OSError):  # without that file, the model configuration's values stay
            model.generation_config = GenerationConfig.from_pretrained(name)
    except OpdkitError:
        raise
    except Exception as error:
        raise _make_loading_error(name, error) from error
    return model.eval()


def count_quantized(name: str) -> int:
    """Return how many parameters of a model `load_in_4bit` quantizes. Raises what `load_skeleton` raises."""
    model = load_skeleton(name)
    head = model.get_output_embeddings()
    return sum(m.weight.numel() for m in model.modules()
               if (type(m) is nn.Linear or isinstance(m, Conv1D)) and m is not head)  # fmt: skip


def find_input_device(model: nn.Module) -> torch.device:
    """Return the device on which a model expects token ids: the first if it is spread over several."""
    hook = getattr(model, "_hf_hook", None)  # set by accelerate; parameters offloaded to disk have no device
    device: torch.device = model.device if hook is None else torch.device(hook.execution_device)
    return device


def _check_class(name: str) -> None:
    """Raise OpdkitError unless transformers itself has a class for a model, and no adapter lies beside it."""
    folder = Path(name)
    config = read_config(folder) if folder.is_dir() else PreTrainedConfig.get_config_dict(name)[0]
    if (kind := config.get("model_type")) not in transformers.CONFIG_MAPPING:
        own = ": it comes with code, which opdkit never runs" if "auto_map" in config else ""
        raise OpdkitError(f"{name} is of the type {kind!r}, which transformers {transformers.__version__} does not "
                          f"know{own}; upgrade transformers, or pass another model")  # fmt: skip
    if find_adapter_config_file(name):
        raise OpdkitError(f"{name} holds an adapter beside a model; {MERGE}, or remove the adapter")


def _make_loading_error(name: str, error: Exception, advice: str = "") -> OpdkitError:
    line = _first_line(error).rstrip(".")
    if line.startswith("Unrecognized configuration class"):  # of the class for language models
        return OpdkitError(
            f"transformers {transformers.__version__} has no class that continues text with the model {name}, as for "
            "models that need images, audio or an encoder: pass a text model"
        )
    return OpdkitError(f"the model {name} cannot be loaded: {line}{advice}")


def _first_line(error: Exception) -> str:
    text = str(error).strip()
    if isinstance(error, ImportError):  # names the package in another line
        return " ".join(text.split())
    return text.splitlines()[0] if text else type(error).__name__


def resolve_device(device: str) -> torch.device:
    """Return the torch device for a `--device` value. Raises ConfigError if it does not exist on this machine.

    "auto" is this process's GPU (LOCAL_RANK), else Apple's (MPS), else the CPU. Several processes on one Mac use the
    CPU: gloo, which exchanges their gradients, cannot read the GPU's memory.
    """
    if device == "auto":
        if torch.cuda.is_available():
            return torch.device(f"cuda:{os.environ.get('LOCAL_RANK', '0')}")
        is_alone = os.environ.get("LOCAL_WORLD_SIZE", "1") == "1"
        return torch.device("mps" if torch.backends.mps.is_available() and is_alone else "cpu")
    try:
        place = torch.device(device)
        torch.empty(0, device=place)
    except (RuntimeError, AssertionError) as error:
        raise ConfigError(f"--device {device} cannot be used here: {_first_line(error)}") from error
    return place


def resolve_dtype(dtype: str, device: torch.device) -> torch.dtype:
    """Return the torch dtype for a `--dtype` value; "auto" is bfloat16 on a GPU, else float32."""
    if dtype == "auto":
        is_old_mac = device.type == "mps" and not torch.backends.mps.is_macos_or_newer(14, 0)  # no bfloat16
        return torch.float32 if device.type == "cpu" or is_old_mac else torch.bfloat16
    named: torch.dtype = getattr(torch, dtype)
    return named


def check_same_tokenizer(a: PreTrainedTokenizerBase, b: PreTrainedTokenizerBase) -> None:
    """Raise ConfigError, showing the first tokens that differ, unless both give every token the same id.

    Vocabularies of equal size can number their tokens differently; then the same id means different tokens.
    """
    ids_a, ids_b = a.get_vocab(), b.get_vocab()
    if ids_a == ids_b:
        return
    differing = [t for t in ids_a.keys() | ids_b.keys() if ids_a.get(t) != ids_b.get(t)]
    differing.sort(key=lambda t: (min(ids_a.get(t, 1 << 62), ids_b.get(t, 1 << 62)), t))
    first = ", ".join(f"{t!r} {ids_a.get(t, 'none')} and {ids_b.get(t, 'none')}" for t in differing[:3])
    raise ConfigError(
        f"{a.name_or_path} and {b.name_or_path} must have the same tokenizer, but {counted(len(differing), 'token')} "
        f"{verb(len(differing), 'has', 'have')} different ids: {first}"
    )


def context_length(model: PreTrainedModel) -> float:
    """Return how many tokens the model was built to read; infinity when its configuration does not say.

    State-space models such as Mamba and models with linear biases such as BLOOM have no limit and state none.
    """
    config = model.config.get_text_config()
    lengths = (getattr(config, name, None) for name in ("max_position_embeddings", "max_seq_len"))  # MPT has the latter
    return next((length for length in lengths if length is not None), math.inf)
