"""Options of `opdkit doctor`."""

from dataclasses import dataclass
from pathlib import Path

from opdkit.config.fields import CommandConfig, argument, option
from opdkit.config.shared import DTYPES, check_server
from opdkit.errors import ConfigError


@dataclass(frozen=True, kw_only=True)
class DoctorConfig(CommandConfig):
    """`opdkit doctor`."""

    logs: tuple[str, ...] = argument("logs to look into, as for extract", default=())
    run: Path | None = option(None, "the run directory: can it be written, is there room?")
    model: str | None = option(None, "the student: is it complete, does it fit, what does its template take?")
    judge_url: str | None = option(None, "the judge's server: does it answer, and as --judge-model?")
    judge_model: str | None = option(None, "the judge's name on its server")
    api_key_env: str = option("OPENAI_API_KEY", "environment variable that holds the server's API key")
    device: str = option("auto", "torch device that the model should fit on")
    dtype: str = option("auto", "weights and activations, as for the stages", choices=DTYPES)
    lora_rank: int = option(0, "as for train: how much memory would LoRA of this rank take?", low=0)
    timeout: float = option(30.0, "give up on the server after this", unit="seconds", low=0.1)
    json: bool = option(False, "JSON on stdout instead of text")

    def __post_init__(self) -> None:
        super().__post_init__()
        check_server("--judge-url", self.judge_url)
        if self.judge_url and not self.judge_model:
            raise ConfigError("--judge-url needs --judge-model, the model's name on that server")
