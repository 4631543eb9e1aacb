"""Client of an OpenAI-compatible server: its address and key, its errors, and its list of models."""

import asyncio
import email.utils
import json
import os
import re
import time
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from typing import Any
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

import openai

from opdkit.console import counted, printable, say, tally
from opdkit.errors import ConfigError, OpdkitError
from opdkit.model.server.traffic import FailedAttemptError, Traffic

_SHORTEST_KEY = 16  # characters; what is shorter is a stand-in (test, none, EMPTY), and may be a word of an answer
LONGEST_WAIT = 600.0  # seconds; if a server asks for more (Retry-After), the run ends with an error
NO_CREDIT = {"insufficient_quota", "budget_exceeded"}  # code or type of an error: OpenAI's; LiteLLM's
UNTRUSTED = "CERTIFICATE_VERIFY_FAILED"  # in OpenSSL's error for a certificate that this machine does not trust
CERTIFICATE_REMEDY = "SSL_CERT_FILE may name a file with the certificate to trust"
# In an error 503 of a server that works: Google's and OpenAI's while they are overloaded, llama.cpp's while it starts.
_OVERLOADED = re.compile(r"overload|high demand|too many|busy|loading model", re.I)
MALFORMED = (ValueError, LookupError, TypeError, AttributeError, RecursionError)  # raised while reading foreign JSON

SendOnce = Callable[[openai.AsyncOpenAI, Any], Awaitable[Any]]  # sends a request once, see Traffic


class RefusedError(OpdkitError):
    """Error for a request that a server refuses, and would refuse again."""


class Server:
    """Server that answers many requests at once. No error message and no log shows the API key.

    `who` is its name in messages, `url` its address, and `flag` the option that holds the address; `has_flags` as
    for Traffic. Raises ConfigError for a key that cannot be sent.
    """

    def __init__(
        self, who: str, url: str, flag: str, api_key_env: str, *, concurrency: int, retries: int, timeout: float,
        has_flags: bool = True,
    ) -> None:  # fmt: skip
        self.who, self.flag, self.api_key_env, self.timeout = who, flag, api_key_env, timeout
        self.base_url = url.rstrip("/").removesuffix("/chat/completions")
        self.where = f"{who} at {self.base_url}{describe_proxy(self.base_url)}"
        self.traffic = Traffic(self.where, concurrency, retries, timeout, has_flags=has_flags)
        self.key = os.environ.get(api_key_env, "").strip()
        if not (self.key.isascii() and self.key.isprintable()):
            raise ConfigError(f"the environment variable {api_key_env} holds characters that no API key has")
        # Headers that the library would send from the environment, beside the key or in place of a missing key.
        unsent = ["OpenAI-Organization", "OpenAI-Project", *([] if self.key else ["Authorization"])]
        self.headers: dict[str, Any] = dict.fromkeys(unsent, openai.Omit())

    def answer_all(self, requests: Sequence[Any], attempt: SendOnce, doing: str, unit: str) -> list[Any]:
        """Return the answer to each request, as `Traffic.answer_all` does. `doing` and `unit` label the progress."""
        if not requests:
            return []
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            return asyncio.run(self._answer_all(requests, attempt, doing, unit))
        tasks = list[Any]()

        async def answer() -> list[Any]:
            tasks.append(asyncio.current_task())
            return await self._answer_all(requests, attempt, doing, unit)

        with ThreadPoolExecutor(1) as pool:  # a notebook already runs an event loop
            answers = pool.submit(asyncio.run, answer())
            try:
                return answers.result()
            finally:  # if the notebook is interrupted, so are the requests
                with suppress(RuntimeError):  # the loop of the task is closed
                    for task in tasks:
                        task.get_loop().call_soon_threadsafe(task.cancel)

    async def _answer_all(self, requests: Sequence[Any], attempt: SendOnce, doing: str, unit: str) -> list[Any]:
        with tally(doing, len(requests), unit) as on_answer:
            async with self._make_client() as client:
                trial = partial(self.send_trial, client)
                answers = await self.traffic.answer_all(requests, partial(attempt, client), on_answer, trial)
        if failed := self.traffic.failed_attempts:
            kinds = ", ".join(f"{kind} {n:,}" for kind, n in failed.most_common())
            say(f"{self.who}'s server: {counted(len(requests), 'answer')}, and attempts that failed: {kinds}")
            failed.clear()
        return answers

    async def send_trial(self, client: openai.AsyncOpenAI) -> None:
        """Send a request that any working server answers. Raises FailedAttemptError or OpdkitError if it does not."""
        raise FailedAttemptError("no trial request is known")

    def _make_client(self) -> openai.AsyncOpenAI:
        """Return a client without retries, redirects or timeouts: `Traffic` limits their time and retries them."""
        try:
            # Reading the certificates takes a while, and plain http needs none.
            http = openai.DefaultAsyncHttpxClient(
                follow_redirects=False, timeout=None, verify=not self.base_url.lower().startswith("http:")
            )
        except OSError as error:
            raise OpdkitError(f"the certificates for https cannot be read ({error}): see the environment variables "
                              "SSL_CERT_FILE and SSL_CERT_DIR") from error  # fmt: skip
        except Exception as error:  # ImportError, ValueError, and the HTTP library's own error for an address
            raise OpdkitError(f"the proxy that the environment names cannot be used ({error}): see the variables "
                              "ALL_PROXY, HTTP_PROXY and HTTPS_PROXY; NO_PROXY names hosts to reach without "
                              "it") from error  # fmt: skip
        key = self.key or "none"
        return openai.AsyncOpenAI(api_key=key, base_url=self.base_url, max_retries=0, timeout=None, http_client=http)

    def failure(self, error: openai.APIConnectionError | openai.APIStatusError) -> FailedAttemptError | OpdkitError:
        """Return the error to raise for an error of the client: FailedAttemptError if it may pass."""
        if isinstance(error, openai.APIConnectionError):
            cause = error.__cause__ or error
            if UNTRUSTED in str(cause):
                return OpdkitError(f"{self.where} has a certificate that this machine does not trust "
                                   f"({self._clean(str(cause))}): {CERTIFICATE_REMEDY}")  # fmt: skip
            return FailedAttemptError(f"the connection broke: {self._clean(f'{type(cause).__name__} {cause}')}")
        response = error.response
        status, excerpt = response.status_code, self.excerpt(response)
        if {str(error.code), str(error.type)} & NO_CREDIT:
            return OpdkitError(f"{self.where}: the key in {self.api_key_env} has no credit left (HTTP {status}: "
                               f"{excerpt}); when it has, start the same command again: finished parts are "
                               "kept")  # fmt: skip
        if status in (408, 425, 429) or status >= 500:
            retry_after = response.headers.get("retry-after", "")
            pause = parse_retry_after(retry_after)
            if not pause <= LONGEST_WAIT:  # also catches NaN
                asked = f"asks for a long pause (HTTP {status}, Retry-After: {self._clean(retry_after)[:40]})"
                return OpdkitError(f"{self.where} {asked}: start the same command after it; finished parts are kept")
            limited = pause > 0 or is_busy(status, response.text)
            return FailedAttemptError(f"HTTP {status}: {excerpt}", pause=max(0.0, pause), limited=limited)
        if status == 401:
            given = "does not accept the key in" if self.key else "wants an API key, and there is none in"
            variable = f"the environment variable {self.api_key_env}" if self.api_key_env else "an empty --api-key-env"
            return OpdkitError(f"{self.where} {given} {variable} (HTTP 401)")
        if 300 <= status < 400:
            location = self._clean(str(response.next_request.url) if response.next_request else "elsewhere")
            return OpdkitError(f"{self.where} redirects to {location} (HTTP {status}): pass that as {self.flag}")
        advice = "" if status != 404 or self.base_url.endswith("/v1") else f"; should {self.flag} end in /v1?"
        return RefusedError(f"{self.where} refuses the request (HTTP {status}): {excerpt}{advice}")

    async def model_names(self, client: openai.AsyncOpenAI, _: None = None) -> list[str] | None:
        """Return the names of the models that the server lists; None if it gives no list in the usual form, or hangs.

        It takes at most half the timeout of a request, since it may be part of a request.
        """
        try:
            async with asyncio.timeout(self.timeout / 2):
                response = await client.models.with_raw_response.list(extra_headers=self.headers)
            return [self._clean(str(model["id"])) for model in response.http_response.json()["data"] or []]
        except (openai.OpenAIError, TimeoutError, *MALFORMED):
            return None

    def excerpt(self, response: Any) -> str:
        """Return the beginning of a response, for an error message; of a JSON error, only the server's own message."""
        try:
            return self.describe_error(response.json())
        except (ValueError, RecursionError):
            return self._clean(response.text)

    def describe_error(self, error: Any) -> str:
        """Return the server's own message in a JSON error, or the beginning of the JSON."""
        (error,) = error if isinstance(error, list) and len(error) == 1 else [error]  # Google's server
        error = error.get("error", error.get("detail", error)) if isinstance(error, dict) else error
        if isinstance(error, dict):
            details = error.get("metadata")
            raw = details.get("raw") if isinstance(details, dict) else None  # OpenRouter: what its provider said
            error = f"{error.get('message')}: {raw}" if isinstance(raw, str) else error.get("message", error)
        return self._clean(error if isinstance(error, str) else json.dumps(error))

    def _clean(self, text: str) -> str:
        """Return `text` on one line, short, and without the key."""
        return printable(" ".join(self._hide_key(text).split()))[:200]

    def _hide_key(self, text: str) -> str:
        return text.replace(self.key, "[the API key]") if len(self.key) >= _SHORTEST_KEY else text


def is_busy(status: int, text: str) -> bool:
    """Return whether an error response says that a server has too much to do, or still loads its model."""
    return status in (429, 529) or (status == 503 and _OVERLOADED.search(text) is not None)


def describe_proxy(url: str) -> str:
    """Return words for messages about a server that the environment has reached through a proxy; "" without one.

    Clusters often set these variables for all jobs, and their proxy reaches no server on a node.
    """
    parts, proxies = urlsplit(url), getproxies()
    name = next((name for name in (parts.scheme, "all") if proxies.get(name)), None)
    if name is None or proxy_bypass(parts.netloc):
        return ""
    return f" (through the proxy of {name.upper()}_PROXY; NO_PROXY={parts.hostname} avoids it)"


def parse_retry_after(value: str) -> float:
    """Return the seconds that a Retry-After header asks for, as a number or as a date; 0 if it is neither."""
    with suppress(ValueError):
        return float(value)
    with suppress(ValueError):
        return email.utils.parsedate_to_datetime(value).timestamp() - time.time()
    return 0.0
