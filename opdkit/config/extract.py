"""Options of `opdkit extract`."""

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path

from opdkit.config.conditions import parse_filters
from opdkit.config.fields import JSON, SPEED, WHAT, WHERE, StageConfig, argument, expert, option, read_toml
from opdkit.config.shared import REPEAT, session_limit
from opdkit.errors import ConfigError

FORMATS = ("auto", "openai", "anthropic", "sharegpt", "openclaw_rl", "pi", "claude_code", "sweagent", "wildchat",
           "lmsys", "langfuse", "otel")  # fmt: skip
PRIVACY = "Privacy"


@dataclass(frozen=True, kw_only=True)
class ExtractConfig(StageConfig):
    """`opdkit extract`: logs -> sessions, turns, rejected."""

    logs: tuple[str, ...] = argument(
        "log files or folders of them, -, or hf:NAME[:SPLIT]",
        "files are JSONL (.jsonl, .gz, .zst) or Parquet; - is standard input",
        plan=False,
    )
    limit: int | None = session_limit(WHAT)
    format: str = option("auto", "the log format", "auto looks at the data", choices=FORMATS, panel=WHAT)
    map: str | None = option(
        None,
        "TOML file that says where the fields are",
        "for logs of no known format, see docs/logs.md",
        plan=False,
        panel=WHAT,
    )
    filter: tuple[str, ...] = option(
        (),
        "keep only sessions with FIELD=VALUE",
        "with =, !=, >=, <=, > or <; FIELD is model, time, language, format, source or metadata.NAME; VALUE may hold * "
        f"and |; {REPEAT}",
        panel=WHAT,
        check=parse_filters,
    )
    redact: bool = option(
        False,
        "replace addresses, keys and phone numbers",
        "[email], [key] and [phone] replace e-mail addresses, API keys and tokens, and phone numbers everywhere",
        panel=PRIVACY,
    )
    redact_pattern: tuple[str, ...] = option(
        (),
        "replace matches of a pattern, NAME=REGEX",
        f"[NAME] replaces them; works without --redact too; {REPEAT}",
        panel=PRIVACY,
    )
    workers: int = option(1, "processes that share this shard", unit="processes", low=1, plan=False, panel=SPEED)
    dry_run: bool = option(
        False, "report what would be done, write nothing", "with 1,000 lines of each input", plan=False, panel=WHERE
    )
    part_mb: float | None = expert(
        None,
        "size of a part, in unpacked log",
        "a session is never divided; default: a 64th of the log, from 0.25 to 8 MB",
        unit="MB",
        low=1e-6,
        panel=SPEED,
    )
    max_line_mb: int = expert(64, "reject longer lines unread", unit="MB", low=1, panel=WHAT)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.map and self.format != "auto":
            raise ConfigError(f"--map says where the fields are, and so does --format {self.format}: leave one out")

    def plan(self) -> JSON:
        """Return the options that decide the rows; of a mapping its content, wherever its file is."""
        if not self.map:
            return super().plan()
        text = json.dumps(read_toml(Path(self.map), "--map"), sort_keys=True, default=str)  # no comments, no order
        return super().plan() | {"map": hashlib.sha256(text.encode()).hexdigest()[:16]}
