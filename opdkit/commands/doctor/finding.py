"""Findings of the doctor."""

from dataclasses import dataclass

OK, NOTE, PROBLEM = "ok", "note", "problem"


@dataclass(frozen=True)
class Finding:
    """Finding with a state: ok, note (works, but the user should know) or problem (will not work, and has a remedy)."""

    topic: str
    state: str
    what: str
    remedy: str = ""


def format_gb(size: float) -> str:
    """Return bytes as "1.5 GB", in powers of 1,000 as disks and model cards count them."""
    return f"{size / 1e9:,.1f} GB" if size >= 1e8 else f"{size / 1e6:,.1f} MB"
