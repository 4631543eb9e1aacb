"""`opdkit models`: the models of all nights, which one is promoted, and going back."""

import json

from rich.table import Table as RichTable

from opdkit.commands.night.home import Home
from opdkit.config.fields import JSON
from opdkit.config.night import ModelsConfig
from opdkit.console import stdout
from opdkit.errors import OpdkitError

_COLUMNS = ("night", "began", "parent", "learned from", "turns", "again", "decision", "")


def run(config: ModelsConfig) -> None:
    """Promote a model if asked, then list all of them. Raises OpdkitError for a folder without nights."""
    home = Home(config.home)
    if not home.nights():
        raise OpdkitError(f"{config.home} has no nights: `opdkit night {config.home} LOGS... --model PATH` begins them")
    number = config.promote
    if config.back:
        if not home.promoted():
            raise OpdkitError(f"{config.home}: the model before the first night is promoted; there is none before it")
        number = home.night(home.promoted()).record.get("parent", 0)
    if number is not None:
        with home.locked():
            home.promote(number, by="hand")
    rows = list_models(home)
    if config.json:
        stdout.print_json(json.dumps(rows))
        return
    table = RichTable(box=None, padding=(0, 2, 0, 0), pad_edge=False)
    for name in _COLUMNS:
        table.add_column(name, justify="right" if name in ("turns", "again") else "left")
    for row in rows:
        learns = ", ".join(map(str, row.get("learns", ())))
        began, parent = row.get("began", ""), str(row.get("parent", ""))
        turns, again = (f"{row.get(name, 0):,}" for name in ("turns", "replayed"))
        mark = "promoted now" if row["promoted"] else ""
        table.add_row(str(row["night"]), began, parent, learns, turns, again, row.get("decision") or "to do", mark)
    stdout.print(table)
    for row in rows:
        if row["promoted"]:
            stdout.print(f"{row['model']}: {row.get('sentence', 'to do')}", markup=False, soft_wrap=True)


def list_models(home: Home) -> list[JSON]:
    """Return what each night wrote down, its model where it has one, and whether that is promoted."""
    promoted, rows = home.promoted(), list[JSON]()
    for night in home.nights():
        model = str(night.model) if night.model.exists() else None
        rows.append({"night": night.number} | night.record | {"promoted": night.number == promoted, "model": model})
    return rows
