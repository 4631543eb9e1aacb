"""Tests that TRL's own trainers turn the exports into the token ids that opdkit itself trains on."""

import shutil
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from chat_templates import QWEN
from sample_world import MODEL

from opdkit.chat.conversation import NO_DECISION
from opdkit.chat.hint_placement import with_hint
from opdkit.chat.template import Chat
from opdkit.commands.export.command import run as export
from opdkit.commands.export.messages import TurnToExport, read_judged_turns
from opdkit.config.export import ExportConfig
from opdkit.config.teacher import TeacherConfig
from opdkit.model.load import load_model, load_tokenizer
from opdkit.store.counters import Counters
from opdkit.store.reading import count_parts, part_path, read_all
from opdkit.teacher.stage import run as teach

trl = pytest.importorskip("trl", reason="TRL is not installed")

LIMIT = 40  # sessions: enough for tool calls, results and corrections by users


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


def prompt_ids(chat: Chat, turn: TurnToExport) -> list[int]:
    return chat.prompt_ids(turn.session["messages"][: turn.index], turn.session["tools"])


def reply_ids(chat: Chat, turn: TurnToExport) -> list[int]:
    return chat.reply(turn.session["messages"], turn.index, turn.session["tools"]).ids


def test_kto_trains_on_the_same_tokens(run: Path, judged: dict[str, TurnToExport], chat: Chat, tmp_path: Path) -> None:
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
        # TRL also trains on the line break after the stop token, which was never sampled.
        assert row["completion_ids"][: len(ids)] == ids
        assert chat.text(row["completion_ids"][len(ids) :]).strip() == ""
        assert row["label"] is (turn.verdict["reward"] == 1)
    assert trainer.train().global_step == 1


def test_sft_trains_on_the_same_tokens(run: Path, judged: dict[str, TurnToExport], chat: Chat, tmp_path: Path) -> None:
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


def test_template_arguments_are_a_column(run: Path, judged: dict[str, TurnToExport], tmp_path: Path) -> None:
    """With this column TRL renders what opdkit does, as docs/export.md says; else it trains on thinking QWEN adds."""
    fields = student()
    fields["processing_class"].chat_template = QWEN
    chat = Chat(fields["processing_class"], {"enable_thinking": False})
    data = exported(run, "trl-sft", tmp_path).select(range(8))
    for column in ({"chat_template_kwargs": {"enable_thinking": False}}, {}):
        args = trl.SFTConfig(**quiet(tmp_path), max_length=None)
        with_column = data.map(lambda row, column=column: column)
        prepared = trl.SFTTrainer(**fields, train_dataset=with_column, args=args).train_dataset
        for row, source in zip(prepared, data, strict=True):
            turn = judged[source["turn_id"]]
            prompt, reply = prompt_ids(chat, turn), reply_ids(chat, turn)
            trained = [label for label in row["labels"] if label != -100]
            assert row["input_ids"][: len(prompt)] == prompt
            assert (trained[: len(reply)] == reply) is bool(column)


def test_dpo_prefers_what_was_wanted_to_what_was_logged(run: Path, chat: Chat, tmp_path: Path) -> None:
    """An edit is preferred to a kept reply, and a kept reply to one by the teacher. The ids are those of opdkit."""
    scored = Path(shutil.copytree(run, tmp_path / "run"))
    teach(TeacherConfig(run=scored, model=str(MODEL), device="cpu", limit=LIMIT, max_new_tokens=32))
    written = {row["turn_id"]: row["response_ids"] for row in read_all(scored, "targets") if row["written"] is not None}
    ended = [name for name, ids in written.items() if ids[-1] in chat.stop_ids]
    assert 5 < len(ended) <= len(written)
    decided = {ended[0]: {"edited": "It is 20 C.", "kept": "No."}, ended[1]: {"kept": "It is 21 C."}}
    decide(scored, decided)
    data = exported(scored, "trl-dpo", tmp_path)
    assert {row["turn_id"] for row in data} <= {*ended}
    judged = {t.turn_id: t for turns in read_judged_turns(scored, LIMIT, Counters()) for t in turns}
    trainer = trl.DPOTrainer(**student(), train_dataset=data, args=trl.DPOConfig(**quiet(tmp_path), max_length=None))
    prepared = trainer.train_dataset
    assert len(prepared) == len(data) > 5
    for row, source in zip(prepared, data, strict=True):
        turn, name = judged[source["turn_id"]], source["turn_id"]
        own = reply_ids(chat, turn)
        assert row["prompt_ids"] == prompt_ids(chat, turn)
        assert row["rejected_ids"][: len(own)] == own
        fields = decided.get(name, {})
        if text := fields.get("edited") or fields.get("kept"):
            assert source["chosen"][0]["content"] == text
        else:
            assert row["chosen_ids"][: len(written[name])] == list(written[name])
    assert trainer.train().global_step == 1


def decide(run: Path, decided: dict[str, dict[str, str]]) -> None:
    """Write decisions into the turns of a run."""
    for part in range(count_parts(run, "extract")):
        path = part_path(run, "turns", part)
        table = pq.read_table(path)
        rows = [NO_DECISION | decided[name] if name in decided else None for name in table["turn_id"].to_pylist()]
        place = table.schema.get_field_index("decision")
        field = table.schema.field(place)
        pq.write_table(table.set_column(place, field, pa.array(rows, field.type)), path)


def test_sdft_shows_its_teacher_what_ours_reads(
    run: Path, judged: dict[str, TurnToExport], chat: Chat, tmp_path: Path
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
