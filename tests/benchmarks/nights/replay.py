"""Replay against forgetting: nights that learn new topics, with different shares of replayed earlier turns.

    python -m tests.benchmarks.nights.replay

In the first night users ask about three topics, from the second night on only about two others. After every night, the
model that it trained answers held-out requests of all five topics.
"""

import argparse
import time
from dataclasses import replace
from pathlib import Path

from opdkit.config.fields import JSON
from opdkit.config.night import NightConfig

from ..pairs import RESULTS, save_rows
from ..worlds.world import Group
from .judge import serving
from .simulation import SESSIONS, collect_tokens, measure, open_simulation, run_night, write_day
from .world import FIRST, TOPICS, WORLD

SHARES, NIGHTS = (0.0, 0.01, NightConfig.replay), 4
OLD = tuple(topic for topic in TOPICS if topic.name in ("home", "food", "texts"))
NEW = tuple(topic for topic in TOPICS if topic not in OLD)


def simulate(work: Path, share: float, seed: int, judge: str) -> list[JSON]:
    """Return a row per night with the share of right replies by topic; finished nights are not repeated."""
    simulation = open_simulation(work / f"replay-{share:g}", work / "world", seed, judge)
    for night in range(len(simulation.rows()) + 1, NIGHTS + 1):
        world = replace(WORLD, sessions=SESSIONS, groups=(Group(FIRST, topics=OLD if night == 1 else NEW),))
        write_day(simulation.log, world, simulation.promoted(), night, seed)
        start = time.monotonic()
        run_night(simulation, night, seed, ("--replay", f"{share:g}"))
        made, prompts = simulation.home.list_nights()[-1], simulation.folder / "prompts.jsonl"
        simulation.add({
            "replay": share, "night": night, "decision": made.record["decision"], "tokens": collect_tokens(made.folder),
            "replayed": made.record.get("replayed", 0), "seconds": time.monotonic() - start,
            "right": measure(made.model, FIRST, prompts, seed) if made.model.exists() else None,
        })  # fmt: skip
    return simulation.rows()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", type=Path, default=Path("/tmp/opdkit-replay"))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--results", type=Path, default=RESULTS)
    options = parser.parse_args()
    options.work.mkdir(parents=True, exist_ok=True)
    with serving() as judge:
        rows = [row for share in SHARES for row in simulate(options.work, share, options.seed, judge)]
    print(save_rows("replay", rows, options.results))


if __name__ == "__main__":
    main()
