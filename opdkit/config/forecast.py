"""Options of `opdkit forecast`."""

from dataclasses import dataclass
from pathlib import Path

from opdkit.config.fields import CommandConfig, argument, option
from opdkit.config.shared import shared_option


@dataclass(frozen=True, kw_only=True)
class ForecastConfig(CommandConfig):
    """Say what a training would bring and cost, from some fifty judged conversations, before it begins: go or no-go."""

    run: Path = argument(..., "the run directory")
    model: str = shared_option("model")
    hints: int = option(50, "hints to test; more make the interval narrower", unit="hints", low=6)
    judge_model: str | None = shared_option("judge_model", more="default: the one that judged the run")
    judge_url: str | None = shared_option("judge_url", needs="judge_model")
    api_key_env: str = shared_option("api_key_env")
    template_arg: tuple[str, ...] = shared_option("template_arg")
    max_new_tokens: int = option(512, "longest reply", unit="tokens", low=1)
    device: str = shared_option("device")
    dtype: str = shared_option("dtype")
    json: bool = shared_option("json")
    seed: int = shared_option("seed")
