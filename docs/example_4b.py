"""Write example-4b.md from measured counts and stated formulas: `python docs/example_4b.py`.

`python -m tests.benchmarks.example` measures the counts.
"""

import json
from pathlib import Path

from opdkit.config.train import TrainConfig

HERE = Path(__file__).parent
COUNTS = HERE.parent / "tests" / "benchmarks" / "example.json"
LAYERS, HIDDEN, KEYS = 36, 2560, 2 * 8 * 128  # Qwen3-4B; KEYS: elements of keys and values per token and layer
JUDGE = 32.8e9  # parameters of Qwen3-32B
CARD, PEAK, BANDWIDTH = 80e9, 312e12, 2.039e12  # bytes, FLOP/s in bfloat16, bytes/s of an A100
USED, USED_BANDWIDTH = 0.4, 0.5  # shares of PEAK and BANDWIDTH that are reached; assumed
ANSWER, TOGETHER = 100, 32  # tokens per answer of the judge, requests at once; assumed
IN, OUT = 0.10, 0.40  # money per million tokens; assumed
LONGEST = 4096  # tokens of the longest turn; assumed
MORE = 100  # times as many conversations
GB = 1e9


def numbers() -> dict[str, float]:
    """Return every number of the page by its name in the page."""
    count = json.loads(COUNTS.read_text(encoding="utf-8"))
    size, adapters = count["parameters"]["all"], count["parameters"]["lora"]
    judge, teacher = count["judge"], count["teacher"]
    answers = judge["requests"] * ANSWER
    length = teacher["scored"] / count["turns"]
    written = count["hinted"] * length
    epoch = teacher["once"] + written
    speed, bandwidth = PEAK * USED, BANDWIDTH * USED_BANDWIDTH
    micro = TrainConfig.micro_batch_tokens
    values = {
        "sessions": count["sessions"], "turns": count["turns"], "hinted": count["hinted"], "mb": count["bytes"] / 1e6,
        "requests": judge["requests"], "uncached": judge["uncached"], "cached": judge["cached"], "answers": answers,
        "once": teacher["once"], "read": teacher["read"], "saved": teacher["saved"], "written": written,
        "epoch": epoch, "length": length, "million": size / 1e6, "lora": adapters / 1e6,
        "weights": 2 * size / GB, "keys": LAYERS * KEYS * 2 * LONGEST / GB,
        "states": 16 * adapters / GB, "kept": LAYERS * count["kept"] / 1e6,
        "activations": LAYERS * count["kept"] * micro / GB, "micro": micro,
        "checkpointed": (LAYERS * 2 * HIDDEN + count["kept"]) * micro / GB,
        "logits": CARD / 64 / GB, "all": 16 * size / GB,
        "judge_read": 2 * JUDGE * judge["cached"] / speed / 60,
        "judge_uncached": 2 * JUDGE * judge["uncached"] / speed / 60,
        "judge_write": answers * 2 * JUDGE / (bandwidth * TOGETHER) / 60,
        "money": judge["uncached"] / 1e6 * IN + answers / 1e6 * OUT,
        "teacher_read": 2 * size * (teacher["read"] + written) / speed / 60,
        "teacher_write": written * 2 * size / (bandwidth * TOGETHER) / 60,
        "train": 6 * size * epoch / speed / 60, "train_checkpointed": 8 * size * epoch / speed / 60,
    }  # fmt: skip
    values["score_memory"] = values["weights"] + values["keys"] + values["logits"]
    fixed = 2 * values["weights"] + values["states"] + values["logits"]
    values["train_memory"] = fixed + values["activations"]
    values["train_memory_checkpointed"] = fixed + values["checkpointed"]
    values["small"] = fixed + values["checkpointed"] / 4
    values["judge_minutes"] = values["judge_read"] + values["judge_write"]
    values["teacher_minutes"] = values["teacher_read"] + values["teacher_write"]
    values["more_sessions"] = MORE * count["sessions"]
    for name in ("judge_minutes", "teacher_minutes", "train_checkpointed"):
        values[f"more_{name}"] = MORE * values[name] / 60
    values["more_money"] = MORE * values["money"]
    return values


def page() -> str:
    """Return the page with the numbers filled in."""
    text = (HERE / "example-4b.txt").read_text(encoding="utf-8")
    for name, value in numbers().items():
        digits = 0 if isinstance(value, int) or value >= 100 else 1
        text = text.replace(f"<<{name}>>", f"{value:,.{digits}f}")
        text = text.replace(f"<<{name}:m>>", f"{value / 1e6:,.2f} million")
    assert "<<" not in text, text[text.index("<<") :][:40]
    return text


if __name__ == "__main__":
    (HERE / "example-4b.md").write_text(page(), encoding="utf-8")
