"""Findings of a check: one per kind of error in a part, however many rows have it."""

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Finding:
    """Something that is wrong. `part` and `row` (in the part) count from 0; None if it is not about a single one.

    `gone` are the tables whose part --recompute should remove; () if removing a part would not help.
    """

    stage: str  # for the named training b: "train b"
    what: str
    table: str | None = None
    part: int | None = None
    row: int | None = None
    key: str | None = None  # name of the turn, session, step or file
    todo: str = ""
    gone: tuple[str, ...] = ()


@dataclass
class Report:
    """Findings of a check, and how much it read."""

    findings: list[Finding] = field(default_factory=list)
    parts: dict[str, tuple[int, int]] = field(default_factory=dict)  # stage -> (parts that are done, all parts)
    files: int = 0
    rows: int = 0
