"""Attributes of OpenTelemetry spans, however an exporter writes them, as one nested object.

    OTLP JSON        {"attributes": [{"key": "llm.model_name", "value": {"stringValue": "m"}}]}
    SDK and Phoenix  {"attributes": {"llm.model_name": "m"}}, {"attributes": {"llm": {"model_name": "m"}}}
    columns          {"attributes.llm.model_name": "m"}

all become {"llm": {"model_name": "m"}}. Lists are often flattened with an index in the key
(`llm.input_messages.0.message.role`): such objects become lists again.
"""

import re
from collections.abc import Iterator
from typing import Any

import orjson

from opdkit.chat.conversation import JSON, Unreadable

_DEEPEST = 24  # names in a key, objects in each other: conventions have ten at most, what is deeper stays as it is
_INT = re.compile(r"-?[0-9]{1,19}")
_PREFIX = "attributes."
_SCALARS = ("stringValue", "intValue", "doubleValue", "boolValue", "bytesValue")
_MOST = 100_000  # index of a flattened list


def spans_of(record: JSON) -> list[JSON]:
    """The spans of an OTLP batch; a record that is none is one span. Raises Unreadable."""
    if "resourceSpans" not in record:
        return [record]
    found: list[JSON] = []
    for resource in _objects(record["resourceSpans"]):
        for key in ("scopeSpans", "instrumentationLibrarySpans"):
            for scope in _objects(resource.get(key, [])):
                found += _objects(scope.get("spans", []))
    return found or [record]


def _objects(value: Any) -> list[JSON]:
    if not isinstance(value, list) or not all(isinstance(item, dict) for item in value):
        raise Unreadable("spans of unknown shape", "a list of objects is needed")
    return value


def attributes_of(holder: JSON) -> JSON:
    """The attributes of a span or an event, nested."""
    tree: JSON = {}
    for key, value in _pairs(holder):
        _put(tree, key.split("."), value, 0)
    return {key: _listed(value, 1) for key, value in tree.items()}


def _pairs(holder: JSON) -> Iterator[tuple[str, Any]]:
    found = holder.get("attributes")
    if isinstance(found, dict):
        yield from found.items()
    elif isinstance(found, list):
        for item in found:
            if isinstance(item, dict) and isinstance(item.get("key"), str):
                yield item["key"], plain(item.get("value"))
    for key, value in holder.items():
        if key.startswith(_PREFIX) and value is not None:
            yield key.removeprefix(_PREFIX), value


def plain(value: Any) -> Any:
    """A value of OTLP JSON, `{"stringValue": "x"}`, as what it means. It never is deeper than JSON can be read."""
    if not isinstance(value, dict):
        return value
    for key in _SCALARS:
        if key in value:
            found = value[key]
            return int(found) if key == "intValue" and isinstance(found, str) and _INT.fullmatch(found) else found
    array, pairs = value.get("arrayValue"), value.get("kvlistValue")
    if isinstance(array, dict):
        values = array.get("values")
        return [plain(item) for item in values] if isinstance(values, list) else []
    if isinstance(pairs, dict):
        values = pairs.get("values")
        entries = values if isinstance(values, list) else []
        return {
            e["key"]: plain(e.get("value")) for e in entries if isinstance(e, dict) and isinstance(e.get("key"), str)
        }
    return None


def _put(tree: JSON, path: list[str], value: Any, depth: int) -> None:
    """Set a value at a path, objects in it with dotted keys of their own; what another value stands in the way of is
    left out."""
    depth += len(path)
    if len(path) > _DEEPEST:
        return
    for name in path[:-1]:
        below = tree.setdefault(name, {})
        if not isinstance(below, dict):
            return
        tree = below
    inner: list[tuple[str, Any]] = []
    if isinstance(value, dict):
        inner = [(str(key), item) for key, item in value.items()]
    elif isinstance(value, list) and any(isinstance(item, dict) for item in value):
        inner = [(str(index), item) for index, item in enumerate(value)]
    if not inner or depth > _DEEPEST:
        tree.setdefault(path[-1], value)
        return
    below = tree.setdefault(path[-1], {})
    if isinstance(below, dict):
        for key, item in inner:
            _put(below, key.split("."), item, depth)


def _listed(tree: Any, depth: int) -> Any:
    """Objects whose keys are all indices, as lists in their order."""
    if not isinstance(tree, dict) or depth > 2 * _DEEPEST:
        return tree
    inner = {key: _listed(value, depth + 1) for key, value in tree.items()}
    if inner and all(key.isdecimal() and len(key) < 7 and int(key) < _MOST for key in inner):
        return [inner[key] for key in sorted(inner, key=int)]
    return inner


def at(tree: Any, *names: str) -> Any:
    """What lies under these names; None where nothing does."""
    for name in names:
        tree = tree.get(name) if isinstance(tree, dict) else None
    return tree


def parsed(value: Any) -> Any:
    """JSON that is held as text, as in attributes, which hold no objects; anything else as it is."""
    if isinstance(value, str) and value[:1] in ("{", "["):
        try:
            return orjson.loads(value)
        except orjson.JSONDecodeError:
            return value
    return value
