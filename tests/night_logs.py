"""Nights whose logs are extracted and judged without a model, and options for a quick night."""

from pathlib import Path

from sample_world import DATA, MODEL
from small_logs import jsonl
from small_logs import run as extract

from opdkit.commands.night.home import Home, Night
from opdkit.config.fields import JSON
from opdkit.config.judge import JudgeConfig
from opdkit.config.night import NightConfig
from opdkit.judge.stage import run as judge

PROMPTS = (DATA / "prompts.jsonl").read_bytes().splitlines(keepends=True)[::4]  # some of every domain
LOG = (DATA / "logs" / "openai.jsonl").read_bytes().splitlines(keepends=True)


def grow(folder: Path, upto: int) -> None:
    """Write the first lines of the sample log to FOLDER/logs."""
    (folder / "logs").mkdir(exist_ok=True)
    (folder / "logs" / "chat.jsonl").write_bytes(b"".join(LOG[:upto]))


def judged_night(home: Home, number: int, *chats: JSON, name: str = "", **record: object) -> Night:
    """Write a night whose log holds these chats, judged by rules. `name`: of the log (default: log@NUMBER)."""
    night = home.night(number)
    night.folder.mkdir(parents=True)
    log = jsonl(night.folder / f"{name or f'log@{number}'}.jsonl", *chats)
    extract(night.log, log)
    judge(JudgeConfig(run=night.log, judge="rules"))
    night.write({"night": number, "parent": 0, "learns": [number], "earlier": list(range(1, number)), "decision": None}
                | record)  # fmt: skip
    return night


def options(home: Home, **changed: object) -> NightConfig:
    return NightConfig(home=home.path, logs=("logs",), model="model", judge="rules", **changed)  # type: ignore[arg-type]


QUICK = """
[train]
epochs = 1
learning_rate = 1e-4
validate = 0
[eval]
samples = 0
max_new_tokens = 24
"""


def night_options(folder: Path, **changed: object) -> NightConfig:
    """Return options for the quickest possible night on the log in FOLDER/logs."""
    (folder / "night.toml").write_text(QUICK)
    (folder / "held-out.jsonl").write_bytes(b"".join(PROMPTS))
    common = {"home": folder / "home", "logs": (str(folder / "logs"),), "model": str(MODEL), "judge": "rules",
              "prompts": str(folder / "held-out.jsonl"), "config": folder / "night.toml",
              "least_hints": 10}  # fmt: skip
    return NightConfig(**common | changed)  # type: ignore[arg-type]
