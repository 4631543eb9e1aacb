"""What the options of several stages have in common: choices, checks, and those of every stage that runs a model."""

from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from opdkit.config.fields import StageConfig, option, parse_pairs
from opdkit.errors import ConfigError

JUDGES = ("rules", "local", "endpoint")
OBJECTIVES = ("opd", "binary", "combine", "topk", "hybrid", "distill", "blend", "alternate")
DTYPES = ("auto", "float32", "bfloat16", "float16")
TEMPLATE_ARG_HELP = "argument for the chat template, as NAME=VALUE (enable_thinking=false); may be given repeatedly"


def session_limit(sessions: str = "sessions") -> Any:
    """Return the option `--limit`, which counts sessions in every command that has it."""
    return option(None, f"only the first N {sessions}, for a cheap trial", unit="sessions", low=1)


def check_server(flag: str, url: str | None) -> None:
    """Raise ConfigError unless `url` is null or a plain http(s) address; what is wrong with it is not shown."""
    if url is None:
        return
    try:
        parts = urlsplit(url)
        plain = parts.scheme in ("http", "https") and parts.hostname and (parts.port is None or parts.port > 0)
    except ValueError:
        raise ConfigError(f"{flag} is no address; write it like http://localhost:8000/v1") from None
    if parts.username or parts.password or parts.query or parts.fragment:
        raise ConfigError(f"{flag} holds more than an address; put the key into the variable that --api-key-env names")
    if not plain or not _can_be_asked(url):
        raise ConfigError(f"{flag} is {url!r}; write it like http://localhost:8000/v1")


def _can_be_asked(url: str) -> bool:
    import httpx  # imported here: few ask for it

    try:
        return bool(httpx.Request("GET", url).url.host.encode("idna"))  # as it is looked up
    except (httpx.InvalidURL, ValueError):  # an address of four numbers that is none, a name that no server can have
        return False


def check_judge(model: str | None, url: str | None) -> None:
    """Raise ConfigError for a `--judge-url` that is no address or comes without the `--judge-model` to ask for."""
    if url and not model:
        raise ConfigError("--judge-url needs --judge-model, the model's name on that server")
    check_server("--judge-url", url)


@dataclass(frozen=True, kw_only=True)
class ModelOptions(StageConfig):
    """What every stage that runs a model lets the user choose."""

    device: str = option(
        "auto", "torch device; auto takes the launcher's GPU if there is one, else the CPU", plan=False
    )
    dtype: str = option("auto", "weights and activations; auto is bfloat16 on a GPU and float32 on a CPU",
                        choices=DTYPES)  # fmt: skip
    template_arg: tuple[str, ...] = option((), TEMPLATE_ARG_HELP)
    seed: int = option(0, "seed of every random draw", low=0)

    def __post_init__(self) -> None:
        super().__post_init__()
        parse_pairs(self.template_arg, "--template-arg")
