"""What tests know about sample_data: the right answers."""

import json
from pathlib import Path
from typing import Any

DATA = Path(__file__).parent.parent / "sample_data"
MODEL = DATA / "model"
# preference -> what a hint must name to name it
NAMES = {
    "celsius": "Celsius", "fahrenheit": "Fahrenheit", "words": "words|without any number", "steps": "numbered",
    "short": "short", "story": "story|warm", "clock24": "24-hour", "ampm": "am or pm", "platform": "platform",
    "order_id": "order_id", "year": "year", "word": "name",
}  # fmt: skip


def labels() -> list[dict[str, Any]]:
    """The verdicts of a perfect judge: turn_id, reward, wanted (a preference or None)."""
    return [json.loads(line) for line in (DATA / "labels.jsonl").read_text(encoding="utf-8").splitlines()]
