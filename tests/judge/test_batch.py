"""Tests of the batch judge: a file of requests out, files of answers in, and the same verdicts as from a server."""

import gc
import gzip
import json
import random
import re
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, get_args, get_type_hints

import pytest
from chaos_server import MODEL, SESSIONS, USAGE, VOTES, text_of
from http_server import Reply, completion, serving
from openai.types.batch_create_params import BatchCreateParams
from openai.types.chat.completion_create_params import CompletionCreateParamsNonStreaming
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter
from runs import snapshot, talk, write_extract
from typer.testing import CliRunner

from opdkit.cli import app
from opdkit.commands import run as pipeline
from opdkit.config.commands import configure
from opdkit.config.judge import JudgeConfig
from opdkit.config.pipeline import make_configurations
from opdkit.config.run import RunConfig
from opdkit.errors import ConfigError, OpdkitError
from opdkit.judge.criterion import read_judge_options
from opdkit.judge.stage import run
from opdkit.store.counters import Summary
from opdkit.store.reading import part_path, read_all

EXPIRED = {"code": "batch_expired", "message": "This request could not be executed before the window expired."}
TOO_LONG = {"message": "This model's maximum context length is 4096 tokens.", "type": "BadRequestError", "code": 400}

Line = dict[str, Any]

pytestmark = pytest.mark.usefixtures("short_pauses")


@pytest.fixture
def extracted(tmp_path: Path) -> Path:
    return write_extract(tmp_path / "run", SESSIONS, per_part=1)


def judge(path: Path, out: Path | None = None, *files: Path, **options) -> Summary:
    config = JudgeConfig(run=path, judge="batch", judge_model=MODEL, out=out, in_=tuple(map(str, files)),
                         **({"shard": "0/1"} | options))  # fmt: skip
    config.check_inputs()
    return run(config)


def judge_by_server(path: Path, **options) -> list[dict]:
    """Judge with a server that gives the same answers; return the bodies of its requests."""
    with serving(lambda body, number: Reply(body=said(body))) as server:
        run(
            JudgeConfig(
                run=path,
                judge="endpoint",
                judge_model=MODEL,
                judge_url=server.url,
                shard="0/1",
                all_votes=True,
                **options,
            )
        )
    return server.requests


def said(body: dict, model: str = MODEL) -> dict:
    """Return the answer to a request, which depends only on its messages and its seed."""
    return completion(text_of(body)).body | {"model": model, "usage": USAGE}


def answer(request: Line, body: dict | None = None, **line: Any) -> Line:
    """Return a line of OpenAI's output file; `line` replaces its fields."""
    response = {"status_code": 200, "request_id": "r", "body": body or said(request["body"])}
    return {"id": "batch_req", "custom_id": request["custom_id"], "response": response, "error": None} | line


def vllm_error(request: Line, error: Any, status: int = 400) -> Line:
    """Return the line that `vllm run-batch` writes for a request that failed."""
    return answer(request, response={"status_code": status, "request_id": "r", "body": None}, error={"error": error})


def read(path: Path) -> list[Line]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def write(path: Path, lines: Sequence[Line]) -> Path:
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def ids(lines: Sequence[Line]) -> list[str]:
    return [line["custom_id"] for line in lines]


# -- requests ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("options", [{}, {"weigh_votes": True, "template_arg": ("enable_thinking=false",), "votes": 2}],
                         ids=str)  # fmt: skip
def test_the_requests_are_those_that_the_endpoint_sends(options: dict, extracted: Path, tmp_path: Path) -> None:
    judge(extracted, tmp_path / "out.jsonl", **options)
    lines = read(tmp_path / "out.jsonl")
    assert all(list(line) == ["custom_id", "method", "url", "body"] for line in lines)
    sent = judge_by_server(write_extract(tmp_path / "other", SESSIONS), **options)
    assert sorted(json.dumps(line["body"], sort_keys=True) for line in lines) == sorted(
        json.dumps(body, sort_keys=True) for body in sent
    )
    assert len(lines) == VOTES * options.get("votes", 5) // 5


def test_each_request_has_a_name_that_any_service_takes(tmp_path: Path) -> None:
    names = ["s:1", "s/1", "long " * 40 + "1", "long " * 40 + "2", "Ünïcode"]
    path = write_extract(tmp_path / "run", {name: talk("Hi", "Hello", "thanks") for name in names}, per_part=2)
    judge(path, tmp_path / "a.jsonl")
    judge(path, tmp_path / "b.jsonl")
    assert (tmp_path / "a.jsonl").read_bytes() == (tmp_path / "b.jsonl").read_bytes()
    found = ids(read(tmp_path / "a.jsonl"))
    assert len(set(found)) == len(found) == 5 * 2 * 5
    assert all(re.fullmatch(r"[0-2]-(hint|reward)-[0-4]-[0-9a-f]{16}-[A-Za-z0-9_-]+", name) for name in found)
    assert max(map(len, found)) == 64
    assert found[0].endswith("-s_1_1")


class ChatCompletionRequest(BaseModel):
    """Fields that opdkit uses of this vLLM class (vllm/entrypoints/openai/chat_completion/protocol.py, 002032e).

    vLLM ignores fields that it does not know, with a warning; here they are refused.
    """

    model_config = ConfigDict(extra="forbid")
    messages: list[dict[Literal["role", "content"], str]]
    model: str | None = None
    logprobs: bool | None = False
    max_tokens: int | None = None
    seed: int | None = Field(None, ge=-(2**63), le=2**63 - 1)
    temperature: float | None = None
    chat_template_kwargs: dict[str, Any] | None = None


class BatchRequestInput(BaseModel):
    """Line as vLLM reads it (vllm/entrypoints/openai/run_batch.py, 0056ae7); the url says which kind of body it has."""

    model_config = ConfigDict(extra="forbid")
    custom_id: str
    method: Literal["POST"]
    url: Literal["/v1/chat/completions"]
    body: ChatCompletionRequest


@pytest.mark.parametrize("options", [{}, {"weigh_votes": True}], ids=str)
def test_the_file_has_the_types_of_the_openai_client_and_of_vllm(options: dict, tmp_path: Path) -> None:
    path = write_extract(tmp_path / "run", SESSIONS)
    judge(path, tmp_path / "out.jsonl", **options)
    client = TypeAdapter(CompletionCreateParamsNonStreaming)
    urls = get_args(get_type_hints(BatchCreateParams)["endpoint"])
    for line in read(tmp_path / "out.jsonl"):
        assert line["url"] in urls
        assert line["body"].keys() <= CompletionCreateParamsNonStreaming.__annotations__.keys()
        client.validate_python(line["body"], strict=True)
        BatchRequestInput.model_validate_json(json.dumps(line), strict=True)
    judge(path, tmp_path / "own.jsonl", overwrite=True, template_arg=("enable_thinking=false",))  # a server's own field
    for line in read(tmp_path / "own.jsonl"):
        assert BatchRequestInput.model_validate(line).body.chat_template_kwargs == {"enable_thinking": False}


def test_a_dry_run_counts_the_requests_and_writes_nothing(extracted: Path, tmp_path: Path, capsys) -> None:
    judge(extracted, tmp_path / "out.jsonl")
    lines = read(tmp_path / "out.jsonl")
    judge(extracted, None, write(tmp_path / "in.jsonl", [answer(line) for line in lines[1:100]]))
    before = snapshot(tmp_path)
    capsys.readouterr()
    judge(extracted, tmp_path / "next.jsonl", dry_run=True)
    shown = " ".join(capsys.readouterr().out.split())
    assert f"requests {VOTES - 80 - 19}" in shown, "the first request is missing, so 19 answers of its part are kept"
    assert "given before, and kept 19" in shown
    assert snapshot(tmp_path) == before


# -- answers -----------------------------------------------------------------------------------------------------------


def test_two_rounds_with_errors_and_losses_give_the_verdicts_of_the_server(
    extracted: Path, tmp_path: Path, capsys
) -> None:
    """Answers come shuffled in two files, 3% errors, 1% missing, 5% twice; the second round asks for the rest."""
    first = judge(extracted, tmp_path / "1.jsonl")
    lines, draw = read(tmp_path / "1.jsonl"), random.Random(0)
    assert (len(lines), first.parts_done) == (VOTES, 0)
    assert str(tmp_path / "1.jsonl") in first.next
    assert first.is_waiting
    draw.shuffle(lines)
    failed, missing, good = lines[:7], lines[7:10], lines[10:]
    output = [answer(line) for line in good + good[:12]]
    draw.shuffle(output)
    errors = [answer(line, response=None, error=EXPIRED) for line in failed[:3]]
    errors += [answer(line, {"error": {"message": "overloaded"}}) for line in failed[3:]]
    for line in errors[3:]:
        line["response"]["status_code"] = 503
    capsys.readouterr()
    files = write(tmp_path / "output.jsonl", output), write(tmp_path / "errors.jsonl", errors)
    second = judge(extracted, tmp_path / "2.jsonl", *files)
    shown = capsys.readouterr().err
    for fact in ("230 new", "12 given twice", "3 requests failed", "batch_expired", "4 requests failed", "HTTP 503"):
        assert fact in shown
    left = read(tmp_path / "2.jsonl")
    assert set(ids(left)) == set(ids(failed + missing))
    assert all(line in lines for line in left)
    waiting = {int(line["custom_id"].split("-")[0]) for line in left}
    assert 0 < second.parts_done == 12 - len(waiting) < 12
    assert not any(part_path(extracted, "verdicts", part).exists() for part in waiting)
    assert f"10 votes in {len(waiting)} parts" in second.next
    done = snapshot(extracted / "judge" / "verdicts")
    third = judge(extracted, None, write(tmp_path / "answers.jsonl", [answer(line) for line in left]))
    assert (third.parts_done, third.next, third.is_waiting) == (12, "", False)
    assert done.items() <= snapshot(extracted / "judge" / "verdicts").items()
    assert not list((extracted / "judge" / ".tmp").iterdir())
    calm = write_extract(tmp_path / "calm", SESSIONS, per_part=1)
    judge_by_server(calm)
    assert list(read_all(extracted, "verdicts")) == list(read_all(calm, "verdicts"))
    assert third.counters.total("prompt tokens") == 100 * VOTES


def test_confidences_are_read_as_those_of_a_server(tmp_path: Path) -> None:
    def sure(body: dict) -> dict:
        said_so = said(body)
        tokens = re.findall(r"\w+|\W", said_so["choices"][0]["message"]["content"])
        said_so["choices"][0]["logprobs"] = {"content": [{"token": t, "logprob": -len(t) / 8} for t in tokens]}
        return said_so

    one, other = (write_extract(tmp_path / name, SESSIONS) for name in ("one", "other"))
    judge(one, tmp_path / "out.jsonl", weigh_votes=True)
    lines = [answer(line, sure(line["body"])) for line in read(tmp_path / "out.jsonl")]
    judge(one, None, write(tmp_path / "in.jsonl", lines), weigh_votes=True)
    with serving(lambda body, number: Reply(body=sure(body))) as server:
        run(
            JudgeConfig(
                run=other, judge="endpoint", judge_model=MODEL, judge_url=server.url, weigh_votes=True, all_votes=True
            )
        )
    rows = list(read_all(one, "verdicts"))
    assert rows == list(read_all(other, "verdicts"))
    assert all(0 < vote["confidence"] < 1 for row in rows for vote in row["reward_votes"])


def test_the_first_of_two_answers_counts(extracted: Path, tmp_path: Path, capsys) -> None:
    judge(extracted, tmp_path / "out.jsonl")
    lines = read(tmp_path / "out.jsonl")
    late = answer(lines[0], completion(r"\boxed{-1}").body | {"model": MODEL})
    early = answer(lines[0], completion(r"Early. \boxed{1}").body | {"model": MODEL})
    judge(extracted, None, write(tmp_path / "a.jsonl", [early, late, *map(answer, lines[1:19])]))
    assert "1 answer differs" in capsys.readouterr().err
    judge(extracted, None, write(tmp_path / "b.jsonl", [late, *map(answer, lines)]))
    assert "2 answers differ" in capsys.readouterr().err
    raw = next(read_all(extracted, "verdicts"))["hint_votes"][0]["raw"]
    assert raw == r"Early. \boxed{1}"


def test_the_same_file_twice_adds_nothing(extracted: Path, tmp_path: Path, capsys) -> None:
    judge(extracted, tmp_path / "out.jsonl")
    file = write(tmp_path / "in.jsonl", [answer(line) for line in read(tmp_path / "out.jsonl")[:50]])
    judge(extracted, None, file)
    capsys.readouterr()
    before = snapshot(extracted / "judge")
    assert judge(extracted, None, file).parts_done == 2
    assert "0 new answers, 10 given before, 40 of parts that are judged" in capsys.readouterr().err
    assert snapshot(extracted / "judge") == before


def test_shards_read_their_own_parts(extracted: Path, tmp_path: Path) -> None:
    judge(extracted, tmp_path / "out.jsonl")
    first, *others = read(tmp_path / "out.jsonl")
    assert "--shard" not in judge(extracted, None, write(tmp_path / "in.jsonl", [answer(first)]), shard="0/2").next
    file = write(tmp_path / "in.jsonl", [answer(line) for line in others])
    assert judge(extracted, None, file, shard="0/2").parts_done == 6
    assert not list((extracted / "judge" / ".tmp").iterdir())
    assert judge(extracted, None, file, shard="1/2").parts_done == 12


def test_a_prompt_that_does_not_fit_is_a_failed_vote_as_with_a_server(tmp_path: Path) -> None:
    long = {"s": talk("Hi", "Hello", "thanks"), "t": talk("Hi", "Hello " * 40, "thanks")}
    one, other = (write_extract(tmp_path / name, long) for name in ("one", "other"))
    judge(one, tmp_path / "out.jsonl")
    lines = [vllm_error(line, TOO_LONG) if "Hello Hello" in str(line["body"]) else answer(line)
             for line in read(tmp_path / "out.jsonl")]  # fmt: skip
    lost = lines.pop()
    judge(one, tmp_path / "next.jsonl", write(tmp_path / "in.jsonl", lines))
    assert ids(read(tmp_path / "next.jsonl")) == ids([lost])
    assert judge(one, None, write(tmp_path / "in.jsonl", [lost])).parts_done == 1
    with serving(lambda body, number: Reply(400, {"error": TOO_LONG}) if "Hello Hello" in str(body)
                 else Reply(body=said(body))) as server:  # fmt: skip
        run(
            JudgeConfig(
                run=other, judge="endpoint", judge_model=MODEL, judge_url=server.url, shard="0/1", all_votes=True
            )
        )
    assert list(read_all(one, "verdicts")) == list(read_all(other, "verdicts"))


FAILURES = {
    "HTTP 503": lambda line: vllm_error(line, {"message": "busy"}, 503),
    "batch_expired": lambda line: answer(line, response=None, error=EXPIRED),
    "HTTP 400": lambda line: answer(
        line, error="Request must not be sent in stream mode", response={"status_code": 400, "body": None}
    ),
    "not a chat completion": lambda line: answer(line, {"choices": []}),
    "another model": lambda line: answer(line, said(line["body"], "other-model")),
    "says nothing": lambda line: answer(line, completion(None).body),
}


@pytest.mark.parametrize("kind", FAILURES)
def test_what_failed_is_asked_again_or_counts_as_failed(kind: str, extracted: Path, tmp_path: Path, capsys) -> None:
    judge(extracted, tmp_path / "out.jsonl")
    first, *others = read(tmp_path / "out.jsonl")
    file = write(tmp_path / "in.jsonl", [FAILURES[kind](first), *map(answer, others)])
    capsys.readouterr()
    assert judge(extracted, tmp_path / "next.jsonl", file).parts_done == 11
    assert ids(read(tmp_path / "next.jsonl")) == [first["custom_id"]]
    shown = capsys.readouterr().err
    assert kind in shown
    assert first["custom_id"] in shown
    assert judge(extracted, None, file, retries=0).parts_done == 12
    vote, *rest = next(read_all(extracted, "verdicts"))["hint_votes"]
    assert vote["decision"] is None
    assert vote["error"]
    assert all(vote["decision"] for vote in rest)


def test_a_template_that_takes_no_system_message_is_named(extracted: Path, tmp_path: Path, capsys) -> None:
    judge(extracted, tmp_path / "out.jsonl")
    refusal = {"message": "System role not supported"}
    file = write(tmp_path / "in.jsonl", [vllm_error(line, refusal) for line in read(tmp_path / "out.jsonl")])
    judge(extracted, tmp_path / "next.jsonl", file)
    assert "--judge endpoint" in capsys.readouterr().err


def test_the_judge_is_known_by_the_name_that_most_answers_bear(extracted: Path, tmp_path: Path, capsys) -> None:
    judge(extracted, tmp_path / "out.jsonl")
    lines = read(tmp_path / "out.jsonl")
    dated = [answer(line, said(line["body"], "judge-model-2026-01-01")) for line in lines]
    strange = [answer(line, said(line["body"], "another")) for line in lines[:3]]
    summary = judge(extracted, tmp_path / "next.jsonl", write(tmp_path / "in.jsonl", [*strange, *dated[3:]]))
    assert summary.parts_done == 11
    assert ids(read(tmp_path / "next.jsonl")) == ids(lines[:3])
    warned = " ".join(capsys.readouterr().err.split())
    assert "answers as another, too, not only as judge-model-2026-01-01" in warned
    assert "--overwrite" not in warned, "no votes are there yet"
    judge(extracted, tmp_path / "again.jsonl", write(tmp_path / "in.jsonl", strange))
    assert "the existing votes are by judge-model-2026-01-01" in " ".join(capsys.readouterr().err.split())
    assert len(read(tmp_path / "again.jsonl")) == 3, "a later file does not change who judges"


def test_answers_to_another_run_do_not_decide_which_model_judges(extracted: Path, tmp_path: Path) -> None:
    judge(extracted, tmp_path / "older.jsonl", temperature=1.0, votes=9)
    older = [answer(line, said(line["body"], "older")) for line in read(tmp_path / "older.jsonl")]
    judge(extracted, tmp_path / "out.jsonl", overwrite=True)
    dated = [answer(line, said(line["body"], f"{MODEL}-2026-01-01")) for line in read(tmp_path / "out.jsonl")]
    assert len(older) > len(dated)
    files = [write(tmp_path / "a.jsonl", older), write(tmp_path / "b.jsonl", dated)]
    assert judge(extracted, None, *files).parts_done == 12


def test_answers_stay_valid_where_what_is_sent_stays_the_same(extracted: Path, tmp_path: Path) -> None:
    """Another --hint-select, or fewer votes, needs no new answers; another temperature or seed does."""
    judge(extracted, tmp_path / "out.jsonl")
    file = write(tmp_path / "in.jsonl", [answer(line) for line in read(tmp_path / "out.jsonl")])
    with pytest.raises(ConfigError, match="hint_select"):
        judge(extracted, None, file, hint_select="longest")
    assert judge(extracted, None, file, hint_select="longest", votes=3, overwrite=True).parts_done == 12
    for options in ({"temperature": 0.5}, {"seed": 1}):
        with pytest.raises(OpdkitError, match="other options"):
            judge(extracted, None, file, overwrite=True, **options)


# -- bad input ---------------------------------------------------------------------------------------------------------


def test_answers_of_another_run_are_refused_and_leave_nothing(extracted: Path, tmp_path: Path, capsys) -> None:
    other = write_extract(tmp_path / "other", {f"s{n}": talk("Hi", f"Hello {n}", "thanks") for n in range(12)},
                          per_part=1)  # fmt: skip
    judge(other, tmp_path / "other.jsonl")
    judge(extracted, tmp_path / "out.jsonl")
    theirs = [answer(line, said(line["body"], "their-model")) for line in read(tmp_path / "other.jsonl")]
    file = write(tmp_path / "theirs.jsonl", theirs)
    before = snapshot(extracted / "judge")
    with pytest.raises(OpdkitError, match=r"theirs\.jsonl") as caught:
        judge(extracted, tmp_path / "next.jsonl", file)
    assert theirs[0]["custom_id"] in str(caught.value)
    assert not (tmp_path / "next.jsonl").exists()
    assert snapshot(extracted / "judge") == before
    mixed = write(tmp_path / "mixed.jsonl", [*theirs[:3], *map(answer, read(tmp_path / "out.jsonl"))])
    capsys.readouterr()
    assert judge(extracted, None, mixed).parts_done == 12
    assert "3 lines" in capsys.readouterr().err


def test_a_truncated_file_is_read_as_far_as_it_goes(extracted: Path, tmp_path: Path, capsys) -> None:
    judge(extracted, tmp_path / "out.jsonl")
    lines = read(tmp_path / "out.jsonl")
    file = write(tmp_path / "in.jsonl", [answer(line) for line in lines[:40]])
    text = file.read_text().splitlines()
    file.write_text("\n".join([*text[:4], "<html>", "", *text[4:39], text[39][:50]]))
    capsys.readouterr()
    judge(extracted, tmp_path / "next.jsonl", file)
    shown = capsys.readouterr().err
    assert "2 lines" in shown
    assert all(f"{file} line {number}" in shown for number in (5, 42))
    assert ids(read(tmp_path / "next.jsonl")) == ids(lines[39:])


@pytest.mark.parametrize(
    "content", [b"\x00\x01\x02", b"<html>\n", b"[1]\n", b'{"custom_id": 5}\n', b"[" * 100_000, b'"\xff"\n'], ids=repr
)
def test_a_file_that_holds_no_answers_is_refused(content: bytes, extracted: Path, tmp_path: Path) -> None:
    (tmp_path / "in.jsonl").write_bytes(content)
    with pytest.raises(OpdkitError, match=r"in\.jsonl.*line 1"):
        judge(extracted, None, tmp_path / "in.jsonl")


def test_a_wrong_file_removes_no_votes(extracted: Path, tmp_path: Path) -> None:
    judge(extracted, tmp_path / "out.jsonl")
    judge(extracted, None, write(tmp_path / "in.jsonl", [answer(line) for line in read(tmp_path / "out.jsonl")]))
    votes = list(read_all(extracted, "verdicts"))
    (tmp_path / "wrong.jsonl").write_text("{}\n")
    with pytest.raises(OpdkitError, match=r"wrong\.jsonl.*line 1"):
        judge(extracted, None, tmp_path / "wrong.jsonl", overwrite=True)
    assert list(read_all(extracted, "verdicts")) == votes


def test_the_requests_are_no_answers(extracted: Path, tmp_path: Path) -> None:
    judge(extracted, tmp_path / "out.jsonl")
    with pytest.raises(OpdkitError, match=r"out\.jsonl"):
        judge(extracted, None, tmp_path / "out.jsonl", retries=0)


def test_files_that_cannot_be_read_or_written_are_refused_before_anything_begins(
    extracted: Path, tmp_path: Path
) -> None:
    (tmp_path / "in.jsonl.gz").write_bytes(gzip.compress(b"{}\n"))
    (tmp_path / "in.jsonl").touch()
    for out, files, word in (
        (None, [tmp_path], "--in .*folder"),
        (None, [tmp_path / "missing.jsonl"], r"--in .*missing\.jsonl"),
        (None, [tmp_path / "in.jsonl.gz"], "gunzip"),
        (tmp_path, [], "--out .*folder"),
        (tmp_path / "in.jsonl", [tmp_path / "in.jsonl"], "--out .*--in"),
    ):
        with pytest.raises(ConfigError, match=word):
            judge(extracted, out, *files)
    with pytest.raises(ConfigError, match="--shard"):
        judge(extracted, tmp_path / "out.jsonl", shard="0/2")
    assert not (extracted / "judge").exists()


@pytest.mark.parametrize(
    ("options", "word"),
    [
        ({"judge": "batch", "judge_model": "m"}, "--out"),
        ({"judge": "batch", "out": Path("x")}, "--judge-model"),
        ({"judge": "rules", "out": Path("x")}, "--judge batch"),
        ({"judge": "rules", "in_": ("x",)}, "--judge batch"),
        ({"judge": "batch", "judge_model": "m", "dry_run": True, "measure": 2}, "--measure"),
    ],
)
def test_options_that_do_not_go_together(options: dict, word: str) -> None:
    with pytest.raises(ConfigError, match=word):
        JudgeConfig(run=Path("run"), **options)


# -- beside other commands ---------------------------------------------------------------------------------------------


def test_the_option_in_is_written_without_its_trailing_underscore(tmp_path: Path) -> None:
    (tmp_path / "own.toml").write_text('[judge]\njudge = "batch"\njudge_model = "m"\nin = ["a", "b"]\n')
    assert configure("judge", {"run": Path("run")}, tmp_path / "own.toml").in_ == ("a", "b")
    flags = ("judge.judge=batch", "judge.judge_model=m", "judge.in=a", "judge.in=b")
    stages = make_configurations(RunConfig(run=Path("run"), logs=("x",), model="m", set=flags))
    assert stages["judge"].effective()["in_"] == ["a", "b"]


def test_the_pipeline_waits_for_the_answers(tmp_path: Path, plain_model_dir: Path, capsys) -> None:
    log = tmp_path / "log.jsonl"
    messages = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello"},
                {"role": "user", "content": "thanks"}]  # fmt: skip
    log.write_text(json.dumps({"messages": messages}) + "\n")
    flags = ("judge.judge=batch", f"judge.judge_model={MODEL}", f"judge.out={tmp_path / 'out.jsonl'}")
    summary = pipeline.run(RunConfig(run=tmp_path / "run", logs=(str(log),), model=str(plain_model_dir), set=flags))
    assert summary.stage == "judge"
    assert "--in" in summary.text()
    assert len(read(tmp_path / "out.jsonl")) == 10
    assert not (tmp_path / "run" / "teacher").exists()


def test_the_commands_of_the_guide(tmp_path: Path, monkeypatch) -> None:
    """The guide's commands run as printed, except the second (vLLM's), whose output this test writes."""
    guide = (Path(__file__).parents[2] / "docs" / "guide.md").read_text(encoding="utf-8")
    (block,) = (block for block in re.findall(r"```sh\n(.*?)```", guide, re.DOTALL) if "run-batch" in block)
    write_extract(tmp_path / "runs" / "night", SESSIONS)
    monkeypatch.chdir(tmp_path)
    for line in block.splitlines():
        program, *words = shlex.split(line)
        if program == "vllm":
            requests, answers = (Path(words[words.index(flag) + 1]) for flag in ("-i", "-o"))
            model = words[words.index("--model") + 1]
            write(answers, [answer(request, said(request["body"], model)) for request in read(requests)])
        else:
            done = CliRunner().invoke(app, words)
            assert done.exit_code == 0, done.stderr
    assert len(list(read_all(Path("runs/night"), "verdicts"))) == 24
    assert Path("next.jsonl").read_bytes() == b""


def test_later_stages_ask_the_model_of_a_batch_only_at_an_address(extracted: Path, tmp_path: Path) -> None:
    judge(extracted, tmp_path / "out.jsonl")
    assert read_judge_options(extracted) == {}
    judge(extracted, tmp_path / "out.jsonl", overwrite=True, judge_url="http://localhost:1/v1")
    assert read_judge_options(extracted) == {"judge_model": MODEL, "judge_url": "http://localhost:1/v1"}


# -- size --------------------------------------------------------------------------------------------------------------


def answer_file(requests: Path, answers: Path, errors: float) -> int:
    """Answer a file's requests in random order, a share `errors` with errors, line by line. Return their number."""
    offsets, draw = [0], random.Random(0)
    with requests.open("rb") as lines, answers.open("w") as out:
        for line in lines:
            offsets.append(offsets[-1] + len(line))
        offsets.pop()
        for n, offset in enumerate(draw.sample(offsets, len(offsets))):
            lines.seek(offset)
            line = json.loads(lines.readline())
            is_error = n < errors * len(offsets)
            said_so = answer(line, response=None, error=EXPIRED) if is_error else answer(line)
            out.write(json.dumps(said_so) + "\n")
    return len(offsets)


def resident(name: str) -> float:
    """Return this process's memory in MB, as Linux counts it: VmHWM is the peak since the last `clear_refs`."""
    return int(re.search(rf"{name}:\s+(\d+) kB", Path("/proc/self/status").read_text())[1]) / 1000


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="measures memory as Linux counts it")
def test_100_000_requests_take_the_memory_of_one_part(tmp_path: Path) -> None:
    """Memory grows by less than 40 MB while requests are written, answered (3% errors), read, rewritten and judged."""
    grown, counts = list[float](), list[int]()

    def exchange(name: str, sessions: int) -> Path:
        talks = {f"s{n}": talk(*("Hi there.", "Hello.", "No, in Celsius.") * 7) for n in range(sessions)}
        path, out, answers = (tmp_path / f"{name}{end}" for end in ("", ".jsonl", "-answers.jsonl"))
        write_extract(path, talks, per_part=2)
        for errors in (0.03, 0.0, None):
            gc.collect()
            Path("/proc/self/clear_refs").write_text("5")
            before = resident("VmHWM")
            judge(path, out, *([answers] if answers.exists() else []), votes=50)
            grown.append(resident("VmHWM") - before)
            if errors is not None:
                counts.append(answer_file(out, answers, errors))
        return out

    exchange("small", 2)  # one part; the process keeps the memory that it takes
    del grown[:], counts[:]
    out = exchange("large", 100)
    assert counts == [100_000, 3_000]
    assert out.read_bytes() == b""
    assert sum(1 for _ in read_all(tmp_path / "large", "verdicts")) == 1000
    assert max(grown) < 40, f"MB: {grown}"
