"""Attributes of OpenTelemetry spans as one nested object, in whichever form an exporter wrote them.

    OTLP JSON        {"attributes": [{"key": "llm.model_name", "value": {"stringValue": "m"}}]}
    SDK and Phoenix  {"attributes": {"llm.model_name": "m"}}, {"attributes": {"llm": {"model_name": "m"}}}
    columns          {"attributes.llm.model_name": "m"}

all become {"llm": {"model_name": "m"}}. Many exporters flatten lists, with the index in the key
(`llm.input_messages.0.message.role`); these become lists again.
"""

import re
from collections.abc import Iterable
from typing import Any

import orjson

from opdkit.chat.conversation import JSON, Unreadable
from opdkit.chat.messages import as_list

_DEEPEST = 24  # names in a key (longer keys are dropped), and levels that are unfolded; conventions need ten at most
_INT = re.compile(r"-?[0-9]{1,19}")
_PREFIX = "attributes."
_SCALARS = ("stringValue", "intValue", "doubleValue", "boolValue", "bytesValue")
_VERBATIM = ("arguments", "parameters")  # of a tool call, and the schema of a tool: objects with any keys
_MOST = 100_000  # indices of a flattened list are below it


def split_spans(record: JSON) -> list[JSON]:
    """Return the spans of an OTLP batch, a Phoenix trace or a page of Phoenix's API. Any other record is one span.

    Raises Unreadable.
    """
    levels: tuple[tuple[str, ...], ...] = (("spans", "data"),)
    if "resourceSpans" in record:
        levels = ("resourceSpans",), ("scopeSpans", "instrumentationLibrarySpans"), ("spans",)
    elif "attributes" in record or not any(isinstance(record.get(key), list) for key in levels[0]):
        return [record]
    objects: list[JSON] = [record]
    for keys in levels:
        lists = [holder.get(key, []) for holder in objects for key in keys]
        if not all(isinstance(items, list) and all(isinstance(item, dict) for item in items) for items in lists):
            raise Unreadable("spans of unknown shape", "a list of objects is needed")
        objects = [item for items in lists for item in items]
    return objects or [record]


def nest_attributes(holder: JSON) -> JSON:
    """Return the attributes of a span or an event as nested objects."""
    logged = holder.get("attributes")
    pairs = [*logged.items()] if isinstance(logged, dict) else _read_otlp_pairs(logged)
    pairs += [(k.removeprefix(_PREFIX), v) for k, v in holder.items() if k.startswith(_PREFIX) and v is not None]
    tree: JSON = {}
    for key, value in pairs:
        _put(tree, key.split("."), value, 0)
    return {key: _restore_lists(value, 1) for key, value in tree.items()}


def read_otlp_value(value: Any) -> Any:
    """Return the plain value of OTLP JSON such as `{"stringValue": "x"}`. The JSON parser has bounded its depth."""
    if not isinstance(value, dict):
        return value
    for key in _SCALARS:
        if key in value:
            scalar = value[key]
            return int(scalar) if key == "intValue" and isinstance(scalar, str) and _INT.fullmatch(scalar) else scalar
    is_array = isinstance(value.get("arrayValue"), dict)
    nested = value.get("arrayValue" if is_array else "kvlistValue")
    if not isinstance(nested, dict):
        return None
    items = as_list(nested.get("values"))
    return [read_otlp_value(item) for item in items] if is_array else dict(_read_otlp_pairs(items))


def _read_otlp_pairs(items: Any) -> list[tuple[str, Any]]:
    """Return (name, value) of each attribute in a list of OTLP JSON."""
    objects = (item for item in as_list(items) if isinstance(item, dict) and isinstance(item.get("key"), str))
    return [(item["key"], read_otlp_value(item.get("value"))) for item in objects]


def _put(tree: JSON, path: list[str], value: Any, depth: int) -> None:
    """Set a value at a path below `depth` others. Objects in the value may have dotted keys, too.

    The first value at a place stays: a later one is dropped, and so is a path of more than _DEEPEST names.
    """
    depth += len(path)
    if len(path) > _DEEPEST:
        return
    for name in path[:-1]:
        below = tree.setdefault(name, {})
        if not isinstance(below, dict):
            return
        tree = below
    inner: Iterable[tuple[Any, Any]] = value.items() if isinstance(value, dict) else ()
    if isinstance(value, list) and any(isinstance(item, dict) for item in value):
        inner = enumerate(value)
    if not inner or depth > _DEEPEST or path[-1] in _VERBATIM:
        tree.setdefault(path[-1], value)
        return
    below = tree.setdefault(path[-1], {})
    if isinstance(below, dict):
        for key, item in inner:
            _put(below, str(key).split("."), item, depth)


def _restore_lists(tree: Any, depth: int) -> Any:
    """Return the tree with each object whose keys are all indices replaced by a list in their order."""
    if not isinstance(tree, dict) or depth > 2 * _DEEPEST:
        return tree
    inner = {key: value if key in _VERBATIM else _restore_lists(value, depth + 1) for key, value in tree.items()}
    if inner and all(key.isdecimal() and len(key) < 7 and int(key) < _MOST for key in inner):
        return [inner[key] for key in sorted(inner, key=int)]
    return inner


def parse_text(value: Any) -> Any:
    """Parse JSON text of an object or a list, as attributes hold them. Return any other value unchanged."""
    if isinstance(value, str) and value[:1] in ("{", "["):
        try:
            return orjson.loads(value)
        except orjson.JSONDecodeError:
            return value
    return value


def drop_empty(fields: JSON) -> JSON:
    """Return the fields whose value is neither None nor empty."""
    return {key: value for key, value in fields.items() if value not in (None, "", [], {})}
