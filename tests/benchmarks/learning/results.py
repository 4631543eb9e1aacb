"""Results file: one line per measurement, and the scores of `opdkit eval` in it as a table."""

import json
from pathlib import Path

from opdkit.config.fields import JSON

from ..pairs import one_row_per_line


def write_results(path: Path, results: JSON) -> None:
    """Write the results so that `read_results` returns them unchanged."""
    cells = {name: numbers | {"scores": _as_table(numbers["scores"])} if "scores" in numbers else numbers
             for name, numbers in results["cells"].items()}  # fmt: skip
    path.write_text(one_row_per_line(results | {"cells": cells}), encoding="utf-8")


def read_results(path: Path) -> JSON:
    """Read what `write_results` wrote."""
    results: JSON = json.loads(path.read_text(encoding="utf-8"))
    for numbers in results["cells"].values():
        if "scores" in numbers:
            table = numbers["scores"]
            numbers["scores"] = [dict(zip(table["columns"], row, strict=True)) for row in table["rows"]]
    return results


def _as_table(rows: list[JSON]) -> JSON:
    columns = list(rows[0]) if rows else []
    return {"columns": columns, "rows": [[row[name] for name in columns] for row in rows]}
