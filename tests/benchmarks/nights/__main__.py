"""Thirty nights on a log that grows, each killed at a random time.

    python -m tests.benchmarks.nights

Each day users talk to the promoted model; three of their wishes change in these weeks. Three days are quiet, and one
night the log ends in the middle of a line. At the end a model is trained from scratch on the whole log. A simulation
that was stopped within a night must start again in another folder: the log would get that day's conversations twice.
"""

import argparse
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from opdkit.config.fields import JSON

from ..pairs import RESULTS, save_rows
from ..worlds.world import Group
from .judge import serving
from .simulation import SESSIONS, collect_tokens, measure, open_simulation, run_night, write_day
from .world import QUIET, WORLD, wishes_of

NIGHTS = 30


def simulate(work: Path, nights: int, seed: int, judge: str, options: Sequence[str]) -> list[JSON]:
    """Return a row per night; nights that were simulated before are not repeated.

    `judge`: the judge's address; `options`: STAGE.OPTION=VALUE, as for --set.
    """
    more = [word for option in options for word in ("--set", option)]
    simulation = open_simulation(work, work / "world", seed, judge)
    for night in range(len(simulation.rows()) + 1, nights + 1):
        wishes = wishes_of(night)
        if night not in QUIET:
            world = replace(WORLD, sessions=SESSIONS, groups=(Group(wishes),))
            write_day(simulation.log, world, simulation.promoted(), night, seed)
        start, last = time.monotonic(), simulation.rows()[-1] if night > 1 else {}
        kills = run_night(simulation, night, seed, more)
        row = {
            "night": night, "kills": kills, "promoted": simulation.home.find_promoted(),
            "seconds": time.monotonic() - start,
        }  # fmt: skip
        is_known = last.get("promoted") == row["promoted"] and wishes_of(night - 1) == wishes
        row["right"] = (last["right"] if is_known
                        else measure(simulation.promoted(), wishes, work / "prompts.jsonl", seed))  # fmt: skip
        if night not in QUIET:
            made = simulation.home.list_nights()[-1]
            row |= {"decision": made.record["decision"], "turned": made.record.get("turned", []),
                    "sentence": made.record["sentence"], "tokens": collect_tokens(made.folder)}  # fmt: skip
        simulation.add(row)
    return simulation.rows()


def train_from_scratch(work: Path, seed: int, nights: int) -> JSON:
    """Train the first model on the whole log; return the shares of replies right by the last wishes, and its tokens."""
    run, model = work / "scratch", work / "world" / "model"
    command = [sys.executable, "-m", "opdkit", "run", str(run), str(work / "logs"), "--model", str(model), "--judge",
               "rules"]  # fmt: skip
    subprocess.run(command, check=True, capture_output=True)
    right = measure(run / "train" / "model", wishes_of(nights), work / "prompts.jsonl", seed)
    return {"night": "from scratch", "right": right, "tokens": collect_tokens(run)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", type=Path, default=Path("/tmp/opdkit-nights"))
    parser.add_argument("--nights", type=int, default=NIGHTS)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--set", action="append", default=[], metavar="STAGE.OPTION=VALUE", help="as of a night")
    parser.add_argument("--results", type=Path, default=RESULTS)
    options = parser.parse_args()
    options.work.mkdir(parents=True, exist_ok=True)
    with serving() as judge:
        rows = simulate(options.work, options.nights, options.seed, judge, options.set)
    rows.append(train_from_scratch(options.work, options.seed, options.nights))
    print(save_rows("nights", rows, options.results))


if __name__ == "__main__":
    main()
