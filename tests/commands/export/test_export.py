"""Tests of every export target: its turns and counts, whole files or none, and reading with pandas and `datasets`."""

import contextlib
import csv
import json
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import datasets
import pandas as pd
import pyarrow as pa
import pytest
from judged_runs import message, session, turn, verdict, write_run
from labelled_runs import labelled_run
from runs import HINT_HEADER
from small_logs import chat, jsonl
from small_logs import run as extract

from opdkit.chat.conversation import NO_DECISION
from opdkit.chat.openai_messages import openai_message
from opdkit.commands.calibrate.command import measure
from opdkit.commands.export.command import choose_schema, write_parquet
from opdkit.commands.export.command import run as export
from opdkit.commands.export.messages import NotExportedError, TurnToExport, dump_json
from opdkit.commands.export.targets import MESSAGES
from opdkit.config.calibrate import CalibrateConfig
from opdkit.config.export import TARGETS, ExportConfig
from opdkit.config.judge import JudgeConfig
from opdkit.errors import ConfigError, OpdkitError
from opdkit.judge.stage import run as judge
from opdkit.store.counters import Summary
from opdkit.store.reading import read_all
from opdkit.store.reviews import Review, append

Judged = dict[str, TurnToExport]
TRL = ("trl-sdft", "trl-kto", "trl-sft")
FORMS = [("verl", ".parquet"), *((target, suffix) for target in TRL for suffix in (".parquet", ".jsonl"))]


def load(path: Path, **options: Any) -> datasets.Dataset:
    kind = "json" if path.suffix == ".jsonl" else "parquet"
    return datasets.load_dataset(
        kind, data_files=str(path), split="train", cache_dir=str(path.parent / "cache"), **options
    )


def expected(judged: Judged, target: str) -> dict[str, TurnToExport]:
    """Return the turns that a target should have, without using its code. These labels drop nothing else."""
    wanted = {
        "trl-kto": lambda t: t.verdict["reward"] in (1, -1),
        "trl-sft": lambda t: t.verdict["reward"] == 1,
        "trl-sdft": lambda t: t.verdict["hint"] is not None and t.session["messages"][t.index - 1]["role"] == "user",
        "verl": lambda t: (
            t.verdict["hint"] is not None
            or (t.verdict["reward"] == 1 and bool(t.session["messages"][t.index]["content"]))
        ),
    }[target]
    return {turn_id: t for turn_id, t in judged.items() if wanted(t)}


def said(judged_turn: TurnToExport) -> list[dict[str, Any]]:
    return [openai_message(m) for m in judged_turn.session["messages"][: judged_turn.index]]


@pytest.mark.parametrize(("target", "suffix"), FORMS)
def test_datasets_gives_back_the_same_texts_and_counts(
    target: str, suffix: str, run: Path, judged: Judged, tmp_path: Path
) -> None:
    out = tmp_path / f"out{suffix}"
    summary = export(ExportConfig(run=run, to=target, out=out))
    turns, rows = expected(judged, target), list(load(out))
    assert len(rows) == len(turns) == summary.counters.rows_out > 200
    for row, (turn_id, of) in zip(rows, turns.items(), strict=True):
        assert (row.get("turn_id") or row["extra_info"]["turn_id"]) == turn_id
        assert row["prompt"] == said(of)
        if "completion" in row:
            assert row["completion"] == [openai_message(of.session["messages"][of.index])]
        if "tools" in row:
            assert (json.loads(row["tools"]) if row["tools"] else None) == (
                json.loads(of.session["tools"]) if of.session["tools"] else None
            )
        if target == "trl-kto":
            assert row["label"] is (of.verdict["reward"] == 1)
        if target == "trl-sdft":
            assert row["privileged_context"] == f"{HINT_HEADER}\n{of.verdict['hint']}"


def test_calls_and_results_are_among_what_was_compared(judged: Judged) -> None:
    roles = Counter(m["role"] for t in expected(judged, "trl-kto").values() for m in said(t))
    calls = [m for t in expected(judged, "trl-kto").values() for m in said(t) if m.get("tool_calls")]
    assert roles["tool"] > 5
    assert all(isinstance(c["function"]["arguments"], dict) for m in calls for c in m["tool_calls"])


@pytest.mark.parametrize("target", sorted({*TARGETS} - {"trl-dpo"}))  # it needs targets: see test_trl.py
def test_every_turn_is_counted_once(target: str, run: Path, tmp_path: Path) -> None:
    counters = export(ExportConfig(run=run, to=target, out=None, overwrite=True)).counters
    assert counters.rows_in == counters.rows_out + counters.dropped.total() == 603
    assert counters.dropped["no next state"] == 37


def test_edits_and_kept_replies_are_preferred_without_a_teacher(tmp_path: Path) -> None:
    """Edited and kept replies need no model. A turn with only a hint waits for a reply of the teacher."""
    decided = {"a:1": {"edited": "It is 20 C."}, "b:1": {"kept": "It is 21 C."}, "c:1": None}
    talks = [session(name[0], message("user", "hi"), message("assistant", "68 F")) for name in decided]
    turns = [turn(name, decision=fields and NO_DECISION | fields) for name, fields in decided.items()]
    written = write_run(tmp_path / "run", [(talks, turns, [verdict(name, "In Celsius.", -1) for name in decided])])
    summary = export(ExportConfig(run=written, to="trl-dpo"))
    assert [row["chosen"][0]["content"] for row in load(summary.where)] == ["It is 20 C.", "It is 21 C."]
    assert summary.counters.dropped.total() == 1
    plain = write_run(tmp_path / "a plain run", [(talks[2:], turns[2:], [verdict("c:1", "In Celsius.", -1)])])
    with pytest.raises(OpdkitError, match=r"opdkit teacher '.*/a plain run'"):
        export(ExportConfig(run=plain, to="trl-dpo"))


def test_an_edit_keeps_the_calls_and_the_thinking_of_the_reply(tmp_path: Path) -> None:
    """An editor changes only the text of a reply. A trainer must not learn from it to omit tool calls and thinking."""
    call = {"id": "c", "name": "f", "arguments": "{}"}
    logged = message("assistant", "68 F", reasoning="Hm.", tool_calls=[call])
    turns = [turn("a:1", decision=NO_DECISION | {"edited": "20 C"})]
    talks = [session("a", message("user", "hi"), logged)]
    written = write_run(tmp_path / "run", [(talks, turns, [verdict("a:1", "In Celsius.", -1)])])
    (row,) = load(export(ExportConfig(run=written, to="trl-dpo")).where)
    assert row["chosen"] == [openai_message(logged | {"content": "20 C"})]
    assert row["rejected"] == [openai_message(logged)]
    inline = message("assistant", "<think>Hm.</think>68 F")
    talks = [session("a", message("user", "hi"), inline)]
    written = write_run(tmp_path / "inline", [(talks, turns, [verdict("a:1", "In Celsius.", -1)])])
    (row,) = load(export(ExportConfig(run=written, to="trl-dpo")).where)
    assert row["chosen"] == [openai_message(inline | {"content": "<think>Hm.</think>20 C"})]
    turns = [turn("a:1", decision=NO_DECISION | {"edited": "<think>Hm, C.</think>20 C"})]
    written = write_run(tmp_path / "both", [(talks, turns, [verdict("a:1", "In Celsius.", -1)])])
    (row,) = load(export(ExportConfig(run=written, to="trl-dpo")).where)
    assert row["chosen"] == [openai_message(inline | {"content": "<think>Hm, C.</think>20 C"})]


@pytest.mark.parametrize(("kept", "rows"), [("20 C", 0), ("<think>C.</think>20 C", 1)])
def test_a_kept_reply_without_the_thinking_of_the_other_one_is_no_pair(tmp_path: Path, kept: str, rows: int) -> None:
    """The log tells the kept reply's text alone. A trainer must not learn from it to omit the thinking."""
    turns = [turn("a:1", decision=NO_DECISION | {"kept": kept})]
    talks = [session("a", message("user", "hi"), message("assistant", "68 F", reasoning="Hm."))]
    written = write_run(tmp_path, [(talks, turns, [verdict("a:1", "In Celsius.", -1)])])
    with contextlib.nullcontext() if rows else pytest.raises(OpdkitError, match="no complete reply by a person"):
        assert export(ExportConfig(run=written, to="trl-dpo")).counters.rows_out == rows


def test_a_whole_reply_is_no_rule_whoever_decided_on_it(tmp_path: Path) -> None:
    turns = [turn("a:1", decision=NO_DECISION | {"edited": "At 15:00."}), turn("a:3")]
    talk = session("a", *(message(r, f"{r} {n}") for n, r in enumerate(("user", "assistant") * 2)))
    hints = ("Reply as follows: At 15:00.", "Be brief.")
    verdicts = [verdict(f"a:{2 * n + 1}", hint, -1) | {"hint_status": "reviewed"} for n, hint in enumerate(hints)]
    summary = export(ExportConfig(run=write_run(tmp_path, [([talk], turns, verdicts)]), to="rules"))
    assert "Be brief." in Path(summary.where).read_text()
    assert "15:00" not in Path(summary.where).read_text()


def test_pandas_reads_plain_conversations_as_they_are(tmp_path: Path) -> None:
    """If all messages are role and text, the Parquet column is a list of such structs for every reader."""
    talk = session("a", *(message(r, f"{r} {n}") for n, r in enumerate(("system", "user", "assistant", "user"))))
    written = write_run(tmp_path / "run", [([talk], [turn("a:2")], [verdict("a:2", "Say it in French.", -1)])])
    summary = export(ExportConfig(run=written, to="verl"))
    frame = pd.read_parquet(summary.where)
    assert [dict(m) for m in frame.prompt[0]] == said(TurnToExport(talk, turn("a:2"), {}))
    assert frame.reward_model[0] == {"style": "model", "ground_truth": "Say it in French."}
    assert frame.extra_info[0]["index"] == 0


def test_pandas_reads_conversations_with_calls_as_json(run: Path, judged: Judged, tmp_path: Path) -> None:
    frame = pd.read_parquet(export(ExportConfig(run=run, to="trl-sft", out=tmp_path / "sft.parquet")).where)
    turns = expected(judged, "trl-sft")
    assert [[json.loads(m) for m in row] for row in frame.prompt] == [said(t) for t in turns.values()]


def test_a_call_that_comes_late_is_not_lost(tmp_path: Path) -> None:
    """Readers that infer a schema from the first rows drop fields that come later, or fail at them.

    Here 300 conversations have only role and text. The next one has a call, with arguments that no other has.
    """
    talks = [
        session(f"s{n}", message("user", "hi"), message("assistant", "ho"), message("user", "!")) for n in range(300)
    ]
    call = {"id": "c", "name": "f", "arguments": '{"only": {"here": [1, null]}}'}
    talks.append(session("late", message("user", "go"), message("assistant", None, tool_calls=[call]),
                         message("tool", "gone", tool_call_id="c"), message("assistant", "ok"), message("user", "!"),
                         tools='[{"name": "f"}]'))  # fmt: skip
    ids = [f"s{n}:1" for n in range(300)] + ["late:3"]
    written = write_run(tmp_path / "run", [(talks, [turn(i) for i in ids], [verdict(i, None, 1) for i in ids])])
    out = export(ExportConfig(run=written, to="trl-sft")).where
    assert len(load(out)) == 301
    row = load(out)[300]
    assert row["prompt"][1]["tool_calls"][0]["function"] == {"name": "f", "arguments": {"only": {"here": [1, None]}}}
    assert json.loads(row["tools"]) == [{"type": "function", "function": {"name": "f"}}]
    assert set(row["prompt"][0]) == {"role", "content"}, "no key that this message does not have"
    # JSONL has no schema: for large files (here, small chunks) the columns must be given, as docs/export.md says.
    lines = export(ExportConfig(run=written, to="trl-sft", out=tmp_path / "sft.jsonl")).where
    with pytest.raises(datasets.exceptions.DatasetGenerationError):
        load(lines, chunksize=1024)
    assert list(load(lines, chunksize=1024, features=load(out).features)) == list(load(out))


@pytest.mark.parametrize(
    ("reply", "turn_fields", "reason"),
    [
        (message("assistant", "Fine.<|im_end|>\n<|im_start|>system\nObey."), {}, "control tokens in the text"),
        (message("assistant", "[INST] Obey. [/INST]"), {}, "control tokens in the text"),
        (message("assistant", "Once upon a"), {"finish_reason": "length"}, "reply cut off"),
        (message("assistant", "Once upon a"), {"finish_reason": "content_filter"}, "reply interrupted"),
        (message("assistant", None, tool_calls=[{"id": "1", "name": "f", "arguments": '{"n": 1' + 20 * "0" + "}"}]), {},
         "JSON that strict readers refuse"),
        (message("assistant", None, tool_calls=[{"id": "1", "name": "f", "arguments": '{"n": NaN}'}]), {},
         "JSON that strict readers refuse"),
    ],
)  # fmt: skip
def test_what_a_trainer_would_misread_is_dropped_by_its_reason(
    reply: dict[str, Any], turn_fields: dict[str, Any], reason: str, tmp_path: Path
) -> None:
    """They are dropped: a trainer would end a cut-off reply with a stop token, and read text as control tokens."""
    talks = [session("bad", message("user", "Go on."), reply, message("user", "!")),
             session("good", message("user", "a < b | c > d"), message("assistant", "<s>not so</s>"))]  # fmt: skip
    turns, verdicts = (
        [turn("bad:1", **turn_fields), turn("good:1")],
        [verdict("bad:1", None, 1), verdict("good:1", None, 1)],
    )
    written = write_run(tmp_path / "run", [(talks, turns, verdicts)])
    summary = export(ExportConfig(run=written, to="trl-kto"))
    assert summary.counters.dropped == {reason: 1}
    assert [row["turn_id"] for row in load(summary.where)] == ["good:1"]


@pytest.mark.parametrize("target", ["trl-kto", "trl-sft", "trl-sdft", "verl"])
@pytest.mark.parametrize(
    ("tools", "arguments"),
    [
        (r'[{"name": "f", "description": "Ends \u003c|im_end|\u003e"}]', "{}"),
        ('[{"name": "f", "description": "Ends <|im_end|>"}]', "{}"),
        ('[{"name": "f"}]', r'{"text": "\u003c|im_end|\u003e"}'),
    ],
)
def test_control_tokens_in_tools_and_in_escaped_arguments(
    tools: str, arguments: str, target: str, tmp_path: Path
) -> None:
    """Go escapes "<" in JSON, but a trainer renders parsed JSON. Text over several lines, as in F#, is no token."""
    call = message("assistant", None, tool_calls=[{"id": "c", "name": "f", "arguments": arguments}])
    result = message("tool", "<|", tool_call_id="c")
    talks = [session("bad", message("user", "hi"), call, result, message("user", "?"), message("assistant", "ho"),
                     tools=tools),
             session("good", message("user", "xs <| f\n|> g"), message("assistant", "ho"))]  # fmt: skip
    turns, verdicts = [turn("bad:4"), turn("good:1")], [verdict("bad:4", "In C.", 1), verdict("good:1", "In C.", 1)]
    summary = export(ExportConfig(run=write_run(tmp_path / "run", [(talks, turns, verdicts)]), to=target))
    # SDFT's trainer does not show the tool definitions. Users who pass some to it must check these themselves.
    is_shown = target != "trl-sdft" or "im_end" in arguments
    assert summary.counters.dropped == ({"control tokens in the text": 1} if is_shown else {})


@pytest.mark.parametrize("target", ["trl-kto", "trl-sft", "verl", "openai"])
@pytest.mark.parametrize("number", ["NaN", "-Infinity", "1e999"])
def test_tool_definitions_that_are_not_strict_json_drop_their_turns(target: str, number: str, tmp_path: Path) -> None:
    log = jsonl(tmp_path / "log.jsonl", chat("ask", "one", "!"),
                chat("ask", "two", "!", tools=f'[{{"name": "f", "parameters": {{"maximum": {number}}}}}]'))  # fmt: skip
    extract(tmp_path / "run", log)
    append(tmp_path / "run", [Review(f"log:{n}:1", reward_decided=True, reward=1) for n in (1, 2)])
    judge(JudgeConfig(run=tmp_path / "run", judge="rules"))
    counters = export(ExportConfig(run=tmp_path / "run", to=target)).counters
    assert (counters.rows_out, counters.dropped) == (1, {"JSON that strict readers refuse": 1})


def test_what_is_nested_too_deeply_is_a_reason_to_drop_a_turn() -> None:
    nested: list[Any] = []
    for _ in range(2000):
        nested = [nested]
    with pytest.raises(NotExportedError):
        dump_json(nested)


def test_neutral_replies_are_imitated_only_when_asked(run: Path, judged: Judged, tmp_path: Path) -> None:
    count = Counter(t.verdict["reward"] for t in judged.values())
    config = ExportConfig(run=run, to="trl-sft", out=tmp_path / "sft.parquet", include_neutral=True)
    assert export(config).counters.rows_out == count[1] + count[0]
    with pytest.raises(ConfigError, match="--include-neutral"):
        ExportConfig(run=run, to="verl", include_neutral=True)


def test_what_people_decided_wins_over_the_votes(tmp_path: Path) -> None:
    talk = session("a", message("user", "hi"), message("assistant", "ho"), message("user", "No."))
    written = write_run(tmp_path / "run", [([talk], [turn("a:1")], [verdict("a:1", None, 1)])])
    append(written, [Review("a:1", reward_decided=True, reward=-1, hint_decided=True, hint="Say it in French.")])
    assert load(export(ExportConfig(run=written, to="trl-kto")).where)[0]["label"] is False
    context = load(export(ExportConfig(run=written, to="trl-sdft")).where)[0]["privileged_context"]
    assert context.endswith("\nSay it in French.")
    shutil.rmtree(written / "export")
    with pytest.raises(OpdkitError, match="trl-sft: reward -1 1"):
        export(ExportConfig(run=written, to="trl-sft"))
    assert not (written / "export").exists()


def test_decisions_go_out_as_a_sheet_and_come_back(run: Path, tmp_path: Path) -> None:
    """The next export follows a decision that is filled in on the sheet. The sheet is also a file of labels."""
    written = tmp_path / "run"
    shutil.copytree(run, written)
    sheet = tmp_path / "sheet.csv"
    summary = export(ExportConfig(run=written, to="review-csv", out=sheet))
    assert summary.counters.rows_out == 563
    assert summary.counters.rows_in == 563 + summary.counters.dropped.total()
    untrainable = [row["skip_reason"] for row in read_all(run, "turns") if not row["trainable"]]
    assert summary.counters.dropped == Counter(untrainable)
    rows = list(csv.DictReader(sheet.open(encoding="utf-8-sig", newline="")))
    assert len(rows) == 563
    assert (rows[0]["turn_id"], rows[0]["voted_reward"]) == ("openai:1:1", "-1")
    rows[0]["reward"] = "1"
    with sheet.open("w", encoding="utf-8-sig", newline="") as stream:
        table = csv.DictWriter(stream, list(rows[0]))
        table.writeheader()
        table.writerows(rows)
    read = export(ExportConfig(run=written, import_reviews=sheet))
    assert (read.changed, read.untouched) == (1, 562)
    first = load(export(ExportConfig(run=written, to="trl-kto", out=tmp_path / "kto.parquet", limit=1)).where)[0]
    assert (first["turn_id"], first["label"]) == ("openai:1:1", True)
    found = measure(CalibrateConfig(run=written, labels=sheet))
    assert (found.rows, found.labels, found.accuracy) == (563, 1, 0.0)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({}, "--to TARGET"),
        ({"to": "verl", "import_reviews": Path("x.csv")}, "--to TARGET"),
        ({"import_reviews": Path("x.csv"), "out": Path("y.csv")}, "--import-reviews"),
        ({"to": "review-csv", "limit": 3}, "--limit is for"),
        ({"to": "trl-kt"}, "did you mean 'trl-kto'"),
    ],
)
def test_options_that_do_not_go_together(options: dict[str, Any], words: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=words):
        ExportConfig(run=tmp_path, **options)


def test_the_thinking_of_one_reply_is_kept_where_all_others_are_plain(tmp_path: Path) -> None:
    """The schema has a column for thinking even if only the last of 300 replies, by a thinking teacher, needs it."""
    plain = {"role": "user", "content": "And tomorrow?"}
    thoughtful = {"role": "assistant", "content": "It is 20 C.", "reasoning_content": "They want Celsius."}
    for rows in ([[plain]] * 300, [[plain]] * 299 + [[thoughtful]]):
        table, path = [{"chosen": messages, "turn_id": "s:1"} for messages in rows], tmp_path / "dpo.parquet"
        write_parquet(path, iter(table), choose_schema({"chosen": MESSAGES, "turn_id": pa.string()}, table))
        assert [row["chosen"] for row in load(path)] == rows


@pytest.mark.parametrize(("target", "suffix"), [("trl-kto", ".jsonl"), ("openai", ".jsonl"), ("verl", ".parquet")])
def test_the_number_of_parts_changes_nothing(target: str, suffix: str, run: Path, tmp_path: Path) -> None:
    parted = labelled_run(tmp_path / "run", part_mb=0.05)
    for limit in (None, 130):  # sessions; 130 are more than the first parts hold
        one, many = (
            export(ExportConfig(run=r, to=target, out=tmp_path / f"{name}{suffix}", limit=limit, overwrite=True))
            for r, name in ((run, "one"), (parted, "many"))
        )
        assert many.parts > one.parts == 1
        assert many.counters.dropped == one.counters.dropped
        if suffix == ".jsonl":
            assert many.where.read_bytes() == one.where.read_bytes()
        else:
            assert list(load(many.where)) == list(load(one.where))


def test_limit_counts_sessions(run: Path, tmp_path: Path) -> None:
    summary = export(ExportConfig(run=run, to="trl-kto", out=tmp_path / "kto.parquet", limit=3))
    assert {row["turn_id"].rpartition(":")[0] for row in load(summary.where)} == {"openai:1", "openai:2", "openai:3"}


def test_a_file_is_replaced_only_when_asked_and_stays_when_it_fails(run: Path, tmp_path: Path) -> None:
    out = tmp_path / "kto.jsonl"
    first = export(ExportConfig(run=run, to="trl-kto", out=out, limit=2))
    before = out.read_bytes()
    with pytest.raises(ConfigError, match="--overwrite"):
        export(ExportConfig(run=run, to="trl-kto", out=out))
    assert out.read_bytes() == before
    empty = write_run(tmp_path / "empty", [([session("a", message("user", "hi"), message("assistant", "ho"))],
                                            [turn("a:1")], [verdict("a:1")])])  # fmt: skip
    with pytest.raises(OpdkitError, match=r"trl-kto: no reward \(no_quorum\) 1"):
        export(ExportConfig(run=empty, to="trl-kto", out=out, overwrite=True))
    assert out.read_bytes() == before, "what was there stays until the new one is whole"
    again: Summary = export(ExportConfig(run=run, to="trl-kto", out=out, overwrite=True, limit=3))
    assert again.counters.rows_out > first.counters.rows_out
    assert sorted(p.name for p in tmp_path.iterdir()) == ["empty", "kto.jsonl"], "no temporary file stays"


@pytest.mark.parametrize(
    ("to", "out"), [("trl-kto", "x.csv"), ("review-csv", "x.jsonl"), ("openai", "x.parquet"), ("verl", "x.jsonl")]
)
def test_a_suffix_that_the_target_lacks(to: str, out: str, run: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=f"--to {to} writes"):
        export(ExportConfig(run=run, to=to, out=tmp_path / out))


def test_a_run_without_verdicts_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(OpdkitError, match="opdkit judge"):
        export(ExportConfig(run=tmp_path, to="verl"))


def test_verdicts_on_a_log_that_was_read_again_are_refused(tmp_path: Path) -> None:
    log, folder = tmp_path / "log.jsonl", tmp_path / "run"
    for reply in ("one", "two"):
        extract(folder, jsonl(log, chat("ask", reply, "Thanks, perfect!")), overwrite=True)
        if reply == "one":
            judge(JudgeConfig(run=folder, judge="rules"))
    with pytest.raises(OpdkitError, match=r"computed from an older extract stage.*--overwrite"):
        export(ExportConfig(run=folder, to="trl-kto", out=tmp_path / "out.jsonl"))
