"""Tests of the dry run's costs (tokens, time, money) against those of the judge's real run."""

import re
from collections import Counter
from pathlib import Path
from types import SimpleNamespace

import pytest
from chaos_server import text_of
from http_server import Reply, completion, serving, unused_address
from judged_runs import judge_in_vain
from runs import snapshot, talk, write_extract

from opdkit.chat.template import Chat
from opdkit.config.judge import JudgeConfig
from opdkit.errors import ConfigError
from opdkit.judge import costs
from opdkit.judge import stage as judge
from opdkit.judge.costs import measure
from opdkit.judge.votes import Answer, Question
from opdkit.model.load import load_tokenizer
from opdkit.model.tree import count_nodes, plan_passes

# Turns of 10 to 1,500 characters.
SESSIONS = {
    f"s{n}": talk(f"Where is {n}?", "It is far away. " * n * n, "In Celsius, please", "Done", "thanks")
    for n in range(10)
}


@pytest.fixture(autouse=True)
def loopback(monkeypatch):
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)


@pytest.fixture
def extracted(tmp_path: Path) -> Path:
    return write_extract(tmp_path / "run", SESSIONS, per_part=4)


@pytest.fixture
def chat(plain_model_dir: Path) -> Chat:
    return Chat(load_tokenizer(str(plain_model_dir)), {})


def config(run: Path, url: str, model: Path | str, **options) -> JudgeConfig:
    return JudgeConfig(
        run=run,
        judge="endpoint",
        judge_url=url,
        judge_model=str(model),
        votes=3,
        all_votes=True,
        shard="0/1",
        **options,
    )


def facts(printed: str) -> dict[str, str]:
    """Return name -> value of each printed line, with no commas in the numbers."""
    return dict(re.split(r"  +", line.strip().replace(",", ""), maxsplit=1) for line in printed.splitlines())


def number(text: str) -> float:
    return float(text.split()[0])


def counting(chat: Chat):
    """Return a server script that counts with its model's tokenizer and gives answers of varying length."""

    def script(body: dict, _number: int) -> Reply:
        said = text_of(body) + " and so on" * (body["seed"] % 5)
        usage = {"prompt_tokens": len(chat.prompt_ids(body["messages"])),
                 "completion_tokens": len(chat.tokenizer.encode(said))}  # fmt: skip
        return Reply(body=completion(said).body | {"usage": usage})

    return script


@pytest.mark.parametrize("options", [{}, {"measure": 4}], ids=str)
def test_a_server_whose_tokenizer_is_here_is_counted_token_by_token(
    options, extracted, chat, plain_model_dir, capsys
) -> None:
    with serving(counting(chat)) as server:
        judge.run(config(extracted, server.url, plain_model_dir, dry_run=True, **options))
        shown, asked = facts(capsys.readouterr().out), len(server.requests)
        counters = judge.run(config(extracted, server.url, plain_model_dir)).counters
    assert asked == (4 * 2 * 3 if options else 0)
    assert number(shown["requests"]) == len(server.requests) - asked == counters.total("votes")
    assert number(shown["tokens to read"]) == pytest.approx(
        counters.total("prompt tokens"), rel=0 if not options else 0.01
    )
    assert 0 < number(shown["read with a prefix cache"]) < number(shown["tokens to read"]) / 3
    if options:
        assert number(shown["tokens to write about"]) == pytest.approx(counters.total("completion tokens"), rel=0.1)
        assert "server" in shown["counted"]
    else:
        assert str(plain_model_dir) in shown["counted"]


def test_another_server_is_measured_or_said_to_be_a_guess(extracted, chat, capsys) -> None:
    """The measured count is within 10%; four bytes per token would be far off, as this tokenizer knows few words."""
    with serving(counting(chat)) as server:
        judge.run(config(extracted, server.url, "a-model", dry_run=True))
        guess = facts(capsys.readouterr().out)
        before = snapshot(extracted)
        judge.run(config(extracted, server.url, "a-model", dry_run=True, measure=6))
        shown = facts(capsys.readouterr().out)
        assert snapshot(extracted) == before
        counters = judge.run(config(extracted, server.url, "a-model")).counters
    assert "tokens to read" not in guess
    assert "4 bytes" in guess["counted"]
    assert number(shown["tokens to read"]) == pytest.approx(counters.total("prompt tokens"), rel=0.1)
    assert number(shown["tokens to write about"]) == pytest.approx(counters.total("completion tokens"), rel=0.1)


def test_a_local_judge_is_measured(extracted, plain_model_dir, capsys) -> None:
    options = {"run": extracted, "judge": "local", "judge_model": str(plain_model_dir), "votes": 2, "device": "cpu",
               "all_votes": True, "max_new_tokens": 8, "shard": "0/1"}  # fmt: skip
    judge.run(JudgeConfig(**options, dry_run=True, measure=3, price="10,1000"))
    shown, counters = facts(capsys.readouterr().out), judge_in_vain(JudgeConfig(**options)).counters
    read = counters.total("prompt tokens") - counters.total("cached prompt tokens")
    written = counters.total("completion tokens")
    assert number(shown["tokens to read"]) == pytest.approx(read, rel=0.01)
    assert number(shown["tokens to write about"]) == pytest.approx(written, rel=0.1)
    assert number(shown["money about"]) == pytest.approx((10 * read + 1000 * written) / 1e6, rel=0.1)
    assert "as measured" in shown["time"]


def test_money_is_bounded_where_no_answer_was_measured(extracted, plain_model_dir, capsys) -> None:
    judge.run(config(extracted, unused_address(), plain_model_dir, dry_run=True, price="2,30", max_new_tokens=1000))
    shown = facts(capsys.readouterr().out)
    expected = 2 * number(shown["tokens to read"]) + 30 * 20 * 2 * 3 * 1000
    assert number(shown["money at most"]) == pytest.approx(expected / 1e6, abs=0.005)
    assert "--measure" in shown["time"]


@pytest.mark.parametrize("price", ["", "1", "1,2,3", "a,b", "-1,2", "nan,1", "1,inf"])
def test_a_price_is_two_numbers(price: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="--price"):
        JudgeConfig(run=tmp_path, judge="rules", dry_run=True, price=price)


def test_costs_are_asked_for_with_dry_run(tmp_path: Path) -> None:
    for options in ({"price": "1,2"}, {"measure": 3}):
        with pytest.raises(ConfigError, match="--dry-run"):
            JudgeConfig(run=tmp_path, judge="rules", **options)


def test_a_shared_beginning_is_counted_once() -> None:
    prompts = [[1, 2, 3, 4], [1, 2, 5], [1, 2, 3, 6, 7], [8], [1, 2, 3, 6, 7]]
    assert count_nodes(prompts) == plan_passes(prompts, 1).tokens == 4 + 1 + 2 + 1
    assert count_nodes([]) == 0
    assert count_nodes([b"ab", b"abc", b"b"]) == 4


def test_the_first_turn_only_warms_up(monkeypatch) -> None:
    """The first turn warms the judge up, so that its time, which is longer, is left out."""
    clock = iter([0.0, 100.0, 100.0, 106.0])
    monkeypatch.setattr(costs.time, "monotonic", lambda: next(clock))
    model = SimpleNamespace(
        count_work=lambda questions: Counter({"votes": 2 * len(questions), "prompt": 10}),
        ask=lambda questions: [[Answer("")] * 2] * len(questions),
        config=SimpleNamespace(votes=2, judge="endpoint"),
    )
    measured, _ = measure(model, model.ask, [[Question(f"s:{n}", "hint", [])] for n in range(4)])
    assert (measured.votes, measured.seconds, measured.completion) == (8, 1.0, None)
