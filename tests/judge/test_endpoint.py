"""Tests of the endpoint judge, with a real server on loopback that fails in many ways."""

import asyncio
import contextlib
import itertools
import json
import signal
import threading
import time
from dataclasses import replace
from email.utils import formatdate
from pathlib import Path
from typing import Any, cast

import openai
import pytest
from http_server import Reply, completion, recorded_pauses, serving, unused_address
from runs import talk, write_extract
from typer.testing import CliRunner

from opdkit.cli import app
from opdkit.config.judge import JudgeConfig
from opdkit.errors import ConfigError, OpdkitError
from opdkit.judge.endpoint import Endpoint
from opdkit.judge.parse import parse_hint
from opdkit.judge.stage import run
from opdkit.judge.votes import NO_ANSWER, Answer, Question
from opdkit.model.server import traffic
from opdkit.model.server.client import parse_retry_after
from opdkit.store.reading import part_path, read_part
from opdkit.store.stable_hash import stable_hash

KEY = "sk-a-key-that-no-file-may-hold"
ONE = Question("s:1", "hint", [{"role": "user", "content": "?"}])
GOOD = completion(r"Well. \boxed{1}")

pytestmark = pytest.mark.usefixtures("short_pauses")


def client(url: str, **fields) -> Endpoint:
    defaults = {"timeout": 5.0, "retries": 3, "concurrency": 4, "votes": 1, "max_new_tokens": 20}
    return Endpoint(JudgeConfig(run=Path("run"), judge="endpoint", judge_model="judge-model", judge_url=url,
                                **(defaults | fields)))  # fmt: skip


def ask(url: str, count: int = 1, **fields) -> list[Answer]:
    """Return one vote on each of `count` equal questions."""
    return [answer for (answer,) in client(url, **fields).ask([ONE] * count)]


def once(failure: Reply):
    return lambda body, number: failure if number == 0 else GOOD


# -- passing failures -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "failure",
    [
        Reply(429, {"error": {"message": "slow down"}}),
        Reply(500, "<html>Internal Server Error</html>"),
        Reply(502, ""),
        Reply(503, {"error": "loading"}),
        Reply(408, ""),
        Reply(fault="reset"),
        Reply(body={"choices": [{"message": {"content": "x" * 1000}}]}, fault="half"),
        Reply(200, "<html>login</html>"),
        Reply(200, ""),
        Reply(200, "[" * 100_000),
        Reply(200, {"error": {"message": "overloaded"}}),
        Reply(200, {"choices": []}),
        Reply(200, {"choices": None}),
        Reply(200, {"choices": [{"message": None}]}),
        Reply(200, {"choices": [{"message": {"content": 5}}]}),
        Reply(200, [1]),
    ],
)
def test_what_may_pass_is_tried_again(failure: Reply) -> None:
    with serving(once(failure)) as server:
        assert ask(server.url)[0].text == r"Well. \boxed{1}"
    assert len(server.requests) == 2
    assert server.requests[0] == server.requests[1]


def test_the_first_attempt_that_fails_is_said_at_once_and_no_other(monkeypatch, capsys) -> None:
    monkeypatch.setattr(traffic, "FIRST_PAUSE", 0.2)
    said = list[str]()

    def failing_twice(body: object, number: int) -> Reply:
        said.append(capsys.readouterr().err)
        return Reply(503, {"error": "loading"}) if number < 2 else GOOD

    with serving(failing_twice) as server:
        ask(server.url)
    assert said[0] == said[2] == ""
    assert len(said[1].splitlines()) == 1
    assert all(fact in said[1] for fact in (server.url, "HTTP 503", "loading", "--retries 3"))


def test_a_server_that_is_silent_is_said_to_be(capsys) -> None:
    with serving(once(Reply(body=GOOD.body, fault="hang"))) as server:
        ask(server.url, timeout=0.3)
    assert "0.3 seconds" in capsys.readouterr().err


@pytest.mark.parametrize("fault", ["hang", "drip"])
def test_a_request_that_takes_too_long_is_tried_again(fault: str) -> None:
    """The limit holds for the whole answer: a server that drips bytes never trips a socket's own timeout."""
    with serving(once(Reply(body=GOOD.body, fault=fault))) as server:
        assert ask(server.url, timeout=0.5, retries=30)[0].finish_reason == "stop"
    assert len(server.requests) >= 2  # more if this machine is too busy to answer in time


def test_retry_after_may_be_a_date() -> None:
    for ahead, low, high in ((300, 290, 300), (-300, -310, -300)):
        assert low <= parse_retry_after(formatdate(time.time() + ahead, usegmt=True)) <= high


@pytest.mark.parametrize("value", ["0.4", "soon", "-3"])
def test_retry_after_is_honoured(value: str) -> None:
    with serving(once(Reply(429, {}, {"Retry-After": value}))) as server, recorded_pauses() as pauses:
        ask(server.url)
    assert len(server.requests) == 2
    assert max(pauses) == 0.4 if value == "0.4" else max(pauses) <= traffic.FIRST_PAUSE


def test_a_server_that_asks_for_an_hour_is_left_alone() -> None:
    with (
        serving(once(Reply(429, {}, {"Retry-After": "3600"}))) as server,
        pytest.raises(OpdkitError, match="3600"),
    ):
        ask(server.url)
    assert len(server.requests) == 1


# -- lasting failures -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("status", "fields", "requests"),
    [
        (409, {}, 1),
        (400, {"param": "temperature"}, 1),
        (400, {"code": "unsupported_parameter"}, 1),
        (422, {"param": None}, 6),  # five votes, and the trial question
        (403, {"param": "None"}, 6),
        (400, {"param": "prompt"}, 6),
    ],
)
def test_another_4xx_ends_it_once_it_cannot_be_a_filter(status: int, fields: dict, requests: int) -> None:
    """An error that cannot be a content filter's ends the stage at once; any other only if no question is answered."""
    with (
        serving(lambda body, number: Reply(status, {"error": {"message": "no such thing"} | fields})) as server,
        pytest.raises(OpdkitError, match=rf"{status}.*no such thing"),
    ):
        ask(server.url, 5, concurrency=1)
    assert len(server.requests) == requests


@pytest.mark.parametrize("code", ["content_filter", "1301"])
def test_a_filter_may_be_faster_than_the_first_answer(code: str) -> None:
    """A filter that refuses all votes on a question before any answer comes does not end the stage."""
    refused = threading.Event()

    def script(body, number: int) -> Reply:
        if number == 8:  # the slots of the three refused requests are in use again
            refused.set()
        if body["messages"][0]["content"] == "BAD":
            return Reply(400, {"error": {"message": "cannot be answered", "code": code, "param": "prompt"}})
        refused.wait(300)
        return GOOD

    questions = [Question(f"s:{n}", "hint", [{"role": "user", "content": "BAD" if n == 1 else "?"}]) for n in range(8)]
    with serving(script) as server:
        answers = client(server.url, concurrency=6, votes=3, timeout=300.0).ask(questions)
    assert [vote.error for vote in answers[1]] == [f"{NO_ANSWER}: cannot be answered"] * 3
    assert {vote.error for n, votes in enumerate(answers) if n != 1 for vote in votes} == {None}
    assert len(server.requests) == 24


def test_the_limit_of_tokens_has_another_name_for_reasoning_models() -> None:
    """OpenAI's reasoning models refuse max_tokens: requests under way are sent again with the new name and logprobs."""
    said = "Unsupported parameter: 'max_tokens'. Use 'max_completion_tokens' instead."
    error, together = {"code": "unsupported_parameter", "param": "max_tokens", "message": said}, threading.Barrier(3)

    def script(body, number: int) -> Reply:
        if "max_tokens" not in body:
            return GOOD
        together.wait(300)
        return Reply(400, {"error": error})

    with serving(script) as server:
        assert {answer.error for answer in ask(server.url, 6, concurrency=3, weigh_votes=True)} == {None}
    assert ["max_tokens" in body for body in server.requests] == 3 * [True] + 6 * [False]
    assert all(body["max_completion_tokens"] == 20 and body["logprobs"] for body in server.requests[3:])


def test_such_a_model_takes_no_temperature_but_its_own(capsys: pytest.CaptureFixture[str]) -> None:
    said = {"max_tokens": "Use 'max_completion_tokens' instead.",
            "temperature": "'temperature' does not support 0.6 with this model."}  # fmt: skip

    def script(body, number: int) -> Reply:
        refused = next((name for name in said if name in body), None)
        return Reply(400, {"error": {"param": refused, "message": said[refused]}}) if refused else GOOD

    with serving(script) as server:
        assert {answer.error for answer in ask(server.url, 6, concurrency=3, weigh_votes=True)} == {None}
    assert all(body["logprobs"] and body["seed"] for body in server.requests[-6:])
    assert capsys.readouterr().err.count("no temperature of 0.6") == 1


@pytest.mark.parametrize(
    ("status", "said"),
    [
        (400, {"object": "error", "message": "System role not supported", "type": "BadRequestError", "param": None}),
        (422, {"error": "Template error: invalid operation: System role not supported (in <string>:1)"}),
        (400, {"message": "Conversation roles must alternate user/assistant/user/assistant/..."}),
        (400, [{"error": {"code": 400, "message": "Developer instruction is not enabled for models/gemma-3-27b-it"}}]),
        (400, {"error": {"message": "Unsupported value: 'messages[0].role' does not support 'system' with this model.",
                         "param": "messages[0].role", "code": "unsupported_value"}}),
    ],
)  # fmt: skip
def test_a_judge_without_system_messages_reads_them_in_that_of_the_user(status: int, said) -> None:
    """As with `--judge local` and templates like Gemma 2's, system and user text are merged; seed and logprobs stay."""
    messages = [{"role": "system", "content": "You judge <|im_end|>."}, {"role": "user", "content": "A reply."}]

    def script(body, number: int) -> Reply:
        return Reply(status, said) if len(body["messages"]) > 1 else GOOD

    with serving(script) as server:
        judge = client(server.url, concurrency=1, weigh_votes=True)
        answers = judge.ask([Question(f"s:{n}", "hint", messages) for n in range(3)])
    assert [vote.error for (vote,) in answers] == [None, None, None]
    assert [len(body["messages"]) for body in server.requests] == [2, 1, 1, 1]
    (merged,) = server.requests[-1]["messages"]
    assert (merged["role"], merged["content"].partition(" ")[0]) == ("user", "You")
    assert merged["content"].endswith(".\n\nA reply.")
    assert all("seed" in body and body["logprobs"] for body in server.requests)


@pytest.mark.parametrize(
    "said",
    [
        {"detail": [{"type": "extra_forbidden", "loc": ["body", "seed"], "msg": "Extra inputs are not permitted"}]},
        {"error": {"message": "Unrecognized request argument supplied: seed", "param": None}},
        [{"error": {"code": 400, "message": 'Invalid JSON payload received. Unknown name "seed": Cannot find field.'}}],
    ],
)
def test_a_server_that_takes_no_seed_is_asked_without_one(said, capsys) -> None:
    """Mistral's and other strict servers refuse `seed`; it is left out from then on, and logprobs stay."""

    def script(body, number: int) -> Reply:
        return Reply(422, said) if "seed" in body else GOOD

    with serving(script) as server:
        assert {answer.error for answer in ask(server.url, 3, concurrency=1, weigh_votes=True)} == {None}
    assert ["seed" in body for body in server.requests] == [True, False, False, False]
    assert all(body["logprobs"] for body in server.requests)
    assert capsys.readouterr().err.count("no seed") == 1


@pytest.mark.parametrize("field", ["code", "type"])
@pytest.mark.parametrize(
    ("status", "kind"),
    [(403, "insufficient_quota"), (429, "insufficient_quota"), (400, "budget_exceeded"), (429, "budget_exceeded")],
)
def test_a_key_without_credit_ends_it_at_once(status: int, kind: str, field: str) -> None:
    """This includes LiteLLM's budgets, which come as HTTP 400: each refusal would otherwise be a failed vote."""
    with (
        serving(lambda body, number: Reply(status, {"error": {"message": "pay", field: kind}})) as server,
        pytest.raises(OpdkitError, match="OPENAI_API_KEY has no credit left"),
    ):
        ask(server.url, 5, concurrency=1)
    assert len(server.requests) == 1


def test_a_prompt_that_a_filter_refuses_is_a_failed_vote_and_many_in_a_row_end_it() -> None:
    refusal = Reply(400, {"error": {"code": "content_filter", "message": "filtered"}})
    with serving(lambda body, number: refusal if number in (2, 3) else GOOD) as server:
        answers = ask(server.url, 6, concurrency=1)
    assert [answer.error for answer in answers].count(f"{NO_ANSWER}: filtered") == 2
    assert [bool(answer.text) for answer in answers].count(True) == 4
    with serving(lambda body, number: refusal if number else GOOD) as server, pytest.raises(OpdkitError, match="400"):
        ask(server.url, 60, concurrency=1)
    with serving(lambda body, number: refusal) as server:  # the code names a filter, so no answer is needed to prove it
        assert {answer.error for answer in ask(server.url, 3)} == {f"{NO_ANSWER}: filtered"}


def test_errors_of_other_forms_are_quoted_like_any_other() -> None:
    """Google's server puts its errors into a list, and OpenRouter has the provider's reason beside its own message."""
    error = {"code": 400, "message": "API key not valid."}
    told = {"message": "Provider returned error", "metadata": {"raw": "no such voice", "provider_name": "x"}}
    for said, words in (([{"error": error}], "API key not valid"), ({"error": told}, "returned error: no such voice")):
        with (
            serving(lambda body, number, said=said: Reply(400, said)) as server,
            pytest.raises(OpdkitError, match=rf"HTTP 400\): [^{{]*{words}"),
        ):
            ask(server.url)


def test_401_names_the_variable_and_shows_no_key(monkeypatch) -> None:
    with serving(lambda body, number: Reply(401, {"error": f"bad key {KEY}"})) as server:
        with pytest.raises(OpdkitError, match="OPENAI_API_KEY"):
            ask(server.url)
        monkeypatch.setenv("JUDGE_KEY", KEY)
        with pytest.raises(OpdkitError, match="JUDGE_KEY") as caught:
            ask(server.url, api_key_env="JUDGE_KEY")
    assert KEY not in str(caught.value)
    assert server.headers[-1]["Authorization"] == f"Bearer {KEY}"


def test_no_key_is_sent_where_the_variable_is_empty(tmp_path, monkeypatch) -> None:
    """As to a server of one's own, in a shell that has a key of OpenAI."""
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    path = write_extract(tmp_path / "run", SESSIONS)
    with serving(by_question) as server:
        flags = ["--judge", "endpoint", "--judge-model", "m", "--judge-url", server.url, "--api-key-env", ""]
        done = CliRunner().invoke(app, ["judge", str(path), *flags])
    assert done.exit_code == 0, done.stderr
    assert server.headers
    assert not any("Authorization" in headers for headers in server.headers)
    with serving(lambda body, number: Reply(401, {})) as server, pytest.raises(OpdkitError, match="--api-key-env"):
        ask(server.url, api_key_env="")
    first = config(path, server.url, judge_first="m", judge_first_url=server.url, judge_first_key_env="").first
    assert first is not None
    assert first.api_key_env == ""


def test_a_vote_that_echoes_the_key_is_kept_without_it(monkeypatch) -> None:
    """Some servers show the request in the answer, and the answer is stored in the verdicts."""
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    with serving(
        lambda body, number: Reply(200, {"choices": [{"message": {"content": f"You sent {KEY}. \\boxed{{1}}"}}]})
    ) as server:
        (answer,) = ask(server.url)
    assert answer.text == "You sent [the API key]. \\boxed{1}"


@pytest.mark.parametrize("status", [400, 500])
def test_an_error_that_echoes_the_key_is_redacted(status: int, monkeypatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    with (
        serving(lambda body, number: Reply(status, {"error": f"you sent {KEY}"})) as server,
        pytest.raises(OpdkitError) as caught,
    ):
        ask(server.url, retries=0)
    assert "you sent [" in str(caught.value)
    assert KEY not in str(caught.value)


def test_a_key_that_cannot_be_one_is_refused_without_showing_it(monkeypatch) -> None:
    """The HTTP library would show the value in its error."""
    monkeypatch.setenv("OPENAI_API_KEY", "secret\nvalue")
    with pytest.raises(ConfigError, match="OPENAI_API_KEY") as caught:
        client("http://127.0.0.1:1/v1")
    assert "secret" not in str(caught.value)


def test_404_names_the_models_on_offer() -> None:
    with (
        serving(lambda body, number: Reply(404, {}), models=["judge-modal", "other"]) as server,
        pytest.raises(OpdkitError, match=r"judge-model.*judge-modal, other.*judge-modal"),
    ):
        ask(server.url)
    with (
        serving(lambda body, number: Reply(404, {})) as server,
        pytest.raises(OpdkitError, match="/v1"),
    ):
        ask(server.url)
    with (
        serving(lambda body, number: Reply(404, {}), models=[]) as server,
        pytest.raises(OpdkitError, match="no model at all"),
    ):
        ask(server.url)
    with (
        serving(lambda body, number: Reply(404, {"error": {"message": "This is not a chat model"}}), []) as server,
        pytest.raises(OpdkitError, match=r"HTTP 404: This is not a chat model\)"),
    ):
        ask(server.url)


def test_a_redirect_names_the_other_address() -> None:
    with (
        serving(lambda body, number: Reply(307, "", {"Location": "https://elsewhere/v1"})) as server,
        pytest.raises(OpdkitError, match=r"https://elsewhere/v1 .*--judge-url"),
    ):
        ask(server.url)
    with (
        serving(lambda body, number: Reply(308, "", {"Location": "/other/v1/chat/completions"})) as server,
        pytest.raises(OpdkitError, match=f"{server.url.removesuffix('/v1')}/other/v1/chat/completions .*--judge-url"),
    ):
        ask(server.url)


def test_nobody_listens() -> None:
    url = unused_address()
    with pytest.raises(OpdkitError) as caught:
        ask(url, retries=1)
    assert caught.value.exit_code == 1
    assert url in str(caught.value)
    assert "2 attempts" in str(caught.value)
    assert "takes 4 requests at once" in str(caught.value)


# -- answers ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("reply", "text", "finish_reason"),
    [
        (completion("hi", "length"), "hi", "length"),
        (completion(None, "stop", reasoning_content=r"\boxed{1}"), "", "stop"),
        (completion(r"\boxed{-1}", reasoning_content=r"\boxed{1}"), r"\boxed{-1}", "stop"),
        (Reply(body={"choices": [{"message": {}}]}), "", None),
        (Reply(body={"error": {"message": "", "code": None}, "choices": [{"message": {"content": "a"}}]}), "a", None),
        (completion([{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]), "ab", "stop"),
        (Reply(body='{"choices": [{"message": {"content": "a\\ud800b"}}]}'), "a?b", None),
    ],
)
def test_what_is_read(reply: Reply, text: str, finish_reason: str | None) -> None:
    with serving(lambda body, number: reply) as server:
        answer = ask(server.url)[0]
    assert (answer.text, answer.finish_reason, answer.error) == (text, finish_reason, None)


@pytest.mark.parametrize(
    "reply",
    [
        Reply(400, {"error": {"message": "This model's maximum context length is 4096 tokens."}}),
        Reply(400, {"error": {"code": "context_length_exceeded", "message": "too many"}}),
        Reply(413, {"error": "prompt is too long: 9 tokens"}),
        Reply(422, {"error": "`inputs` tokens + `max_new_tokens` must be <= 4096. Given: 5000 `inputs` tokens"}),
        Reply(400, {"error": "The input token count (9) exceeds the maximum number of tokens allowed (8)."}),
        Reply(400, {"error": "Please reduce the length of the messages or completion."}),
        Reply(400, {"error": "The decoder prompt (length 9) is longer than the maximum model length of 8."}),
        Reply(400, {"message": "Input length (9 tokens) exceeds the maximum allowed length (8 tokens). Use a shorter"}),
        Reply(400, {"error": "This model's maximum prompt length is 8 but the request contains 9 tokens."}),
        Reply(400, {"message": "The sum of prompt length (9), query length (0) should not exceed max_num_tokens (8)"}),
        Reply(400, {"error": {"message": "Invalid request: Your request exceeded model token limit: 8"}}),
        Reply(400, {"error": {"message": "<400> InvalidParameter: Range of input length should be [1, 8]"}}),
        Reply(422, {"error": "Input validation error: `inputs` must have less than 8 tokens. Given: 9"}),
        Reply(400, {"message": "too many tokens: total number of tokens in the prompt cannot exceed 8"}),
        Reply(413, {"error": {"message": "Request too large for model `m` on tokens per minute (TPM): Limit 8"}}),
        Reply(429, {"error": {"message": "Request too large for m on tokens per min (TPM): Limit 8, Requested 9"}}),
    ],
)
def test_a_prompt_that_is_too_long_is_an_answer(reply: Reply) -> None:
    with serving(lambda body, number: reply) as server:
        answer = ask(server.url)[0]
    assert str(answer.error).startswith("the prompt does not fit the judge: ")
    assert "--max-section-chars or --max-new-tokens" in str(answer.error)


def test_advice_about_a_prompt_that_is_too_long_names_an_option_of_the_command() -> None:
    """Questions on a criterion come from `eval`, `rollout` and `teacher`, which have no --max-section-chars."""
    with serving(lambda body, number: Reply(413, {"error": "prompt is too long: 9 tokens"})) as server:
        ((answer,),) = client(server.url).ask([replace(ONE, name="criterion")])
    assert "--max-section-chars" not in str(answer.error)
    assert "--judge-model" in str(answer.error)


@pytest.mark.parametrize(
    "reason", ["abort", "error", "content_filter", "cancelled", {"type": "abort", "message": "out of memory"}]
)
def test_a_partial_answer_is_asked_for_again_and_is_a_failed_vote_at_last(reason) -> None:
    partial = completion(r"At first sight \boxed{1}, but")
    partial.body["choices"][0]["finish_reason"] = reason
    with serving(once(partial)) as server:
        assert ask(server.url)[0].text == r"Well. \boxed{1}"
    with serving(lambda body, number: partial) as server:
        (answer,) = ask(server.url, retries=1)
    assert len(server.requests) == 2
    vote = parse_hint(answer)
    assert (vote.decision, vote.error) == (None, f"interrupted: {answer.finish_reason}")
    assert vote.raw == r"At first sight \boxed{1}, but"


@pytest.mark.parametrize("content", [None, r"At first sight \boxed{1}, but"])
@pytest.mark.parametrize("place", ["document", "choice"])
def test_an_outage_with_status_200_gives_no_votes(content: str | None, place: str) -> None:
    """OpenRouter answers so if a provider fails, and LiteLLM passes it on with an empty message."""
    error = {"error": {"code": 502, "message": "Provider returned error"}}
    outage = completion(content, "error" if content else "stop")
    (outage.body if place == "document" else outage.body["choices"][0]).update(error)
    with serving(lambda body, number: outage if number < 3 else GOOD) as server:
        assert ask(server.url)[0].text == r"Well. \boxed{1}"
    with serving(lambda body, number: outage) as server, pytest.raises(OpdkitError, match="Provider returned error"):
        ask(server.url, 3)


@pytest.mark.parametrize(
    "limit",
    [
        Reply(200, {"error": {"code": 429, "message": "Provider returned error"}}),
        Reply(200, {"error": {"code": 503, "message": "Provider returned error", "metadata": {"raw": "overloaded"}}}),
        Reply(503, [{"error": {"code": 503, "message": "The model is overloaded.", "status": "UNAVAILABLE"}}]),
        Reply(503, {"error": {"message": "Loading model", "type": "unavailable_error", "code": 503}}),
        Reply(529, {"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}}),
    ],
)
def test_a_server_with_too_much_to_do_uses_up_no_retries(limit: Reply) -> None:
    with serving(lambda body, number: limit if number < 5 else GOOD) as server:
        assert ask(server.url, retries=0)[0].text == r"Well. \boxed{1}"


def test_a_filter_that_holds_back_the_message_gives_a_failed_vote() -> None:
    """Google's server then sends a choice without a message."""
    held_back = {"choices": [{"index": 0, "finish_reason": "content_filter: PROHIBITED_CONTENT"}]}
    with serving(lambda body, number: Reply(body=held_back) if number else GOOD) as server:
        answers = ask(server.url, 2, retries=1, concurrency=1)
    assert len(server.requests) == 3
    assert parse_hint(answers[1]).error == "interrupted: content_filter: PROHIBITED_CONTENT"


def test_a_dry_run_tokenizes_each_question_once(monkeypatch) -> None:
    judge, read = client("http://localhost:1/v1", votes=5), list[str]()
    monkeypatch.setattr(judge, "encode", lambda messages: read.append(messages[0]["content"]) or [1, 2, 3])
    questions = [Question(f"s:{n}", "hint", [{"role": "user", "content": str(n)}]) for n in range(4)]
    work = judge.count_work(questions)
    assert read == ["0", "1", "2", "3"]
    assert (work["votes"], work["prompt"], work["uncached"], work["written"]) == (20, 60, 3, 400)


def test_what_is_sent(monkeypatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "")
    with serving(lambda body, number: GOOD) as server:
        ask(f"{server.url}/chat/completions/")
        ask(server.url, template_arg=("enable_thinking=false",))
    assert server.requests[0] == {
        "model": "judge-model",
        "messages": [{"role": "user", "content": "?"}],
        "temperature": 0.6,
        "max_tokens": 20,
        "seed": stable_hash(0, "s:1", "hint", 0, bits=31),
    }
    assert server.requests[1] == server.requests[0] | {"chat_template_kwargs": {"enable_thinking": False}}
    assert "Authorization" not in server.headers[0]


def test_answers_come_in_the_order_of_the_requests_however_they_finish() -> None:
    questions = [Question("s:1", "hint", [{"role": "user", "content": str(n)}]) for n in range(40)]

    def script(body, number):
        asked = body["messages"][0]["content"]
        time.sleep(0.02 if int(asked) % 3 == 0 else 0)
        return completion(f"{asked}, seed {body['seed']}")

    with serving(script) as server:
        answers = client(server.url, concurrency=8, votes=2).ask(questions)
    seeds = [stable_hash(0, "s:1", "hint", vote, bits=31) for vote in range(2)]
    assert [[a.text for a in votes] for votes in answers] == [
        [f"{n}, seed {seed}" for seed in seeds] for n in range(40)
    ]


@pytest.mark.parametrize("concurrency", [1, 6])
def test_no_more_requests_are_under_way_than_asked(concurrency: int) -> None:
    """There are no fewer either: the server answers only once this many requests have arrived."""
    arrived = threading.Barrier(concurrency, timeout=300)
    with serving(lambda body, number: arrived.wait() * 0 or GOOD) as server:
        ask(server.url, 12, concurrency=concurrency, timeout=300.0)
    assert server.most_at_once == concurrency


def test_no_requests_no_connection() -> None:
    assert client(unused_address()).ask([]) == []


def test_it_works_inside_a_running_loop() -> None:
    """A notebook runs an event loop, in which `asyncio.run` would fail."""
    with serving(lambda body, number: GOOD) as server:

        async def cell():
            return ask(server.url)

        assert len(asyncio.run(cell())) == 1


def test_an_interrupted_notebook_sends_no_further_requests(request) -> None:
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    request.addfinalizer(lambda: signal.signal(signal.SIGINT, before))

    def script(_body: dict, number: int) -> Reply:
        if number == 8:
            signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)
        time.sleep(0.05)
        return GOOD

    async def cell() -> list[Answer]:
        return ask(server.url, 200)

    with (
        serving(script) as server,
        pytest.raises(KeyboardInterrupt),
        contextlib.closing(asyncio.new_event_loop()) as loop,
    ):
        loop.run_until_complete(cell())
    assert len(server.requests) < 50


def test_seeds() -> None:
    names = itertools.product((0, 1), ("a:1", "a:2"), ("hint", "reward"), (0, 1))
    seeds = {stable_hash(*parts, bits=31) for parts in names}
    assert len(seeds) == 16
    assert all(0 <= s < 2**31 for s in seeds)
    assert stable_hash(0, "a:1", "hint", 0, bits=31) == 668564671  # pinned: another value would change every run


# -- the stage --------------------------------------------------------------------------------------------------------


def config(path, url: str, **fields) -> JudgeConfig:
    defaults = {
        "judge": "endpoint",
        "judge_model": "judge-model",
        "judge_url": url,
        "votes": 3,
        "all_votes": True,
        "timeout": 5.0,
        "retries": 1,
    }
    return JudgeConfig(run=path, **({"shard": "0/1"} | defaults | fields))


SESSIONS = {f"s{n}": talk("Hi", "Hello", f"Use Celsius, number {n}", "Done", "thanks") for n in range(4)}


def by_question(body, number: int) -> Reply:
    asks_for_hint = "reveal" in body["messages"][-1]["content"].rsplit("## Question", 1)[1]
    hinted = r"\boxed{1} [HINT_START]Give degrees in Celsius.[HINT_END]"
    return completion(hinted if asks_for_hint else r"\boxed{-1}")


def test_verdicts_from_a_server(tmp_path) -> None:
    path = write_extract(tmp_path / "run", SESSIONS)
    with serving(by_question) as server:
        summary = run(config(path, server.url))
    rows = [row for part in range(2) for row in read_part(path, "verdicts", part)]
    assert len(rows) == summary.counters.rows_out == 8
    assert {(r["reward"], r["hint"], r["hint_status"]) for r in rows} == {(-1, "Give degrees in Celsius.", "ok")}
    assert len(server.requests) == summary.counters.total("votes") == 8 * 2 * 3
    assert len({r["seed"] for r in server.requests}) == 48
    assert "n" not in server.requests[0]


def test_an_outage_writes_no_verdicts_and_the_next_start_goes_on(tmp_path) -> None:
    """A part without all its answers is not written; the next start asks only for the answers that are missing."""
    path = write_extract(tmp_path / "run", SESSIONS)
    with (
        serving(lambda body, number: by_question(body, number) if number < 30 else Reply(503, "")) as server,
        pytest.raises(OpdkitError, match="503"),
    ):
        run(config(path, server.url))
    verdicts = path / "judge" / "verdicts"
    assert [p.name for p in verdicts.iterdir()] == ["part-00000.parquet"]
    assert [p.name for p in (path / "judge" / ".tmp").iterdir()] == ["verdicts-00001.answers"]
    kept = (verdicts / "part-00000.parquet").read_bytes()
    with serving(by_question) as server:
        summary = run(config(path, server.url))
    assert len(server.requests) == 24 - 6
    assert (summary.parts_done, summary.counters.rows_out) == (2, 8)
    assert not list((path / "judge" / ".tmp").iterdir())
    assert (verdicts / "part-00000.parquet").read_bytes() == kept


def test_a_dead_server_leaves_nothing(tmp_path) -> None:
    path = write_extract(tmp_path / "run", SESSIONS)
    with pytest.raises(OpdkitError, match=r"127\.0\.0\.1"):
        run(config(path, unused_address()))
    assert not (path / "judge" / "verdicts").exists()


def test_an_answer_that_does_not_parse_is_a_failed_vote(tmp_path) -> None:
    path = write_extract(tmp_path / "run", {"s": talk("Hi", "Hello", "thanks")})
    failed = pytest.raises(OpdkitError, match=r"all 6 votes failed.*no decision")
    with serving(lambda body, number: completion("I cannot say")) as server, failed:
        run(config(path, server.url))
    row = read_part(path, "verdicts", 0)[0]
    assert (row["reward"], row["reward_status"], row["hint"], row["hint_status"]) == (None, "failed", None, "no_quorum")
    assert {v["error"] for v in row["reward_votes"]} == {"no decision"}
    assert {v["raw"] for v in row["hint_votes"]} == {"I cannot say"}


def test_no_file_and_no_message_holds_the_key(tmp_path, monkeypatch, capfd) -> None:
    monkeypatch.setenv("JUDGE_KEY", KEY)
    path = write_extract(tmp_path / "run", SESSIONS)
    with serving(by_question) as server:
        run(config(path, server.url, api_key_env="JUDGE_KEY"))
    assert server.headers[0]["Authorization"] == f"Bearer {KEY}"
    for file in path.rglob("*"):
        assert not file.is_file() or KEY.encode() not in file.read_bytes()
    shown = capfd.readouterr()
    assert KEY not in shown.out + shown.err
    assert "JUDGE_KEY" in (path / "judge" / "manifest.json").read_text()


@pytest.mark.parametrize(
    "url",
    ["http://user:hunter2@host/v1", "http://hunter2@host/v1", "https://host/v1?key=hunter2", "http://host/v1#hunter2"],
)
def test_a_key_in_the_address_is_refused(url: str, tmp_path) -> None:
    with pytest.raises(ConfigError, match=r"leave out .*\?.*--api-key-env") as caught:
        config(tmp_path, url)
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize("option", ["api_key_env", "judge_first_key_env"])
@pytest.mark.parametrize("key", ["sk-proj-a1b2c3", "gsk_a1b2c3d4e5f6g7h8i9j0k1l2", "hunter 2"])
def test_a_key_in_place_of_its_variable_is_refused_without_showing_it(key: str, option: str, tmp_path) -> None:
    """It would stand in the manifest, and in the error of a server that wants a key."""
    first = {"judge_first": "small", "judge_first_url": "http://localhost:1/v1"}
    with pytest.raises(ConfigError, match=f"--{option.replace('_', '-')}") as caught:
        config(tmp_path, "http://localhost:1/v1", **first, **{option: key})
    assert key not in str(caught.value)
    config(tmp_path, "http://localhost:1/v1", api_key_env="KEY_2_of_gpt")


@pytest.mark.parametrize("url", ["localhost:8000", "ftp://host/v1", "http://", "http://host:99999/v1", "http://[::1"])
def test_what_is_no_address_is_refused(url: str, tmp_path) -> None:
    with pytest.raises(ConfigError, match="--judge-url"):
        config(tmp_path, url)


def test_a_server_may_move_between_two_starts(tmp_path) -> None:
    path = write_extract(tmp_path / "run", SESSIONS)
    for shard in ("0/2", "1/2"):
        with serving(by_question) as server:
            summary = run(config(path, server.url, shard=shard, concurrency=2))
    assert summary.parts_done == 2
    assert "judge_url" not in json.loads((path / "judge" / "manifest.json").read_text())["plan"]["config"]


@pytest.mark.parametrize(
    "url", ["http://999.1.1.1/v1", "http://xn--/v1", "http://a..b/v1", "http://localhost:1/v1\n", "http:///v1"]
)
def test_what_is_no_address_is_refused_at_once(url: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="--judge-url"):
        JudgeConfig(run=tmp_path, judge="endpoint", judge_model="m", judge_url=url)


def test_a_proxy_that_cannot_be_used_and_certificates_that_are_not_there(monkeypatch) -> None:
    monkeypatch.delenv("NO_PROXY", raising=False)
    monkeypatch.setenv("ALL_PROXY", "gopher://localhost:1")
    with pytest.raises(OpdkitError, match="ALL_PROXY"):
        ask("http://192.0.2.1/v1")
    monkeypatch.delenv("ALL_PROXY")
    monkeypatch.setenv("SSL_CERT_FILE", "/no/such/file")
    with pytest.raises(OpdkitError, match="SSL_CERT_FILE"):
        ask("https://192.0.2.1/v1")


def test_a_proxy_before_the_server_is_named(monkeypatch) -> None:
    """A proxy of the environment reaches no server on the machine itself, which looks like a server that is down."""
    for name in ("http_proxy", "all_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HTTP_PROXY", "http://user:secret@127.0.0.1:9")
    with serving(lambda body, number: GOOD) as server:
        assert ask(server.url)  # NO_PROXY names it
        monkeypatch.setenv("NO_PROXY", "localhost,.example.com")
        with pytest.raises(OpdkitError, match=r"proxy of HTTP_PROXY; NO_PROXY=127\.0\.0\.1 avoids") as caught:
            ask(server.url, retries=0)
    assert "secret" not in str(caught.value)


def test_a_certificate_that_is_not_trusted_ends_it_at_once() -> None:
    error = openai.APIConnectionError(request=cast(Any, None))
    error.__cause__ = OSError("[SSL: CERTIFICATE_VERIFY_FAILED] certificate verify failed: self-signed certificate")
    failure = client("https://127.0.0.1:9/v1").failure(error)
    assert isinstance(failure, OpdkitError)
    assert "SSL_CERT_FILE" in str(failure)


# -- one prompt, or the server ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("concurrency", [1, 4])
@pytest.mark.parametrize("reply", [Reply(500, {"error": {"message": "jinja"}}), Reply(200, {"choices": []})])
def test_a_prompt_that_is_never_answered_is_a_failed_vote(reply: Reply, concurrency: int) -> None:
    """A working server answers the trial request, even if the prompts that are left are never answered."""
    with serving(lambda body, _: reply if body["messages"][0]["content"] == "?" else GOOD) as server:
        for _ in range(2):  # nothing else to ask, as in a later round, or after a resume
            votes = ask(server.url, 3, retries=1, concurrency=concurrency)
            assert [vote.error.startswith(NO_ANSWER) for vote in votes] == [True] * 3


def test_an_outage_that_looks_like_a_refusal_makes_no_verdicts(tmp_path: Path) -> None:
    """A gateway answers 403 in the middle of a run, fewer times than the server is given up for."""
    run_dir = write_extract(tmp_path, {f"s{n}": talk("hi", f"hello {n}", "thanks") for n in range(8)}, per_part=4)
    closed = Reply(403, "<html>Access denied: connect to the VPN first</html>")
    options = {"run": run_dir, "judge": "endpoint", "judge_model": "m", "votes": 1, "concurrency": 1}
    with (
        serving(lambda body, number: GOOD if number < 12 else closed) as server,
        pytest.raises(OpdkitError, match="Access denied"),
    ):
        run(JudgeConfig(judge_url=server.url, **options))
    assert [row["reward_status"] for row in read_part(run_dir, "verdicts", 0)] == ["ok"] * 4
    assert not part_path(run_dir, "verdicts", 1).exists()
    with serving(lambda body, number: closed) as server, pytest.raises(OpdkitError, match="Access denied"):
        run(JudgeConfig(judge_url=server.url, **options))  # resumed, with votes that are there already
    with serving(lambda body, number: GOOD) as server:
        summary = run(JudgeConfig(judge_url=server.url, **options))
    assert not summary.counters.total("failed votes")


def test_parts_that_another_process_has_judged_are_not_asked_again(tmp_path: Path) -> None:
    run_dir = write_extract(tmp_path, {f"s{n}": talk("hi", "hello", "thanks") for n in range(4)}, per_part=1)
    options = {"run": run_dir, "judge": "endpoint", "judge_model": "m", "votes": 1, "concurrency": 1}
    others = []

    def answer(body: dict, _: int) -> Reply:
        if not others:  # another process judges everything while the first request is under way
            others.append(1)
            run(JudgeConfig(judge_url=server.url, **options))
        return GOOD

    with serving(answer) as server:
        run(JudgeConfig(judge_url=server.url, **options))
    assert len(server.requests) == 4 * 2 + 2  # all questions once, and those of the part under way


@pytest.mark.parametrize("key", ["test", "none", "EMPTY"])
def test_a_stand_in_for_a_key_is_a_word_like_any_other(key: str, monkeypatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", key)
    said = f"Write a {key} first. \\boxed{{1}}"
    with serving(lambda body, number: Reply(200, {"choices": [{"message": {"content": said}}]})) as server:
        assert ask(server.url)[0].text == said


@pytest.mark.parametrize(("url", "checked"), [("HTTPS://a/v1", True), ("https://a/v1", True), ("Http://a/v1", False)])
def test_the_certificate_of_a_server_is_checked(url: str, checked: bool, monkeypatch) -> None:
    options = []
    monkeypatch.setattr(openai, "DefaultAsyncHttpxClient", lambda **given: options.append(given))
    with contextlib.suppress(TypeError):  # it is no client
        client(url)._make_client()
    assert [given["verify"] for given in options] == [checked]
