"""Format `python`: a Python function reads each record, `run.extract(LOGS, format=function)`."""

from functools import partial

import orjson

from opdkit.chat.conversation import JSON, Conversation, Unreadable
from opdkit.config.fields import PythonFunction
from opdkit.extract.formats.openai import read_record
from opdkit.extract.formats.reader import Line, Reader
from opdkit.extract.formats.sessions import line_reader


def make_function_reader(function: PythonFunction) -> Reader:
    """Return the reader of logs whose records `function` turns into records of the format `openai`.

    A line on which the function fails is rejected.
    """
    return line_reader("python", bool, partial(_read_record, function))


def _read_record(function: PythonFunction, line: Line, record: JSON) -> list[Conversation]:
    try:
        made = function.call(record)
        if isinstance(made, dict):
            made = orjson.loads(orjson.dumps(made))  # as if parsed from a line: values that are not JSON fit no table
    except Exception as error:
        raise Unreadable("the reader failed", f"{type(error).__name__}: {error}") from error
    if not isinstance(made, dict):
        raise Unreadable("the reader failed", f"it returned a {type(made).__name__}, not a dict")
    return read_record(line, made)
