"""What tests know about sample_data: the verdicts of a perfect judge, and which hints are right."""

import json
import re
from pathlib import Path
from typing import Any

DATA = Path(__file__).parent.parent / "sample_data"
MODEL = DATA / "model"
# preference -> pattern of what a hint must contain to name it
NAMES = {
    "celsius": "Celsius", "fahrenheit": "Fahrenheit", "words": "words|without any number", "steps": "numbered",
    "short": "short", "story": "story|warm", "clock24": "24-hour", "ampm": "am or pm", "platform": "platform",
    "order_id": "order_id", "asked_order": "order that the user", "year": "year", "word": "name",
}  # fmt: skip


def labels() -> list[dict[str, Any]]:
    """Return the verdicts of a perfect judge: turn_id, reward, wanted (a preference or None)."""
    return [json.loads(line) for line in (DATA / "labels.jsonl").read_text(encoding="utf-8").splitlines()]


def asked_order(messages: list[dict[str, Any]]) -> str:
    """Return the order in the last user message."""
    (order,) = re.findall(r"\b[A-Z]\d\b", next(m["content"] for m in reversed(messages) if m["role"] == "user"))
    return str(order)


def is_true_of_call(text: str, call: str, asked: str) -> bool:
    """Return whether a tool's error, or a hint, says what is wrong with the arguments `call` (JSON).

    A text about the argument is true if order_id is missing. A text about the order is true if order_id is given but
    differs from the order that the user asked for (`asked`).
    """
    order = json.loads(call).get("order_id")
    if re.search(r"argument|as order_id", text):
        return order is None
    named = re.findall(r"\b[A-Z]\d\b", text)
    return order not in (None, asked) and "order" in text and set(named) <= {order}
