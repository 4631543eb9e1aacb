"""Options of `opdkit extract`."""

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path

from opdkit.config.conditions import parse_filters
from opdkit.config.fields import JSON, StageConfig, argument, option, read_toml
from opdkit.config.shared import session_limit
from opdkit.errors import ConfigError

FORMATS = ("auto", "openai", "anthropic", "sharegpt", "openclaw_rl", "pi", "claude_code", "sweagent", "wildchat",
           "lmsys", "langfuse", "otel")  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class ExtractConfig(StageConfig):
    """`opdkit extract`: logs -> sessions, turns, rejected."""

    logs: tuple[str, ...] = argument("JSONL files (.jsonl, .gz, .zst), Parquet files, folders of them, - for "
                                     "standard input, or hf:NAME[:SPLIT]", plan=False)  # fmt: skip
    limit: int | None = session_limit()
    format: str = option("auto", "the log format; auto looks at the data", choices=FORMATS)
    map: str | None = option(None, "TOML file that says where the fields are, for logs of no known format: "
                             "docs/logs.md", plan=False)  # fmt: skip
    part_mb: float | None = option(None, "size of a part, in log unpacked; a session is never divided (default: a 64th "
                                   "of the log, from 0.25 to 8)", unit="MB", low=1e-6)  # fmt: skip
    max_line_mb: int = option(64, "longer lines are rejected unread", unit="MB", low=1)
    filter: tuple[str, ...] = option(
        (), "keep the sessions of which this holds, as FIELD=VALUE with =, !=, >=, <=, > or <; FIELD is model, time, "
        "language, format, source or metadata.NAME, VALUE may hold * and |; may be given repeatedly",
    )  # fmt: skip
    redact: bool = option(False, "write [email], [key] and [phone] in place of e-mail addresses, API keys and tokens, "
                          "and phone numbers, wherever the log has them")  # fmt: skip
    redact_pattern: tuple[str, ...] = option((), "write [NAME] in place of what a regular expression matches, as "
                                             "NAME=REGEX; may be given repeatedly, without --redact, too")  # fmt: skip
    dry_run: bool = option(False, "say what the first thousand lines of each input would become, and write nothing",
                           plan=False)  # fmt: skip
    workers: int = option(1, "processes that share the parts of this shard", unit="processes", low=1, plan=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.map and self.format != "auto":
            raise ConfigError(f"--map says where the fields are, and so does --format {self.format}: leave one out")
        parse_filters(self.filter)

    def plan(self) -> JSON:
        """Return the options that decide the rows; of a mapping its content, wherever its file is."""
        if not self.map:
            return super().plan()
        text = json.dumps(read_toml(Path(self.map), "--map"), sort_keys=True, default=str)  # no comments, no order
        return super().plan() | {"map": hashlib.sha256(text.encode()).hexdigest()[:16]}
