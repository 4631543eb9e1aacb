"""Findings of a check: one for each kind of error, however many rows have it."""

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Finding:
    """Something that is wrong. `part` and `row` (of the part) count from 0; None: it is about more than one.

    `gone` are the tables whose part --recompute should remove; () if removing a part would not help.
    """

    stage: str  # "train b": of the training b
    what: str
    table: str | None = None
    part: int | None = None
    row: int | None = None
    key: str | None = None  # turn, session, step or file
    todo: str = ""
    gone: tuple[str, ...] = ()


@dataclass
class Report:
    """Findings of a check, and how much it read."""

    findings: list[Finding] = field(default_factory=list)
    parts: dict[str, tuple[int, int]] = field(default_factory=dict)  # stage -> parts that are done, parts
    files: int = 0
    rows: int = 0
