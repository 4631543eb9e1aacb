"""Options of `opdkit doctor`."""

from dataclasses import dataclass
from pathlib import Path

from opdkit.config.fields import CommandConfig, argument, option
from opdkit.config.shared import shared_option


@dataclass(frozen=True, kw_only=True)
class DoctorConfig(CommandConfig):
    """Check versions, devices, memory, model, server and logs, and say what to do.

    Exit code 1: something will not work.
    """

    logs: tuple[str, ...] = argument((), "log files or folders of them, -, or hf:NAME[:SPLIT]")
    run: Path | None = option(None, "the run directory; can it be written, is there room?")
    model: str | None = shared_option(
        "model", more="is it complete, does it fit, what does its template take?", default=None
    )
    judge_url: str | None = shared_option("judge_url", needs="judge_model")
    judge_model: str | None = shared_option("judge_model", more="does the server answer under this name?")
    api_key_env: str = shared_option("api_key_env")
    device: str = option("auto", "torch device; does the model fit on it?")
    dtype: str = shared_option("dtype")
    lora_rank: int = option(0, "train LoRA adapters of this rank, 0 for none; how much memory would it take?", low=0)
    load_in_4bit: bool = shared_option("load_in_4bit", more="how much memory would it take?")
    timeout: float = option(30.0, "give up on a request after this", unit="seconds", low=0.1)
    json: bool = shared_option("json")
