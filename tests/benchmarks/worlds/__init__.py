"""Worlds of the learning benchmark, made by code: each has a tiny pretrained chat model, a log with users' reactions,
held-out prompts, and the truth about the log.
"""

from pathlib import Path

from . import (
    aside_language,
    aside_privacy,
    asking,
    facts,
    groups,
    habit,
    long_format,
    other_writer,
    thinking,
    tools,
    units,
)
from .build import Built, build
from .world import Group, World

__all__ = ["WORLDS", "Built", "Group", "World", "build", "built_in"]

_MODULES = (
    habit, long_format, tools, thinking, groups, other_writer, facts, units, asking, aside_language, aside_privacy,
)  # fmt: skip
WORLDS: dict[str, World] = {module.WORLD.name: module.WORLD for module in _MODULES}


def built_in(work: Path, name: str) -> Built:
    """Return the world that the benchmark builds in `work` under a name: `habit`, or `habit-0.3` with noise."""
    return Built(WORLDS[name.partition("-")[0]], work / "worlds" / name)
