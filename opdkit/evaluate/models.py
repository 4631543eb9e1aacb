"""Models that eval compares: their names, their chat template, and how to load them."""

from collections.abc import Sequence
from typing import Any

from opdkit.chat.template import Chat
from opdkit.config.command_line import quote
from opdkit.config.evaluate import EvalConfig
from opdkit.config.fields import JSON
from opdkit.errors import OpdkitError
from opdkit.evaluate.checks import HeldOutPrompt
from opdkit.evaluate.generation import EncodedPrompt, prompt_ids
from opdkit.model.load import (
    check_same_tokenizer,
    context_length,
    load_model,
    load_skeleton,
    load_template,
    load_tokenizer,
)
from opdkit.store.plans import manifest, stage_dir
from opdkit.store.reading import is_written
from opdkit.store.template_args import choose_template_args


def model_names(config: EvalConfig) -> dict[str, str]:
    """Return the paths or names of both models. Raises OpdkitError without --trained or a finished training."""
    trained = config.trained or str(stage_dir(config.run, "train") / "model")
    if not config.trained and not is_written(config.run, "metrics", 0):
        raise OpdkitError(f"{config.run} has no finished training: run `opdkit train {quote(config.run)} ...` first, "
                          "or pass --model and --trained")  # fmt: skip
    return {"before": config.model or manifest(config.run, "train")["plan"]["config"]["model"], "after": trained}


def load_models(
    config: EvalConfig, names: dict[str, str], prompts: Sequence[HeldOutPrompt]
) -> tuple[dict[str, Any], Chat, list[EncodedPrompt]]:
    """Load both models. Return them, their common chat template, and the encoded prompts."""
    chat, longest = load_chat(config, names)
    options: JSON = {name: getattr(config, name) for name in ("device", "dtype", "load_in_4bit")}
    models: dict[str, Any] = {label: load_model(name, **options) for label, name in names.items()}
    return models, chat, [(p, prompt_ids(chat, p, config.max_new_tokens, longest)) for p in prompts]


def load_chat(config: EvalConfig, names: dict[str, str]) -> tuple[Chat, float]:
    """Return both models' chat template and smaller context length. Raises ConfigError if their tokenizers differ."""
    template_args = choose_template_args(config.run, "teacher", config.template_arg, binding=False)
    chat = load_template(names["before"], template_args)
    check_same_tokenizer(chat.tokenizer, load_tokenizer(names["after"]))
    return chat, min(context_length(load_skeleton(name)) for name in names.values())
