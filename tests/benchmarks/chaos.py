"""Cost of a judge's server that fails at three of ten answers, compared with a server that never fails.

    python -m tests.benchmarks.chaos

Both are real servers on loopback (tests/chaos_server.py): 429 with and without Retry-After, 500, resets, hangs of 60
seconds, HTML, answers cut short, another model's answers, answers without content. It prints the wall times, the
seconds for which Retry-After asked the client to wait in all ("told"), and the number of votes that are not the
server's. The result is (chaos - told) / calm, which should be at most 2.
"""

import argparse
import json
import os
import statistics
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from opdkit.config.judge import JudgeConfig
from opdkit.judge.endpoint import Endpoint
from opdkit.judge.votes import Question
from opdkit.store.stable_hash import stable_hash

from .pairs import save_rows

sys.path.append(str(Path(__file__).parents[1]))  # as under pytest

from chaos_server import MODEL, Chaos, text_of
from http_server import serving

VOTES = 5


def judged(chaos: Chaos, questions: Sequence[Question], timeout: float) -> tuple[float, int]:
    """Return the seconds for all votes, and the number of votes that are not the server's."""
    with serving(chaos) as server:
        config = JudgeConfig(run=Path("run"), judge="endpoint", judge_model=MODEL, judge_url=server.url, votes=VOTES,
                             timeout=timeout)  # fmt: skip
        endpoint = Endpoint(config)
        start = time.monotonic()
        answers = endpoint.ask(questions)
        seconds = time.monotonic() - start
    wrong = sum(
        answer.text != text_of({"messages": q.messages, "seed": stable_hash(0, q.turn_id, q.name, vote, bits=31)})
        for q, votes in zip(questions, answers, strict=True)
        for vote, answer in enumerate(votes)
    )
    return seconds, wrong


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=2000)
    parser.add_argument("--seconds", type=float, default=0.2, help="the mean time of an answer")
    parser.add_argument("--hang", type=float, default=60.0)
    parser.add_argument("--timeout", type=float, default=120.0)
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--no-save", action="store_true", help="print and keep nothing")
    options = parser.parse_args(arguments)
    os.environ["NO_PROXY"] = "127.0.0.1"
    count = options.requests // VOTES
    questions = [Question(f"s:{n}", "hint", [{"role": "user", "content": f"{n}"}]) for n in range(count)]
    rows = []
    for seed in range(options.pairs):
        calm = Chaos(seed, share=0.0, seconds=options.seconds)
        chaos = Chaos(seed, seconds=options.seconds, hang=options.hang)
        (calm_s, _), (chaos_s, wrong) = (judged(each, questions, options.timeout) for each in (calm, chaos))
        rows.append({"seed": seed, "requests": VOTES * count, "calm_seconds": calm_s, "chaos_seconds": chaos_s,
                     "told_seconds": chaos.told_seconds, "ratio": (chaos_s - chaos.told_seconds) / calm_s,
                     "wrong_or_missing_votes": wrong, "sent": dict(chaos.sent)})  # fmt: skip
        print(json.dumps(rows[-1]), flush=True)
    ratios = sorted(row["ratio"] for row in rows)
    print(f"(chaos - told) / calm: {statistics.median(ratios):.2f} ({ratios[0]:.2f} to {ratios[-1]:.2f}); "
          f"wrong or missing votes: {sum(row['wrong_or_missing_votes'] for row in rows)}")  # fmt: skip
    if not options.no_save:
        print(save_rows("chaos", rows))


if __name__ == "__main__":
    main()
