"""Judge behind an OpenAI-compatible server: one request per vote.

Several votes per request (`n`) would save nothing: servers keep the prompt in their prefix cache, which all votes on a
question and both questions about a turn share, and many servers ignore `n`. With one seed for n answers, a vote would
also depend on how many others are asked for with it, so stopping once the outcome is decided would change the votes.

A request that fails for a temporary reason is sent again (see `opdkit.model.server.traffic`): 429, 5xx, a broken
connection, a timeout, or an answer that is not a chat completion, was interrupted, or comes from another model. A
permanent error (another 4xx) ends the stage at once, and so does a server that answers no request, not even TRIAL. If
it answers TRIAL but not a prompt, or if a content filter refuses a prompt, the vote counts as failed. No vote is ever
made up for a missing answer.
"""

import contextlib
import difflib
import json
import re
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cached_property
from itertools import accumulate, islice
from pathlib import Path
from typing import Any

import openai

from opdkit.chat.control_tokens import break_control_tokens
from opdkit.chat.finish_reasons import is_cut_off, is_incomplete
from opdkit.chat.openai_messages import Message, merge_messages
from opdkit.config.fields import JSON, parse_pairs
from opdkit.config.judge import JudgeConfig
from opdkit.console import counted, say, warn
from opdkit.errors import OpdkitError
from opdkit.judge.costs import BYTES_PER_TOKEN, KNOWN, PROMPT, UNCACHED, VOTES, WRITTEN
from opdkit.judge.identity import FIRST_ANSWERS, NAME_FILE, Identity
from opdkit.judge.kept_answers import KeptAnswers
from opdkit.judge.parse import find_decision_span
from opdkit.judge.votes import (
    NO_ANSWER,
    REMEDY,
    TOO_LONG,
    TRIAL,
    Answer,
    Question,
    Usage,
    VoteRequest,
    compute_confidence,
)
from opdkit.model.folder import find_file
from opdkit.model.server.client import MALFORMED, RefusedError, Server, is_busy
from opdkit.model.server.traffic import FailedAttemptError
from opdkit.model.tree import count_nodes
from opdkit.store.stable_hash import stable_hash

_INSTEAD_OF_TEXT = ("reasoning_content", "reasoning", "tool_calls", "refusal")  # fields of a message
_TOO_LONG = re.compile(
    r"context.{0,20}(?:length|window|size)|(?:prompt|input).{0,40}too (?:long|large|many)|max_new_tokens` must be <=|"
    r"exceeds the max.{0,20} (?:tokens|length)|maximum (?:model|prompt) length|reduce the length of the|"
    r"too many tokens|max_num_tokens|model token limit|inputs` must have less|range of input length|"
    r"request too large for", re.I)  # fmt: skip
_OVER_LIMIT = re.compile(r"request too large for", re.I)  # longer than what a minute may take (OpenAI; Groq as a 413)
REFUSALS = (400, 403, 422)  # for a refused prompt, or a parameter that a server or a model does not take
_FILTER = re.compile(r"content.{0,30}(?:filter|policy|policies|risk)|prompt was flagged|moderation|inspection", re.I)
_NO_PARAMETER = re.compile(r"\Z|None|prompt|messages|input")  # beginning of the "param" of an error about a prompt
OTHER_LIMIT = "max_completion_tokens"  # the name of max_tokens for OpenAI's reasoning models
# Error texts of templates without system messages (Gemma 2, the first Mistral), and of Google's server.
NO_SYSTEM = re.compile(r"system.{0,10}role|role.{0,40}system|must alternate|(system|developer) instruction", re.I)
_MOST_REFUSED = 50  # refusals in a row; after these, the server is to blame, not a filter of prompts


class Endpoint(Server):
    """Chat model on a server, asked for votes.

    `folder` is the folder of the stage that the votes are for; it stores the name under which the server answers.
    `has_flags` as for Traffic.
    """

    # In messages: the judge, and the options for its address and its model. Then the file that stores its name.
    who, url_flag, model_flag, name_file = "the judge", "--judge-url", "--judge-model", NAME_FILE

    def __init__(self, config: JudgeConfig, folder: Path | None = None, *, has_flags: bool = True) -> None:
        assert config.judge_model is not None  # JudgeConfig checks this
        super().__init__(self.who, config.judge_url or "", self.url_flag, config.api_key_env, has_flags=has_flags,
                         concurrency=config.concurrency, retries=config.retries, timeout=config.timeout)  # fmt: skip
        self.config, self.model = config, config.judge_model
        self.identity = Identity(config.judge_model, folder, self.name_file, self.who)
        template_args = parse_pairs(config.template_arg, "--template-arg")
        self.extra_body: JSON = {"chat_template_kwargs": template_args} if template_args else {}
        self.optional = {"seed", "logprobs"} if config.weigh_votes else {"seed"}  # until the server refuses them
        self.limit_name = "max_tokens"  # until the server refuses it
        self.takes_system = self.takes_temperature = True  # until the server refuses system message or temperature
        self.warned = False  # about missing log-probs
        self.has_answered = False
        self.refused_in_a_row = 0  # requests that were refused since the last answer
        self.refusal: Exception | None = None  # an error that may concern every request

    def ask(self, questions: Sequence[Question], kept: KeptAnswers | None = None) -> list[list[Answer]]:
        """Return one answer per vote of each question. Raises OpdkitError if the server gives none.

        Answers in `kept` are not asked for again. Each new answer is added to `kept` as it arrives.
        """
        requests = self._make_requests(questions)
        known = [kept.find(request) if kept else None for request in requests]
        left = [request for request, answer in zip(requests, known, strict=True) if answer is None]
        if 0 < len(left) < len(requests):
            say(f"{counted(len(requests) - len(left), 'vote')} of {len(requests):,} are kept from an earlier attempt")

        async def attempt(client: openai.AsyncOpenAI, request: VoteRequest) -> Answer:
            answer = await self._try_request(client, request)
            if kept and answer.error is None:
                kept.add(request, answer)
            return answer

        new = iter(self.answer_all(left, attempt, "judging", "votes"))
        if self.refusal and (not self.has_answered or self.refused_in_a_row):
            if TRIAL in questions:
                raise self.refusal
            self.ask([TRIAL])  # refused as well, if it is not the prompts that the server refuses
        answers = [answer or next(new) for answer in known]
        votes = iter([Answer("", error=f"{NO_ANSWER}: {one.reason}") if isinstance(one, FailedAttemptError) else one
                      for one in answers])  # fmt: skip
        return [list(islice(votes, len(question.votes or range(self.config.votes)))) for question in questions]

    async def send_trial(self, client: openai.AsyncOpenAI) -> None:
        await self._try_request(client, VoteRequest(TRIAL, self.config.seed))

    def _make_requests(self, questions: Sequence[Question]) -> list[VoteRequest]:
        """Return one request per vote. Its seed has 31 bits, which every server accepts."""
        return [VoteRequest(q, stable_hash(self.config.seed, q.turn_id, q.name, vote, bits=31))
                for q in questions for vote in q.votes or range(self.config.votes)]  # fmt: skip

    def count_work(self, questions: Sequence[Question], kept: KeptAnswers | None = None) -> Counter[str]:
        """Count all votes, those already in `kept`, and the tokens of the requests for the others."""
        requests = self._make_requests(questions)
        left = Counter(id(request.question) for request in requests if not (kept and kept.find(request)))
        prompts = {id(question): self._encode(question) for question in questions if id(question) in left}
        cold = sum(n * len(prompts[key]) for key, n in left.items())
        warm = count_nodes(prompts.values())
        unit = 1 if self.encode else BYTES_PER_TOKEN
        return Counter({VOTES: len(requests), KNOWN: len(requests) - left.total(), PROMPT: cold // unit,
                        UNCACHED: warm // unit, WRITTEN: left.total() * self.config.max_new_tokens})  # fmt: skip

    @cached_property
    def encode(self) -> Callable[[list[Message]], list[int]] | None:
        """Function from messages to token ids, with the tokenizer in the model's folder or the hub's cache, if any."""
        from opdkit.chat.template import Chat  # imported here: both take seconds
        from opdkit.model.load import load_tokenizer

        with contextlib.suppress(ValueError, OpdkitError):  # it is not the folder of a chat model
            if file := find_file(self.model, "tokenizer.json"):
                template_args = self.extra_body.get("chat_template_kwargs", {})
                return Chat(load_tokenizer(str(file.parent)), template_args).encode_question
        return None

    def _encode(self, question: Question) -> list[int] | bytes:
        """Return the token ids of a question, or its UTF-8 if there is no tokenizer."""
        if self.encode:
            return self.encode(self._make_body(question)["messages"])
        return "".join(m["content"] for m in question.messages).encode()

    def _make_body(self, question: Question) -> dict[str, Any]:
        """Return the part of the body that all requests for votes on a question share."""
        asked = question.messages if self.takes_system else [merge_messages(question.messages)]
        messages = [m | {"content": break_control_tokens(m["content"])} for m in asked]
        sampling = {"temperature": self.config.temperature} if self.takes_temperature else {}
        return {"model": self.model, "messages": messages, **sampling, self.limit_name: self.config.max_new_tokens}

    async def _try_request(self, client: openai.AsyncOpenAI, request: VoteRequest) -> Answer:
        """Send a request; if the server refuses a parameter or the system message, send it again without that.

        Raises FailedAttemptError for temporary errors, OpdkitError for permanent ones.
        """
        asked = {name: value for name, value in (("logprobs", True), ("seed", request.seed)) if name in self.optional}
        while True:
            body = self._make_body(request.question)
            try:
                # The body is extra, because the library checks the types of messages for longer than it sends them.
                response = await client.chat.completions.with_raw_response.create(
                    model=self.model, messages=[], extra_headers=self.headers, extra_body=body | self.extra_body | asked
                )
                break
            except openai.APIConnectionError as error:
                raise self.failure(error) from None
            except openai.APIStatusError as error:
                text = error.response.text
                refused = "seed" if re.search(r"\bseed\b", text) and "seed" in asked else "logprobs"
                if error.status_code not in REFUSALS or _TOO_LONG.search(text):
                    return await self._read_error(client, error, request.question.name)
                if OTHER_LIMIT in text and OTHER_LIMIT not in body:
                    self.limit_name = OTHER_LIMIT
                elif NO_SYSTEM.search(text) and len(body["messages"]) > 1:
                    self.takes_system = False
                elif OTHER_LIMIT in body and "temperature" in body and "temperature" in text:
                    if self.takes_temperature:  # OpenAI's reasoning models take only their own
                        say(f"{self.where} takes no temperature of {self.config.temperature:g}: it uses its own")
                    self.takes_temperature = False
                elif refused in asked:
                    del asked[refused]
                else:
                    return await self._read_error(client, error, request.question.name)
        if "seed" in self.optional - asked.keys():
            say(f"{self.where} takes no seed: its votes are not reproducible")
        self.optional &= asked.keys()
        return self._read(response.http_response, request.question.name)

    def _read(self, response: Any, question: str) -> Answer:
        """Return the answer to the question named `question` in a response with status 200."""
        try:
            document = response.json()
            if error := find_error(document):
                code = str(error.get("code")) if isinstance(error, dict) else ""
                limited = code.isdecimal() and is_busy(int(code), json.dumps(error))
                raise FailedAttemptError(f"an error with status 200: {self.describe_error(error)}", limited=limited)
            choice, name = document["choices"][0], document.get("model")
            reason = choice.get("finish_reason")
            reason = reason.get("type") if isinstance(reason, dict) else reason  # SGLang's own form
            reason = reason if isinstance(reason, str) else None
            # Google's server leaves out the message that its filter holds back.
            message = choice.get("message") or {} if is_incomplete(reason) else choice["message"]
            content = message.get("content")
            text = content if isinstance(content, str) else "".join(p.get("text") or "" for p in content or ())
            silent = content is None and not any(message.get(field) for field in _INSTEAD_OF_TEXT)
        except MALFORMED:
            raise FailedAttemptError(f"an answer that is not a chat completion: {self.excerpt(response)}") from None
        self.identity.register_answer(name)
        if not self.identity.is_judge(name):
            said, others = self._clean(str(name)), self.identity.others
            if self.identity.known is None and others.total() < FIRST_ANSWERS:
                raise FailedAttemptError(f"a first answer under another name: {said}", early=True)
            if self.identity.known is None:
                names = self._clean(" and ".join(sorted(others)))
                said = f"it answers as {names}; pass one of them as {self.model_flag}"
            raise FailedAttemptError(f"an answer of another model: {said}")
        self.has_answered, self.refused_in_a_row = True, 0
        # JSON can hold half of a surrogate pair, but UTF-8 cannot.
        vote = self._hide_key(text.encode("utf-8", "replace").decode())
        answer = Answer(vote, reason, usage=read_usage(document))
        if (silent or is_incomplete(reason)) and not is_cut_off(reason):
            kind = f"was interrupted: {self._clean(str(reason))}" if is_incomplete(reason) else "says nothing"
            raise FailedAttemptError(f"an answer that {kind}", fallback=answer)
        span = find_decision_span(answer, question) if self.config.weigh_votes else None
        if span is None:
            return answer
        confidence = read_confidence(document["choices"][0].get("logprobs"), answer.text, *span)
        if confidence is None and not self.warned:
            self.warned = True
            warn(f"{self.where} gives no log-probs of its answers' tokens: where a vote has none, --weigh-votes counts "
                 "each vote of the question as one")  # fmt: skip
        return replace(answer, confidence=confidence)

    async def _read_error(self, client: openai.AsyncOpenAI, error: openai.APIStatusError, question: str) -> Answer:
        """Return a failed answer if the prompt does not fit, or if a filter of the server refuses it.

        A refusal is faster than an answer: before the first answer, the server may be refusing every prompt. If no
        answer comes, `ask` raises. All other errors are raised, as in `_try_request`.
        """
        if unfit := self._find_too_long(error.response, question):
            return unfit
        failure = self.failure(error)
        is_parameter = error.code == "unsupported_parameter" or not _NO_PARAMETER.match(str(error.param))
        may_be_filter = isinstance(failure, RefusedError) and error.status_code in REFUSALS
        if may_be_filter and (self.has_answered or not is_parameter) and self.refused_in_a_row < _MOST_REFUSED:
            self.refused_in_a_row += 1
            self.refusal = self.refusal if _FILTER.search(error.response.text) else failure
            return Answer("", error=f"{NO_ANSWER}: {self.excerpt(error.response)}")
        if error.status_code != 404:
            raise failure
        offer = "It lists no models there either: does the address end in /v1, as most servers want it?"
        if (names := await self.model_names(client)) is not None:
            near = difflib.get_close_matches(self.model, names, n=1)
            offer = f"It offers: {', '.join(names[:20])}." if names else "It offers no model at all."
            offer = f"{self.model_flag} is {self.model!r}. {offer}" + (f" Did you mean {near[0]!r}?" if near else "")
        said = self.excerpt(error.response)  # it may have another reason: the model cannot chat
        raise OpdkitError(f"{self.where} knows no such address or model (HTTP 404{said and f': {said}'}). {offer}")

    def _find_too_long(self, response: Any, question: str) -> Answer | None:
        """Return a failed answer if an error response says that the prompt does not fit, else None."""
        status, text = response.status_code, response.text
        pattern = {400: _TOO_LONG, 413: _TOO_LONG, 422: _TOO_LONG, 429: _OVER_LIMIT}.get(status)
        if pattern and pattern.search(text):
            or_fewer = " or --max-new-tokens" * (question in ("hint", "reward"))  # many servers add them to the prompt
            return Answer("", error=f"{TOO_LONG}: {self.excerpt(response)}; {REMEDY[question]}{or_fewer}")
        return None


class FirstEndpoint(Endpoint):
    """First judge of a cascade, on a server."""

    who, url_flag, model_flag = "the first judge", "--judge-first-url", "--judge-first"
    name_file = f"first-{NAME_FILE}"


def find_error(document: Any) -> Any:
    """Return the error that a chat completion holds in place of an answer, or beside a part of it; None if it has none.

    OpenRouter writes what fails after it has accepted a request into an answer with status 200, a provider's limit of
    requests among them. Without this, an outage of a minute would leave empty and interrupted votes.
    """
    errors = [holder.get("error") for holder in (document, *(document.get("choices") or ()))]
    # Some gateways write an error with empty fields beside an answer.
    return next((e for e in errors if (any(e.values()) if isinstance(e, dict) else e)), None)


def read_usage(document: Any) -> Usage | None:
    """Return the token counts that a server reports for a chat completion; None if it reports none."""
    try:
        usage = document["usage"]
        cached = (usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0
        counts = Usage(usage["prompt_tokens"], cached, usage["completion_tokens"])
    except MALFORMED:
        return None
    return counts if all(type(count) is int and 0 <= count < 1 << 31 for count in counts) else None


def read_confidence(logprobs: Any, text: str, start: int, end: int) -> float | None:
    """Return the probability of the tokens that hold text[start:end], from the log-probs of a chat completion.

    Other tokens may precede the text (thinking) and follow it (a stop token). None if the tokens do not contain the
    text, or if a log-prob is not valid.
    """
    try:
        pieces, values = list[bytes](), list[float]()
        for token in logprobs["content"]:
            as_bytes = token.get("bytes")
            pieces.append(bytes(as_bytes) if isinstance(as_bytes, list) else token["token"].encode())
            values.append(float(token["logprob"]))
        position = b"".join(pieces).rfind(text.encode())
    except (*MALFORMED, OverflowError):
        return None
    ends = list(accumulate(map(len, pieces)))
    first = bisect_right(ends, position + len(text[:start].encode()))
    last = bisect_left(ends, position + len(text[:end].encode()))
    return None if position < 0 else compute_confidence(values[first : last + 1])
