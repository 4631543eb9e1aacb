"""Sampling on an OpenAI-compatible server that serves the weights of a local model.

The prompt is sent to /v1/completions as token ids; a server that takes none (`transformers serve`) gets a text that its
tokenizer turns into the same ids. Chat completions cannot be used: the server renders the prompt and takes thinking and
calls out of the reply, so its tokens cannot be known.

The tokens of a reply are the ids that the server gives. Without ids, the reply's text is tokenized, and used if the
tokens decode to the same text and are as many as the server counted. Log-probs are the server's if it gives them, else
the local model's. Whether a server has the weights is measured: on greedy continuations first, then on every reply.
"""

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import openai
import torch

from opdkit.chat.template import Chat, ChatError
from opdkit.config.fields import JSON
from opdkit.config.shared import SamplingConfig
from opdkit.console import say
from opdkit.errors import OpdkitError
from opdkit.model.sampling import Request, Sample
from opdkit.model.scoring import LogprobQuery, Logprobs, Mixture, PromptResponse, logprobs_of
from opdkit.model.server.client import MALFORMED, RefusedError, Server
from opdkit.model.server.traffic import FailedAttemptError, Traffic

# Nats per token by which a server may differ on average from the local model. For the sample model, bfloat16 differs by
# 0.0002, and the demo's training by 0.14; large models round more. Training that changes less goes undetected.
MAX_DIFFERENCE = 0.05
# Without log-probs, the share of sampled tokens that are the most likely ones may be off by this many standard errors,
# or by this much in absolute terms, whichever is more.
_MAX_ERRORS, _MAX_SHARE = 6.0, 0.02
_COMPARED, _COMPARED_TOKENS = 4, 32  # prompts compared, and tokens of their greedy continuations
# For a server that gives only greedy tokens: how many tokens a bias makes as likely as the most likely one, by how much
# that bias may differ (nats; two log-probs are rounded), and which share of the answers may be wrong.
_TIPPED, _MAX_BIAS, _MAX_OTHERS = 2, 0.5, 0.125
_MOST_NAMES = 8  # models of a server to compare if none has the local model's name
_TIMEOUT, _SECONDS_PER_TOKEN, _RETRIES = 600.0, 0.1, 6  # a reply may take the larger of the two times
_ANY_STOP = -1  # stands for a stop token that the server does not identify


class OtherWeightsError(OpdkitError):
    """Error for a server that does not have the weights of the local model, or samples from them in another way."""


@dataclass(frozen=True)
class _Query:
    """Request for one sample from a server."""

    prompt_ids: list[int]
    seed: int
    temperature: float
    max_new_tokens: int
    bias: tuple[int, float] | None = None  # a token, and the number added to its logit


def find_served(
    config: SamplingConfig, model: Any, chat: Chat, prompts: Sequence[list[int]], max_new_tokens: int, batch_tokens: int
) -> "ServedModel":
    """Return the model on the first server of `--sample-url` that has its weights, judged by greedy continuations.

    On each server, the local model's name is tried first, then names that the server lists, then no name. Raises
    OtherWeightsError, with the difference; if no weights could be compared, the server's error, preferably for a name
    that it lists.
    """
    path, errors = Path(model.name_or_path), list[OpdkitError]()
    own = [*([str(path.absolute())] if path.exists() else []), model.name_or_path]
    compared = sorted({tuple(ids): ids for ids in prompts}.values(), key=len)[:_COMPARED]
    requests = [Request(ids, [torch.Generator()]) for ids in compared]
    timeout = max(_TIMEOUT, max_new_tokens * _SECONDS_PER_TOKEN)
    for url in config.sample_url:
        server = Server("the server", url, "--sample-url", config.api_key_env, concurrency=config.concurrency,
                        retries=_RETRIES, timeout=_TIMEOUT, has_flags=False)  # fmt: skip
        (names,) = server.answer_all([None], server.model_names, "listing", "models")
        listed = get_close_matches(own[-1], names or [], n=_MOST_NAMES, cutoff=0.0)
        for name in dict.fromkeys([*own, *listed, None]):
            served = ServedModel(server, name, model, chat, batch_tokens)
            try:
                read = served.sample(requests, 0.0, min(_COMPARED_TOKENS, max_new_tokens))
                if served.takes_ids is False:
                    served.check_biases(compared)
            except RefusedError as error:
                errors.insert(0 if name in listed else len(errors), error)
            except OtherWeightsError as error:
                errors.append(error)
                if name in own:
                    break
            else:
                if read == [[None]] * len(read):
                    raise OpdkitError(f"{served.where}: no reply can be read as tokens; leave out --sample-url")
                # The time that these short replies took says nothing about the time of others.
                server.traffic = Traffic(server.where, config.concurrency, _RETRIES, timeout, has_flags=False)
                served.is_compared = True
                say(f"{model.name_or_path} is sampled on {served.where}")
                return served
    raise next((error for error in errors if isinstance(error, OtherWeightsError)), errors[0])


class ServedModel:
    """Local model, and the name under which a server serves it (None: the server needs no name)."""

    def __init__(self, server: Server, name: str | None, model: Any, chat: Chat, batch_tokens: int) -> None:
        self.server, self.name, self.model, self.chat, self.batch_tokens = server, name, model, chat, batch_tokens
        self.where = server.where if name is None else f"{name} on {server.where}"
        self.takes_ids: bool | None = None  # whether the server takes token ids; None: not known yet
        self.is_compared = False  # from then on, a prompt that the server refuses is sampled in this process
        # Tokens sampled without log-probs, how many are the most likely ones, and the mean and variance of that.
        self.tokens = self.hits = self.expected = self.variance = 0.0

    def sample(self, requests: Sequence[Request], temperature: float, max_new_tokens: int) -> list[list[Sample | None]]:
        """Return for each request one Sample per generator, None if its tokens are not known.

        Raises OtherWeightsError if they do not come from the local model's weights.
        """
        queries = [
            _Query(request.prompt_ids, generator.initial_seed() % (1 << 31), temperature, max_new_tokens)
            for request in requests
            for generator in request.generators
        ]
        replies = self.server.answer_all(queries, self._ask, "sampling", "replies")
        known = [i for i, reply in enumerate(replies) if isinstance(reply, Sample)]
        stops = torch.tensor(sorted(self.chat.stop_ids), dtype=torch.long)
        sequences = [[int(stops[0]) if token == _ANY_STOP else token for token in replies[i].ids] for i in known]
        scored = logprobs_of(
            Mixture((self.model,)),
            [LogprobQuery((PromptResponse(queries[i].prompt_ids, ids),), stops.expand(len(ids), -1))
             for i, ids in zip(known, sequences, strict=True)],
            batch_tokens=self.batch_tokens,
            top=1,
        )  # fmt: skip
        samples, differences = dict[int, Sample](), list[float]()
        for i, score in zip(known, scored, strict=True):
            reply, logprobs = replies[i], score.logprobs.tolist()
            if reply.ids[-1] == _ANY_STOP:
                share, which = score.at[-1].softmax(-1).max(-1)
                if share < 0.99:  # it may be another stop token
                    continue
                reply = replace(reply, ids=[*reply.ids[:-1], int(stops[which])])
                logprobs[-1] = float(score.at[-1, which])
            differences += self._compare(temperature, reply, logprobs, score)
            samples[i] = replace(reply, logprobs=reply.logprobs or logprobs)
        self._check(differences)
        numbers = iter(range(len(queries)))
        return [[samples.get(next(numbers)) for _ in request.generators] for request in requests]

    def _compare(self, temperature: float, reply: Sample, logprobs: list[float], score: Logprobs) -> list[float]:
        """Return how far the server is from the local model at each token (nats), if that can be measured.

        With the server's log-probs, compare these. Without them, measure how much less likely a greedy token is than
        the most likely one; at temperature 1, only count the tokens that are the most likely ones, for `_check`.
        """
        if reply.logprobs:
            return [abs(a - b) for a, b in zip(reply.logprobs, logprobs, strict=True)]
        top = score.top[:, 0].tolist()
        if temperature == 0:
            return [best - own for best, own in zip(top, logprobs, strict=True)]
        if temperature == 1:
            self.tokens += len(top)
            self.hits += sum(map(int.__eq__, score.top_ids[:, 0].tolist(), reply.ids))
            self.expected += sum(map(math.exp, top))
            self.variance += sum(math.exp(best) * -math.expm1(best) for best in top)
        return []

    def _check(self, differences: Sequence[float]) -> None:
        """Raise OtherWeightsError if the differences (nats) exceed rounding, or the server samples in another way."""
        mean = math.fsum(differences) / max(1, len(differences))
        if not mean <= MAX_DIFFERENCE:  # also catches NaN
            raise OtherWeightsError(
                f"{self.where} has other weights than {self.model.name_or_path}: log-probs differ by {mean:.2g} nats "
                f"per token, rounding by less than {MAX_DIFFERENCE:g}. Serve that model, and start the server again "
                "after each training, or leave out --sample-url"
            )
        if abs(self.hits - self.expected) > max(_MAX_ERRORS * self.variance**0.5, _MAX_SHARE * self.tokens):
            raise OtherWeightsError(
                f"{self.where} does not sample as {self.model.name_or_path} does at temperature 1: of "
                f"{self.tokens:,.0f} tokens {self.hits / self.tokens:.1%} are the most likely ones, not "
                f"{self.expected / self.tokens:.1%}. Serve that model without limits of its own (top-k, top-p, "
                "temperature, continuous batching), or leave out --sample-url"
            )

    def check_biases(self, prompts: Sequence[list[int]]) -> None:
        """Raise OtherWeightsError unless the same bias on other first tokens tips the server and the local model.

        This measures log-probs of a server that gives none: a bias equal to their difference makes two tokens equally
        likely. Nothing is compared if the server ignores biases.
        """
        asked = list[tuple[_Query, int]]()  # query, and the token that should follow
        scored = logprobs_of(
            Mixture((self.model,)),
            [LogprobQuery((PromptResponse(ids, [0]),)) for ids in prompts],
            batch_tokens=self.batch_tokens,
            top=1 + _TIPPED,
        )
        for ids, score in zip(prompts, scored, strict=True):
            first, *others = zip(score.top_ids[0].tolist(), score.top[0].tolist(), strict=True)
            for token, logprob in others:
                for bias, expected in ((1e4, token), (-_MAX_BIAS, first[0]), (_MAX_BIAS, token)):
                    asked.append((_Query(ids, 0, 0.0, 1, (token, first[1] - logprob + bias)), expected))
        replies = self.server.answer_all([query for query, _ in asked], self._ask, "comparing", "tokens")
        same = [isinstance(reply, Sample) and reply.ids == [expected]
                for reply, (_, expected) in zip(replies, asked, strict=True)]  # fmt: skip
        compared = [ok for k in range(0, len(same), 3) if same[k] for ok in same[k + 1 : k + 3]]
        if compared.count(False) > _MAX_OTHERS * len(compared):
            raise OtherWeightsError(
                f"{self.where} has other weights than {self.model.name_or_path}: {compared.count(False)} of "
                f"{len(compared)} times, the difference of two tokens' log-probs is off by {_MAX_BIAS:g} nats. Serve "
                "that model, and start the server again after each training, or leave out --sample-url"
            )

    async def _ask(self, client: openai.AsyncOpenAI, query: _Query) -> Sample | None:
        """Return the sample for one query, as far as the server describes it; None if its tokens are not known.

        Once the weights are compared, also None if the server refuses the query. Raises FailedAttemptError for failures
        that may pass, RefusedError or another OpdkitError for others.
        """
        stops = sorted(self.chat.stop_ids)
        forms = (True, False) if self.takes_ids is None else (self.takes_ids,)
        for takes_ids in forms:
            prompt: Any = query.prompt_ids
            extra: JSON = {"top_k": -1, "min_p": 0.0, "repetition_penalty": 1.0, "stop_token_ids": stops,
                           "return_tokens_as_token_ids": True, "skip_special_tokens": False}  # fmt: skip
            if not takes_ids:  # for `transformers serve`, which has no other way to override the model's defaults
                texts = map(self.chat.text, (prompt, prompt[1:]))  # many tokenizers add the first token themselves
                if (prompt := next((t for t in texts if self.chat.tokenizer(t)["input_ids"] == prompt), None)) is None:
                    return None
                own = {"do_sample": query.temperature > 0, "top_k": 0, "eos_token_id": stops}
                own |= {"sequence_bias": [[[query.bias[0]], query.bias[1]]]} if query.bias else {}
                extra = {"generation_config": json.dumps(own)}
            try:
                response = await client.completions.with_raw_response.create(
                    model=self.name or "",
                    prompt="",  # extra_body replaces it: the library takes 35 ms to check the types of 2,000 token ids
                    max_tokens=query.max_new_tokens,
                    temperature=query.temperature,
                    top_p=1.0,
                    seed=query.seed,
                    logprobs=1,
                    extra_headers=self.server.headers,
                    extra_body=extra | {"prompt": prompt} | ({} if self.name else {"model": None}),
                )
            except (openai.APIConnectionError, openai.APIStatusError) as error:
                status, failure = getattr(error, "status_code", 0), self.server.failure(error)
                if self.is_compared and status in (400, 413, 422) and isinstance(failure, RefusedError):
                    return None  # most likely, the prompt is too long for the server
                if takes_ids == forms[-1] or status not in (400, 422):
                    raise failure from None
            else:
                self.takes_ids = takes_ids
                return self._read(response.http_response, query)
        raise AssertionError("the last form returns or raises")

    def _read(self, response: Any, query: _Query) -> Sample | None:
        """Return the sample in a response of status 200, log-probs only if usable; None if its tokens are not known."""
        try:
            document = response.json()
            choice, usage = document["choices"][0], document.get("usage") or {}
            text, reason, written = choice["text"], choice["finish_reason"], usage.get("completion_tokens")
            given = choice.get("logprobs") or {}
            tokens, logprobs = given.get("tokens") or [], list(given.get("token_logprobs") or [])
            ids = [int(token.removeprefix("token_id:")) for token in tokens if token.startswith("token_id:")]
            read = usage.get("prompt_tokens")
            if not (isinstance(text, str | None) and isinstance(read, int | None)):
                raise TypeError
        except MALFORMED:
            raise FailedAttemptError(f"an answer that is not a completion: {self.server.excerpt(response)}") from None
        size = self.model.get_input_embeddings().weight.shape[0]
        if not all(0 <= token < size for token in ids):
            raise OtherWeightsError(f"{self.where} has other weights than {self.model.name_or_path}: it answers with "
                                    "tokens that this model lacks; serve it, or leave out --sample-url")  # fmt: skip
        if read not in (None, len(query.prompt_ids)):
            raise OpdkitError(f"{self.where} reads a prompt of {len(query.prompt_ids):,} tokens as {read:,}: it puts "
                              "prompts of /v1/completions into a template; leave out --sample-url")  # fmt: skip
        stop_ids = self.chat.stop_ids | {_ANY_STOP}
        if not ids or len(ids) < len(tokens):
            try:
                ids, spaced = (self.chat.reply_ids(space + (text or "")) for space in ("", " "))
            except ChatError:
                return None
            # U+FFFD stands for half a character. Some tokenizers (Llama 2) leave a space before the first word out.
            if text is None or "\ufffd" in text or self.chat.text(ids) != text or self.chat.text(spaced) == text:
                return None
            if stop_ids.isdisjoint(ids):  # servers leave the stop token out of the text, but count it
                has_stop = reason == "stop" if written is None else written == len(ids) + 1
                if written not in (None, len(ids) + has_stop):
                    return None
                named = [choice.get("stop_reason"), choice.get("matched_stop")]
                named += self.chat.stop_ids if len(self.chat.stop_ids) == 1 else []
                ids += [next((i for i in named if i in self.chat.stop_ids), _ANY_STOP)] if has_stop else []
        end = next((n + 1 for n, token in enumerate(ids) if token in stop_ids), None)
        if end is None and len(ids) != query.max_new_tokens:  # ended by the server, for a reason of its own
            return None
        ids, logprobs = ids[:end], logprobs[: len(ids[:end])]
        usable = query.temperature in (0, 1) and len(logprobs) == len(ids)
        usable = usable and all(isinstance(x, float | int) and math.isfinite(x) for x in logprobs)
        return Sample(ids, list(map(float, logprobs)) if usable else [], "length" if end is None else "stop")
