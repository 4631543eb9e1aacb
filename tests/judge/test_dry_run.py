"""Tests of `opdkit judge --dry-run`: it counts what the real run asks, loads no weights, sends and writes nothing."""

import re
import unittest.mock
from contextlib import closing, contextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest
from judged_runs import judge_in_vain
from runs import in_context, snapshot, talk, write_extract

from opdkit.chat.template import Chat
from opdkit.config.judge import JudgeConfig
from opdkit.errors import OpdkitError
from opdkit.judge import local
from opdkit.judge import stage as judge
from opdkit.judge.prompts import judge_messages, write_turn
from opdkit.model import sampling
from opdkit.model.load import load_tokenizer
from opdkit.model.sampling import shared_cache
from opdkit.model.tree import count_common
from opdkit.store.reading import read_all, read_part
from opdkit.store.run_stage import run_stage

SESSIONS = {
    f"s{n}": talk("Hi", "Hello" * (n + 1), "Use Celsius", "Done", "thanks", "You are welcome") for n in range(6)
}


@pytest.fixture
def extracted(tmp_path: Path) -> Path:
    return write_extract(tmp_path / "run", SESSIONS)


def config(run: Path, model: Path | str | None, **options) -> JudgeConfig:
    small = {"judge": "local", "votes": 3, "all_votes": True, "max_new_tokens": 8, "shard": "0/1", "device": "cpu"}
    return JudgeConfig(run=run, judge_model=None if model is None else str(model), **(small | options))


@contextmanager
def counted_reading():
    """Yield a list of the tokens in each forward pass in which a model reads prompts to sample from.

    Made-up prompts, which check each model once, are not read here.
    """
    read_group, fed = shared_cache._read_group, list[int]()

    def counted(model, *args):
        hook = model.register_forward_pre_hook(
            lambda _module, _args, named: fed.append(named["input_ids"].numel()), with_kwargs=True
        )
        with closing(SimpleNamespace(close=hook.remove)):
            return read_group(model, *args)

    patch = unittest.mock.patch.object
    with patch(shared_cache, "_read_group", counted), patch(sampling, "check_shared_cache", lambda model: True):
        yield fed


def facts(printed: str) -> dict[str, str]:
    """Return name -> value of each printed line, with no commas in the numbers."""
    return dict(re.split(r"  +", line.strip().replace(",", ""), maxsplit=1) for line in printed.splitlines())


def test_a_local_judge_is_counted_token_by_token(extracted, plain_model_dir, monkeypatch, capsys) -> None:
    before = snapshot(extracted)
    with monkeypatch.context() as patched:
        patched.setattr(local, "load_model", lambda *_, **__: pytest.fail("a dry run loads no weights"))
        expected = judge.run(config(extracted, plain_model_dir, dry_run=True)).counters
    assert snapshot(extracted) == before
    shown = facts(capsys.readouterr().out)
    with counted_reading() as fed:
        found = judge_in_vain(config(extracted, plain_model_dir)).counters
    assert (expected.rows_in, expected.rows_out, expected.dropped) == (found.rows_in, found.rows_out, found.dropped)
    assert int(shown["turns to judge"]) == found.rows_out == 12
    assert int(shown["votes"]) == found.total("votes") == 12 * 2 * 3
    assert int(shown["questions on the hint"]) == int(shown["questions on the reward"]) == 12
    chat, read = Chat(load_tokenizer(str(plain_model_dir)), {}), 0
    messages = {row["session_id"]: row["messages"] for row in read_all(extracted, "sessions")}
    for row in read_all(extracted, "verdicts"):
        session_id, _, index = row["turn_id"].rpartition(":")
        text = write_turn(in_context(messages[session_id], int(index)), 6000)
        hint, reward = (chat.prompt_ids(judge_messages(text, name)) for name in ("hint", "reward"))
        read += len(hint) + len(reward) - count_common(hint, reward)
    prompt, cached = found.total("prompt tokens"), found.total("cached prompt tokens")
    assert int(shown["tokens to read"]) == sum(fed) == prompt - cached
    assert 0.97 * read < sum(fed) < read  # neighbouring turns share the instructions
    assert int(shown["read without a prefix cache"]) == prompt
    assert 12 * 2 * 3 <= found.total("completion tokens") <= int(shown["tokens to write at most"]) == 12 * 2 * 3 * 8
    assert shown["would write"] == f"{extracted}/judge/verdicts/part-00000.parquet and 2 more"


def test_a_server_gets_no_request(extracted, capsys) -> None:
    """No server listens at the address, so a request would fail. Tokens are counted as four bytes each."""
    before = snapshot(extracted)
    server = {"judge": "endpoint", "judge_url": "http://127.0.0.1:9/v1", "dry_run": True}
    for overwrite in (False, True):
        judge.run(config(extracted, "m", overwrite=overwrite, **server))
        shown = facts(capsys.readouterr().out)
        assert int(shown["requests"]) == 12 * 2 * 3
        assert int(shown["tokens to write at most"]) == 12 * 2 * 3 * 8
        (session, *_), size = read_part(extracted, "sessions", 0), 0
        for index in (1, 3):
            text = write_turn(in_context(session["messages"], index), 6000)
            asked = [m["content"] for name in ("hint", "reward") for m in judge_messages(text, name)]
            size += 3 * sum(len(content.encode()) for content in asked)
        assert size // 4 < int(shown["tokens to read about"]) / 6 < size // 4 + 30  # later replies are longer
    assert snapshot(extracted) == before


def test_rules_ask_nobody(extracted, capsys) -> None:
    summary = judge.run(config(extracted, None, judge="rules", dry_run=True))
    assert set(facts(capsys.readouterr().out)) == {
        "parts", "turns", "dropped: no next state", "turns to judge", "would write"
    }  # fmt: skip
    assert str(summary).endswith("nothing written")
    assert not (extracted / "judge").exists()


def test_outcomes_of_the_log_cost_no_reward_votes(extracted, plain_model_dir, capsys) -> None:
    options = {"good": ("metadata.written=by a test",)}
    judge.run(config(extracted, plain_model_dir, dry_run=True, **options))
    shown = facts(capsys.readouterr().out)
    found = judge.run(config(extracted, plain_model_dir, **options)).counters
    assert int(shown["votes"]) == found.total("votes") > 0
    assert int(shown["turns to judge"]) == found.rows_out
    assert "questions on the reward" not in shown


def test_parts_that_are_done_are_left_out(extracted, plain_model_dir, capsys) -> None:
    judge_in_vain(config(extracted, plain_model_dir))
    (extracted / "judge/verdicts/part-00002.parquet").unlink()
    before = snapshot(extracted)
    judge.run(config(extracted, plain_model_dir, dry_run=True))
    shown = facts(capsys.readouterr().out)
    assert (shown["parts"], shown["turns to judge"]) == ("3 2 done 1 to do", "4")
    judge.run(config(extracted, plain_model_dir, dry_run=True, votes=1, overwrite=True))
    assert facts(capsys.readouterr().out)["turns to judge"] == "12"
    assert snapshot(extracted) == before


def test_prompts_that_do_not_fit_are_counted(extracted, plain_model_dir, monkeypatch, capsys) -> None:
    monkeypatch.setattr(local, "context_length", lambda _: 20)
    judge.run(config(extracted, plain_model_dir, dry_run=True))
    shown = facts(capsys.readouterr().out)
    assert (shown["questions that do not fit"], shown["tokens to read"]) == ("24", "0")


@pytest.mark.parametrize("options", [{"votes": 4}, {"judge_model": "/nowhere/model"}, {"device": "cuda:99"}], ids=str)
def test_what_stops_the_run_stops_the_dry_run(options, extracted, plain_model_dir) -> None:
    judge_in_vain(config(extracted, plain_model_dir))
    (extracted / "judge/verdicts/part-00001.parquet").unlink()
    before, errors = snapshot(extracted), []
    for dry_run in (True, False):
        with pytest.raises(OpdkitError) as raised:
            run_stage("judge", config(extracted, options.get("judge_model", plain_model_dir),
                                      **{k: v for k, v in options.items() if k != "judge_model"},
                                      dry_run=dry_run))  # fmt: skip
        errors.append((type(raised.value), raised.value.exit_code, str(raised.value)))
        if dry_run:
            assert snapshot(extracted) == before
    assert errors[0] == errors[1]
