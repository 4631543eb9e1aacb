"""Tokens of a real log as opdkit's dry runs count them, and the bytes that a layer keeps for its gradients.

docs/example-4b.md is computed from these counts.

python -m tests.benchmarks.example

No judge runs here: every third reply to a user gets a hint, and each of the others only a reward.
"""

import json
import re
import shutil
import tempfile
from pathlib import Path
from typing import Any

import torch
from peft import LoraConfig, get_peft_model
from transformers import Qwen3Config, Qwen3ForCausalLM
from typer.testing import CliRunner

from opdkit import Run
from opdkit.cli import app

from .sessions import HINT, LOGS, ROOT, read, tokenizer_of

RESULTS = Path(__file__).with_suffix(".json")
EVERY, VOTES = 3, 5
RANK = 32
# The shape of Qwen3-4B.
SHAPE = {"hidden_size": 2560, "intermediate_size": 9728, "num_attention_heads": 32, "num_key_value_heads": 8,
         "head_dim": 128, "tie_word_embeddings": True}  # fmt: skip
LAYERS, VOCABULARY = 36, 151_936


def main() -> None:
    """Store the counts in `RESULTS`."""
    log = LOGS / "taubench" / "taubench_gpt4o_airline.jsonl"
    with tempfile.TemporaryDirectory() as scratch:
        run, model = Path(scratch) / "run", Path(scratch) / "model"
        make_model(log, model)
        Run(run).extract(log)
        turns = list(Run(run).table("turns"))
        url = "http://127.0.0.1:9/v1"  # a dry run sends nothing
        served = ("--judge", "endpoint", "--judge-url", url, "--judge-model", model)
        judge = facts("judge", run, *served, "--votes", VOTES, "--all-votes")
        Run(run).judge(judge=every_third)
        hinted = sum(verdict["hint"] is not None for verdict in Run(run).table("verdicts"))
        plain = facts("teacher", run, "--model", model, "--teacher-samples", 0)
        Run(run).judge(judge=nothing, overwrite=True)
        # train reads each session by itself, as the teacher does if no two fit into a batch
        once = facts("teacher", run, "--model", model, "--teacher-samples", 0, "--batch-tokens", 1)
    found = {
        "bytes": log.stat().st_size,
        "sessions": len({turn["session_id"] for turn in turns}),
        "turns": sum(turn["trainable"] for turn in turns),
        "hinted": hinted,
        "votes": VOTES,
        "judge": {"requests": judge["requests"], "uncached": judge["tokens to read"],
                  "cached": judge["read with a prefix cache"]},
        "teacher": {"once": once["tokens to read, with prompts"], "read": plain["tokens to read, with prompts"],
                    "scored": plain["tokens to score"], "saved": plain["saved by shared prefixes"]},
    }  # fmt: skip
    found |= {"parameters": parameters(), "kept": kept(2) - kept(1)}
    RESULTS.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


def parameters() -> dict[str, int]:
    """Count the parameters of the whole model, and of LoRA adapters at all its linear layers but the last."""
    with torch.device("meta"):
        model = Qwen3ForCausalLM(Qwen3Config(**SHAPE, num_hidden_layers=LAYERS, vocab_size=VOCABULARY))
    inner = [layer for layer in model.model.modules() if isinstance(layer, torch.nn.Linear)]
    return {"all": sum(p.numel() for p in model.parameters()), "lora": sum(RANK * sum(w.weight.shape) for w in inner)}


def kept(layers: int, tokens: int = 64) -> int:
    """Return the bytes per token that autograd keeps of a forward with adapters, as in `opdkit train --lora-rank`."""
    base = Qwen3ForCausalLM(Qwen3Config(**SHAPE, num_hidden_layers=layers, vocab_size=1024)).to(torch.bfloat16)
    model: Any = get_peft_model(base, LoraConfig(r=RANK, target_modules="all-linear", task_type="CAUSAL_LM"))
    weights, tensors = {p.untyped_storage().data_ptr() for p in model.parameters()}, dict[int, torch.Tensor]()

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in weights:
            tensors[storage.data_ptr()] = tensor
        return tensor

    model.train()
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor), torch.autocast("cpu", torch.bfloat16):
        model(input_ids=torch.zeros(1, tokens, dtype=torch.long))
    return sum(tensor.untyped_storage().nbytes() for tensor in tensors.values()) // tokens


def make_model(log: Path, folder: Path) -> None:
    """Write the sample model with a tokenizer of the log. Its weights no longer fit, but a dry run reads none."""
    shutil.copytree(ROOT / "sample_data" / "model", folder)
    tokenizer = tokenizer_of(read(log))
    tokenizer.save_pretrained(folder)
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    (folder / "config.json").write_text(json.dumps(config | {"vocab_size": len(tokenizer)}), encoding="utf-8")


def every_third(prompt: list[dict], reply: dict, next_state: list[dict]) -> tuple[int, str | None]:
    """Return a hint for every third reply to a user (by the number of user messages), else only a reward."""
    complains = prompt[-1]["role"] == "user" and sum(m["role"] == "user" for m in prompt) % EVERY == 0
    return (-1, HINT) if complains else (1, None)


def nothing(prompt: list[dict], reply: dict, next_state: list[dict]) -> tuple[int, None]:
    return 1, None


def facts(command: str, run: Path, *options: object) -> dict[str, int]:
    """Return the numbers of a dry run by the words before them."""
    done = CliRunner().invoke(app, [command, str(run), *map(str, options), "--dry-run"])
    assert done.exit_code == 0, done.output
    rows = re.findall(r"^ *(\S.*?)  +([\d,]+)\b", done.stdout, re.MULTILINE)
    return {name: int(value.replace(",", "")) for name, value in rows}


if __name__ == "__main__":
    main()
