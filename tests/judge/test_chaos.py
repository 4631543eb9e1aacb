"""Tests of the endpoint judge with a real server that fails at three answers of ten, in every way, or that is dead."""

import os
import re
from pathlib import Path

import pytest
from chaos_server import FAULTS, MODEL, Chaos, text_of
from http_server import Reply, completion, recorded_pauses, serving, unused_address
from runs import talk, write_extract
from typer.testing import CliRunner, Result

from opdkit.cli import app
from opdkit.config.judge import JudgeConfig
from opdkit.config.teacher import TeacherConfig
from opdkit.errors import OpdkitError
from opdkit.judge.endpoint import Endpoint
from opdkit.judge.identity import Identity
from opdkit.judge.stage import run
from opdkit.judge.votes import Answer, Question
from opdkit.model.server import traffic
from opdkit.store.part_writer import Stage
from opdkit.store.reading import part_path, read_all, read_part
from opdkit.store.stable_hash import stable_hash
from opdkit.store.tables import TARGETS

SESSIONS = {f"s{n}": talk("Hi", "Hello", f"Use Celsius, number {n}", "Done", "thanks") for n in range(4)}
BIG = os.environ.get("OPDKIT_FULL_CHAOS")


@pytest.fixture(autouse=True)
def scaled_down(monkeypatch):
    monkeypatch.setattr(traffic, "FIRST_PAUSE", 0.02)
    monkeypatch.setattr(traffic, "SHORTEST", 0.3)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)


def client(url: str, **fields) -> Endpoint:
    defaults = {"timeout": 3.0, "retries": 6, "concurrency": 16, "votes": 5, "max_new_tokens": 20}
    return Endpoint(
        JudgeConfig(run=Path("run"), judge="endpoint", judge_model=MODEL, judge_url=url, **(defaults | fields))
    )


def questions(count: int) -> list[Question]:
    return [Question(f"s:{n}", "hint", [{"role": "user", "content": f"question {n}"}]) for n in range(count)]


def flat(answers: list[list[Answer]]) -> list[Answer]:
    return [answer for votes in answers for answer in votes]


def expected(asked: list[Question]) -> list[str]:
    seeds = [(q.messages, stable_hash(0, q.turn_id, q.name, vote, bits=31)) for q in asked for vote in range(5)]
    return [text_of({"messages": messages, "seed": seed}) for messages, seed in seeds]


@pytest.mark.parametrize("seed", [0, 1])
def test_all_votes_in_the_end_and_none_invented(seed: int) -> None:
    """Each vote is the server's answer to its messages and seed, however many attempts failed before it."""
    chaos, asked = Chaos(seed, hang=20.0, told=0.1), questions(30)
    with serving(chaos) as server:
        answers = flat(client(server.url).ask(asked))
    assert [a.text for a in answers] == expected(asked)
    assert {a.error for a in answers} == {None}
    assert set(chaos.sent) == {*FAULTS, "answer"}
    assert server.most_at_once <= 16 + chaos.sent["hang"]  # a hanging request counts until the server sees it closed


def test_the_table_is_that_of_a_calm_server(tmp_path: Path) -> None:
    tables = []
    for name, share in (("calm", 0.0), ("chaos", 0.4)):
        path = write_extract(tmp_path / name, SESSIONS)
        with serving(Chaos(3, share=share, hang=20.0, told=0.1)) as server:
            run(JudgeConfig(run=path, judge="endpoint", judge_model=MODEL, judge_url=server.url, votes=3, timeout=2.0,
                            shard="0/1"))  # fmt: skip
        tables.append(list(read_all(path, "verdicts")))
    assert tables[0] == tables[1]
    assert len(tables[0]) == 8


def test_nobody_asks_while_the_server_is_to_be_left_alone() -> None:
    """The request that got Retry-After pauses for a second, and the next request for what is left of this second."""

    def script(body, number: int) -> Reply:
        return Reply(429, {}, {"Retry-After": "1"}) if number == 10 else completion("fine")

    with serving(script) as server, recorded_pauses() as pauses:
        client(server.url, concurrency=4).ask(questions(8))
    assert len(server.requests) == 41
    assert pauses.count(1.0) == 1
    assert [pause for pause in pauses if traffic.FIRST_PAUSE < pause < 1.0]


@pytest.mark.skipif(not BIG, reason="minutes: set OPDKIT_FULL_CHAOS=1")
def test_hangs_of_a_minute(monkeypatch) -> None:
    monkeypatch.undo()
    chaos, asked = Chaos(0, hang=60.0, seconds=0.2), questions(200)
    with serving(chaos) as server:
        answers = flat(client(server.url, timeout=120.0).ask(asked))
    assert [a.text for a in answers] == expected(asked)
    assert chaos.sent["hang"] > 10


# -- dead servers, through the command line -------------------------------------------------------------------------


def judge(path: Path, url: str, *more: str) -> Result:
    command = ["judge", str(path), "--judge", "endpoint", "--judge-url", url, "--judge-model", MODEL, "--votes", "2",
               "--all-votes", "--retries", "1", "--shard", "0/1", *more]  # fmt: skip
    return CliRunner().invoke(app, command)


def test_a_dead_server_ends_the_command_and_keeps_what_is_finished(tmp_path: Path) -> None:
    """A part is written only with all its votes, and finished parts stay as they are when the run resumes."""
    path = write_extract(tmp_path / "run", SESSIONS)
    verdicts = path / "judge" / "verdicts"
    refused = judge(path, unused_address())
    assert (refused.exit_code, verdicts.exists()) == (1, False)
    assert re.search(r"error:.*http://127\.0\.0\.1:\d+/v1 .*2 attempts", " ".join(refused.stderr.split()))
    assert "Traceback" not in refused.stderr
    chaos = Chaos(share=0.0)
    with serving(lambda body, number: chaos(body, number) if number < 20 else Reply(500, "")) as server:
        died = judge(path, server.url)
    assert died.exit_code == 1
    assert "HTTP 500" in died.stderr
    kept = {p.name: p.read_bytes() for p in verdicts.iterdir()}
    assert list(kept) == ["part-00000.parquet"]
    with serving(chaos) as server:
        assert judge(path, server.url).exit_code == 0
    assert len(list(verdicts.iterdir())) == 2
    assert (verdicts / "part-00000.parquet").read_bytes() == kept["part-00000.parquet"]


# -- another model --------------------------------------------------------------------------------------------------


def named(name: str | None, text: str = "text") -> Reply:
    reply = completion(text)
    return Reply(body=reply.body | {"model": name}) if name else reply


def test_a_server_that_changes_its_model_is_refused(capsys) -> None:
    """The stage ends, with one warning: votes of two judges in one table could not be told apart."""
    with serving(lambda body, number: named(MODEL if number < 10 else "other")) as server:
        judge = client(server.url, retries=1, concurrency=2)
        assert len(flat(judge.ask(questions(2)))) == 10
        with pytest.raises(OpdkitError, match="another model: other"):
            judge.ask(questions(2))
    assert capsys.readouterr().err.count("answers as other, too, not only as judge-model") == 1


def test_a_single_answer_of_another_model_is_asked_for_again() -> None:
    with serving(lambda body, number: named("other", "wrong") if number in (0, 7) else named(MODEL, "right")) as server:
        answers = flat(client(server.url, concurrency=1).ask(questions(4)))
    assert {a.text for a in answers} == {"right"}
    assert len(server.requests) == 22


@pytest.mark.parametrize("name", ["judge-model-2026-01-01", None])
@pytest.mark.parametrize("concurrency", [1, 16])
def test_a_server_may_know_the_model_by_another_name(name: str | None, concurrency: int, capsys) -> None:
    """The first answers settle the judge's name; asking for them again takes no attempt and no pause."""
    with serving(lambda body, number: named(name)) as server, recorded_pauses() as pauses:
        answers = flat(client(server.url, retries=0, concurrency=concurrency).ask(questions(6)))
    assert [answer.error for answer in answers] == [None] * 30
    assert (len(server.requests), max(pauses, default=0)) == (30 + 2 * (name is not None), 0)
    err = capsys.readouterr().err
    assert err.count(f"{MODEL} answers as {name}") == (name is not None)
    assert "trying again" not in err


@pytest.mark.parametrize("first", [MODEL, "judge-model-2026-01-01"])
def test_whoever_goes_on_takes_no_other_model(first: str, tmp_path: Path) -> None:
    """A resumed run refuses answers under another name than that of the existing votes; --overwrite accepts it."""
    path = write_extract(tmp_path / "run", SESSIONS)
    verdicts = path / "judge" / "verdicts"
    with serving(lambda body, number: named(first, r"\boxed{1}") if number < 20 else Reply(500, "")) as server:
        assert judge(path, server.url).exit_code == 1
    kept = {p.name: p.read_bytes() for p in verdicts.iterdir()}
    assert len(kept) == 1
    with serving(lambda body, number: named("other", r"\boxed{-1}")) as server:
        refused = judge(path, server.url)
        assert refused.exit_code == 1
        assert "an answer of another model: other" in " ".join(refused.stderr.split())
        assert f"answers as other, and the existing votes are by {first}" in " ".join(refused.stderr.split())
        assert {p.name: p.read_bytes() for p in verdicts.iterdir()} == kept
        anew = judge(path, server.url, "--overwrite")
        assert anew.exit_code == 0, anew.stderr
    assert {v["reward"] for part in range(2) for v in read_part(path, "verdicts", part)} == {-1}
    with serving(lambda body, number: named(first, r"\boxed{1}")) as server:
        assert judge(path, server.url).exit_code == 0  # nothing is left to ask
        (verdicts / "part-00001.parquet").unlink()
        assert judge(path, server.url).exit_code == 1  # the existing votes are by "other" now


def test_of_two_processes_the_first_to_know_the_name_decides(tmp_path: Path, capsys) -> None:

    def answer(identity: Identity, name: str) -> bool:
        identity.register_answer(name)
        return identity.is_judge(name)

    one, other = Identity(MODEL, tmp_path), Identity(MODEL, tmp_path)
    assert [answer(one, "a") for _ in range(3)] == [False, False, True]
    assert [answer(other, "b") for _ in range(4)] == [False] * 4
    assert answer(other, "a")
    assert "answers as b, and the existing votes are by a" in " ".join(capsys.readouterr().err.split())
    for damaged in (b"[]", b"", b"\xff\xfe\x00"):
        (tmp_path / "answers-as.json").write_bytes(damaged)
        with pytest.raises(OpdkitError, match=r"answers-as\.json"):
            Identity(MODEL, tmp_path)


def test_votes_that_are_gone_and_that_targets_stand_on_are_not_given_anew(tmp_path: Path) -> None:
    """New votes might differ unnoticed from those behind the targets, which `opdkit check --recompute` removes."""
    path = write_extract(tmp_path / "run", SESSIONS)
    with serving(lambda body, number: completion(r"\boxed{1}")) as server:
        assert judge(path, server.url).exit_code == 0
        stage = Stage.open(TeacherConfig(run=path, model="m"), "teacher", [TARGETS], parts=2, upstream=["judge"])
        with stage.writing(0):
            pass
        for part in (0, 1):
            part_path(path, "verdicts", part).unlink()
        asked = len(server.requests)
        refused = judge(path, server.url)
        assert (refused.exit_code, len(server.requests)) == (1, asked)
        assert "the votes of 1 part are gone" in " ".join(refused.stderr.split())
        assert judge(path, server.url, "--dry-run", "--overwrite").exit_code == 0, (
            "which would make the targets outdated"
        )
        part_path(path, "targets", 0).unlink()
        assert judge(path, server.url).exit_code == 0
        part_path(path, "verdicts", 0).unlink()
        with stage.writing(0):
            pass
        anew = judge(path, server.url, "--overwrite")  # all votes are new: the targets are refused as a whole
        assert anew.exit_code == 0, anew.stderr


def test_a_server_of_many_names_is_refused() -> None:
    with (
        serving(lambda body, number: named(f"model-{number % 3}")) as server,
        pytest.raises(OpdkitError, match=r"another model.* model-0 and model-1 and model-2; .*--judge-model"),
    ):
        client(server.url, concurrency=1, retries=4).ask(questions(1))
    assert len(server.requests) == 2 + 1 + 4 + 1  # the last one is the trial
