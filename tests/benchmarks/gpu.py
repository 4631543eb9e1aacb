"""What a GPU shows: its tests, then times and shares of the ceiling with models of published sizes, and their page.

    python -m tests.benchmarks.gpu

The page goes to stdout. Its figures are kept in --results, apart from those of a CPU.
"""

import argparse
import subprocess
import sys
from pathlib import Path

import torch

from .models import PUBLISHED
from .pairs import RESULTS
from .performance import page


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", nargs="*", choices=PUBLISHED, default=list(PUBLISHED))
    parser.add_argument("--results", type=Path, default=RESULTS / "gpu")
    options = parser.parse_args()
    if not torch.cuda.is_available():
        print("skipped: torch sees no CUDA device")
        return

    def run(module: str, *arguments: str) -> None:
        if subprocess.run([sys.executable, "-m", module, *arguments], stdout=sys.stderr).returncode:
            print(f"failed: python -m {module} {' '.join(arguments)}", file=sys.stderr)

    run("pytest", "-q", "-m", "gpu")
    run("tests.benchmarks.families", "--results", str(options.results))
    for size in options.sizes:
        folder = options.results / size
        for benchmark in ("scoring", "training", "turns", "ceiling"):
            shorter = ["--tokens", "2000"] if benchmark == "training" else []  # eight padded turns of the usual way
            run(f"tests.benchmarks.{benchmark}", "--size", size, "--results", str(folder), *shorter)
        print(f"Qwen3 {size}\n\n{page(folder)}")
    print(page(options.results))


if __name__ == "__main__":
    main()
