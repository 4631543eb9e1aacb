"""Tests of `--device-map`: a teacher whose layers are on several devices, or on disk, gives the same log-probs."""

from functools import partial
from pathlib import Path

import pyarrow.parquet as pq
import pytest
import torch
from sample_world import DATA, MODEL

from opdkit.config.extract import ExtractConfig
from opdkit.config.judge import JudgeConfig
from opdkit.config.teacher import TeacherConfig
from opdkit.errors import ConfigError
from opdkit.extract import stage as extract
from opdkit.judge import stage as judge
from opdkit.model.load import find_input_device, load_model
from opdkit.teacher import models as policies
from opdkit.teacher import stage as teacher

SPREAD = {"model.embed_tokens": "cpu", "model.layers.0": "disk", "model.layers.1": "cpu", "model.layers.2": "disk",
          "model.layers.3": "cpu", "model.norm": "disk", "model.rotary_emb": "cpu", "lm_head": "cpu"}  # fmt: skip


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = tmp_path_factory.mktemp("map") / "run"
    extract.run(ExtractConfig(run=run, logs=(str(DATA / "logs" / "openai.jsonl"),), limit=6))
    judge.run(JudgeConfig(run=run, judge="rules"))
    return run


def targets(run: Path, **options: object) -> list[dict[str, object]]:
    teacher.run(TeacherConfig(run=run, model=str(MODEL), device="cpu", teacher_samples=0, overwrite=True, **options))
    rows: list[dict[str, object]] = pq.read_table(run / "teacher" / "targets").to_pylist()
    return rows


def spread(places: dict[str, str], name: str, **options: object):
    assert options["device_map"] == "auto"
    model = load_model(name, **(options | {"device_map": places}))
    assert len(set(model.hf_device_map.values())) > 1
    return model


@pytest.mark.slow
@pytest.mark.parametrize("turn_by_turn", [False, True])
def test_layers_that_wait_on_disk_give_the_same_rows(run, monkeypatch, turn_by_turn):
    plain = targets(run, turn_by_turn=turn_by_turn)
    assert any(row["teacher_logprobs"] for row in plain)
    monkeypatch.setattr(policies, "load_model", partial(spread, SPREAD))
    assert targets(run, turn_by_turn=turn_by_turn, device_map="auto") == plain


def test_where_everything_fits_the_option_changes_nothing(run, monkeypatch):
    plain, maps = targets(run), []
    monkeypatch.setattr(policies, "load_model", lambda name, **options: (
        maps.append(options["device_map"]), load_model(name, **options))[1])  # fmt: skip
    assert targets(run, device_map="auto") == plain
    assert maps == ["auto"]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_layers_on_a_gpu_and_on_the_cpu_give_the_same_rows(run, monkeypatch):
    plain = targets(run, dtype="float32")
    on = {name: "cpu" if place == "disk" else 0 for name, place in SPREAD.items()}
    monkeypatch.setattr(policies, "load_model", partial(spread, on))
    for ours, theirs in zip(targets(run, device_map="auto", dtype="float32"), plain, strict=True):
        assert ours["response_ids"] == theirs["response_ids"]
        assert ours["old_logprobs"] == pytest.approx(theirs["old_logprobs"], abs=1e-4)


def test_input_device_of_a_model_that_is_not_spread_is_its_own():
    model = load_model(str(MODEL), device="cpu", dtype="float32")
    assert find_input_device(model) == model.device == torch.device("cpu")


def test_what_does_not_go_with_it_is_refused(tmp_path, monkeypatch):
    with pytest.raises(ConfigError, match="--teacher-samples"):
        TeacherConfig(run=tmp_path, model="m", device_map="auto", teacher_samples=1)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    with pytest.raises(ConfigError, match="--device-map"):
        TeacherConfig(run=tmp_path, model="m", device_map="auto").check_inputs()
