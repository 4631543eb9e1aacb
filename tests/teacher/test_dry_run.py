"""Tests of `opdkit teacher --dry-run`: it gives the counts of the real run, loads no weights and writes nothing."""

import re
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest
from conftest import save_tiny_model
from judged_runs import three_parts, write_run
from model_families import FAMILIES, PLAIN, STATES, build
from runs import snapshot
from typer.testing import CliRunner

from opdkit.chat.template import Chat
from opdkit.cli import app
from opdkit.errors import AnotherPlanError, ConfigError, OpdkitError
from opdkit.model.sampling import sample, served
from opdkit.store import reviews
from opdkit.store.reading import read_all
from opdkit.store.reviews import Review
from opdkit.store.run_stage import run_stage
from opdkit.teacher import models
from opdkit.teacher import stage as teacher

OPTIONS = [
    {},
    {"turn_by_turn": True},
    {"batch_tokens": 60},
    {"score_unhinted": True},
    {"max_tokens": 150},
    {"teacher_hint": "overlap", "top_k_of": "teacher", "top_k": 3},
    {"limit": 2},
    {"teacher": "other"},
]


def facts(printed: str) -> dict[str, str]:
    """Return name -> value of each printed line, with no commas in the numbers."""
    return dict(re.split(r"  +", line.strip().replace(",", ""), maxsplit=1) for line in printed.splitlines())


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_it_counts_what_the_run_then_does(options, run, config, tmp_path, tiny_tokenizer, monkeypatch, capsys) -> None:
    """The counts of replies, of drops by reason, and of tokens read, saved and scored are those of the real run."""
    if "teacher" in options:
        options = {"teacher": (str(save_tiny_model(tmp_path / "other", tiny_tokenizer, seed=1)),)}
    with monkeypatch.context() as patched:
        patched.setattr(models, "load_model", lambda *_, **__: pytest.fail("a dry run loads no weights"))
        before = snapshot(run)
        expected = teacher.run(config(run, dry_run=True, **options)).counters
        assert snapshot(run) == before
    shown = facts(capsys.readouterr().out)
    found = teacher.run(config(run, **options)).counters
    assert expected.rows_in == found.rows_in > 0
    assert (expected.rows_out, expected.dropped, expected.counts) == (found.rows_out, found.dropped, found.counts)
    assert shown["parts"] == "3 0 done 3 to do"
    assert int(shown["replies to score"]) == found.rows_out
    assert int(shown["tokens to read with prompts"]) == found.total("tokens read")
    assert int(shown["saved by shared prefixes"]) == found.total("tokens saved")
    assert int(shown["tokens to score"]) == found.total("tokens scored")


def test_parts_that_are_done_are_left_out(run, config, capsys) -> None:
    teacher.run(config(run))
    (run / "teacher/targets/part-00001.parquet").unlink()
    before = snapshot(run)
    summary = teacher.run(config(run, dry_run=True))
    assert "3, 2 done, 1 to do" in (shown := capsys.readouterr().out)
    assert str(run / "teacher/targets/part-00001.parquet") in shown
    assert 0 < summary.counters.rows_out < 9
    assert teacher.run(config(run, dry_run=True, overwrite=True, top_k=4)).counters.rows_out == 9
    shown = capsys.readouterr().out
    assert "3, 0 done, 3 to do" in shown
    assert "part-00000.parquet and 2 more" in shown
    assert snapshot(run) == before


def test_new_rewards_are_no_work_and_a_new_hint_is(run, config) -> None:
    teacher.run(config(run))
    rewarded, hinted = (
        Review("s0a:4", reward_decided=True, reward=-1),
        Review("s0a:4", hint_decided=True, hint="Say why."),
    )
    reviews.append(run, [rewarded])
    assert teacher.run(config(run, dry_run=True)).counters.rows_in == 0
    reviews.append(run, [hinted])
    expected = teacher.run(config(run, dry_run=True)).counters
    (run / "teacher/targets/part-00000.parquet").unlink()
    assert expected.rows_in > 0
    assert expected.total("tokens read") > 0


def test_sampled_replies_are_announced_with_their_longest_length(run, config, capsys) -> None:
    teacher.run(config(run, dry_run=True, teacher_samples=2, max_new_tokens=7))
    shown = facts(capsys.readouterr().out)
    assert int(shown["replies to sample"]) == 2 * int(shown["with a hint"]) > 0
    assert int(shown["tokens to write at most"]) == 7 * int(shown["replies to sample"])


@pytest.mark.parametrize("options", [{}, {"turn_by_turn": True}, {"teacher_hint": "overlap", "top_k": 3}], ids=str)
def test_what_is_read_for_samples_is_bounded(options, run, config, capsys) -> None:
    """The bound exceeds what the run reads by the tokens that samples lack to their greatest length, and the price
    includes it."""
    options |= {"teacher_samples": 2, "max_new_tokens": 7}
    dry = teacher.run(config(run, dry_run=True, price="1000,0", **options)).counters
    shown, bound = facts(capsys.readouterr().out), dry.labels("tokens read for samples")
    read = teacher.run(config(run, **options)).counters.total("tokens read") - dry.total("tokens read")
    lacking = sum(7 - len(row["response_ids"]) for row in read_all(run, "targets") if row["written"] is not None)
    assert read <= bound["to score, at most"] <= read + 2 * lacking + 4
    assert bound["to sample"] > 0
    assert int(shown["tokens to read at most"]) == bound.total()
    money = (dry.total("tokens read") + bound.total()) / 1000
    assert float(shown["money at most"].split()[0]) == pytest.approx(money, abs=0.005)


def test_a_few_hinted_turns_are_tried_for_the_time_and_the_length_of_replies(run, config, capsys) -> None:
    """Measured length and money are within 10%; with random weights, replies seldom stop before the longest length."""
    options = {"teacher_samples": 2, "max_new_tokens": 7}
    before = snapshot(run)
    teacher.run(config(run, dry_run=True, measure=3, price="0,1000", **options))
    assert snapshot(run) == before
    shown = facts(capsys.readouterr().out)
    teacher.run(config(run, **options))
    written = sum(len(row["response_ids"]) for row in read_all(run, "targets") if row["written"] is not None)
    assert int(shown["tokens to write about"]) == pytest.approx(written, rel=0.1)
    assert float(shown["money about"].split()[0]) == pytest.approx(written / 1000, rel=0.1, abs=0.005)
    assert shown["time"].endswith("as measured")
    teacher.run(config(run, dry_run=True, overwrite=True, price="0,1000", **options))
    shown = facts(capsys.readouterr().out)
    money = int(shown["tokens to write at most"]) / 1000
    assert float(shown["money at most"].split()[0]) == pytest.approx(money, abs=0.005)
    assert "--measure" in shown["time"]


def test_they_are_tried_on_the_server_that_samples(run, config, monkeypatch, capsys) -> None:
    def find_here(_: object, model: object, chat: Chat, __: object, ___: int, batch_tokens: int) -> SimpleNamespace:
        return SimpleNamespace(sample=partial(sample, model, stop_ids=chat.stop_ids, batch_tokens=batch_tokens))

    monkeypatch.setattr(served, "find_served", find_here)
    options = {"teacher_samples": 1, "max_new_tokens": 7, "sample_url": ("http://localhost:1/v1",)}
    teacher.run(config(run, dry_run=True, measure=2, **options))
    assert facts(capsys.readouterr().out)["time"].endswith("as measured")


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"device": "cuda:99"}, ConfigError),
        ({"model": "/nowhere/model"}, ConfigError),
        ({"top_k": 900}, ConfigError),
        ({"max_tokens": 10**6}, ConfigError),
        ({"limit": 1}, AnotherPlanError),  # not the plan of the targets
    ],
    ids=str,
)
def test_what_stops_the_run_stops_the_dry_run(options, error, run, config) -> None:
    """The dry run raises the same error as the run, and leaves no record of it in the run directory."""
    teacher.run(config(run))
    (run / ".failed").mkdir()
    (run / ".failed/teacher-0-of-1.json").write_text("{}")
    before, errors = snapshot(run), []
    for dry_run in (True, False):
        options |= {"overwrite": "limit" not in options, "dry_run": dry_run}
        with pytest.raises(OpdkitError) as raised:
            run_stage("teacher", config(run, **options))
        errors.append((type(raised.value), str(raised.value)))
        if dry_run:
            assert snapshot(run) == before
    assert errors[0] == errors[1]
    assert errors[0][0] is error


def test_on_the_command_line(tmp_path: Path, tiny_model_dir: Path) -> None:
    run = write_run(tmp_path / "run", three_parts())
    before = snapshot(run)
    done = CliRunner().invoke(app, ["teacher", str(run), "--model", str(tiny_model_dir), "--dry-run"])
    assert done.exit_code == 0
    assert "teacher --dry-run: expected: " in done.stderr
    assert "9 targets expected" in done.stderr
    assert done.stderr.strip().endswith("nothing written")
    assert snapshot(run) == before


@pytest.mark.parametrize("family", ["scaled logits", "experts", "learned positions", "window, then all", "Llama 4",
                                    "dynamic positions"])  # fmt: skip
def test_models_of_all_kinds_are_counted_as_they_read(family, run, config, tmp_path, tiny_tokenizer) -> None:
    """A model whose layers do not all see the whole prefix saves no tokens; its configuration tells the dry run."""
    folder = tmp_path / "model"
    build(*(FAMILIES | STATES | PLAIN)[family]).save_pretrained(folder)
    tiny_tokenizer.save_pretrained(folder)
    options = {"model": str(folder), "max_tokens": 512}
    expected, found = (teacher.run(config(run, dry_run=dry, **options)).counters for dry in (True, False))
    assert (expected.rows_in, expected.rows_out, expected.counts) == (found.rows_in, found.rows_out, found.counts)
    assert (found.total("tokens saved") == 0) == (family in PLAIN)
