"""Findings about the judge's server: its list of models, and its answer to a short question."""

import os
import time
from collections.abc import Iterator

import httpx

from opdkit.commands.doctor.finding import NOTE, OK, PROBLEM, Finding
from opdkit.config.fields import did_you_mean

_TOPIC = "server"


def examine(base_url: str, model: str, api_key_env: str, timeout: float) -> Iterator[Finding]:
    """Yield findings: whether the server has `model`, accepts the key and answers, and how many seconds that takes."""
    from opdkit.judge.endpoint import OTHER_LIMIT, REFUSALS  # imported here: it loads the OpenAI client
    from opdkit.model.server.client import CERTIFICATE_REMEDY, NO_CREDIT, UNTRUSTED, describe_proxy

    base = base_url.rstrip("/").removesuffix("/chat/completions")
    key = os.environ.get(api_key_env, "").strip()
    if not (key.isascii() and key.isprintable()):  # an error message would show it
        yield Finding(_TOPIC, PROBLEM, f"{api_key_env} holds characters that no API key has", "does it hold one line?")
        return
    try:
        client = httpx.Client(timeout=timeout, headers={"Authorization": f"Bearer {key}"} if key else {})
    except (ImportError, ValueError, OSError, httpx.InvalidURL) as error:
        remedy = "see the environment variables ALL_PROXY, HTTP_PROXY, HTTPS_PROXY, NO_PROXY and SSL_CERT_FILE"
        yield Finding(_TOPIC, PROBLEM, f"no connection can be made: {error}", remedy)
        return
    with client:
        try:
            listing = client.get(f"{base}/models")  # not every server has this list
            try:
                names = [str(entry["id"]) for entry in listing.json()["data"] or []]
            except (ValueError, LookupError, TypeError):
                yield Finding(_TOPIC, NOTE, f"{base}/models lists no models (HTTP {listing.status_code})")
            else:
                if model in names:
                    yield Finding(_TOPIC, OK, f"{base} has {model}")
                else:
                    remedy = f"--judge-model: {did_you_mean(model, names[:20])}"
                    yield Finding(_TOPIC, NOTE, f"{model} is not on the list of {base}", remedy)
            began = time.monotonic()
            ask = {"model": model, "messages": [{"role": "user", "content": "Say yes."}]}
            answer = client.post(f"{base}/chat/completions", json=ask | {"max_tokens": 16})
            if answer.status_code in REFUSALS and OTHER_LIMIT in answer.text:  # the judge repeats the request like this
                answer = client.post(f"{base}/chat/completions", json=ask | {OTHER_LIMIT: 1024})
            if answer.status_code >= 400 and any(f'"{code}"' in answer.text for code in NO_CREDIT):
                what = f"the key in {api_key_env} has no credit left (HTTP {answer.status_code})"
                yield Finding(_TOPIC, PROBLEM, what, "buy some, or raise the key's budget")
            else:
                yield _answer(answer, base, model, api_key_env, key, time.monotonic() - began)
        except httpx.TimeoutException:
            what = f"{base} did not answer in {timeout:g} s"
            yield Finding(_TOPIC, PROBLEM, what, "is the model still being loaded?")
        except httpx.HTTPError as error:
            remedy = CERTIFICATE_REMEDY if UNTRUSTED in str(error) else "is it started, is the port right?"
            yield Finding(_TOPIC, PROBLEM, f"{base} cannot be reached{describe_proxy(base)}: {error}", remedy)


def _answer(answer: httpx.Response, base: str, model: str, api_key_env: str, key: str, seconds: float) -> Finding:
    from opdkit.model.server.client import is_busy  # imported here, as above

    text = (answer.text.replace(key, "[key]") if key else answer.text)[:200]  # some servers repeat the key
    if answer.status_code in (401, 403):
        remedy = f"{api_key_env or '--api-key-env'} is {'set, but not a key of this server' if key else 'not set'}"
        return Finding(_TOPIC, PROBLEM, f"{base} refuses (HTTP {answer.status_code}): {text!r}", remedy)
    if answer.status_code == 404:
        remedy = "the address usually ends in /v1" if not base.endswith("/v1") else "is the model's name right?"
        what = f"{base}/chat/completions is not found for {model} (HTTP 404): {text!r}"
        return Finding(_TOPIC, PROBLEM, what, remedy)
    if is_busy(answer.status_code, answer.text):
        what = f"{base} is busy (HTTP {answer.status_code}): {text!r}"
        return Finding(_TOPIC, NOTE, what, "judge waits and asks again; lower --concurrency")
    try:
        message = answer.json()["choices"][0]["message"]
        said = message.get("content") or message.get("reasoning_content") or message.get("reasoning")
    except (ValueError, LookupError, TypeError, AttributeError):
        what = f"{base} sent no chat completion (HTTP {answer.status_code}): {text!r}"
        return Finding(_TOPIC, PROBLEM, what, "it must be an OpenAI-compatible server; see its own log")
    state, remedy = (OK, "") if said else (NOTE, "an empty answer counts as no vote")
    return Finding(_TOPIC, state, f"{model} answered {str(said)[:60]!r} in {seconds:.1f} s", remedy)
