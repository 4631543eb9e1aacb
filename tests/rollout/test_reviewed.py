"""Tests that a rollout samples replies for the hints of a run as people decided on them."""

import shutil

import pytest
from rollout_runs import rows, scored

from opdkit.commands.check.stage import examine
from opdkit.errors import ConfigError
from opdkit.rollout import stage as rollout
from opdkit.store import reviews
from opdkit.store.reviews import Review


def test_a_decided_hint_is_answered_for_and_carried_over(config, source, student, tmp_path):
    """One hint is rewritten, one struck, one added. Decided rewards are not carried over: they are of other replies."""
    run = shutil.copytree(source, tmp_path / "source")
    mine = [Review("s0a:2", True, 1, True, "Answer in one word, please."), Review("s0b:2", False, None, True, None),
            Review("s0b:4", False, None, True, "Answer in two words, please.")]  # fmt: skip
    reviews.append(run, mine)
    options = config(from_run=run)
    rollout.run(options)
    found = {
        row["turn_id"].partition("/")[0]: row for row in rows(options.run, "verdicts") if row["turn_id"][:2] == "s0"
    }
    assert {name: row["hint"] for name, row in found.items()} == {
        "s0a:2": "Answer in one word, please.", "s0b:4": "Answer in two words, please."}  # fmt: skip
    assert {row["reward_status"] for row in found.values()} == {"not_judged"}
    scored(options.run, student, teacher_hint="longest")
    assert {row["hint"] for row in rows(options.run, "targets") if row["turn_id"][:2] == "s0"} == {
        "Answer in one word, please.", "Answer in two words, please."}  # fmt: skip
    assert not any("hint" in finding.what for finding in examine(options.run).findings)


def test_another_decision_is_another_plan(config, source, tmp_path):
    run = shutil.copytree(source, tmp_path / "source")
    options = config(from_run=run)
    rollout.run(options)
    reviews.append(run, [Review("s0a:2", True, 1)])
    rollout.run(options)  # a reward of the logged reply changes nothing here
    reviews.append(run, [Review("s0a:2", False, None, True, None)])
    with pytest.raises(ConfigError, match=r"inputs\.from\.reviews"):
        rollout.run(options)
