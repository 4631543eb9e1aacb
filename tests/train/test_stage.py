"""Tests of training on toy targets: it learns, divides by whole steps, resumes, and refuses what it cannot do."""

import dataclasses
import importlib.util
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from itertools import pairwise
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from accelerate import Accelerator
from conftest import save_tiny_model
from safetensors.torch import load_file
from scored_runs import ALONE, Said, Toy, toy_sessions, train_and_kill, train_config, write_run
from transformers import AutoModelForCausalLM, AutoTokenizer

from opdkit.chat.template import Chat
from opdkit.commands import run as pipeline
from opdkit.config.run import RunConfig
from opdkit.errors import ConfigError, OpdkitError
from opdkit.model.load import load_model, load_tokenizer
from opdkit.model.scoring import PromptResponse, score
from opdkit.store.atomic import host_name
from opdkit.store.reading import read_all
from opdkit.train import stage as train
from opdkit.train import training_set
from opdkit.train.student import load_student
from opdkit.train.targets import load_prompts, load_targets

EVERYTHING = {"objective": "hybrid", "teacher_weight": 1.0, "divergence_weight": 0.5, "kl_coef": 0.1,
              "aggregation": "turn-mean"}  # fmt: skip


def losses(run: Path) -> list[float]:
    return [row["loss"] for row in read_all(run, "metrics")]


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return dict(AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).state_dict())


def shifts(run: Path, before: Path, after: Path) -> dict[str, list[np.ndarray]]:
    """Return turn id -> (turn, change of each token's log-prob from model `before` to model `after`)."""
    turns = load_targets(run)
    prompts = load_prompts(run, turns, Chat(load_tokenizer(str(before)), {}))
    sequences = [PromptResponse(prompts[t.turn_id].tolist(), t.response_ids.tolist()) for t in turns]
    values = [
        score(load_model(str(folder), device="cpu", dtype="float32"), sequences, batch_tokens=4096)
        for folder in (before, after)
    ]
    return {t.turn_id: (t, (b - a).numpy()) for t, a, b in zip(turns, *values, strict=True)}


# -- learning -------------------------------------------------------------------------------------------------------


def test_opd_moves_the_student_towards_the_teacher(run, plain_model_dir) -> None:
    summary = train.run(train_config(run, plain_model_dir, epochs=4))
    assert summary.parts_done == 1
    assert losses(run)[-1] < losses(run)[0]
    hinted = [
        (t, d) for t, d in shifts(run, plain_model_dir, run / "train/model").values() if t.teacher_logprobs is not None
    ]
    advantage = np.concatenate([(t.teacher_logprobs - t.old_logprobs)[t.sampled] for t, _ in hinted])
    moved = np.concatenate([d[t.sampled] for t, d in hinted])
    assert moved[advantage > 0.2].mean() > 0.05
    assert moved[advantage < -0.2].mean() < -0.05


def test_binary_raises_good_replies_and_lowers_bad_ones(run, plain_model_dir) -> None:
    train.run(train_config(run, plain_model_dir, objective="binary", epochs=4))
    changes = shifts(run, plain_model_dir, run / "train/model").values()
    moved = {r: [d[t.sampled].mean() for t, d in changes if t.reward == r] for r in (1, -1)}
    assert np.mean(moved[1]) > 0.05
    assert np.mean(moved[-1]) < -0.05
    row = next(iter(read_all(run, "metrics")))
    assert row["teacher_loss"] is None
    assert row["teacher_advantage"] is None
    assert row["teacher_tokens"] == 0


def test_combine_trains_on_both(run, plain_model_dir) -> None:
    train.run(train_config(run, plain_model_dir, objective="combine", reward_weight=0.5, epochs=2))
    rows = list(read_all(run, "metrics"))
    for r in rows:
        assert r["loss"] == pytest.approx((r["reward_loss"] or 0) + (r["teacher_loss"] or 0), abs=1e-6)
        assert (r["teacher_loss"] is None) == (r["teacher_tokens"] == 0)  # a step may hold no hinted turn
    assert any(r["reward_tokens"] and r["teacher_tokens"] for r in rows)


def test_the_first_step_is_on_policy(run, plain_model_dir) -> None:
    """The log-probs of the first step are the teacher stage's: ratio 1, KL 0, nothing clipped."""
    train.run(train_config(run, plain_model_dir, batch_turns=100))
    (row,) = read_all(run, "metrics")
    hinted = [t for t in load_targets(run) if t.teacher_logprobs is not None]
    advantages = np.concatenate([(t.teacher_logprobs - t.old_logprobs)[t.sampled].clip(-1, 1) for t in hinted])
    assert row["teacher_tokens"] == len(advantages)
    assert row["teacher_advantage"] == pytest.approx(advantages.mean(), abs=1e-6)
    assert row["approx_kl"] == pytest.approx(0, abs=1e-8)
    assert row["clip_fraction"] == 0
    assert row["loss"] == pytest.approx(-row["teacher_advantage"], abs=1e-6)


def test_a_turn_without_a_hint_leaves_no_trace(tmp_path, plain_model_dir) -> None:
    """The teacher's objective ignores turns without a hint: the weights are the same with and without such turns."""
    hinted = [Toy(f"h{n}", [Said("green old", None, "Say more.")]) for n in range(4)]
    plain = [Toy(f"p{n}", [Said("blue", 1)]) for n in range(4)]
    for name, toys in (("with", hinted + plain), ("without", hinted)):
        write_run(tmp_path / name, plain_model_dir, toys)
        summary = train.run(train_config(tmp_path / name, plain_model_dir))
        assert summary.counters.rows_out == 4
    assert summary.counters.dropped == {}
    a, b = weights(tmp_path / "with/train/model"), weights(tmp_path / "without/train/model")
    assert all(torch.equal(a[k], b[k]) for k in a)


def test_teacher_equal_to_student_changes_nothing(tmp_path, plain_model_dir, capsys) -> None:
    run = write_run(tmp_path / "run", plain_model_dir, toy_sessions(4), support=0)
    path = run / "teacher/targets/part-00000.parquet"
    table = pq.read_table(path)
    old = table["old_logprobs"].to_pylist()
    rows = [o if t is not None else None for o, t in zip(old, table["teacher_logprobs"].to_pylist(), strict=True)]
    index = table.schema.get_field_index("teacher_logprobs")
    pq.write_table(
        table.set_column(index, table.schema.field(index), pa.array(rows, table.schema.field(index).type)), path
    )
    summary = train.run(train_config(run, plain_model_dir, weight_decay=0.1))
    assert losses(run) == [0.0, 0.0]
    assert [row["skipped"] for row in read_all(run, "metrics")] == [True, True]
    assert summary.counters.total("steps without a gradient") == 2
    assert "--learning-rate" not in capsys.readouterr().err, "a higher one would change nothing either"
    before, after = weights(plain_model_dir), weights(run / "train/model")
    assert all(torch.equal(before[k], after[k]) for k in before)


def test_a_step_without_advantages_changes_no_weight(tmp_path, plain_model_dir, monkeypatch) -> None:
    """The step is skipped, as momentum and weight decay would move the weights; the schedule continues."""
    run = write_run(tmp_path / "run", plain_model_dir, [Toy(f"t{n}", [Said("red blue", n % 2)]) for n in range(8)])
    step, kept = train.take_optimizer_step, []

    def recorded(training, *args):
        kept.append([p.detach().clone() for p in training.model.parameters()])
        return step(training, *args)

    monkeypatch.setattr(train, "take_optimizer_step", recorded)
    options = {"objective": "binary", "batch_turns": 1, "weight_decay": 0.1, "epochs": 2, "learning_rate": 1e-4}
    summary = train.run(train_config(run, plain_model_dir, **options))
    rows = list(read_all(run, "metrics"))
    reward = {t.turn_id: t.reward for t in load_targets(run)}
    assert [row["skipped"] for row in rows] == [not reward[row["turn_ids"][0]] for row in rows]
    assert [row["grad_norm"] == 0 for row in rows] == [row["skipped"] for row in rows]
    same = [all(map(torch.equal, before, after)) for before, after in pairwise(kept)]
    assert same == [row["skipped"] for row in rows[:-1]]
    assert True in same[same.index(False) :], "no such step after momentum had built up"
    assert summary.counters.total("steps without a gradient") == 8
    rates = [row["learning_rate"] for row in rows]
    assert all(later < earlier for earlier, later in pairwise(rates))


def test_the_length_penalty_is_in_the_metrics(run, tmp_path, plain_model_dir, monkeypatch) -> None:
    """Metrics and trackers get its mean over the replies with a reward in a step, and null if it is off."""
    off, logged = Path(shutil.copytree(run, tmp_path / "off")), []
    monkeypatch.setattr(Accelerator, "log", lambda _self, values, step: logged.append(values))
    options = {"objective": "binary", "overlong_max": 12, "overlong_cache": 8, "overlong_shape": "quadratic"}
    train.run(train_config(run, plain_model_dir, **options))
    sizes = {t.turn_id: int(t.sampled.sum()) for t in load_targets(run) if t.reward is not None}
    rows = list(read_all(run, "metrics"))
    for row in rows:
        used = [min(max((sizes[i] - 4) / 8, 0), 1) for i in row["turn_ids"]]
        assert row["length_penalty"] == pytest.approx(-np.mean([x**2 for x in used]))
    assert len({row["length_penalty"] for row in rows}) > 1
    assert [values["length_penalty"] for values in logged] == [row["length_penalty"] for row in rows]
    train.run(train_config(off, plain_model_dir, objective="binary"))
    assert {row["length_penalty"] for row in read_all(off, "metrics")} == {None}


# -- splitting a step -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("options", [{"objective": "combine"}, EVERYTHING], ids=["combine", "everything"])
def test_micro_batches_change_nothing_but_rounding(run, tmp_path, plain_model_dir, options) -> None:
    """Each term is divided by its positions in the whole step, with one turn per forward or the whole step in one."""
    other = Path(shutil.copytree(run, tmp_path / "other"))
    train.run(train_config(run, plain_model_dir, micro_batch_tokens=1, **options))
    train.run(train_config(other, plain_model_dir, micro_batch_tokens=100_000, **options))
    timed = ("seconds", "tokens_per_second")
    for rows in zip(read_all(run, "metrics"), read_all(other, "metrics"), strict=True):
        assert rows[0].pop("turn_ids") == rows[1].pop("turn_ids")
        assert {k for k, v in rows[0].items() if v is None} == {k for k, v in rows[1].items() if v is None}
        a, b = ({k: v for k, v in row.items() if v is not None and k not in timed} for row in rows)
        # In the first step only rounding differs; later, what the optimizer made of it, too. How much depends on the
        # CPU: 1.1e-5 were seen on a CPU without AVX-512.
        close = 1e-6 if rows[0]["step"] == 1 else 3e-5
        assert a == pytest.approx(b, rel=close, abs=close)


@pytest.mark.slow
def test_begun_by_two_processes_ended_by_one(run, tmp_path, plain_model_dir) -> None:
    """SIGTERM to `torchrun` stops both after a step; one process resumes, with the losses of an unbroken training."""
    other = Path(shutil.copytree(run, tmp_path / "other"))
    options = EVERYTHING | {"batch_turns": 3, "micro_batch_tokens": 64, "epochs": 10, "learning_rate": 1e-3}
    train.run(train_config(run, plain_model_dir, **options))
    flags = [x for k, v in (ALONE | options | {"device": "cpu"}).items() for x in (f"--{k.replace('_', '-')}", str(v))]
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--standalone",
               "-m", "opdkit", "train", str(other), "--model", str(plain_model_dir), *flags]  # fmt: skip
    log = tmp_path / "said"
    with log.open("w") as said:
        launcher = subprocess.Popen(command, env=os.environ | {"OMP_NUM_THREADS": "1"}, stdout=said, stderr=said)
        end = time.monotonic() + 600
        while time.monotonic() < end and launcher.poll() is None and "tokens/s" not in log.read_text():
            time.sleep(0.01)
        launcher.send_signal(signal.SIGTERM)
        assert launcher.wait(timeout=600), "a launcher has an exit code of its own"
    assert log.read_text().count("stopping after step") == 1
    assert [p.suffix for p in (other / "train/checkpoints").iterdir()] == [".pt"]
    train.run(train_config(other, plain_model_dir, **options))
    assert losses(other)[0] == pytest.approx(losses(run)[0], abs=1e-6)
    assert losses(other) == pytest.approx(losses(run), abs=1e-5)
    a, b = weights(run / "train/model"), weights(other / "train/model")
    assert all(torch.allclose(a[k], b[k], atol=1e-4) for k in a)


def test_two_trainings_of_one_run_do_not_mix(run, plain_model_dir) -> None:
    """A process at work on this machine is named in the error; the mark of a process that is gone is no obstacle."""
    at_work = subprocess.Popen(["sleep", "60"])
    mark = run / "train" / ".tmp" / f"metrics-00000-5f3a9c1e-{host_name()}-{at_work.pid}.running"
    mark.parent.mkdir(parents=True)
    mark.touch()
    with pytest.raises(OpdkitError, match=f"process {at_work.pid} "):
        train.run(train_config(run, plain_model_dir))
    at_work.kill()
    at_work.wait()
    assert train.run(train_config(run, plain_model_dir)).parts_done == 1


# -- resume ---------------------------------------------------------------------------------------------------------


def test_a_killed_run_goes_on_to_the_same_end(run, tmp_path, plain_model_dir, monkeypatch) -> None:
    """The old policy is still that of the targets, and no step is missing or repeated in the metrics."""
    other = Path(shutil.copytree(run, tmp_path / "other"))
    options = {"objective": "combine", "checkpoint_every": 2, "epochs": 2, "schedule": "cosine", "warmup_steps": 2}
    train.run(train_config(run, plain_model_dir, **options))
    train_and_kill(train_config(other, plain_model_dir, **options), 5, monkeypatch)
    assert not (other / "train/metrics").exists()
    assert not (other / "train/model").exists()
    assert [p.name for p in (other / "train/checkpoints").iterdir()] == ["step-00000004.pt"]
    (other / "train/checkpoints/step-00000006.pt").write_bytes(b"half a file")  # as another kind of crash leaves it
    train.run(train_config(other, plain_model_dir, **options))
    timed = ("seconds", "tokens_per_second")
    a, b = ([{k: v for k, v in r.items() if k not in timed} for r in read_all(x, "metrics")] for x in (run, other))
    assert a == b
    assert [r["step"] for r in b] == list(range(1, len(b) + 1))
    a, b = weights(run / "train/model"), weights(other / "train/model")
    assert all(torch.equal(a[k], b[k]) for k in a)
    assert not (other / "train/checkpoints").exists()


def test_a_finished_run_is_not_trained_again(run, plain_model_dir, capsys) -> None:
    train.run(train_config(run, plain_model_dir))
    written = (run / "train/model/model.safetensors").stat().st_mtime_ns
    summary = train.run(train_config(run, plain_model_dir))
    assert (run / "train/model/model.safetensors").stat().st_mtime_ns == written
    assert summary.counters.total("steps") == len(losses(run))
    capsys.readouterr()
    with pytest.raises(ConfigError, match="--overwrite"):
        train.run(train_config(run, plain_model_dir, epochs=2))
    assert "optimizer step" not in capsys.readouterr().err, "refused before it says what would be trained"
    train.run(train_config(run, plain_model_dir, epochs=2, overwrite=True))
    assert len(losses(run)) > summary.counters.total("steps")


# -- what comes out -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("limit", "is_little"), [(None, False), (4, True)])
def test_it_says_where_the_model_is_and_when_there_was_little_to_learn_from(
    run, plain_model_dir, capsys, limit: int | None, is_little: bool
) -> None:
    trained = train.run(train_config(run, plain_model_dir, limit=limit)).counters.rows_out
    said = " ".join(capsys.readouterr().err.split())
    assert str(run / "train" / "model") in said
    assert ("opdkit report" in said) == (trained < 10) == is_little


def test_it_measures_how_far_the_model_moved(run, plain_model_dir, capsys) -> None:
    """The last step's shift is the mean absolute change of the trained tokens' log-probs after the epoch before it."""
    options = {"batch_turns": 100, "epochs": 4, "keep_epochs": True, "learning_rate": 3e-3}
    train.run(train_config(run, plain_model_dir, **options))
    changes = shifts(run, plain_model_dir, run / "train/epochs/003/model").values()
    moved = np.concatenate([np.abs(d[t.sampled]) for t, d in changes if t.teacher_logprobs is not None])
    rows = list(read_all(run, "metrics"))
    assert rows[0]["shift"] == pytest.approx(0, abs=1e-6)
    assert rows[-1]["shift"] == pytest.approx(moved.mean(), rel=1e-4)
    assert f"moved by {moved.mean():.4f} nats" in " ".join(capsys.readouterr().err.split())


@pytest.mark.parametrize(("rate", "names"), [(1e-6, ["--learning-rate", "--epochs"]), (2e-4, []),
                                             (3e-2, ["--learning-rate", "opdkit eval"])])  # fmt: skip
def test_it_warns_when_the_model_hardly_moved_or_moved_far(run, plain_model_dir, capsys, rate, names) -> None:
    """The warning does not depend on the number of steps, of which there are few here."""
    train.run(train_config(run, plain_model_dir, objective="blend", learning_rate=rate))
    said = capsys.readouterr().err
    assert len(list(read_all(run, "metrics"))) < 10
    assert all(name in said for name in names)
    assert names or not any(name in said for name in ("--learning-rate", "--epochs", "--batch-turns"))


def test_the_model_loads_as_any_other(run, plain_model_dir) -> None:
    train.run(train_config(run, plain_model_dir))
    model = AutoModelForCausalLM.from_pretrained(run / "train/model")
    before = AutoModelForCausalLM.from_pretrained(plain_model_dir)
    assert model.dtype == before.dtype
    assert model.generation_config.eos_token_id == before.generation_config.eos_token_id
    tokenizer = AutoTokenizer.from_pretrained(run / "train/model")
    original = AutoTokenizer.from_pretrained(plain_model_dir)
    assert tokenizer.chat_template == original.chat_template
    assert tokenizer.get_vocab() == original.get_vocab()
    assert any(not torch.equal(a, b) for a, b in zip(model.parameters(), before.parameters(), strict=True))


@pytest.mark.parametrize("lora_rank", [0, 4])
def test_the_model_of_every_epoch_is_kept(run, tmp_path, plain_model_dir, lora_rank) -> None:
    """The model of epoch 1 of 2 is that of a training of 1 epoch, and keeping it does not change the last model."""
    shorter, plain = (Path(shutil.copytree(run, tmp_path / name)) for name in ("shorter", "plain"))
    options = {"lora_rank": lora_rank, "schedule": "constant"}
    train.run(train_config(run, plain_model_dir, epochs=2, keep_epochs=True, **options))
    train.run(train_config(shorter, plain_model_dir, epochs=1, **options))
    train.run(train_config(plain, plain_model_dir, epochs=2, **options))
    for kept, whole in (("001", shorter), ("002", plain)):
        found, expected = weights(run / "train/epochs" / kept / "model"), weights(whole / "train/model")
        assert all(torch.equal(found[k], expected[k]) for k in expected)
    assert sorted(p.name for p in (run / "train/epochs").iterdir()) == ["001", "002"]
    assert not (plain / "train/epochs").exists()


def test_lora_merges_into_a_plain_model_and_keeps_its_adapter(run, plain_model_dir) -> None:
    peft = pytest.importorskip("peft")
    train.run(train_config(run, plain_model_dir, lora_rank=4, lora_alpha=8.0))
    merged = weights(run / "train/model")
    base = AutoModelForCausalLM.from_pretrained(plain_model_dir, dtype=torch.float32)
    adapted = peft.PeftModel.from_pretrained(base, run / "train/adapter").merge_and_unload().state_dict()
    assert merged.keys() == adapted.keys()
    assert all(torch.allclose(merged[k], adapted[k], atol=1e-6) for k in merged)
    plain = weights(plain_model_dir)
    assert {k for k in plain if not torch.equal(plain[k], merged[k])}
    assert torch.equal(plain["model.norm.weight"], merged["model.norm.weight"])
    served = AutoModelForCausalLM.from_pretrained(run / "train/model", dtype=torch.float32).state_dict()
    assert all(torch.equal(served[k], merged[k]) for k in merged)
    assert AutoTokenizer.from_pretrained(run / "train/model").chat_template
    # vLLM can add the adapter to a base model: it has PEFT's format, and nothing but pairs of matrices.
    described = json.loads((run / "train/adapter/adapter_config.json").read_text())
    expected = {
        "peft_type": "LORA",
        "r": 4,
        "lora_alpha": 8.0,
        "bias": "none",
        "modules_to_save": None,
        "use_dora": False,
    }
    assert {name: described[name] for name in expected} == expected
    assert described["target_modules"] == sorted(described["target_modules"])  # the same bytes from every process
    pairs = load_file(run / "train/adapter/adapter_model.safetensors")
    assert {name.rpartition(".lora_")[2] for name in pairs} == {"A.weight", "B.weight"}


def test_lora_without_peft_says_what_to_install(run, plain_model_dir, monkeypatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"pip install peft$"):
        train.run(train_config(run, plain_model_dir, lora_rank=4))
    nothing_read_yet = RunConfig(
        run=run / "new", logs=("none",), model="none", judge="rules", set=("train.lora_rank=4",)
    )
    with pytest.raises(ConfigError, match=r"pip install peft$"):
        pipeline.run(nothing_read_yet)


def test_gradient_checkpointing_and_bfloat16_train_too(run, tmp_path, plain_model_dir, monkeypatch) -> None:
    students = []
    monkeypatch.setattr(train, "load_student", lambda *a, **k: students.append(load_student(*a, **k)) or students[-1])
    runs = [run, *(Path(shutil.copytree(run, tmp_path / name)) for name in ("recomputed", "bfloat16"))]
    for where, options in zip(runs, ({}, {"gradient_checkpointing": True}, {"dtype": "bfloat16"}), strict=True):
        train.run(train_config(where, plain_model_dir, **options))
    recomputed = [any(getattr(m, "gradient_checkpointing", False) for m in student.modules()) for student in students]
    assert recomputed == [False, True, False]
    assert losses(runs[1]) == pytest.approx(losses(runs[0]), abs=1e-6)
    assert losses(runs[2]) == pytest.approx(losses(runs[0]), abs=0.1)
    assert losses(runs[2]) != losses(runs[0])
    assert {w.dtype for w in weights(runs[2] / "train/model").values()} == {torch.float32}


def test_held_out_sessions_and_the_limit_are_counted(run, plain_model_dir) -> None:
    summary = train.run(train_config(run, plain_model_dir, objective="combine", holdout=0.5, limit=7))
    c = summary.counters
    assert c.rows_in == 14
    assert c.dropped["held out"] > 0
    assert c.rows_in == c.rows_out + c.dropped.total()
    assert sum(r["turns"] for r in read_all(run, "metrics")) == c.rows_out


def test_tracker_logs_the_steps(run, plain_model_dir) -> None:
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    train.run(train_config(run, plain_model_dir, tracker="tensorboard"))
    events = EventAccumulator(str(run / "train" / "opdkit")).Reload()
    assert [event.value for event in events.Scalars("loss")] == pytest.approx(losses(run))


def test_a_tracker_gets_numbers_and_settings_and_no_names(run, plain_model_dir, monkeypatch) -> None:
    """Turn ids hold the names of files and sessions, and a model or a reference is a path, so none is logged."""
    logged, settings, find_spec = [], [], importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *rest: name == "wandb" or find_spec(name, *rest))
    monkeypatch.setattr(Accelerator, "log", lambda _self, values, step: logged.append(values))
    monkeypatch.setattr(Accelerator, "init_trackers", lambda _self, _name, *values: settings.extend(values))
    model = str(plain_model_dir)
    train.run(train_config(run, plain_model_dir, tracker="wandb", reference=model, kl_coef=0.1, device="cpu"))
    assert all(isinstance(value, int | float) for values in logged for value in values.values())
    assert {"loss", "learning_rate", "skipped"} <= logged[0].keys()
    assert (settings[0]["objective"], settings[0]["kl_coef"], settings[0]["gradient_checkpointing"]) == ("opd", 0.1, 0)
    assert not any(name in str((logged, settings)) for name in ("toy-", model, str(run)))
    # Otherwise W&B adds what the command prints, with turn ids, and its arguments.
    wandb = settings[1]["wandb"]["settings"]
    assert (wandb["console"], wandb["x_disable_meta"], wandb["x_disable_machine_info"]) == ("off", True, True)


# -- what it refuses ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("options", "message"), [
    ({"objective": "odp"}, "'opd'"), ({"shard": "0/2"}, "torchrun"), ({"dtype": "float16"}, "bfloat16"),
    ({"template_arg": ("enable_thinking=false",)}, "--template-arg"), ({"epochs": 0}, "--epochs"),
    ({"dual_clip": 0.5}, "--dual-clip"), ({"overlong_max": 100}, "--overlong-cache"),
    ({"divergence_alpha": 1.5}, "--divergence-alpha"), ({"kl_estimator": "k4"}, "k1, k2, k3"),
    ({"order": "easy"}, "easy-first"), ({"aggregation": "sum"}, "token-mean"),
    ({"group_scale": "none"}, "--group-normalise"),
])  # fmt: skip
def test_wrong_options_are_refused(run, plain_model_dir, options, message) -> None:
    with pytest.raises(ConfigError, match=message):
        train.run(train_config(run, plain_model_dir, **options))
    assert not (run / "train").exists()


def test_processes_without_a_launcher_are_refused(run, plain_model_dir, monkeypatch) -> None:
    for name, value in {"RANK": "0", "WORLD_SIZE": "2"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("MASTER_ADDR", raising=False)
    with pytest.raises(ConfigError, match="WORLD_SIZE is 2, but MASTER_ADDR"):
        train.run(train_config(run, plain_model_dir))


def test_a_tracker_that_does_not_start_says_so_itself(run, plain_model_dir, monkeypatch) -> None:
    """W&B without a key is reported in the tracker's own words, and not as a bug in opdkit."""
    find_spec = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *rest: name == "wandb" or find_spec(name, *rest))

    def refuse(*_: object) -> None:
        raise RuntimeError("No API key configured. Use `wandb login` to log in.")

    monkeypatch.setattr(Accelerator, "init_trackers", refuse)
    with pytest.raises(OpdkitError, match=r"--tracker wandb: .*wandb login"):
        train.run(train_config(run, plain_model_dir, tracker="wandb", device="cpu"))


def test_a_missing_tracker_is_refused(run, plain_model_dir, monkeypatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ConfigError, match="pip install wandb"):
        train.run(train_config(run, plain_model_dir, tracker="wandb"))


def test_another_student_is_refused(run, tmp_path, plain_tokenizer) -> None:
    """The student must be the model that was scored, compared by its files and not by its path."""
    with pytest.raises(ConfigError, match=r"opdkit teacher OTHER_RUN --model '.*an other'"):
        train.run(train_config(run, save_tiny_model(tmp_path / "an other", plain_tokenizer, seed=1)))
    same = save_tiny_model(tmp_path / "the-same", plain_tokenizer, seed=0)
    train.run(train_config(run, same))
    with pytest.raises(ConfigError, match=f"the teacher stage of {run} scored"):  # and not of the training
        train.run(train_config(run, same, name="b", lora_rank=4, load_in_4bit=True))


def test_a_training_resumes_with_a_student_that_was_moved(run, tmp_path, plain_model_dir, monkeypatch) -> None:
    options = {"epochs": 2, "checkpoint_every": 1}
    train_and_kill(train_config(run, plain_model_dir, **options), 2, monkeypatch)
    moved = Path(shutil.copytree(plain_model_dir, tmp_path / "moved"))
    step, taken = train.take_optimizer_step, []
    monkeypatch.setattr(train, "take_optimizer_step", lambda *args: taken.append(step(*args)) or taken[-1])
    train.run(train_config(run, moved, **options))
    assert len(taken) == len(losses(run)) - 2 > 0


def test_no_signal_says_what_to_do_and_pins_nothing(tmp_path, plain_model_dir) -> None:
    run = write_run(tmp_path / "run", plain_model_dir, [Toy(f"t{n}", [Said("red", 0)]) for n in range(3)])
    with pytest.raises(OpdkitError, match=r"no hint 3.*--objective binary"):
        train.run(train_config(run, plain_model_dir))
    with pytest.raises(OpdkitError, match="3 rewards"):
        train.run(train_config(run, plain_model_dir, objective="binary"))
    short = write_run(tmp_path / "short", plain_model_dir, [Toy("short", [Said("red", None, "Say more.")])])
    with pytest.raises(OpdkitError, match="skipped 1"):
        train.run(train_config(short, plain_model_dir, skip_first=50))
    with pytest.raises(ConfigError, match="--objective"):
        train.run(train_config(run, plain_model_dir, teacher_weight=0.0))
    assert not (run / "train").exists()


def test_a_loss_that_is_not_finite_stops_before_the_step(run, plain_model_dir, monkeypatch) -> None:
    load, seen = train.load_student, []

    def broken(config, **options):
        model = load(config, **options)
        with torch.no_grad():
            model.model.norm.weight[0] = float("nan")
        seen.append((model, {k: v.clone() for k, v in model.state_dict().items()}))
        return model

    monkeypatch.setattr(train, "load_student", broken)
    with pytest.raises(OpdkitError, match=r"toy-\d+:\d"):
        train.run(train_config(run, plain_model_dir))
    model, before = seen[0]
    assert all(torch.equal(v.nan_to_num(7.0), before[k].nan_to_num(7.0)) for k, v in model.state_dict().items())
    assert not (run / "train/metrics").exists()


def test_the_turn_whose_loss_is_not_finite_is_named(tmp_path, plain_model_dir, monkeypatch) -> None:
    """One turn alone has a token whose embedding is NaN; each turn has a forward of its own."""
    toys = [Toy("a", [Said("red", 1)]), Toy("b", [Said("blue", -1)])]
    run, load = write_run(tmp_path / "run", plain_model_dir, toys), train.load_student
    unique = {turn.turn_id: {*turn.response_ids.tolist()} for turn in load_targets(run)}
    token = min(unique["b:1"] - unique["a:1"])

    def broken(config, **options):
        model = load(config, **options)
        with torch.no_grad():
            model.get_input_embeddings().weight[token] = float("nan")
        return model

    monkeypatch.setattr(train, "load_student", broken)
    with pytest.raises(OpdkitError, match="loss is nan") as caught:
        train.run(train_config(run, plain_model_dir, objective="binary", micro_batch_tokens=1, batch_turns=100))
    assert re.findall(r"\b[ab]:1\b", str(caught.value)) == ["b:1"]


def test_a_prompt_of_another_length_is_no_prompt_that_was_scored(run, plain_model_dir, monkeypatch) -> None:
    """Training takes exactly the tokens that were scored, and fails if the prompt renders differently."""
    monkeypatch.setattr(training_set, "load_targets", lambda *a, **b: [
        dataclasses.replace(t, prompt_tokens=t.prompt_tokens + 1) for t in load_targets(*a, **b)])  # fmt: skip
    with pytest.raises(OpdkitError, match=r"turn toy-.*--overwrite"):
        train.run(train_config(run, plain_model_dir))


def test_the_prompts_of_a_session_share_their_memory(tmp_path, plain_model_dir, monkeypatch) -> None:
    """A prompt with written replies is encoded once. A prompt that begins no later one has its own memory."""
    toy, places = Toy("a", [Said("red blue", -1, "Say it in blue letters.")] * 6), range(1, 12, 2)
    run = write_run(tmp_path / "run", plain_model_dir, [toy], samples=2)
    chat, encoded = Chat(load_tokenizer(str(plain_model_dir)), {}), []
    encode = chat.prompt_ids
    monkeypatch.setattr(chat, "prompt_ids", lambda messages, tools: encoded.append(0) or encode(messages, tools))
    for beginning, memories in (("", 1), ("{{ messages | length }}", 6)):
        chat.tokenizer.chat_template = beginning + chat.tokenizer.chat_template
        expected = {f"a:{n}": encode(toy.messages()[:n]) for n in places}
        turns = [dataclasses.replace(t, prompt_tokens=len(expected[t.turn_id])) for t in load_targets(run)]
        prompts = load_prompts(run, turns, chat)
        assert {turn_id: ids.tolist() for turn_id, ids in prompts.items()} == expected
        assert len({ids.__array_interface__["data"] for ids in prompts.values()}) == memories
    assert len(turns) > len(expected) == len(encoded) / 2


def test_one_reply_is_no_several(run, plain_model_dir, capsys) -> None:
    train.run(train_config(run, plain_model_dir, max_turns_per_session=1, limit=1))
    assert "1 reply teaches little" in capsys.readouterr().err


def test_a_prompt_that_no_longer_renders_says_what_to_do(run, plain_model_dir) -> None:
    chat = Chat(load_tokenizer(str(plain_model_dir)), {})
    chat.tokenizer.chat_template = "{{ raise_exception('no such role') }}"
    with pytest.raises(OpdkitError, match=r"turn toy-.*no such role.*--overwrite"):
        load_prompts(run, load_targets(run), chat)
