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
    first, *later = [row["night"] for row in nights if row.get("decision") == "promoted"]
    assert (first, later) == (1, [10, 15, 22])
    assert "nights 10, 15 and 22 promoted a model" in text
    assert f"Of {len(trained)} trainings, 4 were promoted" in text
    assert f"read {sum(row['tokens'] for row in trained):,} tokens, and the training from scratch" in text
    assert f"from scratch {scratch['tokens']:,}" in text
    capitals = {row["night"]: row["right"]["capitals"] for row in nights}
    assert f"fell by {capitals[9] - capitals[10]:.2f}, and in night 15 by {capitals[14] - capitals[15]:.2f}" in text
    assert f"After night 22 it was {capitals[22]:.2f} again" in text
