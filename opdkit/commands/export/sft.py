"""TRL's SFT trainer: prompts with replies worth imitating."""

import pyarrow as pa

from opdkit.commands.export.messages import completion_of, prompt_of, tools_of
from opdkit.commands.export.turns import JudgedTurn, Row, Target, each, rewarded


def target(wanted: tuple[int, ...]) -> Target:
    """The target for turns whose reward is one of those wanted."""

    def row(turn: JudgedTurn) -> Row:
        rewarded(turn, wanted)
        return {"prompt": prompt_of(turn), "completion": completion_of(turn), "tools": tools_of(turn),
                "turn_id": turn.turn_id}  # fmt: skip

    return Target(each(row), _schema)


def _schema(message: pa.DataType) -> pa.Schema:
    return pa.schema({"prompt": pa.list_(message), "completion": pa.list_(message), "tools": pa.string(),
                      "turn_id": pa.string()})  # fmt: skip
