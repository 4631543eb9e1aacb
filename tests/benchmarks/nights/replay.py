"""Replay against forgetting: nights that learn other topics than the first, with different shares of earlier turns.

    python -m tests.benchmarks.nights.replay

Users first ask about three topics, and from the second night on about two others alone. After every night the model
that it trained answers held-out requests of all five.
"""

import argparse
import json
import time
from dataclasses import replace
from pathlib import Path

from opdkit.commands.night.home import Home
from opdkit.config.fields import JSON
from opdkit.config.night import NightConfig
from opdkit.store.atomic import write_text

from ..pairs import RESULTS, save_rows
from ..worlds.build import build
from ..worlds.world import Group
from .__main__ import SESSIONS, measure, run_night, tokens_of, write_config, write_day
from .judge import serving
from .world import FIRST, TOPICS, WORLD

SHARES, NIGHTS = (0.0, 0.01, NightConfig.replay), 4
OLD = tuple(topic for topic in TOPICS if topic.name in ("home", "food", "texts"))
NEW = tuple(topic for topic in TOPICS if topic not in OLD)


def simulate(work: Path, share: float, seed: int, judge: str) -> list[JSON]:
    """Return a row per night with the share of right replies by topic; finished nights are not repeated."""
    here = work / f"replay-{share:g}"
    here.mkdir(exist_ok=True)
    write_config(here, judge)
    built = build(WORLD, work / "world", seed=seed)
    home, log, rows = Home(here / "home"), here / "logs" / "chat.jsonl", here / "rows.jsonl"
    log.parent.mkdir(exist_ok=True)
    done = [json.loads(line) for line in rows.read_text().splitlines()] if rows.exists() else []
    for night in range(len(done) + 1, NIGHTS + 1):
        model = home.path / "promoted" if home.promoted() else built.model
        group = Group(FIRST, topics=OLD if night == 1 else NEW)
        write_day(log, replace(WORLD, sessions=SESSIONS, groups=(group,)), model, night, seed)
        start = time.monotonic()
        run_night(home, log.parent, built.model, night, seed, ("--replay", f"{share:g}"))
        made = home.nights()[-1]
        done.append({
            "replay": share, "night": night, "decision": made.record["decision"], "tokens": tokens_of(made.folder),
            "replayed": made.record.get("replayed", 0), "seconds": time.monotonic() - start,
            "right": measure(made.model, FIRST, here / "prompts.jsonl", seed) if made.model.exists() else None,
        })  # fmt: skip
        write_text(rows, "".join(json.dumps(row) + "\n" for row in done))
        print(done[-1], flush=True)
    return done


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
