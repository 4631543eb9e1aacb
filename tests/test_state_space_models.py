"""Tests of Mamba-2, whose configuration has no context length, in every stage that reads or samples, on a CPU."""

import json
import shutil
from pathlib import Path

import pytest
import torch
from conftest import CHATML_TOKENS, CHATML_WORDS, build_tokenizer
from judged_runs import plain, prompts_of, targets, three_parts, write_run
from model_families import STATES, build
from transformers import AutoModelForCausalLM
from typer.testing import CliRunner

from opdkit.cli import app
from opdkit.errors import OpdkitError
from opdkit.model.random_streams import make_random_stream
from opdkit.model.sampling import Request, sample
from opdkit.store.reading import read_all


def opdkit(*arguments: object) -> str:
    done = CliRunner().invoke(app, [*map(str, arguments), "--device", "cpu"], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.output


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory) -> Path:
    from chat_templates import QWEN

    folder = tmp_path_factory.mktemp("states") / "model"
    tokenizer, (name, sizes) = build_tokenizer(QWEN, CHATML_TOKENS, CHATML_WORDS), STATES["Mamba-2"]
    build(name, sizes | {"vocab_size": len(tokenizer)}).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    assert "max_position_embeddings" not in json.loads((folder / "config.json").read_text())
    return folder


@pytest.fixture(scope="module")
def trained(tmp_path_factory, model_dir) -> tuple[Path, str]:
    """Return a run in which Mamba-2 was scored and trained, and the output of `teacher`."""
    run = write_run(tmp_path_factory.mktemp("run") / "run", three_parts())
    said = opdkit("teacher", run, "--model", model_dir, "--teacher-samples", "0")
    opdkit("train", run, "--model", model_dir, "--learning-rate", "1e-3", "--batch-turns", "4", "--validate", "0")
    return run, said


def test_its_log_probs_are_those_of_a_plain_forward(model_dir, trained) -> None:
    run, said = trained
    assert "no context length" in said
    assert "--max-tokens" in said
    model = AutoModelForCausalLM.from_pretrained(model_dir, dtype=torch.float32).eval()
    rows = targets(run)
    assert len(rows) == 9
    for row in rows:
        prompt, hinted = prompts_of(run, model_dir, row, "last-user") if row["hint"] else (None, None)
        if prompt:
            assert row["prompt_tokens"] == len(prompt)
            assert row["old_logprobs"] == pytest.approx(plain(model, prompt, row["response_ids"]), abs=1e-4)
            assert row["teacher_logprobs"] == pytest.approx(plain(model, hinted, row["response_ids"]), abs=1e-4)
            assert row["old_logprobs"] != pytest.approx(row["teacher_logprobs"], abs=1e-2)


def test_max_tokens_still_limits_it(tmp_path, model_dir, trained) -> None:
    longest = max(row["prompt_tokens"] + len(row["response_ids"]) for row in targets(trained[0]))
    run = write_run(tmp_path / "run", three_parts())
    said = opdkit("teacher", run, "--model", model_dir, "--teacher-samples", "0", "--max-tokens", longest - 1)
    assert "no context length" not in said
    assert "too long" in said


def test_it_learns_and_is_sampled_from(tmp_path, model_dir, trained) -> None:
    run, _ = trained
    before, after = (AutoModelForCausalLM.from_pretrained(m).state_dict() for m in (model_dir, run / "train" / "model"))
    assert before.keys() == after.keys()
    assert all(not torch.equal(before[name], after[name]) for name in before if "mixer.in_proj" in name)
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text(json.dumps({"prompt": "Hello", "check": {"match": ["a"]}}) + "\n")
    opdkit("eval", run, "--prompts", prompts, "--max-new-tokens", "8")
    assert {row["model"] for row in read_all(run, "replies")} == {"before", "after"}
    opdkit("rollout", tmp_path / "second", "--from-run", run, "--model", run / "train/model", "--max-new-tokens", "8")
    model = AutoModelForCausalLM.from_pretrained(run / "train/model").eval()
    rows = [row for row in read_all(tmp_path / "second", "turns") if row["behavior_logprobs"]]
    sessions = {row["session_id"]: row for row in read_all(tmp_path / "second", "sessions")}
    assert len(rows) == 6
    for row in rows:
        said = {"turn_id": f"{row['session_id']}:{row['message_index']}", "hint": "x"}
        assert sessions[row["session_id"]]["format"] == "rollout"
        prompt, _ = prompts_of(tmp_path / "second", model_dir, said, "last-user")
        assert row["behavior_logprobs"] == pytest.approx(plain(model, prompt, row["response_token_ids"]), abs=1e-4)


def test_adapters_train_the_weights_that_are_read_through_them(model_dir, trained, tmp_path) -> None:
    run = Path(shutil.copytree(trained[0], tmp_path / "run"))
    opdkit("train", run, "--model", model_dir, "--lora-rank", "2", "--overwrite", "--validate", "0")
    before, after = (AutoModelForCausalLM.from_pretrained(m).state_dict() for m in (model_dir, run / "train" / "model"))
    changed = {name.split(".")[-2] for name in before if not torch.equal(before[name], after[name])}
    assert "in_proj" in changed
    assert "out_proj" not in changed


def test_a_model_that_cannot_be_sampled_from_says_so() -> None:
    """RWKV keeps its state in a form of its own and ignores the mask that hides padding."""
    model = build("RwkvConfig", {"attention_hidden_size": 32})
    with pytest.raises(OpdkitError, match="RwkvForCausalLM") as error:
        sample(model, [Request([5, 6], [make_random_stream(0)])], temperature=1.0, max_new_tokens=2,
               stop_ids=frozenset(), batch_tokens=64)  # fmt: skip
    assert "--teacher-samples 0" in str(error.value)
    assert "--validate 0" in str(error.value)
