"""Judge behind an OpenAI-compatible server: one request per vote, since servers differ in whether they heed `n`.

A request is sent again, with growing pauses, after what may pass: 429, 5xx, a connection that breaks, a timeout, an
answer that is not a chat completion, an answer of another model (see `opdkit.judge.traffic`). What will not pass
(another 4xx) ends the stage at once, and so does a server that answers nobody any more. No vote is ever made up for an
answer that did not come.
"""

import asyncio
import difflib
import email.utils
import json
import os
import re
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import openai

from opdkit.chat.control_tokens import break_control_tokens
from opdkit.chat.finish_reasons import is_cut_off
from opdkit.config.fields import parse_pairs
from opdkit.config.judge import JudgeConfig
from opdkit.console import counted, printable, say, tally
from opdkit.errors import ConfigError, OpdkitError
from opdkit.judge.exchange import TOO_LONG, Answer, Ask, Question, Request
from opdkit.judge.identity import Identity
from opdkit.judge.traffic import FailedAttemptError, Traffic
from opdkit.store.plans import stage_dir
from opdkit.store.stable_hash import stable_hash

LONGEST_WAIT = 600.0  # seconds; a server that asks for more (Retry-After) is left alone
_INSTEAD_OF_TEXT = ("reasoning_content", "reasoning", "tool_calls", "refusal")  # fields of a message
_TOO_LONG = re.compile(r"context.{0,20}(?:length|window|size)|(?:prompt|input).{0,40}too (?:long|large|many)", re.I)
_MALFORMED = (ValueError, LookupError, TypeError, AttributeError, RecursionError)  # errors of reading foreign JSON


class Endpoint:
    """Chat model on a server, asked for votes. The key stays in this process: no error and no log shows it.

    `folder`: of the stage that the votes are for, where the name is kept that the server answers under.
    Raises ConfigError for a key that cannot be sent.
    """

    def __init__(self, config: JudgeConfig, folder: Path | None = None) -> None:
        assert config.judge_url is not None  # JudgeConfig sees to both
        assert config.judge_model is not None
        self.config, self.model = config, config.judge_model
        self.base_url = config.judge_url.rstrip("/").removesuffix("/chat/completions")
        self.where = f"the judge at {self.base_url}"
        self.identity = Identity(config.judge_model, folder)
        self.traffic = Traffic(
            self.where, concurrency=config.concurrency, retries=config.retries, timeout=config.timeout
        )
        self.key = os.environ.get(config.api_key_env, "").strip()
        if not (self.key.isascii() and self.key.isprintable()):
            raise ConfigError(f"the environment variable {config.api_key_env} holds characters that no API key has")
        # What the library would send of the environment beside the key, or in place of one.
        unsent = ["OpenAI-Organization", "OpenAI-Project", *([] if self.key else ["Authorization"])]
        self.headers: dict[str, Any] = dict.fromkeys(unsent, openai.Omit())
        template_args = parse_pairs(config.template_arg, "--template-arg")
        self.extra_body = {"chat_template_kwargs": template_args} if template_args else None

    def ask(self, questions: Sequence[Question]) -> list[list[Answer]]:
        """Return `--votes` answers to each question. Raises OpdkitError when the server does not give them."""
        seed, votes = self.config.seed, self.config.votes
        requests = [
            Request(question.messages, request_seed(seed, question.turn_id, question.name, vote))
            for question in questions
            for vote in range(votes)
        ]
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            answers = asyncio.run(self._answer_all(requests))
        else:  # a notebook runs a loop already
            with ThreadPoolExecutor(1) as pool:
                answers = pool.submit(asyncio.run, self._answer_all(requests)).result()
        return [answers[i : i + votes] for i in range(0, len(answers), votes)]

    async def _answer_all(self, requests: Sequence[Request]) -> list[Answer]:
        with tally("judging", len(requests), "votes") as on_answer:
            async with self._client() as client:
                answers = await self.traffic.answer_all(requests, partial(self._attempt, client), on_answer)
        if failed := self.traffic.failed_attempts:
            kinds = ", ".join(f"{kind} {n:,}" for kind, n in failed.most_common())
            say(f"the judge's server: {counted(len(requests), 'answer')}, and attempts that failed: {kinds}")
            failed.clear()
        return answers

    def _client(self) -> openai.AsyncOpenAI:
        """Return a client that sends each request once, to this address and no other, for as long as Traffic waits."""
        try:
            # Reading the certificates takes a while, and plain http needs none.
            http = openai.DefaultAsyncHttpxClient(
                follow_redirects=False, timeout=None, verify=self.base_url.startswith("https:")
            )
        except OSError as error:
            raise OpdkitError(f"the certificates for https cannot be read ({error}): see the environment variables "
                              "SSL_CERT_FILE and SSL_CERT_DIR") from error  # fmt: skip
        except Exception as error:  # ImportError, ValueError, and the HTTP library's own for an address
            raise OpdkitError(
                f"the proxy that the environment names cannot be used ({error}): see the variables ALL_PROXY, "
                "HTTP_PROXY and HTTPS_PROXY; NO_PROXY names hosts to reach without it"
            ) from error
        return openai.AsyncOpenAI(
            api_key=self.key or "none", base_url=self.base_url, max_retries=0, timeout=None, http_client=http
        )

    # -- one attempt ------------------------------------------------------------------------------------------------

    async def _attempt(self, client: openai.AsyncOpenAI, request: Request) -> Answer:
        """Send a request once. Raises FailedAttemptError for what may pass, OpdkitError for what will not."""
        messages: list[Any] = [m | {"content": break_control_tokens(m["content"])} for m in request.messages]
        try:
            response = await client.chat.completions.with_raw_response.create(
                model=self.model,
                messages=messages,
                temperature=self.config.temperature,
                max_tokens=self.config.max_new_tokens,
                seed=request.seed,
                extra_headers=self.headers,
                extra_body=self.extra_body,
            )
        except openai.APIConnectionError as error:
            cause = error.__cause__ or error
            raise FailedAttemptError(f"the connection broke: {self._safe(f'{type(cause).__name__} {cause}')}") from None
        except openai.APIStatusError as error:
            return await self._read_error(client, error.response)
        return self._read(response.http_response)

    def _read(self, response: Any) -> Answer:
        """Return the answer that a response of status 200 holds."""
        try:
            document = response.json()
            message, name = document["choices"][0]["message"], document.get("model")
            content, reason = message.get("content"), document["choices"][0].get("finish_reason")
            text = content if isinstance(content, str) else "".join(p.get("text", "") for p in content or ())
            silent = content is None and not any(message.get(field) for field in _INSTEAD_OF_TEXT)
        except _MALFORMED:
            raise FailedAttemptError(f"an answer that is no chat completion: {self._excerpt(response)}") from None
        if not self.identity.admit(name):
            raise FailedAttemptError(f"an answer of another model: {self._safe(str(name))}")
        # JSON can hold half of a surrogate pair, which no file can.
        vote = self._without_key(text.encode("utf-8", "replace").decode())
        answer = Answer(vote, reason if isinstance(reason, str) else None)
        if silent and not is_cut_off(answer.finish_reason):
            raise FailedAttemptError("an answer that says nothing", insisted=answer)
        return answer

    async def _read_error(self, client: openai.AsyncOpenAI, response: Any) -> Answer:
        """Return the answer that an error stands for: the prompt does not fit. Raises as `_attempt` for all others."""
        status, excerpt = response.status_code, self._excerpt(response)
        if status in (408, 425, 429) or status >= 500:
            pause = self._retry_after(response)
            raise FailedAttemptError(f"HTTP {status}: {excerpt}", pause=pause, limited=status == 429 or pause > 0)
        if status in (400, 413, 422) and _TOO_LONG.search(response.text):
            return Answer("", error=f"{TOO_LONG}: {excerpt}")
        if status == 401:
            given = "does not accept the key in" if self.key else "wants an API key, and there is none in"
            raise OpdkitError(f"{self.where} {given} the environment variable {self.config.api_key_env} (HTTP 401)")
        if status == 404:
            offer = await self._models_on_offer(client)
            raise OpdkitError(f"{self.where} knows no such address or model (HTTP 404). {offer}")
        if 300 <= status < 400:
            location = self._safe(response.headers.get("location", "elsewhere"))
            raise OpdkitError(f"{self.where} redirects to {location} (HTTP {status}): pass that address as --judge-url")
        raise OpdkitError(f"{self.where} refuses the request (HTTP {status}): {excerpt}")

    def _retry_after(self, response: Any) -> float:
        """Return the seconds of a Retry-After header, 0 without one. Raises OpdkitError when they are too many."""
        value = response.headers.get("retry-after", "")
        seconds = retry_after_seconds(value)
        if not seconds <= LONGEST_WAIT:  # also not a number
            raise OpdkitError(f"{self.where} asks to be left alone for {self._safe(value)[:40]} (HTTP "
                              f"{response.status_code}): start the same command again then; finished parts are "
                              "kept")  # fmt: skip
        return max(0.0, seconds)

    async def _models_on_offer(self, client: openai.AsyncOpenAI) -> str:
        """Say which models the server names, beside the one that was asked for."""
        try:
            async with asyncio.timeout(self.config.timeout):
                response = await client.models.with_raw_response.list(extra_headers=self.headers)
            names = [self._safe(str(model["id"])) for model in response.http_response.json()["data"]]
        except (openai.OpenAIError, TimeoutError, *_MALFORMED):
            return "It lists no models there either: does the address end in /v1, as most servers want it?"
        near = difflib.get_close_matches(self.model, names, n=1)
        offer = f"It offers: {', '.join(names[:20])}." if names else "It offers no model at all."
        return f"--judge-model is {self.model!r}. {offer}" + (f" Did you mean {near[0]!r}?" if near else "")

    # -- texts of the server ----------------------------------------------------------------------------------------

    def _excerpt(self, response: Any) -> str:
        """Return the beginning of a response, for a message: the server's own words where it is a JSON error."""
        try:
            said = response.json()
            said = said.get("error", said.get("detail", said)) if isinstance(said, dict) else said
            said = said.get("message", said) if isinstance(said, dict) else said
        except (ValueError, RecursionError):
            said = response.text
        return self._safe(said if isinstance(said, str) else json.dumps(said))

    def _safe(self, text: str) -> str:
        """Return `text` on one line, short, and without the key."""
        return printable(" ".join(self._without_key(text).split()))[:200]

    def _without_key(self, text: str) -> str:
        return text.replace(self.key, "[the API key]") if self.key else text


def retry_after_seconds(value: str) -> float:
    """Return the seconds that a Retry-After header asks for, as a number or as a date; 0 for what is neither."""
    try:
        return float(value)
    except ValueError:
        pass
    try:
        return email.utils.parsedate_to_datetime(value).timestamp() - time.time()
    except ValueError:
        return 0.0


def request_seed(seed: int, turn_id: str, question: str, vote: int) -> int:
    """Return 31 bits, which every server takes, that depend on nothing but these."""
    return stable_hash(seed, turn_id, question, vote, bits=31)


def open_judge(config: JudgeConfig) -> Ask:
    """Return the judge of the stage `judge`."""
    return Endpoint(config, stage_dir(config.run, "judge")).ask


def try_server(config: JudgeConfig) -> None:
    """Ask a question whose answer nobody keeps. Raises OpdkitError when the server has none."""
    Endpoint(config).ask([Question("", "trial", [{"role": "user", "content": "Are you there? Answer yes."}])])
