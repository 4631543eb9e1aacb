"""Tests that two processes that share the weights (FSDP2 over gloo) train, stop and resume as one process does."""

import shutil
import signal
import threading
import time
from pathlib import Path

import pytest
import torch
from accelerate import Accelerator
from conftest import save_tiny_model
from forked import Forked, ranks
from sample_world import MODEL
from scored_runs import ALONE, Said, Toy, toy_sessions, train_config, write_run
from transformers import AutoModelForCausalLM

from opdkit.chat.template import Chat
from opdkit.errors import ConfigError
from opdkit.model.load import load_tokenizer
from opdkit.model.scoring import PromptResponse
from opdkit.store import stopping
from opdkit.store.reading import read_all
from opdkit.train import stage as train
from opdkit.train.forwards import plan_forwards
from opdkit.train.targets import load_prompts, load_targets

OPTIONS = {"objective": "opd", "batch_turns": 6, "micro_batch_tokens": 96, "epochs": 8, "learning_rate": 2e-3,
           "kl_coef": 0.1, "device": "cpu"}  # fmt: skip
COUNTED = ("step", "replies", "tokens_read", "ended", "looped", "forgotten")  # columns of `validations`
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def uneven(tmp_path_factory, plain_model_dir) -> Path:
    """Write sessions of one, two and three replies, so that the processes read shares of different sizes in a step."""
    toys = [Toy(f"{toy.name}-{n}", toy.replies) for n in (1, 2, 3) for toy in toy_sessions(3, n)]
    return write_run(tmp_path_factory.mktemp("uneven") / "run", plain_model_dir, toys)


def words(run: Path, model: Path, **options: object) -> list[str]:
    given = (ALONE | OPTIONS | options).items()
    flags = [x for name, value in given for x in (f"--{name.replace('_', '-')}", str(value))[: 1 + (value is not True)]]
    return ["train", str(run), "--model", str(model), *flags]


def finish(processes: list[Forked], code: int = 0) -> None:
    ends = [process.end() for process in processes]
    assert [end for end, _ in ends] == [code] * len(processes), "\n".join(said for _, said in ends)


def weights(run: Path) -> dict[str, torch.Tensor]:
    return dict(AutoModelForCausalLM.from_pretrained(run / "train/model", dtype=torch.float32).state_dict())


def forwards(run: Path, model: Path) -> set[tuple[int, int]]:
    """Return the distinct pairs, over all steps, of the two processes' numbers of non-empty forwards."""
    turns = load_targets(run)
    prompts = load_prompts(run, turns, Chat(load_tokenizer(str(model)), {}))
    by_id, found = {turn.turn_id: turn for turn in turns}, set()
    for row in read_all(run, "metrics"):
        batch = [by_id[i] for i in row["turn_ids"]]
        sequences = [PromptResponse(prompts[t.turn_id].tolist(), t.response_ids.tolist()) for t in batch]
        sessions = [t.session_id for t in batch]
        shares = [
            plan_forwards(sequences, sessions, OPTIONS["micro_batch_tokens"], k, 2, packed=True) for k in range(2)
        ]
        found.add(tuple(sum(map(bool, forwards_of_process)) for forwards_of_process, _ in shares))
    return found


def test_two_processes_are_one_with_and_without_sharding(uneven, tmp_path, plain_model_dir, plain_tokenizer) -> None:
    """Losses are those of one process except for rounding, over more than 20 steps whose forwards differ in number.

    The reference of the KL is another model, of which each process reads a share of the turns.
    """
    one, copies, shares = (Path(shutil.copytree(uneven, tmp_path / name)) for name in ("one", "copies", "shares"))
    reference = save_tiny_model(tmp_path / "reference", plain_tokenizer, seed=1)
    options = OPTIONS | {"reference": str(reference), "learning_rate": 5e-3, "step_limit": 1e-3, "epsilon": 0.1,
                         "anchor_weight": 0.1}  # fmt: skip
    train.run(train_config(one, plain_model_dir, **options))
    finish(ranks(*[words(copies, plain_model_dir, **options)] * 2, logs=tmp_path / "said"))
    sharded = options | {"sharding": "fsdp", "checkpoint_every": 3}
    finish(ranks(*[words(shares, plain_model_dir, **sharded)] * 2, logs=tmp_path / "said"))
    assert any(a != b for a, b in forwards(one, plain_model_dir)), "each process had as much to do: tested little"
    expected = list(read_all(one, "metrics"))
    assert len(expected) > 20
    for run in (copies, shares):
        rows = list(read_all(run, "metrics"))
        assert [row["turn_ids"] for row in rows] == [row["turn_ids"] for row in expected]
        for name in ("loss", "kl_loss", "grad_norm", "entropy", "approx_kl", "learning_rate"):
            # The KL of a step is a difference of float32 sums: the rates carry the rounding of its square root.
            assert [row[name] for row in rows] == pytest.approx([row[name] for row in expected], rel=3e-4, abs=1e-5)
        found, wanted = weights(run), weights(one)
        assert all(torch.allclose(found[name], wanted[name], atol=1e-4) for name in wanted)
        assert not (run / "train/checkpoints").exists()
        assert (run / "train/model/README.md").read_text() == (one / "train/model/README.md").read_text()


def test_processes_that_share_the_weights_validate_as_one_does(tmp_path, plain_model_dir) -> None:
    """Counts and distances are the same, and the weights of the same best state are written."""
    toys = [Toy(f"toy-{n}", [Said("red blue green", n % 2 or -1)]) for n in range(60)]
    one = write_run(tmp_path / "one", plain_model_dir, toys)
    two = Path(shutil.copytree(one, tmp_path / "two"))
    options = OPTIONS | {"validate": 8, "epochs": 3, "batch_turns": 8, "learning_rate": 1e-4, "checkpoint_every": 2,
                         "epsilon": 0.1, "objective": "binary"}  # fmt: skip
    train.run(train_config(one, plain_model_dir, **options))
    finish(ranks(*[words(two, plain_model_dir, **options, sharding="fsdp")] * 2, logs=tmp_path / "said"))
    expected, found = (list(read_all(run, "validations")) for run in (one, two))
    assert len(expected) > 3
    for row, wanted in zip(found, expected, strict=True):
        assert [row[name] for name in COUNTED] == [wanted[name] for name in COUNTED]
        assert row["kept_kl"] == pytest.approx(wanted["kept_kl"], rel=1e-2, abs=1e-5)
    assert expected[-1]["kept_kl"] > 0
    trained, wanted = weights(two), weights(one)
    assert all(torch.allclose(trained[name], wanted[name], atol=1e-4) for name in wanted)


def test_all_processes_agree_that_a_step_has_nothing_to_learn(tmp_path, plain_model_dir) -> None:
    """If one process has a gradient and the other none, both step; if none has a gradient, neither steps."""
    toys = [Toy(f"t{n}", [Said("red blue green", n % 3 - 1)]) for n in range(12)]
    one = write_run(tmp_path / "one", plain_model_dir, toys)
    two = Path(shutil.copytree(one, tmp_path / "two"))
    options = {"objective": "binary", "batch_turns": 2, "batch_by": "turn", "learning_rate": 1e-4, "epochs": 2,
               "weight_decay": 0.5, "negative_below": 1.0, "device": "cpu"}  # fmt: skip
    train.run(train_config(one, plain_model_dir, **options))
    flags = [x for k, v in (ALONE | options).items() for x in (f"--{k.replace('_', '-')}", str(v))]
    finish(ranks(*[["train", str(two), "--model", str(plain_model_dir), *flags]] * 2, logs=tmp_path / "said"))
    rewards = {turn.turn_id: abs(turn.reward or 0) for turn in load_targets(one)}
    rows = list(read_all(two, "metrics"))
    kinds = [sum(rewards[i] for i in row["turn_ids"]) for row in rows]
    assert set(kinds) == {0, 1, 2}, "not every kind of step was there"
    assert [row["skipped"] for row in rows] == [kind == 0 for kind in kinds]
    assert [row["skipped"] for row in read_all(one, "metrics")] == [row["skipped"] for row in rows]
    found, wanted = weights(two), weights(one)
    assert all(torch.allclose(found[name], wanted[name], atol=1e-5) for name in wanted)


def test_asked_one_process_all_stop_and_go_on_exactly(uneven, tmp_path, plain_model_dir) -> None:
    """A signal to one process ends all after the same step; the resumed model is that of an uninterrupted run."""
    whole, stopped = (Path(shutil.copytree(uneven, tmp_path / name)) for name in ("whole", "stopped"))
    options = {"sharding": "fsdp", "checkpoint_every": 0, "epochs": 5}
    finish(ranks(*[words(whole, plain_model_dir, **options)] * 2, logs=tmp_path / "whole-said"))
    processes = ranks(*[words(stopped, plain_model_dir, **options)] * 2, logs=tmp_path / "said")
    ask_after_a_step(processes[1], tmp_path / "said-0")
    finish(processes, stopping.TRY_AGAIN)
    assert len(list((stopped / "train/checkpoints").iterdir())) == 1
    assert not (stopped / "train/metrics").exists()
    finish(ranks(*[words(stopped, plain_model_dir, **options)] * 2, logs=tmp_path / "said"))
    assert "resuming after step" in (tmp_path / "said-0").read_text()
    model = "train/model/model.safetensors"
    assert (stopped / model).read_bytes() == (whole / model).read_bytes()
    losses = [[row["loss"] for row in read_all(run, "metrics")] for run in (stopped, whole)]
    assert losses[0] == losses[1]


class Lingering(torch.Tensor):
    """Tensor whose deletion takes a second, in the thread that drops the last reference to it."""

    ending = threading.Event()

    def __del__(self) -> None:
        self.ending.set()
        time.sleep(1)


def test_processes_end_while_a_thread_of_gloo_waits_for_python(uneven, tmp_path, plain_model_dir, monkeypatch) -> None:
    """When stopped and when done, gloo's thread frees the tensor of the last exchange, which needs Python's lock."""
    end_training = Accelerator.end_training

    def exchange_and_end(accelerator: Accelerator) -> None:
        accelerator.wait_for_everyone()
        if accelerator.is_main_process:  # its part of the exchange is over when the other process takes part
            torch.distributed.all_reduce(torch.ones(2).as_subclass(Lingering), async_op=True)
            assert Lingering.ending.wait(60)
        else:
            time.sleep(0.5)
            torch.distributed.all_reduce(torch.ones(2))
        end_training(accelerator)

    monkeypatch.setattr(Accelerator, "end_training", exchange_and_end)
    run = Path(shutil.copytree(uneven, tmp_path / "run"))
    processes = ranks(*[words(run, plain_model_dir)] * 2, logs=tmp_path / "said")
    ask_after_a_step(processes[1], tmp_path / "said-0")
    finish(processes, stopping.TRY_AGAIN)
    finish(ranks(*[words(run, plain_model_dir)] * 2, logs=tmp_path / "said"))


def test_processes_that_see_other_checkpoints_do_not_begin(uneven, tmp_path, plain_model_dir) -> None:
    """They fail, as if one of two nodes did not yet see the checkpoint that the other has written."""
    sees, blind = (Path(shutil.copytree(uneven, tmp_path / name)) for name in ("sees", "blind"))
    process = Forked(*words(sees, plain_model_dir, checkpoint_every=0), log=tmp_path / "begun")
    ask_after_a_step(process, tmp_path / "begun")
    finish([process], stopping.TRY_AGAIN)
    finish(ranks(*[words(run, plain_model_dir) for run in (sees, blind)], logs=tmp_path / "said"), 1)
    assert "of steps 0, " in (tmp_path / "said-0").read_text()


def ask_after_a_step(process: Forked, log: Path) -> None:
    """Send SIGUSR1 once `log` names step 2."""
    while process.running and not (log.exists() and "step 2 of" in log.read_text(encoding="utf-8")):
        time.sleep(0.005)
    process.signal(signal.SIGUSR1)


@pytest.mark.parametrize(("options", "close"), [
    ({"lora_rank": 2, "keep_epochs": True}, 1e-5), ({"gradient_checkpointing": True}, 1e-5),
    ({"dtype": "bfloat16", "step_limit": 1.0}, 0.05),
], ids=["adapters", "recomputed", "bfloat16"])  # fmt: skip
def test_tied_weights_trained_in_other_ways(tmp_path, options, close) -> None:
    """Frozen weights are sharded, too; layers are gathered again to be recomputed; sums stay float32."""
    run = write_run(tmp_path / "one", MODEL, toy_sessions(4))
    shares = Path(shutil.copytree(run, tmp_path / "shares"))
    options |= {"epochs": 1, "learning_rate": 1e-4}
    train.run(train_config(run, MODEL, **(OPTIONS | options)))
    finish(ranks(*[words(shares, MODEL, **options, sharding="fsdp")] * 2, logs=tmp_path / "said"))
    losses = [[row["loss"] for row in read_all(each, "metrics")] for each in (shares, run)]
    assert losses[0] == pytest.approx(losses[1], rel=close, abs=close)
    found, wanted = weights(shares), weights(run)
    # in bfloat16, as the student's own files are: a last bit may be rounded differently
    assert all(torch.allclose(found[name], wanted[name], rtol=1e-2, atol=1e-3) for name in wanted)
    if "lora_rank" in options:
        assert (shares / "train/adapter/adapter_model.safetensors").exists()
        last = shares / "train/epochs/001/model/model.safetensors"
        assert last.read_bytes() == (shares / "train/model/model.safetensors").read_bytes()


def test_one_process_has_nobody_to_share_with(uneven, tmp_path, plain_model_dir, monkeypatch) -> None:
    run = Path(shutil.copytree(uneven, tmp_path / "run"))
    # Without --multi_gpu, `accelerate launch --cpu --num_processes N` starts one process.
    with pytest.raises(ConfigError, match=r"--sharding fsdp.*--multi_gpu --num_processes"):
        train.run(train_config(run, plain_model_dir, sharding="fsdp"))
    for kind in ("FSDP", "DEEPSPEED", "MEGATRON_LM"):  # as `accelerate launch` sets it, installed or not
        monkeypatch.setenv(f"ACCELERATE_USE_{kind}", "true")
        with pytest.raises(ConfigError, match=f"{kind}.*--sharding fsdp"):
            train.run(train_config(run, plain_model_dir))
        monkeypatch.delenv(f"ACCELERATE_USE_{kind}")
    assert not (run / "train").exists()
