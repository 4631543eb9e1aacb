"""TRL's SDFT trainer (self-distillation): a prompt, and what only the teacher may read.

The trainer writes `privileged_context` after the last user message, two line breaks between, so that its teacher reads
exactly what opdkit's does with `--hint-placement last-user`. It samples the replies itself. It takes no prompt that
ends with anything but a user message, and no tool definitions of single rows.
"""

import pyarrow as pa

from opdkit.chat.openai_form import HINT_HEADER
from opdkit.commands.export.messages import prompt_of, refuse_control_tokens
from opdkit.commands.export.turns import JudgedTurn, NotExportedError, Row, Target, each


def row(turn: JudgedTurn) -> Row:
    """A turn that has a hint. Raises NotExportedError."""
    if turn.hint is None:
        raise NotExportedError(f"no hint ({turn.verdict['hint_status']})")
    refuse_control_tokens(turn.hint)
    prompt = prompt_of(turn)
    if prompt[-1]["role"] != "user":
        raise NotExportedError(f"prompt ends with a {prompt[-1]['role']} message")
    return {"prompt": prompt, "privileged_context": f"{HINT_HEADER}\n{turn.hint}", "turn_id": turn.turn_id}


def _schema(message: pa.DataType) -> pa.Schema:
    return pa.schema({"prompt": pa.list_(message), "privileged_context": pa.string(), "turn_id": pa.string()})


TARGET = Target(each(row), _schema)
