"""TRL's own trainers prepare the exports: the token ids are those that opdkit itself trains on."""

from pathlib import Path
from typing import Any

import pytest
from sample_world import MODEL

from opdkit.chat.hint_placement import with_hint
from opdkit.chat.template import Chat
from opdkit.commands.export.command import run as export
from opdkit.commands.export.messages import JudgedTurn
from opdkit.config.export import ExportConfig
from opdkit.model.load import load_model, load_tokenizer

trl = pytest.importorskip("trl", reason="TRL is not installed")

LIMIT = 40  # sessions: enough for calls, results, and users who correct


@pytest.fixture(scope="module")
def chat() -> Chat:
    return Chat(load_tokenizer(str(MODEL)), {})


def exported(run: Path, to: str, folder: Path) -> Any:
    import datasets

    out = export(ExportConfig(run=run, to=to, out=folder / f"{to}.parquet", limit=LIMIT)).where
    return datasets.load_dataset("parquet", data_files=str(out), split="train", cache_dir=str(folder / "cache"))


def student() -> dict[str, Any]:
    model = load_model(str(MODEL), device="cpu", dtype="float32")
    return {"model": model, "processing_class": load_tokenizer(str(MODEL))}


def quiet(folder: Path) -> dict[str, Any]:
    return {"output_dir": str(folder / "out"), "report_to": "none", "use_cpu": True, "bf16": False, "max_steps": 1,
            "per_device_train_batch_size": 2, "save_strategy": "no", "disable_tqdm": True}  # fmt: skip


def prompt_ids(chat: Chat, turn: JudgedTurn) -> list[int]:
    return chat.prompt_ids(turn.session["messages"][: turn.index], turn.session["tools"])


def reply_ids(chat: Chat, turn: JudgedTurn) -> list[int]:
    return chat.reply(turn.session["messages"], turn.index, turn.session["tools"]).ids


def test_kto_trains_on_the_same_tokens(run: Path, judged: dict[str, JudgedTurn], chat: Chat, tmp_path: Path) -> None:
    data = exported(run, "trl-kto", tmp_path)
    trainer = trl.KTOTrainer(
        **student(),
        train_dataset=data,
        args=trl.KTOConfig(**quiet(tmp_path), max_length=None),
    )
    prepared = trainer.train_dataset
    assert len(prepared) == len(data) > 50
    for row, source in zip(prepared, data, strict=True):
        turn = judged[source["turn_id"]]
        ids = reply_ids(chat, turn)
        assert row["prompt_ids"] == prompt_ids(chat, turn)
        # TRL trains the line break after the stop token, too, which was never sampled.
        assert row["completion_ids"][: len(ids)] == ids
        assert chat.text(row["completion_ids"][len(ids) :]).strip() == ""
        assert row["label"] is (turn.verdict["reward"] == 1)
    assert trainer.train().global_step == 1


def test_sft_trains_on_the_same_tokens(run: Path, judged: dict[str, JudgedTurn], chat: Chat, tmp_path: Path) -> None:
    data = exported(run, "trl-sft", tmp_path)
    trainer = trl.SFTTrainer(
        **student(),
        train_dataset=data,
        args=trl.SFTConfig(**quiet(tmp_path), max_length=None),
    )
    prepared = trainer.train_dataset
    assert len(prepared) == len(data) > 20
    for row, source in zip(prepared, data, strict=True):
        turn = judged[source["turn_id"]]
        prompt, reply = prompt_ids(chat, turn), reply_ids(chat, turn)
        assert row["input_ids"][: len(prompt) + len(reply)] == prompt + reply
        assert row["labels"][: len(prompt) + len(reply)] == [-100] * len(prompt) + reply
    assert trainer.train().global_step == 1


def test_sdft_shows_its_teacher_what_ours_reads(
    run: Path, judged: dict[str, JudgedTurn], chat: Chat, tmp_path: Path
) -> None:
    sdft = pytest.importorskip("trl.experimental.sdft", reason="this TRL has no SDFT trainer")
    data = exported(run, "trl-sdft", tmp_path)
    trainer = sdft.SDFTTrainer(
        **student(),
        train_dataset=data,
        args=sdft.SDFTConfig(**quiet(tmp_path), num_generations=2, max_completion_length=4),
    )
    assert len(trainer.train_dataset) == len(data) > 20
    prompts, contexts = data["prompt"], data["privileged_context"]
    students = trainer._tokenize_prompts(list(prompts))
    teachers = trainer._tokenize_prompts(
        trainer.teacher_context_builder.select_generation_prompts(list(prompts), list(contexts))
    )
    for turn_id, plain, hinted in zip(data["turn_id"], students, teachers, strict=True):
        turn = judged[turn_id]
        before = turn.session["messages"][: turn.index]
        assert plain == chat.prompt_ids(before)
        assert turn.verdict["hint"] is not None
        assert hinted == chat.prompt_ids(with_hint(before, turn.verdict["hint"], "last-user"))
    assert trainer.train().global_step == 1
