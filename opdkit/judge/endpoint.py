"""A judge behind an OpenAI-compatible server: one request a vote, since servers differ in whether they heed `n`.

A request is tried again, with growing pauses, after what may pass: 429, 5xx, a connection that breaks, a timeout, an
answer that is no chat completion, an answer of another model (see `opdkit.judge.traffic`). What will not pass (another
4xx) ends the stage at once, and so does a server that answers nobody any more. No vote is ever made up for an answer
that did not come.
"""

import asyncio
import difflib
import email.utils
import hashlib
import json
import os
import re
import ssl
import time
from collections.abc import AsyncGenerator, Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from opdkit.chat.finish_reasons import is_cut_off
from opdkit.config.fields import JSON, parse_pairs
from opdkit.config.judge import JudgeConfig
from opdkit.console import counted, printable, progress, say
from opdkit.errors import ConfigError, OpdkitError
from opdkit.judge.exchange import TOO_LONG, Answer, Ask, Message, Question
from opdkit.judge.identity import Identity
from opdkit.judge.traffic import Failure, Server, Traffic
from opdkit.store.plans import stage_dir

LONGEST_WAIT = 600.0  # seconds; a server that asks for more (Retry-After) is left alone
_INSTEAD_OF_TEXT = ("reasoning_content", "reasoning", "tool_calls", "refusal")  # fields of a message

# Text that tokenizers of the common chat models read as control tokens: <|im_end|>, </s>, [INST], <start_of_turn>.
_CONTROL = re.compile(
    r"(?P<open><<|[<\[])(?=[|｜]|/?(?:s|think|bos|eos|pad|unk|mask|tool_(?:call|response)s?|"
    r"(?:start|end)_of_(?:turn|image)|(?:begin|end)_of_text|turn|channel|message|INST|SYS|SYSTEM_PROMPT|"
    r"AVAILABLE_TOOLS|TOOL_(?:CALLS|RESULTS)|gMASK|sop|eop)[>\]|])",
    re.IGNORECASE,
)
_TOO_LONG = re.compile(r"context.{0,20}(?:length|window|size)|(?:prompt|input).{0,40}too (?:long|large|many)", re.I)


@dataclass(frozen=True)
class Completion:
    """One request."""

    messages: list[Message]
    seed: int
    temperature: float
    max_tokens: int


class Endpoint:
    """A server's chat completions. The key stays in this process: no error and no log shows it."""

    def __init__(
        self,
        base_url: str,
        model: str,
        *,
        api_key_env: str,
        timeout: float,
        retries: int,
        concurrency: int,
        template_args: JSON | None = None,
        identity: Identity | None = None,
    ) -> None:
        self.base_url = base_url.rstrip("/").removesuffix("/chat/completions")
        self.model, self.api_key_env, self.timeout = model, api_key_env, timeout
        self.retries, self.concurrency, self.template_args = retries, concurrency, template_args or {}
        self.server, self.judge = Server(), identity or Identity(model)
        self._failure_said = False
        # Reading the certificates takes a while; once is enough, and plain http needs none.
        self.tls = _certificates() if base_url.startswith("https:") else False
        self.key = os.environ.get(api_key_env, "").strip()
        if not (self.key.isascii() and (self.key.isprintable())):
            raise ConfigError(f"the environment variable {api_key_env} holds characters that no API key has")

    def complete(self, requests: Sequence[Completion]) -> list[Answer]:
        """An answer to each request, in order. Raises OpdkitError when one of them gets none."""
        return _run(self._complete(requests))

    async def _complete(self, requests: Sequence[Completion]) -> list[Answer]:
        answers: dict[int, Answer] = {}
        traffic = Traffic(
            [request.seed for request in requests],
            self.server,
            where=f"the judge at {self.base_url}",
            concurrency=self.concurrency,
            retries=self.retries,
            timeout=self.timeout,
        )
        headers = {"Authorization": f"Bearer {self.key}"} if self.key else {}
        limits = httpx.Limits(max_connections=self.concurrency, max_keepalive_connections=self.concurrency)
        async with (
            # The time that a request may take is measured as a whole (see Traffic), not from byte to byte.
            _client(headers=headers, timeout=None, limits=limits, verify=self.tls) as client,
            aclosing(self._arriving(client, requests, traffic)) as arriving,
        ):
            for _ in progress(range(len(requests)), "judging", len(requests), "votes"):
                i, answer = await anext(arriving)
                answers[i] = answer
        if traffic.tried_again:
            kinds = ", ".join(f"{kind} {n:,}" for kind, n in traffic.tried_again.most_common())
            say(f"the judge's server: {counted(len(requests), 'answer')}, and attempts that failed: {kinds}")
        return [answers[i] for i in range(len(requests))]

    async def _arriving(
        self, client: httpx.AsyncClient, requests: Sequence[Completion], traffic: Traffic
    ) -> AsyncGenerator[tuple[int, Answer], None]:
        """Number and answer of each request, as they come."""
        under_way: dict[int, asyncio.Task[Answer | Failure]] = {}
        try:
            while True:
                while (i := traffic.take(time.monotonic())) is not None:
                    under_way[i] = asyncio.create_task(self._attempt(client, requests[i]))
                seconds = traffic.wait(time.monotonic())
                if under_way:
                    await asyncio.wait(under_way.values(), timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
                else:
                    await asyncio.sleep(seconds)
                for i in [i for i, task in under_way.items() if task.done()]:
                    found = under_way.pop(i).result()
                    if isinstance(found, Answer):
                        traffic.answered(i, time.monotonic())
                        yield i, found
                    elif last_word := traffic.failed(i, found, time.monotonic()):
                        yield i, last_word
                    else:
                        self._say_first_failure(found.reason)
                for i in traffic.overdue(time.monotonic()):
                    under_way.pop(i).cancel()  # which closes its connection: a late answer reaches nobody
                    if last_word := traffic.given_up(i, time.monotonic()):
                        yield i, last_word
                    elif not self.server.answers:  # else it was given up early, which means little
                        self._say_first_failure(f"no answer within {self.timeout:g} seconds")
        finally:
            for task in under_way.values():
                task.cancel()
            await asyncio.gather(*under_way.values(), return_exceptions=True)

    def _say_first_failure(self, reason: str) -> None:
        """Once: a server that is down is asked again for half a minute, which should not pass in silence."""
        if not self._failure_said:
            self._failure_said = True
            say(f"the judge at {self.base_url}: {reason}; trying again, with growing pauses (--retries {self.retries})")

    async def _attempt(self, client: httpx.AsyncClient, request: Completion) -> Answer | Failure:
        try:
            response = await client.post(f"{self.base_url}/chat/completions", json=self._body(request))
        except httpx.RequestError as error:
            return Failure(f"the connection broke: {self._safe(f'{type(error).__name__} {error}')}")
        return await self._read(client, response)

    def _body(self, request: Completion) -> JSON:
        body = {
            "model": self.model,
            "messages": [m | {"content": broken_control_tokens(m["content"])} for m in request.messages],
            "temperature": request.temperature,
            "max_tokens": request.max_tokens,
            "seed": request.seed,
        }
        return body | ({"chat_template_kwargs": self.template_args} if self.template_args else {})

    # -- reading a response -----------------------------------------------------------------------------------------

    async def _read(self, client: httpx.AsyncClient, response: httpx.Response) -> Answer | Failure:
        status = response.status_code
        if status in (408, 425, 429) or status >= 500:
            pause = _retry_after(response)
            return Failure(f"HTTP {status}: {self._excerpt(response)}", pause, limited=status == 429 or pause > 0)
        if status in (400, 413, 422) and _TOO_LONG.search(response.text):
            return Answer("", error=f"{TOO_LONG}: {self._excerpt(response)}")
        if status != 200:
            raise OpdkitError(await self._refusal(client, response))
        try:
            document = response.json()
            message, model = document["choices"][0]["message"], document.get("model")
            content, reason = message.get("content"), document["choices"][0].get("finish_reason")
            text = content if isinstance(content, str) else "".join(p.get("text", "") for p in content or ())
        except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
            return Failure(f"an answer that is no chat completion: {self._excerpt(response)}")
        if not self.judge.is_it(model):
            return Failure(f"an answer of another model: {self._safe(str(model))}")
        # JSON can hold half of a surrogate pair, which no file can; and a vote is kept as it was given.
        vote = self._without_key(text.encode("utf-8", "replace").decode())
        answer = Answer(vote, reason if isinstance(reason, str) else None)
        if (
            content is None
            and not is_cut_off(answer.finish_reason)
            and not any(message.get(k) for k in _INSTEAD_OF_TEXT)
        ):
            return Failure("an answer that says nothing", insisted=answer)
        return answer

    async def _refusal(self, client: httpx.AsyncClient, response: httpx.Response) -> str:
        """What to say when the server has answered, and will answer the same again."""
        status, where = response.status_code, f"the judge at {self.base_url}"
        if status == 401:
            given = "does not accept the key in" if self.key else "wants an API key, and there is none in"
            return f"{where} {given} the environment variable {self.api_key_env} (HTTP 401)"
        if status == 404:
            return f"{where} knows no such address or model (HTTP 404). {await self._on_offer(client)}"
        if response.is_redirect:
            location = self._safe(response.headers.get("location", "elsewhere"))
            return f"{where} sends on to {location} (HTTP {status}): give that address to --judge-url"
        return f"{where} refuses the request (HTTP {status}): {self._excerpt(response)}"

    async def _on_offer(self, client: httpx.AsyncClient) -> str:
        """The models that the server names, beside the one that was asked for."""
        try:
            async with asyncio.timeout(self.timeout):
                listed = (await client.get(f"{self.base_url}/models")).json()["data"]
            names = [self._safe(str(model["id"])) for model in listed]
        except (httpx.RequestError, TimeoutError, ValueError, LookupError, TypeError, RecursionError):
            return "It lists no models there either: does the address end in /v1, as most servers want it?"
        near = difflib.get_close_matches(self.model, names, n=1)
        offer = f"It offers: {', '.join(names[:20])}." if names else "It offers no model at all."
        return f"--model is {self.model!r}. {offer}" + (f" Did you mean {near[0]!r}?" if near else "")

    def _excerpt(self, response: httpx.Response) -> str:
        """The beginning of an answer, for a message: the server's own words where it is a JSON error."""
        try:
            said = response.json()
            said = said.get("error", said.get("detail", said)) if isinstance(said, dict) else said
            said = said.get("message", said) if isinstance(said, dict) else said
        except (ValueError, RecursionError):
            said = response.text
        return self._safe(said if isinstance(said, str) else json.dumps(said))

    def _safe(self, text: str) -> str:
        """`text` on one line, short, and without the key."""
        return printable(" ".join(self._without_key(text).split()))[:200]

    def _without_key(self, text: str) -> str:
        return text.replace(self.key, "[the API key]") if self.key else text


def _certificates() -> ssl.SSLContext:
    try:
        return httpx.create_ssl_context()
    except OSError as error:
        raise OpdkitError(f"the certificates for https cannot be read ({error}): see the environment variables "
                          "SSL_CERT_FILE and SSL_CERT_DIR") from error  # fmt: skip


def _client(**options: Any) -> httpx.AsyncClient:
    try:
        return httpx.AsyncClient(**options)
    except (ImportError, ValueError, httpx.InvalidURL) as error:
        raise OpdkitError(
            f"the proxy that the environment names cannot be used ({error}): see the variables ALL_PROXY, "
            "HTTP_PROXY and HTTPS_PROXY; NO_PROXY names hosts to reach without it"
        ) from error


def _retry_after(response: httpx.Response) -> float:
    """Seconds from a Retry-After header (a number or a date). Raises OpdkitError when that is too long to sit out."""
    value = response.headers.get("retry-after", "")
    try:
        seconds = float(value)
    except ValueError:
        try:
            seconds = email.utils.parsedate_to_datetime(value).timestamp() - time.time()
        except ValueError:
            return 0.0
    if not seconds <= LONGEST_WAIT:  # also not a number
        raise OpdkitError(
            f"the judge at {response.url.host} asks to be left alone for {value[:40]} (HTTP {response.status_code}): "
            "start the same command again then; finished parts are kept"
        )
    return max(0.0, seconds)


def broken_control_tokens(text: str) -> str:
    """`text` with a space inside whatever a server's tokenizer may read as a control token.

    The server turns our text into tokens, and most do so after rendering: `<|im_end|>` out of a log would end our
    message there. (A local judge needs no such thing: opdkit.chat.template keeps text and control tokens apart.)
    """
    return _CONTROL.sub(lambda m: m["open"] + " ", text)


def request_seed(seed: int, turn_id: str, question: str, vote: int) -> int:
    """31 bits, which every server takes, that depend on nothing but these."""
    digest = hashlib.sha256(json.dumps([seed, turn_id, question, vote]).encode()).digest()
    return int.from_bytes(digest[:4], "big") >> 1


def _run(work: Coroutine[Any, Any, list[Answer]]) -> list[Answer]:
    """Run `work` to its end, also where a loop runs already (a notebook)."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(work)
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(asyncio.run, work).result()


def open_judge(config: JudgeConfig) -> Ask:
    """The judge of the stage `judge`."""
    return open_server(config, stage_dir(config.run, "judge"))


def open_server(config: JudgeConfig, folder: Path | None) -> Ask:
    """m requests a question, `seed` derived from (seed, turn_id, question, vote).

    `folder`: of the stage that the votes are for, where the name is kept that the server answers under.
    """
    assert config.judge_url is not None  # JudgeConfig sees to both
    assert config.judge_model is not None
    endpoint = Endpoint(
        config.judge_url,
        config.judge_model,
        api_key_env=config.api_key_env,
        timeout=config.timeout,
        retries=config.retries,
        concurrency=config.concurrency,
        template_args=parse_pairs(config.template_arg, "--template-arg"),
        identity=Identity(config.judge_model, folder),
    )

    def ask(questions: Sequence[Question]) -> list[list[Answer]]:
        requests = [
            Completion(
                q.messages,
                request_seed(config.seed, q.turn_id, q.name, vote),
                config.temperature,
                config.max_new_tokens,
            )
            for q in questions
            for vote in range(config.votes)
        ]
        answers = endpoint.complete(requests)
        return [answers[i : i + config.votes] for i in range(0, len(answers), config.votes)]

    return ask


def try_server(config: JudgeConfig) -> None:
    """Put a question whose answer nobody keeps. Raises OpdkitError when the server has none."""
    open_server(config, None)([Question("", "trial", [{"role": "user", "content": "Are you there? Answer yes."}])])
