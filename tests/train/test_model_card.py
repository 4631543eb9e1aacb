"""Tests of the model card beside the trained weights: the hub can read it, and it holds only what the run knows."""

import errno
import json
import os
import shutil
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from unittest.mock import Mock

import huggingface_hub.constants
import pytest
from conftest import save_tiny_model
from huggingface_hub import ModelCard
from scored_runs import toy_sessions, train_config, write_run

from opdkit import __version__
from opdkit.config.evaluate import EvalConfig
from opdkit.errors import OpdkitError
from opdkit.evaluate import stage as evaluate
from opdkit.store.reading import read_all
from opdkit.train import model_card
from opdkit.train import stage as train
from opdkit.train.model_card import add_scores


@pytest.fixture(scope="module")
def trained(tmp_path_factory, plain_model_dir) -> Path:
    """Return a run trained with adapters under a umask that lets the group read."""
    run = write_run(tmp_path_factory.mktemp("run") / "secret-customer", plain_model_dir, toy_sessions(8))
    config = train_config(run, plain_model_dir, objective="blend", lora_rank=2, epochs=2, keep_epochs=True)
    before = os.umask(0o027)
    try:
        train.run(config)
    finally:
        os.umask(before)
    return run


def card(folder: Path) -> ModelCard:
    return ModelCard.load(folder / "README.md")


def facts(folder: Path) -> dict[str, str]:
    lines = [line[2:] for line in card(folder).text.splitlines() if line.startswith("- ")]
    return dict(line.split(": ", 1) for line in lines)


def folders(run: Path) -> Iterator[Path]:
    for home in (run / "train", run / "train/epochs/001", run / "train/epochs/002"):
        yield from (home / "model", home / "adapter")


def test_files_have_the_permissions_of_the_umask(trained) -> None:
    """The library that writes the weights would make them readable by their owner only."""
    files = [path for path in (trained / "train").rglob("*") if path.is_file()]
    assert {path.suffix for path in files} >= {".safetensors", ".json", ".md", ".parquet"}
    assert {path.name: oct(path.stat().st_mode & 0o777) for path in files} == dict.fromkeys(
        (path.name for path in files), "0o640"
    )
    assert {path.stat().st_mode & 0o777 for path in (trained / "train").rglob("*") if path.is_dir()} == {0o750}


def test_every_folder_of_weights_has_a_card_that_the_hub_reads(trained) -> None:
    for folder in folders(trained):
        data = card(folder).data
        adapter = folder.name == "adapter"
        assert (data.library_name, data.pipeline_tag) == ("peft" if adapter else "transformers", "text-generation")
        assert data.tags == ["opdkit"]
        assert data.base_model is None, "a folder is no name on the hub"


def test_it_says_what_the_model_was_trained_on(trained, plain_model_dir) -> None:
    targets = list(read_all(trained, "targets"))
    rewards = Counter(row["reward"] for row in targets)
    said = facts(trained / "train/model")
    assert said["Base model"] == f"`{plain_model_dir}`"
    assert said["Data"] == (
        f"{len(targets)} replies in {len({row['turn_id'].rpartition(':')[0] for row in targets})} sessions: "
        f"{sum(row['written'] is not None for row in targets)} written by the teacher, "
        f"{sum(row['hint'] is not None for row in targets)} with a hint; "
        f"rewards: {rewards[1]} +1, {rewards[0]} 0, {rewards[-1]} -1"
    )
    steps = len(list(read_all(trained, "metrics")))
    assert said["Objective"].endswith(f"2 epochs, {steps} optimizer steps")
    assert facts(trained / "train/epochs/001/model")["Objective"].endswith(f"1 epoch, {steps // 2} optimizer steps")
    assert "--lora-rank 2" in said["Other settings"]
    assert "--batch-turns 4" in said["Other settings"]
    assert "--beta2" not in said["Other settings"], "that is the default"
    assert "unknown" in said["Licence of the base model"]
    assert __version__ in card(trained / "train/model").text


def test_it_says_nothing_of_this_machine(trained) -> None:
    for folder in folders(trained):
        text = (folder / "README.md").read_text()
        assert "secret-customer" not in text, "the run's path"
        assert "opdkit eval" in text


def test_it_names_no_user_whom_a_filter_names(trained, plain_model_dir) -> None:
    """`opdkit blame` proposes such a filter, and a card is meant to be published."""
    config = train_config(trained, plain_model_dir, name="b", epochs=1, filter=("session!=jane-doe",))
    train.run(config)
    text = (config.run / "train/model/README.md").read_text()
    assert "jane-doe" not in text
    assert "--filter ..." in text


@pytest.mark.parametrize("where", ["folder", "hub"])
def test_what_the_card_of_the_base_says(tmp_path, plain_tokenizer, monkeypatch, where) -> None:
    """The base is the model's name on the hub or, for a folder, the base that the folder's own card names."""
    base = save_tiny_model(tmp_path / "base", plain_tokenizer)
    (base / "README.md").write_text("---\nlicense: apache-2.0\nbase_model: org/first\n---\n# Base\n")
    name = str(base)
    if where == "hub":
        repository = tmp_path / "hub/models--org--base"
        (repository / "refs").mkdir(parents=True)
        (repository / "refs/main").write_text("a" * 40)
        shutil.copytree(base, repository / "snapshots" / ("a" * 40))
        monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
        monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
        name = "org/base"
    run = write_run(tmp_path / "run", Path(name), toy_sessions(4))
    train.run(train_config(run, Path(name)))
    model = run / "train/model"
    assert card(model).data.base_model == ("org/base" if where == "hub" else "org/first")
    assert facts(model)["Licence of the base model"] == "apache-2.0"
    assert facts(model)["Base model"] == f"`{name}`"
    second = write_run(tmp_path / "second", model, toy_sessions(2))
    train.run(train_config(second, model))
    assert card(second / "train/model").data.base_model == card(model).data.base_model
    assert facts(second / "train/model")["Licence of the base model"] == "apache-2.0"


@pytest.mark.parametrize(
    "header", ["", ": [", "license: [a,\n b]\nbase_model: [x]", "license: |\n  a\n  - Data: forged", "\x00"]
)
def test_a_strange_card_of_the_base_does_no_harm(tmp_path, plain_tokenizer, header) -> None:
    base = save_tiny_model(tmp_path / "base", plain_tokenizer)
    (base / "README.md").write_text(f"---\n{header}\n---\n# Base\n")
    run = write_run(tmp_path / "run", base, toy_sessions(2))
    train.run(train_config(run, base))
    said = facts(run / "train/model")
    assert "replies in 2 sessions" in said["Data"]
    assert card(run / "train/model").data.base_model in (None, ["x"])


def test_a_card_is_written_only_if_it_changes(tmp_path, monkeypatch) -> None:
    """A finished evaluation is shown in a run that one may only read; a disk error names the card and the remedy."""
    (tmp_path / "README.md").write_text("# Card\n\n## Scores\n\nold\n", encoding="utf-8")
    add_scores(tmp_path, "new\n")
    monkeypatch.setattr(model_card, "write_text", Mock(side_effect=PermissionError(errno.EACCES, "denied")))
    add_scores(tmp_path, "new\n")
    with pytest.raises(OpdkitError, match=r"README\.md cannot be written"):
        add_scores(tmp_path, "newer\n")


def test_scores_are_added_where_eval_has_run(trained, tmp_path) -> None:
    run = Path(shutil.copytree(trained, tmp_path / "run"))
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text(json.dumps({"prompt": "say red", "check": {"match": [""]}}) + "\n")
    config = EvalConfig(run=run, prompts=str(prompts), device="cpu", max_new_tokens=4, samples=2)
    before = facts(run / "train/model")
    for _ in range(2):  # the second time nothing is measured again
        evaluate.run(config)
        text = card(run / "train/model").text
        assert "| right replies, sampled | 1.000 | 1.000 |" in text
        assert text.count("## Scores") == 1
        assert "Not measured yet" not in text
        assert facts(run / "train/model") == before
    path = run / "train/model/README.md"
    written = path.read_text() + "\n## Notes\n\nOurs.\n\n## More\n"
    path.write_text(written)
    evaluate.run(config)
    assert path.read_text() == written, "sections of a person stay"
    (run / "train/model/README.md").write_text("# A person's own words\n")
    evaluate.run(config)
    assert (run / "train/model/README.md").read_text() == "# A person's own words\n"
