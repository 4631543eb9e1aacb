"""Options that several commands have, each declared once so that a flag means the same everywhere."""

import importlib.util
import math
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from opdkit.config.fields import HOW, JSON, MEMORY, OPTIONS, SPEED, WHERE, Panel, StageConfig, parse_pairs
from opdkit.config.wording import read_wording
from opdkit.errors import ConfigError

JUDGES = ("rules", "reaction", "local", "endpoint", "batch")
OBJECTIVES = ("opd", "binary", "combine", "topk", "hybrid", "distill", "blend", "alternate")
DTYPES = ("auto", "float32", "bfloat16", "float16")
REPEAT = "may be given repeatedly"
TRAINING = ".training"  # RUN/NAME.training is a further training of RUN


def check_server(url: str, flag: str = "--judge-url") -> None:
    """Raise ConfigError unless `url` is a plain http(s) address. If it holds a key, the message does not show it."""
    try:
        parts = urlsplit(url)
        is_plain = parts.scheme in ("http", "https") and parts.hostname and (parts.port is None or parts.port > 0)
    except ValueError:
        raise ConfigError(f"{flag} is not an address; write it like http://localhost:8000/v1") from None
    if parts.username or parts.password or parts.query or parts.fragment:
        raise ConfigError(f"{flag} holds more than an address: leave out what stands before an @, or follows a ? or #, "
                          "and put the key into the variable that --api-key-env names")  # fmt: skip
    import httpx  # imported here: few commands have a server

    try:
        has_host = is_plain and bool(httpx.Request("GET", url).url.host.encode("idna"))  # encoded as for DNS
    except (httpx.InvalidURL, ValueError):  # a wrong IPv4 address, or an impossible host name
        has_host = False
    if not has_host:
        raise ConfigError(f"{flag} is {url!r}; write it like http://localhost:8000/v1")


def check_servers(urls: tuple[str, ...], flag: str) -> None:
    """Raise ConfigError unless each of `urls` is a plain http(s) address."""
    for url in urls:
        check_server(url, flag)


def check_key_env(name: str, flag: str) -> None:
    """Raise ConfigError, without showing the text, for a key in place of the name of the variable that holds it.

    Errors and manifests show the name. A key that looks like one (gsk_...) is long, with digits and small letters. An
    empty name stands for no key.
    """
    is_name = re.fullmatch(r"([A-Za-z_]\w*)?", name, re.ASCII) is not None
    if not is_name or (name not in os.environ and re.fullmatch(r"(?=.*\d)(?=.*[a-z]).{24,}", name)):
        raise ConfigError(f"{flag} takes the name of an environment variable, such as OPENAI_API_KEY, and not the key: "
                          "put the key into a variable, and pass its name")  # fmt: skip


def check_launcher() -> None:
    """Raise ConfigError if this is one of several processes and no launcher has set their MASTER_ADDR."""
    if (size := os.environ.get("WORLD_SIZE", "1")) != "1" and not os.environ.get("MASTER_ADDR"):
        raise ConfigError(f"WORLD_SIZE is {size}, but MASTER_ADDR is not set: start the processes with torchrun or "
                          "`accelerate launch`; for a single process unset WORLD_SIZE and RANK")  # fmt: skip


def parse_price(text: str, flag: str = "--price") -> tuple[float, float]:
    """Return the prices in "IN,OUT". Raises ConfigError unless they are two finite numbers >= 0."""
    try:
        read, written = map(float, text.split(","))
    except ValueError:
        read = written = math.nan
    if not (0 <= read < math.inf and 0 <= written < math.inf):
        raise ConfigError(f"{flag} is {text!r}; write it as IN,OUT, for example 0.10,0.40")
    return read, written


# name -> (default, text, details); some commands append to the text
SHARED: dict[str, tuple[Any, str, JSON]] = {
    "judge": (
        None,
        "who judges, a model on a server (endpoint) or in this process (local), or English patterns to try opdkit out, "
        "not to train on (rules); endpoint: an OpenAI-compatible server, the larger its model the better; batch: such "
        "a model, through files of requests and answers; reaction: nobody, each reaction itself is the hint",
        {"choices": JUDGES, "function": "Judge"},
    ),
    "limit": (None, "only the first N sessions, for a cheap trial", {"unit": "sessions", "low": 1}),
    "model": (..., "the student: a model folder or a name on the hub", {}),
    "judge_model": (None, "the judge: a path, or its name on the server", {}),
    "judge_url": (None, "address of the judge's server; OpenAI-compatible, for example http://localhost:8000/v1",
                  {"check": check_server}),
    "api_key_env": ("OPENAI_API_KEY", "environment variable that holds the server's key; empty: no key is sent",
                    {"plan": False, "expert": True, "check": check_key_env}),
    "concurrency": (16, "parallel requests to a server", {"unit": "requests", "low": 1, "plan": False}),
    "device": ("auto", "torch device; auto: the launcher's GPU, else that of a Mac (mps), else the CPU", {}),
    "dtype": ("auto", "weights and activations", {"choices": DTYPES}),
    "template_arg": ((), f"argument of the chat template, NAME=VALUE; for example enable_thinking=false; {REPEAT}",
                     {"check": parse_pairs}),
    "dry_run": (False, "report what would be done, write nothing", {"plan": False}),
    "price": (None, "price per million tokens, as IN,OUT; with --dry-run, in any currency: 0.10,0.40",
              {"check": parse_price, "plan": False, "needs": "dry_run"}),
    "measure": (0, "time N turns, to estimate how long all take; with --dry-run; needs the judge, or both models",
                {"unit": "turns", "low": 0, "plan": False, "needs": "dry_run"}),
    "criterion": (None, "text file that says which replies the judge rewards with +1, 0 and -1; docs/calibrate.md",
                  {"plan": False}),
    "wording": (None, "TOML file with your own wording of the prompts; the judge's questions and criterion, the words "
                "around a hint: docs/wording.md", {"plan": False, "expert": True}),
    "load_in_4bit": (False, "quantize the models while they load (NF4, needs bitsandbytes)", {}),
    "compile": (False, "fuse small operations with torch.compile; faster on a GPU, and the first passes take up to a "
                "minute longer", {}),
    "served_as": ((), "name under which a server runs the student, so that logs name it, too; " + REPEAT,
                  {"expert": True}),
    "max_loss": (None, "do not ship if a loss of this share of right replies could go unseen in a domain; default: "
                 "only say how large such a loss could be", {"low": 0.001, "high": 1.0}),
    "seed": (0, "seed of every random draw", {"low": 0, "high": 2**63 - 1}),
    "json": (False, "JSON on stdout instead of text", {}),
}  # fmt: skip


def shared_option(name: str, panel: Panel = OPTIONS, more: str = "", **details: Any) -> Any:
    """Return the declaration of a shared option. `more` is appended to its text; `details` replace shared ones."""
    default, text, common = SHARED[name]
    return panel.option(**{"default": default, "text": f"{text}; {more}" if more else text} | common | details)


@dataclass(frozen=True, kw_only=True)
class NamedTraining(StageConfig):
    """Options of the stages that a run may have several times: `--name b` stands for the run RUN/b.training."""

    name: str | None = WHERE.option(
        None, "name of one of several trainings on the same targets; stored in RUN/NAME.training", plan=False
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.name is not None:
            paths = Path(self.name), self.run, self.run.resolve()  # "." or a link may be a training
            if not re.fullmatch(r"\w[\w.+-]*", self.name) or any(path.suffix == TRAINING for path in paths):
                raise ConfigError(f"--name {self.name} for RUN {self.run}: a name has letters, digits, _, ., + and -, "
                                  f"does not begin with . or -, and is not for what ends in {TRAINING}")  # fmt: skip
            object.__setattr__(self, "run", self.run / f"{self.name}{TRAINING}")
            object.__setattr__(self, "name", None)  # `run` has it now: `dataclasses.replace` must not append it again


@dataclass(frozen=True, kw_only=True)
class ModelOptions(StageConfig):
    """Options of every stage that runs a model."""

    device: str = shared_option("device", WHERE, plan=False)
    dtype: str = shared_option("dtype", WHERE, "auto: bfloat16 on a GPU, float32 on a CPU")
    load_in_4bit: bool = shared_option("load_in_4bit", MEMORY, expert=True)
    template_arg: tuple[str, ...] = shared_option("template_arg", HOW)
    seed: int = shared_option("seed", HOW)

    def check_inputs(self) -> None:
        """Raise ConfigError when RUN is a file, or the package for quantization is missing."""
        super().check_inputs()
        if self.load_in_4bit and importlib.util.find_spec("bitsandbytes") is None:
            raise ConfigError("--load-in-4bit needs the package bitsandbytes: pip install bitsandbytes")


@dataclass(frozen=True, kw_only=True)
class WordedOptions(ModelOptions):
    """Options of every stage that adds text of its own to a prompt. Its plan holds the text, not the path."""

    wording: Path | None = shared_option("wording", HOW)

    def check_inputs(self) -> None:
        """Raise what `read_wording` raises."""
        super().check_inputs()
        read_wording(self.wording)


@dataclass(frozen=True, kw_only=True)
class SamplingConfig(WordedOptions):
    """Options of every stage that samples replies."""

    sample_url: tuple[str, ...] = SPEED.expert(
        (), "sample replies on this OpenAI-compatible server; it must serve the same weights, which is measured; for "
        f"two models, two servers or one that serves both; {REPEAT}; docs/serving.md",
        plan=False, check=check_servers,
    )  # fmt: skip
    api_key_env: str = shared_option("api_key_env", SPEED)
    concurrency: int = shared_option("concurrency", SPEED, expert=True)

    def plan(self) -> JSON:
        """Return the fields that decide the rows. Samples of a server are others; greedy replies are the same."""
        is_drawn = self.sample_url and vars(self).get("samples") != 0
        return super().plan() | ({"sampled": "on a server"} if is_drawn else {})
