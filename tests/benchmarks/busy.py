"""Time of `opdkit demo` beside a process that keeps one core busy, compared with its time alone.

python -m tests.benchmarks.busy
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from .pairs import RESULTS, save_rows


def demo() -> float:
    """Return the seconds that the demo takes."""
    with tempfile.TemporaryDirectory() as folder:
        start = time.perf_counter()
        subprocess.run([sys.executable, "-m", "opdkit", "demo", f"{folder}/run"], check=True, capture_output=True)
        return time.perf_counter() - start


def beside() -> float:
    """Return the seconds that the demo takes while a process of another session keeps the first core busy."""
    core = min(os.sched_getaffinity(0))
    loop = f"import os\nos.sched_setaffinity(0, [{core}])\nwhile True: pass"
    busy = subprocess.Popen([sys.executable, "-c", loop], start_new_session=True)
    try:
        return demo()
    finally:
        busy.kill()
        busy.wait()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=3)
    parser.add_argument("--results", type=Path, default=RESULTS)
    options = parser.parse_args()
    rows = []
    for _ in range(options.pairs):
        rows.append({"alone": demo(), "beside": beside()})
        print(f"{rows[-1]['beside'] / rows[-1]['alone']:.2f} times its time alone: {rows[-1]}", flush=True)
    print(save_rows("busy", rows, options.results))


if __name__ == "__main__":
    main()
