"""verl's reinforcement learning: a prompt, and what a reward function compares a fresh reply with.

The columns are those of verl's `RLHFDataset`: data_source, prompt, ability, reward_model{style, ground_truth},
extra_info{index, split, ...}. What is right is rarely one string in a conversation, so the style is "model": a judge
compares the fresh reply with `ground_truth`, which is the hint, or, where users were content, the logged reply
(`extra_info.ground_truth_is` says which).
"""

from collections.abc import Iterator

import pyarrow as pa

from opdkit.commands.export.messages import completion_of, prompt_of, tools_of
from opdkit.commands.export.turns import JudgedTurn, NotExportedError, Row, Target
from opdkit.store import Counters


def rows(turns: list[JudgedTurn], counters: Counters) -> Iterator[Row]:
    """Turns with a hint, or with reward +1, numbered over the whole export."""
    for turn in turns:
        try:
            found = _row(turn, counters.rows_out)
        except NotExportedError as error:
            counters.drop(error.reason)
        else:
            counters.rows_out += 1
            yield found


def _row(turn: JudgedTurn, index: int) -> Row:
    if turn.hint is None and turn.reward != 1:
        raise NotExportedError("neither a hint nor reward +1")
    hinted = turn.hint is not None
    truth = turn.hint if hinted else completion_of(turn)[0]["content"]
    if not truth:
        raise NotExportedError("a tool call is no text to compare with")
    return {
        "data_source": "opdkit",
        "prompt": prompt_of(turn),
        "ability": "chat",
        "reward_model": {"style": "model", "ground_truth": truth},
        "extra_info": {
            "index": index,
            "split": "train",
            "turn_id": turn.turn_id,
            "ground_truth_is": "hint" if hinted else "reply",
            "reward": turn.reward,
            "tools": tools_of(turn),
        },
    }


def _schema(message: pa.DataType) -> pa.Schema:
    text = pa.string()
    return pa.schema({
        "data_source": text,
        "prompt": pa.list_(message),
        "ability": text,
        "reward_model": pa.struct({"style": text, "ground_truth": text}),
        "extra_info": pa.struct({"index": pa.int64(), "split": text, "turn_id": text, "ground_truth_is": text,
                                 "reward": pa.int8(), "tools": text}),
    })  # fmt: skip


TARGET = Target(rows, _schema, (".parquet",))
