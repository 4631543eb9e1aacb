"""What a check says: one finding for each thing that is wrong, however many rows it is wrong in."""

from dataclasses import dataclass, field

from opdkit.config.fields import JSON


@dataclass(frozen=True)
class Finding:
    """One thing that is wrong. `part` and `row` (of the part) count from 0; None: it is about more than one.

    `gone` are the tables whose part --recompute should remove; () where removing a part would not help.
    """

    stage: str
    what: str
    table: str | None = None
    part: int | None = None
    row: int | None = None
    key: str | None = None  # turn, session, step or file
    todo: str = ""
    gone: tuple[str, ...] = ()

    def to_json(self) -> JSON:
        names = ("stage", "table", "part", "row", "key", "what", "todo")
        return {name: getattr(self, name) for name in names}


@dataclass
class Report:
    """What a check looked at, and what it found."""

    findings: list[Finding] = field(default_factory=list)
    parts: dict[str, tuple[int, int]] = field(default_factory=dict)  # stage -> parts that are done, parts
    files: int = 0
    rows: int = 0
    without_digest: int = 0  # parts of before digests were recorded

    def add(self, finding: Finding) -> None:
        self.findings.append(finding)
