"""Mappings of every shape (`--map`) to fuzz like the formats, and the options that read a format or a mapping."""

from pathlib import Path
from typing import Any

from opdkit.extract.formats import READERS
from opdkit.extract.formats.mapped import make_mapped_reader
from opdkit.extract.formats.reader import Reader
from opdkit.extract.mapping import load

_FIELDS = 'role = "who"\ncontent = "said[0]"\n[roles]\nbot = "assistant"\nnote = "drop"\n'
MAPPINGS = {
    "mapped": 'messages = "chat.turns"\nmodel = "meta.model"\ntime = "meta.at"\ntools = "tools"\n' + _FIELDS,
    "mapped pairs": 'prompt = "p"\nreply = "r"\nnext = "n.text"\nsystem = "s"\n' + _FIELDS,
    "mapped sessions": 'session = "id"\norder = "n"\ncontent = "text"\n[tool_call]\nname = "f"\n',
    "mapped links": 'session = "id"\nprompt = "p"\nreply = "r"\nlink = true\n',
}


def options(name: str, folder: str | Path) -> dict[str, Any]:
    """Return the options of `opdkit extract` for a format, or for a mapping, which is written to `folder`."""
    return {"map": str(_written(name, folder))} if name in MAPPINGS else {"format": name}


def reader(name: str, folder: str | Path) -> Reader:
    return make_mapped_reader(load(str(_written(name, folder)))) if name in MAPPINGS else READERS[name]


def _written(name: str, folder: str | Path) -> Path:
    path = Path(folder, "fields.toml")
    path.write_text(MAPPINGS[name])
    return path
