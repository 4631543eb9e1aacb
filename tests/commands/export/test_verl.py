"""verl's own dataset class reads the export."""

from pathlib import Path

import pytest
from sample_world import MODEL

from opdkit.chat.openai_messages import openai_message
from opdkit.commands.export.command import run as export
from opdkit.commands.export.messages import JudgedTurn
from opdkit.config.export import ExportConfig
from opdkit.model.load import load_tokenizer


def test_rlhf_dataset_gives_back_every_prompt(run: Path, judged: dict[str, JudgedTurn], tmp_path: Path) -> None:
    verl = pytest.importorskip("verl.utils.dataset.rl_dataset", reason="verl is not installed")
    from omegaconf import OmegaConf

    summary = export(ExportConfig(run=run, to="verl", out=tmp_path / "verl.parquet"))
    config = OmegaConf.create({"cache_dir": str(tmp_path), "filter_overlong_prompts_workers": 1})
    rows = verl.RLHFDataset(str(summary.where), load_tokenizer(str(MODEL)), config)
    assert len(rows) == summary.counters.rows_out > 500, "its length filter renders every prompt, and drops none"
    for number in range(len(rows)):
        row = rows[number]
        turn = judged[row["extra_info"]["turn_id"]]
        assert row["index"] == number
        assert row["raw_prompt"] == [openai_message(m) for m in turn.session["messages"][: turn.index]]
        truth = turn.verdict["hint"] or turn.session["messages"][turn.index]["content"]
        assert row["reward_model"] == {"style": "model", "ground_truth": truth}
        assert row["data_source"] == "opdkit"
