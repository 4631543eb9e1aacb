"""Times and shares of the ceiling on a GPU with models of published sizes, and then the tests that need a GPU.

    python -m tests.benchmarks.gpu

The sessions are loaded once for all models. Scoring is in bfloat16; training has float32 weights under autocast, as in
`opdkit train`. The results are a section of docs/performance.md.
"""

import argparse
import json
import subprocess
import sys
from itertools import product
from pathlib import Path
from typing import Any

import torch

from opdkit.model.compiled import compile_small_operations
from opdkit.train.policy import Policy

from . import ceiling, scoring, training
from .models import PUBLISHED, PUBLISHED_VOCABULARY, build, weights
from .pairs import RESULTS, Comparison, save
from .performance import gpu_section
from .sessions import VOCABULARY, evenly_spaced, length, taubench

TESTS = ("tests/model/test_scoring.py", "tests/model/test_tree_reading.py", "tests/train/objective/test_terms.py",
         "tests/teacher/test_device_map.py")  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", nargs="*", default=list(PUBLISHED))
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--tokens", type=int, default=8000, help="of a session; those of the usual way have a quarter")
    parser.add_argument("--pairs", type=int, default=3)
    parser.add_argument("--results", type=Path, default=RESULTS)
    options = parser.parse_args()
    if options.device == "cuda" and not torch.cuda.is_available():
        print("skipped: torch sees no CUDA device")
        return
    _, sessions = taubench()
    long = min(sessions, key=lambda s: abs(length(s) - options.tokens))
    shorter = evenly_spaced([s for s in sessions if length(s) <= options.tokens // 4], 2)
    turns = [(str(n), t.student) for n, session in enumerate(shorter) for t in session]
    step = training.Step([turn for _, turn in turns], [n for n, _ in turns])
    compared, shares = list[Comparison](), list[dict[str, Any]]()
    for size, work in product(options.sizes, ("scoring", "training")):
        vocabulary = PUBLISHED_VOCABULARY if size in PUBLISHED else VOCABULARY
        model, name = build(size, vocabulary, device=options.device), f"Qwen3 {size}, {work}"
        if work == "scoring":
            model, policy = model.to(torch.bfloat16), None
        else:
            policy = Policy(model)
        with torch.autocast(options.device, dtype=torch.bfloat16, enabled=policy is not None):
            try:
                compared.append(scoring.compare(name, model, shorter, options.pairs, {}) if policy is None else
                                training.compare(name, policy, step, options.pairs, {}))  # fmt: skip
            except torch.OutOfMemoryError:
                print(f"{name}: the usual way does not fit into memory", flush=True)
            torch.cuda.empty_cache()
            for how in ("", ", --compile"):
                if how:
                    compile_small_operations(model)
                found = ceiling.measure(name + how, model, long, options.pairs, policy)
                facts = {"turns": len(long), "tokens": length(long), "weights": weights(model), "dtype": "bfloat16"}
                shares.append(found | facts)
        save("gpu", compared, options.results, shares)
        del model, policy
        torch.cuda.empty_cache()
    print(gpu_section(json.loads((options.results / "gpu.json").read_text(encoding="utf-8"))), flush=True)
    if options.device == "cuda":
        subprocess.run([sys.executable, "-m", "pytest", "-q", "-n4", "-m", "gpu", *TESTS])


if __name__ == "__main__":
    main()
