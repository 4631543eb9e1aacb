"""Judge behind an OpenAI-compatible server: one request per vote, since servers differ in whether they heed `n`.

What may pass is sent again (see `opdkit.judge.retries`): 429, 5xx, a connection that breaks, a timeout, an answer that
is not a chat completion or is of another model. What will not pass (another 4xx) ends the stage at once, and so does a
server that answers nobody any more. No vote is ever made up for an answer that did not come.
"""

import asyncio
import difflib
import email.utils
import json
import os
import re
import time
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from functools import cached_property
from itertools import accumulate
from pathlib import Path
from typing import Any

import openai

from opdkit.chat.control_tokens import break_control_tokens
from opdkit.chat.finish_reasons import is_cut_off
from opdkit.chat.openai_messages import Message
from opdkit.config.fields import JSON, parse_pairs
from opdkit.config.judge import JudgeConfig
from opdkit.console import counted, printable, say, tally, warn
from opdkit.errors import ConfigError, OpdkitError
from opdkit.judge.costs import BYTES_PER_TOKEN, COLD, KNOWN, LONGEST, VOTES, WARM, Prompt, count_shared, find_encoder
from opdkit.judge.kept_answers import KeptAnswers
from opdkit.judge.parse import decision_span
from opdkit.judge.retries import FailedAttemptError, Traffic
from opdkit.judge.votes import TOO_LONG, Answer, Question, Request, Usage, confidence_of
from opdkit.store.atomic import write_text
from opdkit.store.disk import disk_errors_explained
from opdkit.store.stable_hash import stable_hash

LONGEST_WAIT = 600.0  # seconds; a server that asks for more (Retry-After) is left alone
_INSTEAD_OF_TEXT = ("reasoning_content", "reasoning", "tool_calls", "refusal")  # fields of a message
_TOO_LONG = re.compile(r"context.{0,20}(?:length|window|size)|(?:prompt|input).{0,40}too (?:long|large|many)", re.I)
_MALFORMED = (ValueError, LookupError, TypeError, AttributeError, RecursionError)  # errors of reading foreign JSON
_REFUSALS = (400, 403, 422)  # of a parameter that a server or a model does not take
NAME_FILE = "answers-as.json"  # in the folder of the stage that the votes are for
_FIRST_ANSWERS = 3  # under one name that was not asked for, after which it is the judge's


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
        self.traffic = Traffic(self.where, config.concurrency, config.retries, config.timeout)
        self.key = os.environ.get(config.api_key_env, "").strip()
        if not (self.key.isascii() and self.key.isprintable()):
            raise ConfigError(f"the environment variable {config.api_key_env} holds characters that no API key has")
        # What the library would send of the environment beside the key, or in place of one.
        unsent = ["OpenAI-Organization", "OpenAI-Project", *([] if self.key else ["Authorization"])]
        self.headers: dict[str, Any] = dict.fromkeys(unsent, openai.Omit())
        template_args = parse_pairs(config.template_arg, "--template-arg")
        self.extra_body: JSON = {"chat_template_kwargs": template_args} if template_args else {}
        self.wants_logprobs = config.weigh_votes  # until the server refuses them
        self.warned = False  # that the server gives no log-probs

    def ask(self, questions: Sequence[Question], kept: KeptAnswers | None = None) -> list[list[Answer]]:
        """Return `--votes` answers to each question. Raises OpdkitError when the server does not give them.

        Those in `kept` are not asked for again, and each new one is added to it as it comes.
        """
        votes, requests = self.config.votes, self._requests(questions)
        known = [kept.find(request) if kept else None for request in requests]
        left = [request for request, answer in zip(requests, known, strict=True) if answer is None]
        if len(left) < len(requests):
            say(f"{counted(len(requests) - len(left), 'vote')} of {len(requests):,} were given before, and are kept")
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            new = iter(asyncio.run(self._answer_all(left, kept)) if left else ())
        else:  # a notebook runs a loop already
            with ThreadPoolExecutor(1) as pool:
                new = iter(pool.submit(asyncio.run, self._answer_all(left, kept)).result())
        answers = [next(new) if answer is None else answer for answer in known]
        return [answers[i : i + votes] for i in range(0, len(answers), votes)]

    def _requests(self, questions: Sequence[Question]) -> list[Request]:
        """Return a request per vote. Every server takes a seed of 31 bits."""
        return [Request(q, stable_hash(self.config.seed, q.turn_id, q.name, vote, bits=31))
                for q in questions for vote in range(self.config.votes)]  # fmt: skip

    def count_work(self, questions: Sequence[Question], kept: KeptAnswers | None = None) -> Counter[str]:
        """Count one request per vote, but for those in `kept`, and the tokens that they take."""
        requests = self._requests(questions)
        left = [request.question for request in requests if not (kept and kept.find(request))]
        sizes = {id(question): self._prompt(question) for question in left}
        cold, warm = sum(len(sizes[id(question)]) for question in left), count_shared(list(sizes.values()))
        unit = 1 if self.encode else BYTES_PER_TOKEN
        return Counter({VOTES: len(requests), KNOWN: len(requests) - len(left), COLD: cold // unit, WARM: warm // unit,
                        LONGEST: len(left) * self.config.max_new_tokens})  # fmt: skip

    @cached_property
    def encode(self) -> Callable[[list[Message]], list[int]] | None:
        """Function from messages to the token ids that the server's model reads, where its tokenizer is at hand."""
        return find_encoder(self.model, self.extra_body.get("chat_template_kwargs", {}))

    def _prompt(self, question: Question) -> Prompt:
        messages = _sent_messages(question)
        return self.encode(messages) if self.encode else "".join(m["content"] for m in question.messages).encode()

    async def _answer_all(self, requests: Sequence[Request], kept: KeptAnswers | None) -> list[Answer]:
        async def attempt(request: Request) -> Answer:
            answer = await self._attempt(client, request)
            if kept and answer.error is None:
                kept.add(request, answer)
            return answer

        with tally("judging", len(requests), "votes") as on_answer:
            async with self._client() as client:
                answers = await self.traffic.answer_all(requests, attempt, on_answer)
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
            raise OpdkitError(f"the proxy that the environment names cannot be used ({error}): see the variables "
                              "ALL_PROXY, HTTP_PROXY and HTTPS_PROXY; NO_PROXY names hosts to reach without "
                              "it") from error  # fmt: skip
        key = self.key or "none"
        return openai.AsyncOpenAI(api_key=key, base_url=self.base_url, max_retries=0, timeout=None, http_client=http)

    async def _attempt(self, client: openai.AsyncOpenAI, request: Request) -> Answer:
        """Send a request once, and again without asking for log-probs where the server refuses those.

        Raises FailedAttemptError for what may pass, OpdkitError for what will not.
        """
        question = request.question
        asked: JSON
        for asked in [{"logprobs": True}, {}] if self.wants_logprobs else [{}]:
            try:
                response = await client.chat.completions.with_raw_response.create(
                    model=self.model,
                    messages=_sent_messages(question),
                    temperature=self.config.temperature,
                    max_tokens=self.config.max_new_tokens,
                    seed=request.seed,
                    extra_headers=self.headers,
                    extra_body=self.extra_body | asked or None,
                )
                break
            except openai.APIConnectionError as error:
                what = self._safe(f"{type(error.__cause__ or error).__name__} {error.__cause__ or error}")
                raise FailedAttemptError(f"the connection broke: {what}") from None
            except openai.APIStatusError as error:
                if not asked or error.status_code not in _REFUSALS or _TOO_LONG.search(error.response.text):
                    return await self._read_error(client, error.response)
        self.wants_logprobs = self.wants_logprobs and bool(asked)
        return self._read(response.http_response, question.name)

    def _read(self, response: Any, question: str) -> Answer:
        """Return the answer to the question of this name that a response of status 200 holds."""
        try:
            document = response.json()
            message, name = document["choices"][0]["message"], document.get("model")
            content, reason = message.get("content"), document["choices"][0].get("finish_reason")
            text = content if isinstance(content, str) else "".join(p.get("text", "") for p in content or ())
            silent = content is None and not any(message.get(field) for field in _INSTEAD_OF_TEXT)
        except _MALFORMED:
            raise FailedAttemptError(f"an answer that is no chat completion: {self._excerpt(response)}") from None
        if not self.identity.admits(name):
            raise FailedAttemptError(f"an answer of another model: {self._safe(str(name))}")
        # JSON can hold half of a surrogate pair, which no file can.
        vote = self._without_key(text.encode("utf-8", "replace").decode())
        answer = Answer(vote, reason if isinstance(reason, str) else None, usage=read_usage(document))
        if silent and not is_cut_off(answer.finish_reason):
            raise FailedAttemptError("an answer that says nothing", insisted=answer)
        span = decision_span(answer, question) if self.config.weigh_votes else None
        if span is None:
            return answer
        confidence = server_confidence(document["choices"][0].get("logprobs"), answer.text, *span)
        if confidence is None and not self.warned:
            self.warned = True
            warn(f"{self.where} gives no log-probs of its answers' tokens: where a vote has none, --weigh-votes counts "
                 "each vote of the question as one")  # fmt: skip
        return replace(answer, confidence=confidence)

    async def _read_error(self, client: openai.AsyncOpenAI, response: Any) -> Answer:
        """Return the answer that an error stands for: the prompt does not fit. Raises as `_attempt` for all others."""
        status, excerpt = response.status_code, self._excerpt(response)
        if status in (408, 425, 429) or status >= 500:
            retry_after = response.headers.get("retry-after", "")
            pause = retry_after_seconds(retry_after)
            if not pause <= LONGEST_WAIT:  # also not a number
                raise OpdkitError(f"{self.where} asks to be left alone for {self._safe(retry_after)[:40]} (HTTP "
                                  f"{status}): start the same command again then; finished parts are kept")  # fmt: skip
            limited = status == 429 or pause > 0
            raise FailedAttemptError(f"HTTP {status}: {excerpt}", pause=max(0.0, pause), limited=limited)
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

    async def _models_on_offer(self, client: openai.AsyncOpenAI) -> str:
        """Return a sentence about the models that the server names, beside the one that was asked for."""
        try:
            async with asyncio.timeout(self.config.timeout):
                response = await client.models.with_raw_response.list(extra_headers=self.headers)
            names = [self._safe(str(model["id"])) for model in response.http_response.json()["data"]]
        except (openai.OpenAIError, TimeoutError, *_MALFORMED):
            return "It lists no models there either: does the address end in /v1, as most servers want it?"
        near = difflib.get_close_matches(self.model, names, n=1)
        offer = f"It offers: {', '.join(names[:20])}." if names else "It offers no model at all."
        return f"--judge-model is {self.model!r}. {offer}" + (f" Did you mean {near[0]!r}?" if near else "")

    def _excerpt(self, response: Any) -> str:
        """Return the beginning of a response, for a message: the server's own words where it is a JSON error."""
        try:
            error = response.json()
            error = error.get("error", error.get("detail", error)) if isinstance(error, dict) else error
            error = error.get("message", error) if isinstance(error, dict) else error
        except (ValueError, RecursionError):
            error = response.text
        return self._safe(error if isinstance(error, str) else json.dumps(error))

    def _safe(self, text: str) -> str:
        """Return `text` on one line, short, and without the key."""
        return printable(" ".join(self._without_key(text).split()))[:200]

    def _without_key(self, text: str) -> str:
        return text.replace(self.key, "[the API key]") if self.key else text


def _sent_messages(question: Question) -> list[Any]:
    return [m | {"content": break_control_tokens(m["content"])} for m in question.messages]


def read_usage(document: Any) -> Usage | None:
    """Return the tokens that a chat completion took, as its server counts them; None where it does not say."""
    try:
        usage = document["usage"]
        cached = (usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0
        counts = Usage(usage["prompt_tokens"], cached, usage["completion_tokens"])
    except _MALFORMED:
        return None
    return counts if all(type(count) is int and 0 <= count < 1 << 31 for count in counts) else None


def server_confidence(logprobs: Any, text: str, start: int, end: int) -> float | None:
    """Return the probability of the tokens that hold text[start:end], from the log-probs of a chat completion.

    Other tokens may precede the text (thinking) and follow it (a stop token). None where the tokens do not hold the
    text, or a log-prob is not one.
    """
    try:
        pieces, values = list[bytes](), list[float]()
        for token in logprobs["content"]:
            as_bytes = token.get("bytes")
            pieces.append(bytes(as_bytes) if isinstance(as_bytes, list) else token["token"].encode())
            values.append(float(token["logprob"]))
        position = b"".join(pieces).rfind(text.encode())
    except (*_MALFORMED, OverflowError):
        return None
    ends = list(accumulate(map(len, pieces)))
    first = bisect_right(ends, position + len(text[:start].encode()))
    last = bisect_left(ends, position + len(text[:end].encode()))
    return None if position < 0 else confidence_of(values[first : last + 1])


class Identity:
    """Name of the judge: the one that was asked for, or one that stands for it.

    Servers answer under another name for good reasons (an alias, a dated version, a path), so a name is the judge's
    when it is the one asked for, or when the first few answers all bear it. From then on an answer under another name
    comes from another model: votes of two judges in one table could not be told apart, so it is not a vote; the
    question is asked again. A server that gives no name cannot be checked.

    The name is kept in `folder`, where there is one: resumed runs and other shards of the stage admit no other. The
    first process to know it decides. Raises OpdkitError where the file is damaged or cannot be written.
    """

    def __init__(self, asked: str, folder: Path | None = None) -> None:
        self.asked = asked
        self.file = folder / NAME_FILE if folder else None
        self.known = self._read()
        self.others: Counter[str] = Counter()
        self.rejected: set[str] = set()
        self.answered = False  # to this process, under the name that is known

    def admits(self, name: object) -> bool:
        """Count an answer under `name`, and return whether it is the judge's."""
        if not isinstance(name, str) or not name:
            return True
        if self.known is None:
            self.others[name] += 1
            if name == self.asked or self.others.total() == self.others[name] == _FIRST_ANSWERS:
                self.known = name
                if self.file is not None:  # another process may have settled another name first
                    with disk_errors_explained(self.file):
                        if not write_text(self.file, json.dumps({"name": name}) + "\n", replace=False):
                            self.known = self._read()
                if name == self.known != self.asked:
                    say(f"{self.asked} answers as {printable(name)[:100]}")
        if name == self.known:
            self.answered = True
        elif self.known is not None and name not in self.rejected:
            self.rejected.add(name)
            other, known = printable(name)[:100], printable(self.known)[:100]
            if self.answered:
                warn(f"the judge's server answers as {other}, too, not only as {known}: answers of another model are "
                     "not counted, the questions are asked again")  # fmt: skip
            else:
                warn(f"the judge's server answers as {other}, and the existing votes are by {known}: answers of "
                     f"another model are not counted; for {other} to judge everything, pass --overwrite")  # fmt: skip
        return name == self.known

    def _read(self) -> str | None:
        if self.file is None or not self.file.exists():
            return None
        try:
            with disk_errors_explained(self.file):
                return str(json.loads(self.file.read_text(encoding="utf-8"))["name"])
        except (ValueError, LookupError, TypeError):
            raise OpdkitError(f"{self.file} is damaged: remove it, or pass --overwrite to judge again") from None


def retry_after_seconds(value: str) -> float:
    """Return the seconds that a Retry-After header asks for, as a number or as a date; 0 for what is neither."""
    with suppress(ValueError):
        return float(value)
    with suppress(ValueError):
        return email.utils.parsedate_to_datetime(value).timestamp() - time.time()
    return 0.0
