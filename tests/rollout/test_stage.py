"""Tests of opdkit/rollout: fresh replies as a run of their own, with the same rows in shards and after kills."""

import json
import shutil
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from conftest import save_tiny_model
from judged_runs import HINT, one_part, talk, turn, verdict, write_run
from rollout_runs import everything, rows, scored
from sample_world import DATA, MODEL

from opdkit.commands import status
from opdkit.config.commands import configure
from opdkit.config.extract import ExtractConfig
from opdkit.config.judge import JudgeConfig
from opdkit.config.status import StatusConfig
from opdkit.config.train import TrainConfig
from opdkit.errors import ConfigError, OpdkitError
from opdkit.rollout import stage as rollout
from opdkit.rollout import stage as rollout_stage
from opdkit.store.plans import manifest, stage_dir
from opdkit.store.reading import count_parts, read_part
from opdkit.train import stage as train

TABLES = ("sessions", "turns", "rejected", "verdicts")


# -- the same rows --------------------------------------------------------------------------------------------------


@pytest.fixture(scope="session")
def whole(source, student, tmp_path_factory) -> dict[str, list[dict]]:
    """Return the tables of a rollout that nothing interrupts."""
    run = tmp_path_factory.mktemp("whole") / "run"
    flags = {"run": run, "from_run": source, "model": str(student), "device": "cpu", "samples": 2}
    rollout.run(configure("rollout", flags | {"max_new_tokens": 12}, None))
    return everything(run)


def test_shards_give_the_same_rows(config, whole) -> None:
    """Three shards, run in another order, write the rows of a rollout without shards."""
    for shard in ("2/3", "0/3", "1/3"):
        summary = rollout.run(config(shard=shard))
    assert everything(config().run) == whole
    assert summary.counters.rows_in == 6
    assert count_parts(config().run, "extract") == count_parts(config().run, "judge") == 3


def test_another_seed_gives_other_replies_to_the_same_prompts(config, whole) -> None:
    rollout.run(config(seed=1))
    fresh = rows(config().run, "sessions")
    assert [s["messages"][:-1] for s in fresh] == [s["messages"][:-1] for s in whole["sessions"]]
    assert all(a["messages"][-1] != b["messages"][-1] for a, b in zip(fresh, whole["sessions"], strict=True))


def test_a_kill_between_replies_and_verdicts_samples_nothing_twice(config, whole, monkeypatch) -> None:
    """After the kill, verdicts are written for the replies that were committed before it."""

    def die(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(rollout_stage, "write_verdicts", die)
        with pytest.raises(KeyboardInterrupt):
            rollout.run(config())
    assert not list((stage_dir(config().run, "judge")).glob("verdicts/*"))
    with pytest.raises(OpdkitError, match=r"run `opdkit rollout .* again"):  # not `opdkit judge`
        read_part(config().run, "verdicts", 0)
    monkeypatch.setattr(rollout_stage, "load_answering_model", None)
    rollout.run(config())
    assert everything(config().run) == whole


def test_missing_parts_are_written_again_with_the_same_rows(config, whole) -> None:
    """Files of the sessions, the turns and the verdicts are removed, as if a kill had come before they were written."""
    run = config().run
    rollout.run(config())
    for missing in ("extract/sessions/part-00001", "extract/turns/part-00001", "judge/verdicts/part-00002",
                    "extract/sessions/part-00000"):  # fmt: skip
        (run / f"{missing}.parquet").unlink()
    rollout.run(config())
    assert everything(run) == whole
    assert not list(run.glob("*/.tmp/*"))


def test_status_names_what_each_stage_took(config, capsys) -> None:
    rollout.run(config(samples=3))
    status.run(StatusConfig(run=config().run))
    printed = capsys.readouterr().out
    assert "rollout: 6 hinted turns in, 18 replies out, 0 dropped" in printed
    assert "judge: 18 turns in, 18 verdicts out, 0 dropped" in printed


def test_a_limit_counts_sessions_of_the_source(config, whole) -> None:
    summary = rollout.run(config(limit=3))
    assert rows(config().run, "sessions") == whole["sessions"][:6]
    assert summary.counters.rows_in == 3


def test_a_rollout_of_a_rollout(config, whole, tmp_path, source) -> None:
    """The second rollout keeps the hints and the prompts, so nothing of the first replies is left."""
    rollout.run(config())
    again = config(tmp_path / "again", from_run=config().run, samples=1)
    rollout.run(again)
    fresh = rows(again.run, "sessions")
    assert [s["session_id"] for s in fresh] == [f"{t['turn_id']}/rollout-0" for t in whole["turns"]]
    assert [s["messages"][:-1] for s in fresh] == [s["messages"][:-1] for s in whole["sessions"]]
    assert [v["hint"] for v in rows(again.run, "verdicts")] == [v["hint"] for v in whole["verdicts"]]


# -- what is carried over -------------------------------------------------------------------------------------------


def test_prompts_are_rendered_as_the_source_s_were(config, source, tmp_path, tiny_model_dir) -> None:
    """Template arguments pass from the source's teacher stage to the rollout, and on to the rollout's teacher stage."""
    run = Path(shutil.copytree(source, tmp_path / "from"))
    args = ("enable_thinking=false",)
    scored(run, tiny_model_dir, template_arg=args)
    rollout.run(config(from_run=run, model=str(tiny_model_dir)))
    new = config().run
    assert manifest(new, "extract")["plan"]["config"]["template_arg"] == list(args)
    targets = scored(new, tiny_model_dir)
    assert manifest(new, "teacher")["plan"]["config"]["template_arg"] == list(args)
    for target in targets:
        assert target["old_logprobs"] == pytest.approx(target["behavior_logprobs"], abs=1e-4)
    with pytest.raises(ConfigError, match="--template-arg"):
        scored(new, tiny_model_dir, template_arg=("enable_thinking=true",), overwrite=True)
    other = config(tmp_path / "other", from_run=run, model=str(tiny_model_dir), template_arg=("enable_thinking=true",))
    rollout.run(other)
    assert manifest(other.run, "extract")["plan"]["config"]["template_arg"] == ["enable_thinking=true"]


def test_metadata_still_route_to_a_teacher(tmp_path, config, student, plain_tokenizer) -> None:
    big = save_tiny_model(tmp_path / "big", plain_tokenizer, seed=7)
    sessions = [talk(name) | {"metadata": json.dumps({"tier": tier})} for name, tier in (("a", "big"), ("b", "self"))]
    turns, verdicts = [turn("a:2"), turn("b:2")], [verdict("a:2", HINT), verdict("b:2", HINT)]
    run = write_run(tmp_path / "from", one_part(sessions, turns, verdicts))
    rollout.run(config(from_run=run, samples=1))
    assert [s["metadata"] for s in rows(config().run, "sessions")] == [s["metadata"] for s in sessions]
    names = (f"big={big}", f"self={student}")
    routed = scored(config().run, student, teacher=names, teacher_route="tier")
    alone = scored(config().run, student, overwrite=True)
    assert routed[0]["teacher_logprobs"] != alone[0]["teacher_logprobs"]
    assert routed[1]["teacher_logprobs"] == alone[1]["teacher_logprobs"]


def test_another_model_s_log_is_no_matter(tmp_path, config, student, capsys) -> None:
    """A rollout cures a log that another model wrote: the logged replies and their log-probs are left behind."""
    logged = turn("a:2", response_token_ids=[1, 2, 3], behavior_logprobs=[-1.0, -1.0, -1.0])
    run = write_run(tmp_path / "from", one_part([talk("a") | {"model": "gpt-x"}], [logged], [verdict("a:2", HINT)]))
    scored(run, student)
    assert "a model other than" in capsys.readouterr().err
    rollout.run(config(from_run=run))
    scored(config().run, student)
    assert "a model other than" not in capsys.readouterr().err
    assert [1, 2, 3] not in [t["response_token_ids"] for t in rows(config().run, "turns")]


# -- what is refused ------------------------------------------------------------------------------------------------


def test_what_cannot_be_rolled_out_is_refused(config, source, tmp_path) -> None:
    with pytest.raises(ConfigError, match="--from-run"):
        config(source / ".." / "run").check_inputs()
    with pytest.raises(ConfigError, match="--from-run"):
        config(from_run=None)
    with pytest.raises(ConfigError, match="--judge-url"):
        config(judge_url="http://localhost:1/v1")
    with pytest.raises(ConfigError, match="--judge-url"):
        config(judge_model="m", judge_url="http://user:secret@localhost:1/v1")
    with pytest.raises(OpdkitError, match=f"opdkit judge {tmp_path / 'nothing'}"):
        rollout.run(config(from_run=tmp_path / "nothing"))
    with pytest.raises(OpdkitError, match=str(tmp_path / "nothing")):
        rollout.run(config(model=str(tmp_path / "nothing")))
    assert not config().run.exists(), "what fails binds nobody"


def test_without_hints_there_is_nothing_to_do(tmp_path, config) -> None:
    sessions = [talk("a"), talk("b")]
    verdicts = [verdict("a:2", None, 1), verdict("b:2", HINT)]
    run = write_run(tmp_path / "from", one_part(sessions, [turn("a:2"), turn("b:2")], verdicts))
    with pytest.raises(OpdkitError, match=r"no turn with a hint in its first 1 session,.*a larger --limit"):
        rollout.run(config(from_run=run, limit=1))
    assert not config().run.exists()
    assert rollout.run(config(from_run=run)).counters.rows_in == 1


def test_a_run_with_another_plan_is_refused(config, source, tmp_path) -> None:
    """A run under another plan is not resumed; nor is one whose source was judged again."""
    run = Path(shutil.copytree(source, tmp_path / "from"))
    rollout.run(config(from_run=run))
    with pytest.raises(ConfigError, match=r"config\.samples: 2 -> 4"):
        rollout.run(config(from_run=run, samples=4))
    logs = Path(shutil.copytree(source, tmp_path / "logs"))
    with pytest.raises(ConfigError, match="--overwrite"):
        rollout.run(config(logs))
    document = json.loads((run / "judge" / "manifest.json").read_text())
    (run / "judge" / "manifest.json").write_text(json.dumps(document | {"fingerprint": "judged anew"}))
    for path in (run / "judge" / "verdicts").iterdir():
        table = pq.read_table(path)
        pq.write_table(table.replace_schema_metadata({**table.schema.metadata, b"opdkit.plan": b"judged anew"}), path)
    with pytest.raises(ConfigError, match=r"inputs\.from\.judge"):
        rollout.run(config(from_run=run))


def test_the_command_line_and_a_file_of_options(tmp_path, source) -> None:
    file = tmp_path / "options.toml"
    file.write_text(f"[rollout]\nfrom-run = '{source}'\nmodel = 'm'\nmax-new-tokens = 9\n")
    made = configure("rollout", {"run": tmp_path / "new", "samples": 3}, file)
    assert (made.from_run, made.model, made.max_new_tokens, made.samples) == (source, "m", 9, 3)
    assert "from_run" not in made.plan()  # the fingerprints of the source count, not its path


# -- the sample world -----------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_the_sample_model_answers_its_own_log_afresh(tmp_path, config, capsys) -> None:
    """All stages, extract to train, work on sample_data with replies that the model would give now."""
    from opdkit.extract import stage as extract
    from opdkit.judge import stage as judge

    run = tmp_path / "from"
    extract.run(ExtractConfig(run=run, logs=(str(DATA / "logs" / "openai.jsonl"),), limit=8))
    judge.run(JudgeConfig(run=run, judge="local", judge_model=str(MODEL), votes=1, max_new_tokens=48, device="cpu"))
    hinted = [v["turn_id"] for v in rows(run, "verdicts") if v["hint"]]
    rollout.run(config(from_run=run, model=str(MODEL), max_new_tokens=64))
    new = config().run
    turns = rows(new, "turns")
    assert [t["turn_id"].rpartition("/")[0] for t in turns] == [name for name in hinted for _ in range(2)]
    assert {t["finish_reason"] for t in turns} == {"stop"}  # the model was trained to stop
    capsys.readouterr()
    targets = scored(new, MODEL)
    assert "a model other than" not in capsys.readouterr().err
    gaps = [np.subtract(t["old_logprobs"], t["behavior_logprobs"]) for t in targets]
    assert np.abs(np.concatenate(gaps)).max() < 1e-4
    trained = train.run(TrainConfig(run=new, model=str(MODEL), batch_turns=4, device="cpu"))
    assert trained.counters.rows_out == len(turns)
    assert (new / "train" / "model" / "model.safetensors").exists()
