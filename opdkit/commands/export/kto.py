"""TRL's KTO trainer: a prompt, a reply, and whether it is desirable."""

import pyarrow as pa

from opdkit.commands.export.messages import completion_of, prompt_of, tools_of
from opdkit.commands.export.turns import JudgedTurn, Row, Target, each, rewarded


def row(turn: JudgedTurn) -> Row:
    """A turn with reward +1 or -1. Raises NotExportedError: KTO has no neutral replies."""
    label = rewarded(turn, (1, -1)) == 1
    return {"prompt": prompt_of(turn), "completion": completion_of(turn), "label": label, "tools": tools_of(turn),
            "turn_id": turn.turn_id}  # fmt: skip


def _schema(message: pa.DataType) -> pa.Schema:
    return pa.schema({"prompt": pa.list_(message), "completion": pa.list_(message), "label": pa.bool_(),
                      "tools": pa.string(), "turn_id": pa.string()})  # fmt: skip


TARGET = Target(each(row), _schema)
