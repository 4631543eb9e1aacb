"""Results of the simulated nights, and what docs/nights.md says of them."""

import json
from pathlib import Path

from .pairs import RESULTS

PAGE = Path(__file__).parents[2] / "docs/nights.md"


def test_the_page_has_the_results() -> None:
    *nights, scratch = json.loads((RESULTS / "nights.json").read_text())["rows"]
    text = " ".join(PAGE.read_text().partition("## What thirty nights bring")[2].partition("\n## ")[0].split())
    topics = text.partition("| right replies after night 30 |")[2].partition(" | |---")[0].strip().split(" | ")
    assert set(topics) == nights[-1]["right"].keys()
    for row in (nights[-1], scratch):
        assert " | ".join(f"{row['right'][topic]:.2f}" for topic in topics) in text
    trained = [row for row in nights if row.get("tokens")]
    promoted = [row["night"] for row in nights if row.get("decision") == "promoted"]
    assert promoted == [1, 11, 19, 22]
    assert "followed in nights 11, 19 and 22" in text
    assert f"Of {len(trained)} trainings, {len(promoted)} were promoted" in text
    assert f"read {sum(row['tokens'] for row in trained):,} tokens, and the training from scratch" in text
    assert f"from scratch {scratch['tokens']:,}" in text
    shares = {row["night"]: row["right"] for row in nights}
    losses = {(night, topic): shares[night - 1][topic] - share for night in promoted[1:]
              for topic, share in shares[night].items()}  # fmt: skip
    told = [(22, "capitals"), (22, "trips")]
    assert set(sorted(losses, key=losses.__getitem__)[-2:]) == set(told)
    capitals, trips = (f"{losses[one]:.2f}" for one in told)
    assert f"night 22 lost {capitals} of capitals and {trips} of trips" in text
    assert max(loss for one, loss in losses.items() if one not in told) < 0.015
