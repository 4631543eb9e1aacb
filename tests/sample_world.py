"""What tests know about sample_data: the right answers."""

import json
import re
from pathlib import Path
from typing import Any

DATA = Path(__file__).parent.parent / "sample_data"
MODEL = DATA / "model"
# preference -> what a hint must name to name it
NAMES = {
    "celsius": "Celsius", "fahrenheit": "Fahrenheit", "words": "words|without any number", "steps": "numbered",
    "short": "short", "story": "story|warm", "clock24": "24-hour", "ampm": "am or pm", "platform": "platform",
    "order_id": "order_id", "asked_order": "order that the user", "year": "year", "word": "name",
}  # fmt: skip


def labels() -> list[dict[str, Any]]:
    """The verdicts of a perfect judge: turn_id, reward, wanted (a preference or None)."""
    return [json.loads(line) for line in (DATA / "labels.jsonl").read_text(encoding="utf-8").splitlines()]


def asked_order(messages: list[dict[str, Any]]) -> str:
    """The order that the user named last."""
    (order,) = re.findall(r"\b[A-Z]\d\b", next(m["content"] for m in reversed(messages) if m["role"] == "user"))
    return str(order)


def is_true_of_call(text: str, call: str, asked: str) -> bool:
    """Return whether a tool's error, or a hint, says what is wrong with the arguments `call` (JSON) for this order.

    A missing order_id is blamed where it is missing, and the order where order_id is there and another than the user
    asked for.
    """
    order = json.loads(call).get("order_id")
    if re.search(r"argument|as order_id", text):
        return order is None
    named = re.findall(r"\b[A-Z]\d\b", text)
    return order not in (None, asked) and "order" in text and set(named) <= {order}
