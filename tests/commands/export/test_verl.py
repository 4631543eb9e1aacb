"""Tests that verl's own dataset class reads the export."""

from pathlib import Path

import pyarrow.parquet as pq
import pytest
from judged_runs import message, session, turn, verdict, write_run
from sample_world import MODEL

from opdkit.chat.openai_messages import openai_message
from opdkit.commands.export.command import run as export
from opdkit.commands.export.messages import TurnToExport
from opdkit.config.export import ExportConfig
from opdkit.model.load import load_tokenizer


def test_rlhf_dataset_gives_back_every_prompt(run: Path, judged: dict[str, TurnToExport], tmp_path: Path) -> None:
    verl = pytest.importorskip("verl.utils.dataset.rl_dataset", reason="verl is not installed")
    from omegaconf import OmegaConf

    summary = export(ExportConfig(run=run, to="verl", out=tmp_path / "verl.parquet"))
    config = OmegaConf.create({"cache_dir": str(tmp_path), "filter_overlong_prompts_workers": 1})
    rows = verl.RLHFDataset(str(summary.where), load_tokenizer(str(MODEL)), config)
    assert len(rows) == summary.counters.rows_out > 500, "its length filter renders every prompt, and drops none"
    for number in range(len(rows)):
        row = rows[number]
        asked = judged[row["extra_info"]["turn_id"]]
        assert row["index"] == number
        assert row["raw_prompt"] == [openai_message(m) for m in asked.session["messages"][: asked.index]]
        truth = asked.verdict["hint"] or asked.session["messages"][asked.index]["content"]
        assert row["reward_model"] == {"style": "model", "ground_truth": truth}
        assert row["data_source"] == "opdkit"


def test_a_fresh_reply_is_compared_with_what_the_user_saw_of_the_logged_one(tmp_path: Path) -> None:
    """The ground truth leaves out the thinking, in whichever form the log has it."""
    replies = [message("assistant", "ho", reasoning="Greet."), message("assistant", "<think>Greet.</think>ho"),
               message("assistant", "<think>Greet.")]  # fmt: skip
    said = [one for reply in replies for one in (message("user", "hi"), reply)]
    ids = [f"a:{n}" for n in (1, 3, 5)]
    rows = [turn(i) for i in ids], [verdict(i, None, 1) for i in ids]
    summary = export(ExportConfig(run=write_run(tmp_path / "run", [([session("a", *said)], *rows)]), to="verl"))
    assert [one["ground_truth"] for one in pq.read_table(summary.where)["reward_model"].to_pylist()] == ["ho", "ho"]
    assert dict(summary.counters.dropped) == {"nothing but thinking": 1}
