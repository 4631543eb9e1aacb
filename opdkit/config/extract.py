"""Options of `opdkit extract`."""

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path

from opdkit.config.conditions import parse_filters
from opdkit.config.fields import JSON, SPEED, WHAT, WHERE, Panel, StageConfig, argument, read_toml
from opdkit.config.shared import REPEAT, shared_option
from opdkit.errors import ConfigError

FORMATS = ("auto", "openai", "anthropic", "sharegpt", "openclaw_rl", "pi", "claude_code", "codex", "sweagent",
           "wildchat", "lmsys", "langfuse", "otel", "langsmith", "litellm", "openai_stored", "chatgpt", "open_webui",
           "claude_ai", "librechat", "anythingllm", "cline", "gemini_cli")  # fmt: skip
PRIVACY = Panel("Privacy")


@dataclass(frozen=True, kw_only=True)
class ExtractConfig(StageConfig):
    """Read conversation logs into sessions and turns."""

    logs: tuple[str, ...] = argument(
        ...,
        "log files or folders of them, -, or hf:NAME[:SPLIT]; JSON, JSONL (also .gz, .zst), Parquet or zip; - is stdin",
        plan=False,
    )
    limit: int | None = shared_option("limit", WHAT)
    format: str = WHAT.option("auto", "the log format; auto looks at the data", choices=FORMATS, function="Reader")
    map: str | None = WHAT.option(
        None, "TOML file that says where the fields are; for logs of no known format, see docs/logs.md", plan=False
    )
    filter: tuple[str, ...] = WHAT.option(
        (),
        "keep only sessions with FIELD=VALUE; with =, !=, >=, <=, > or <; FIELD is model, time, language, format, "
        f"source or metadata.NAME; VALUE may hold * and |; {REPEAT}",
        check=parse_filters,
    )
    side: bool = WHAT.option(
        False, "train on side calls, too, such as sessions of subagents; without it their turns are skipped"
    )
    redact: bool = PRIVACY.option(
        False, "replace secrets and personal data; by [key], [password], [email], [phone], [card], ... (docs/logs.md)"
    )
    redact_pattern: tuple[str, ...] = PRIVACY.option(
        (), f"replace matches of a pattern, NAME=REGEX; [NAME] replaces them; works without --redact too; {REPEAT}"
    )
    redact_names: str | None = PRIVACY.option(
        None, "replace people's names by [name]; a spaCy model such as en_core_web_sm; needs opdkit[pii]; slow"
    )
    workers: int = SPEED.option(1, "processes that share this shard", unit="processes", low=1, plan=False)
    dry_run: bool = shared_option("dry_run", WHERE, "from 1,000 lines each")
    part_mb: float | None = SPEED.expert(
        None, "unpacked size of a part of whole sessions; default: log / 64, from 0.25 to 8 MB", unit="MB", low=1e-6
    )
    max_line_mb: int = WHAT.expert(64, "reject longer lines unread", unit="MB", low=1)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.map and self.format != "auto":
            raise ConfigError(f"--map says where the fields are, and so does --format {self.format}: leave one out")

    def plan(self) -> JSON:
        """Return the options that decide the rows. A mapping is represented by its content, not by its path."""
        if not self.map:
            return super().plan()
        text = json.dumps(read_toml(Path(self.map), "--map"), sort_keys=True, default=str)  # without comments and order
        return super().plan() | {"map": hashlib.sha256(text.encode()).hexdigest()[:16]}
