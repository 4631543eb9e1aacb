"""Read what a rollout wrote, and score it with the teacher stage."""

from pathlib import Path

from opdkit.config.teacher import TeacherConfig
from opdkit.store.reading import read_all
from opdkit.teacher import stage as teacher

TABLES = ("sessions", "turns", "rejected", "verdicts")


def rows(run: Path, table: str) -> list[dict]:
    return list(read_all(run, table))


def everything(run: Path) -> dict[str, list[dict]]:
    return {table: rows(run, table) for table in TABLES}


def scored(run: Path, model: Path | str, **options) -> list[dict]:
    teacher.run(TeacherConfig(run=run, model=str(model), device="cpu", teacher_samples=0, **options))
    return rows(run, "targets")
