"""Results of the simulated nights, and what docs/nights.md says of them."""

import json
from pathlib import Path

from opdkit.commands.night.home import PROMOTED, RETESTED

from .nights.world import wishes_of
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
    promoted = [row["night"] for row in nights if row.get("decision") in (PROMOTED, RETESTED)]
    assert promoted == [1, 9, 14, 22]
    assert [row["night"] for row in nights if row.get("decision") == RETESTED] == [22]
    assert f"Of {len(trained)} trainings that wrote a model, {len(promoted)} were promoted, one of them when it" in text
    assert f"read {sum(row['tokens'] for row in trained):,} tokens, and those of the training from scratch" in text
    assert f"from scratch {scratch['tokens']:,}" in text
    shares = {row["night"]: row["right"] for row in nights}
    assert f"in night 9, in {shares[9]['home']:.2f} of the replies" in text
    assert f"in night 14, in {shares[14]['food']:.2f}, and in night 22, in {shares[22]['texts']:.2f}." in text
    lost = {(night, topic): shares[night - 1][topic] - share for night in promoted[1:]
            for topic, share in shares[night].items()
            if wishes_of(night).get(topic) == wishes_of(night - 1).get(topic)}  # fmt: skip
    assert f"No promotion lost more than {max(lost.values()):.3f} in any topic" in text
    assert len(lost) == 3 * len(topics) - 2, "in two of these nights users changed their minds"
