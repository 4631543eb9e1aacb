"""`opdkit models`: list the models of all nights, and choose which one is promoted."""

import json

from opdkit.commands.night.home import Home
from opdkit.config.command_line import quote
from opdkit.config.fields import JSON
from opdkit.config.night import ModelsConfig
from opdkit.console import is_screen, make_plain_table, print_line, print_tsv, stdout
from opdkit.errors import OpdkitError

_COLUMNS = ("night", "began (UTC)", "parent", "learned from", "new turns", "replayed turns", "decision", "promoted")


def run(config: ModelsConfig) -> None:
    """Promote a model if the options name one, then list all. Raises OpdkitError for a folder without nights."""
    home = Home(config.home)
    if not home.list_nights():
        begin = f"opdkit night {quote(config.home)} LOGS... --model PATH"
        raise OpdkitError(f"{config.home} has no nights: `{begin}` begins them")
    number = config.promote
    if config.back:
        if not home.find_promoted():
            raise OpdkitError(f"{config.home}: the model before the first night is promoted; there is none before it")
        number = home.night(home.find_promoted()).record.get("parent", 0)
    if number is not None:
        with home.lock():
            home.promote(number, by="hand")
    promoted, rows = home.night(home.find_promoted()), list[JSON]()
    for night in home.list_nights():
        model = str(night.model) if night.model.exists() else None
        rows.append({"night": night.number} | night.record | {"promoted": night == promoted, "model": model})
    if config.json:
        print(json.dumps(rows, indent=2))
        return
    cells = []
    for row in rows:
        learns, began = ", ".join(map(str, row.get("learns", ()))), row.get("began", "")[:16].replace("T", " ")
        turns, replayed = (f"{row.get(name, 0):,}" for name in ("turns", "replayed"))
        cells.append((str(row["night"]), began, str(row.get("parent", "")), learns, turns, replayed,
                      row.get("decision") or "to do", "now" if row["promoted"] else ""))  # fmt: skip
    if not is_screen(stdout):
        print_tsv(_COLUMNS, cells)
        return
    table = make_plain_table()
    for name in _COLUMNS:
        table.add_column(name.replace(" ", "\n"), justify="right" if name.endswith("turns") else "left",
                         no_wrap=name != "learned from")  # fmt: skip
    for line in cells:
        table.add_row(*line)
    print_line(f"promoted: {promoted.model}: {promoted.record.get('sentence', 'to do')}" if promoted.number
               else "promoted: the model before the first night")  # fmt: skip
    stdout.print(table)
