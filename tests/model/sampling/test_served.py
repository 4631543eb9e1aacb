"""Tests of sampling on a server: the tables are those of this process, and other weights are refused.

`transformers serve` runs for real, but gives no token ids and log-probs. A server on loopback gives these, in the form
of vLLM and with the numbers of a real model.
"""

import json
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from conftest import save_tiny_model
from http_server import Reply, serving
from judged_runs import three_parts, write_run
from safetensors.torch import load_file, save_file
from sample_world import MODEL
from tokenizers import Tokenizer, decoders, normalizers
from tokenizers.models import BPE
from tokenizers.processors import TemplateProcessing
from transformers import PreTrainedTokenizerFast
from transformers_server import transformers_serve

from opdkit.chat.template import Chat
from opdkit.config.evaluate import EvalConfig
from opdkit.config.rollout import RolloutConfig
from opdkit.config.teacher import TeacherConfig
from opdkit.errors import ConfigError, OpdkitError
from opdkit.evaluate import stage as evaluate
from opdkit.model.load import load_model, load_tokenizer
from opdkit.model.random_streams import make_random_stream
from opdkit.model.sampling import Request, sample
from opdkit.model.sampling.sampler import Sampler
from opdkit.model.sampling.served import ServedModel, _Query, find_served
from opdkit.model.scoring import PromptResponse, score
from opdkit.model.server import traffic
from opdkit.model.server.client import Server
from opdkit.model.server.traffic import FailedAttemptError
from opdkit.rollout import stage as rollout
from opdkit.store.plans import manifest
from opdkit.store.reading import read_all
from opdkit.teacher import stage as teacher

TEXTS = ["Convert 20 degrees to Fahrenheit.", "What is the capital of France?", "Write one line.", "Hello!"]


def scaled(folder: Path, factor: float) -> Path:
    """Copy the sample model and multiply its logits: at 60, sampling at temperature 1 gives the greedy reply."""
    shutil.copytree(MODEL, folder)
    weights = load_file(folder / "model.safetensors")
    weights["model.norm.weight"] *= factor
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def open_model(folder: Path) -> tuple:
    model = load_model(str(folder), device="cpu", dtype="float32")
    return model, Chat(load_tokenizer(str(folder)), {}, model.generation_config.eos_token_id)


def requests(chat: Chat, samples: int = 1) -> list[Request]:
    prompts = [chat.prompt_ids([{"role": "user", "content": text}]) for text in TEXTS]
    return [Request(ids, [make_random_stream(0, n, k) for k in range(samples)]) for n, ids in enumerate(prompts)]


def sampler(*urls: str, **options) -> Sampler:
    return Sampler(RolloutConfig(run=Path("new"), from_run=Path("old"), model="m", sample_url=urls, **options))


def tables(run: Path, *names: str) -> dict[str, list[dict]]:
    return {name: list(read_all(run, name)) for name in names}


# -- transformers serve ---------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Yield the address of a server for any folder, with the weights that the folder has at the first request."""
    with transformers_serve(None, tmp_path_factory.mktemp("serve") / "log", "--dtype", "float32") as url:
        yield url


@pytest.fixture(scope="module")
def greedy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return scaled(tmp_path_factory.mktemp("greedy") / "model", 60.0)


@pytest.fixture(autouse=True)
def no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")


@pytest.mark.slow
def test_a_rollout_on_a_real_server_gives_the_same_tables(server: str, greedy: Path, tmp_path: Path) -> None:
    source = write_run(tmp_path / "source", three_parts()[:2])
    options = {"from_run": source, "model": str(greedy), "samples": 2, "max_new_tokens": 24, "device": "cpu"}
    rollout.run(RolloutConfig(run=tmp_path / "here", **options))
    rollout.run(RolloutConfig(run=tmp_path / "there", sample_url=(server,), concurrency=2, **options))
    here, there = (tables(tmp_path / name, "sessions", "turns", "verdicts") for name in ("here", "there"))
    assert len(here["turns"]) == 8
    for row in here["turns"]:
        row["behavior_logprobs"] = pytest.approx(row["behavior_logprobs"], abs=1e-3)
    assert here == there


@pytest.mark.slow
def test_samples_of_the_teacher_and_checks_of_hints_on_a_real_server_give_the_same_tables(
    server: str, greedy: Path, tmp_path: Path
) -> None:
    options = {"model": str(greedy), "max_new_tokens": 24, "device": "cpu", "teacher_samples": 1, "check_hints": 2,
               "judge_model": str(greedy), "top_k": 0}  # fmt: skip
    for name, url in {"here": (), "there": (server,)}.items():
        write_run(tmp_path / name, three_parts()[:1])
        teacher.run(TeacherConfig(run=tmp_path / name, sample_url=url, concurrency=2, **options))
    here, there = (tables(tmp_path / name, "targets", "hint_checks") for name in ("here", "there"))
    assert sum(row["written"] is not None for row in here["targets"]) == 2
    for row in here["targets"]:
        for column in ("old_logprobs", "teacher_logprobs", "behavior_logprobs"):
            row[column] = row[column] and pytest.approx(row[column], abs=1e-3)
    assert here == there


@pytest.mark.slow
def test_an_eval_on_a_real_server_gives_the_same_tables(server: str, greedy: Path, tmp_path: Path) -> None:
    """One server has both models, replies are greedy, and the plan is the same, too."""
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text("\n".join(json.dumps({"id": f"p{n}", "domain": "d", "prompt": text, "check": {"match": ["e"]}})
                                 for n, text in enumerate(TEXTS)))  # fmt: skip
    options = {"prompts": str(prompts), "model": str(MODEL), "trained": str(greedy), "samples": 0, "device": "cpu"}
    for name, url in {"here": (), "there": (server,)}.items():
        evaluate.run(EvalConfig(run=tmp_path / name, sample_url=url, max_new_tokens=32, **options))
    assert tables(tmp_path / "here", "replies", "scores") == tables(tmp_path / "there", "replies", "scores")
    assert manifest(tmp_path / "here", "eval")["fingerprint"] == manifest(tmp_path / "there", "eval")["fingerprint"]


@pytest.mark.slow
def test_a_real_server_samples_at_temperature_1_and_log_probs_are_recomputed(server: str) -> None:
    model, chat = open_model(MODEL)
    asked = requests(chat, samples=4)
    drawn = sampler(server).sample(model, chat, asked, temperature=1.0, max_new_tokens=48, batch_tokens=4096)
    assert len({tuple(one.ids) for group in drawn for one in group}) > len(asked)
    for request, group in zip(asked, drawn, strict=True):
        pairs = [PromptResponse(request.prompt_ids, one.ids) for one in group]
        for one, logprobs in zip(group, score(model, pairs, batch_tokens=4096), strict=True):
            assert one.logprobs == pytest.approx(logprobs.tolist(), abs=1e-4)
            assert one.finish_reason == ("stop" if one.ids[-1] in chat.stop_ids else "length")


@pytest.mark.slow
def test_a_real_server_that_still_has_the_weights_from_before_a_training_is_refused(
    server: str, tmp_path: Path
) -> None:
    folder = scaled(tmp_path / "model", 1.0)
    model, chat = open_model(folder)
    ask = {"temperature": 0.0, "max_new_tokens": 32, "batch_tokens": 4096}
    assert sampler(server).sample(model, chat, requests(chat), **ask)
    with torch.no_grad():  # what the folder holds now: the same greedy tokens, other log-probs
        model.model.norm.weight.mul_(1.5)
    with pytest.raises(OpdkitError, match=rf"(?s){server}.*other weights.*--sample-url"):
        sampler(server).sample(model, chat, requests(chat), **ask)


# -- a server that gives token ids and log-probs ----------------------------------------------------------------------


@pytest.fixture(scope="module")
def tiny(plain_model_dir: Path) -> tuple:
    return open_model(plain_model_dir)


LOCK = threading.Lock()


def completions(model, chat: Chat, *, gives_logprobs: bool = True):
    """Return a script that answers as vLLM does, with what `model` samples."""

    def answer(body: dict, _number: int) -> Reply:
        options = {"temperature": body["temperature"], "max_new_tokens": body["max_tokens"]}
        generator = torch.Generator().manual_seed(body["seed"])
        with LOCK:
            ((one,),) = sample(model, [Request(body["prompt"], [generator])], batch_tokens=4096,
                               stop_ids=frozenset(body["stop_token_ids"]), **options)  # fmt: skip
        logprobs = {"tokens": [f"token_id:{i}" for i in one.ids],
                    "token_logprobs": one.logprobs if gives_logprobs else None}  # fmt: skip
        choice = {"text": chat.text(one.ids), "finish_reason": one.finish_reason, "logprobs": logprobs}
        usage = {"prompt_tokens": len(body["prompt"]), "completion_tokens": len(one.ids)}
        return Reply(body={"object": "text_completion", "usage": usage, "choices": [choice]})

    return answer


def draw(source: Sampler, tiny: tuple, samples: int = 3, **options) -> list[list]:
    model, chat = tiny
    options = {"temperature": 1.0, "max_new_tokens": 12, "batch_tokens": 4096} | options
    return source.sample(model, chat, requests(chat, samples), **options)


def test_token_ids_and_log_probs_are_the_servers(tiny: tuple) -> None:
    """Prompts are sent as token ids, one request per sample with its own seed, and the distribution is not cut off."""
    with serving(completions(*tiny), models=["other", "served"]) as http:
        drawn = draw(one := sampler(http.url), tiny)
    sent = http.requests[-len(TEXTS) * 3 :]
    (served,) = one._served.values()
    assert served.server.traffic.answers == len(sent), "short replies that compare weights set no limit of time"
    assert [body["prompt"] for body in sorted(sent, key=lambda body: body["prompt"])] == sorted(
        request.prompt_ids for request in requests(tiny[1]) for _ in range(3)
    )
    assert len({body["seed"] for body in sent}) == len(sent)
    assert {(body["top_p"], body["top_k"], body["min_p"], body["repetition_penalty"]) for body in sent} == {
        (1.0, -1, 0.0, 1.0)
    }
    by_seed = {body["seed"]: body for body in sent}
    for request, group in zip(requests(tiny[1], 3), drawn, strict=True):
        for generator, one in zip(request.generators, group, strict=True):
            body = by_seed[generator.initial_seed() % (1 << 31)]
            choice = completions(*tiny)(body, 0).body["choices"][0]
            assert one.ids == [int(token.removeprefix("token_id:")) for token in choice["logprobs"]["tokens"]]
            assert one.logprobs == choice["logprobs"]["token_logprobs"]
            assert one.finish_reason == choice["finish_reason"]


@pytest.mark.parametrize(("tokens", "seconds"), [(12, 600), (32_768, 3276.8)])
def test_a_long_reply_has_the_time_that_it_takes(tiny: tuple, tokens: int, seconds: float, monkeypatch) -> None:
    """A model that thinks may write 32,768 tokens, at a few dozen per second beside fifteen other replies."""
    before = []

    def compare(served: ServedModel, asked: list[Request], *_: object) -> list[list[object]]:
        before.append(served.server.traffic.timeout)
        return [[object()] for _ in asked]

    monkeypatch.setattr(ServedModel, "sample", compare)
    with serving(completions(*tiny)) as http:
        served = find_served(sampler(http.url).config, *tiny, [[1]], tokens, 4096)
    assert served.server.traffic.timeout == pytest.approx(seconds)
    assert [*before, served.server.timeout] == [600, 600], "the replies that compare weights are short"


def test_messages_name_no_options_that_only_the_judge_has(tiny: tuple, monkeypatch, capsys) -> None:
    monkeypatch.setattr(traffic, "FIRST_PAUSE", 0.001)
    with serving(lambda *_: Reply(500, "down")) as http, pytest.raises(OpdkitError) as caught:
        draw(sampler(http.url), tiny)
    said = capsys.readouterr().err + str(caught.value)
    assert "trying again" in said
    assert "--retries" not in said


def test_a_teacher_of_the_same_weights_has_the_stop_tokens_of_its_own_template(tiny: tuple) -> None:
    model, chat = tiny
    other = Chat(chat.tokenizer, {}, [*chat.stop_ids, 7])
    with serving(completions(*tiny)) as http:
        source = sampler(http.url)
        for own in (chat, other, chat):
            begin = len(http.requests)
            draw(source, (model, own))
            assert {frozenset(body["stop_token_ids"]) for body in http.requests[begin:]} == {own.stop_ids}


def test_a_server_with_other_weights_is_refused_by_its_log_probs(tiny: tuple, tmp_path, plain_tokenizer) -> None:
    other = open_model(save_tiny_model(tmp_path / "other", plain_tokenizer, seed=1))
    with (
        serving(completions(*other)) as http,
        pytest.raises(OpdkitError, match=rf"{http.url}.*other weights.*differ by"),
    ):
        draw(sampler(http.url), tiny)


def test_of_several_models_and_servers_the_one_with_the_weights_samples(tiny, tmp_path, plain_tokenizer) -> None:
    """A server refuses names that it does not serve."""
    other = open_model(save_tiny_model(tmp_path / "other", plain_tokenizer, seed=1))

    def script(body: dict, number: int) -> Reply:
        served = {"base": other, "adapter": tiny}.get(body["model"])
        return completions(*served)(body, number) if served else Reply(404, {"error": "no such model"})

    with serving(completions(*other)) as wrong, serving(script, models=["base", "adapter"]) as http:
        draw(sampler(wrong.url, http.url), tiny)
    assert {body["model"] for body in http.requests[-len(TEXTS) :]} == {"adapter"}


def test_a_name_on_the_hub_is_not_asked_for_as_a_path(tiny: tuple, monkeypatch) -> None:
    """`transformers serve`, started without a model, tries to load any name that it gets, and answers with 500."""
    monkeypatch.setattr(tiny[0], "name_or_path", "acme/assistant")

    def script(body: dict, number: int) -> Reply:
        known = body["model"] == "acme/assistant"
        return completions(*tiny)(body, number) if known else Reply(500, "Internal Server Error")

    with serving(script) as http:
        draw(sampler(http.url), tiny)
    assert {body["model"] for body in http.requests} == {"acme/assistant"}


def test_the_error_is_that_of_a_model_which_the_server_has(tiny: tuple) -> None:
    """Otherwise the error would be that the server knows no model by the name of the local model."""

    def script(body: dict, _number: int) -> Reply:
        said = "maximum context length is 8" if body["model"] == "assistant" else "does not exist"
        return Reply(400 if body["model"] == "assistant" else 404, {"error": {"message": said}})

    with serving(script, models=["assistant"]) as http, pytest.raises(OpdkitError, match="maximum context length is 8"):
        draw(sampler(http.url), tiny)
    with (
        serving(lambda body, _: Reply(404, {"detail": "Not Found"})) as http,
        pytest.raises(OpdkitError, match=r"404.*--sample-url end in /v1"),
    ):
        draw(sampler(http.url.removesuffix("/v1")), tiny)


def test_text_has_no_token_that_the_servers_tokenizer_puts_before_it(tiny: tuple, plain_model_dir: Path) -> None:
    """The tokenizers of Llama, Gemma and Mistral do so, and their templates write the same token."""
    model, (tokenizer, first) = tiny[0], (load_tokenizer(str(plain_model_dir)), "<|im_start|>")
    pair = (first, tokenizer.convert_tokens_to_ids(first))
    tokenizer.backend_tokenizer.post_processor = TemplateProcessing(single=f"{first} $A", special_tokens=[pair])
    chat = Chat(tokenizer, {}, model.generation_config.eos_token_id)

    def script(body: dict, number: int) -> Reply:
        if not isinstance(body["prompt"], str):
            return Reply(400, {"detail": "prompt must be a string."})
        stops = json.loads(body["generation_config"])["eos_token_id"]
        asked = {"prompt": tokenizer(body["prompt"])["input_ids"], "stop_token_ids": stops}
        reply = completions(model, chat)(body | asked, number)
        reply.body["choices"][0]["logprobs"] = None
        return reply

    with serving(script) as http:
        draw(sampler(http.url), (model, chat), max_new_tokens=1)
    read = {tuple(tokenizer(body["prompt"])["input_ids"]) for body in http.requests if isinstance(body["prompt"], str)}
    assert read == {tuple(request.prompt_ids) for request in requests(chat)}


def test_weights_that_change_on_the_way_are_refused(tiny: tuple, tmp_path, plain_tokenizer) -> None:
    other = open_model(save_tiny_model(tmp_path / "other", plain_tokenizer, seed=1))
    served = [tiny]
    with serving(lambda body, n: completions(*served[0])(body, n)) as http:
        source = sampler(http.url)
        draw(source, tiny)
        served[0] = other
        with pytest.raises(OpdkitError, match=rf"{http.url}.*other weights"):
            draw(source, tiny)


def test_a_server_that_always_takes_the_most_likely_token_is_refused(tiny: tuple) -> None:
    """The server gives no log-probs, and ignores the temperature: only the share of most likely tokens shows it."""
    script = completions(*tiny, gives_logprobs=False)
    with (
        serving(lambda body, n: script(body | {"temperature": 0.0}, n)) as http,
        pytest.raises(OpdkitError, match=rf"{http.url}.*most likely"),
    ):
        draw(sampler(http.url), tiny, samples=8)


def test_replies_whose_tokens_are_not_known_are_sampled_in_this_process(tiny: tuple, capsys) -> None:
    """The text of half a character does not turn back into its tokens."""

    def script(body: dict, number: int) -> Reply:
        reply = completions(*tiny)(body, number)
        if body["temperature"] and body["seed"] % 2:
            reply.body["choices"][0] |= {"text": "\ufffd", "logprobs": None}
        return reply

    with serving(script) as http:
        drawn = draw(sampler(http.url), tiny)
    model, chat = tiny
    here = sample(model, requests(chat, 3), temperature=1.0, max_new_tokens=12, stop_ids=chat.stop_ids,
                  batch_tokens=4096)  # fmt: skip
    lost = 0
    for request, group, own in zip(requests(chat, 3), drawn, here, strict=True):
        for generator, one, alone in zip(request.generators, group, own, strict=True):
            lost += generator.initial_seed() % 2
            assert (one.ids == alone.ids) == bool(generator.initial_seed() % 2)
    assert f"{lost} replies of {3 * len(TEXTS)} sampled in this process" in capsys.readouterr().err


def test_a_prompt_that_is_too_long_for_the_server_is_sampled_in_this_process(tiny: tuple, capsys) -> None:
    model, chat = tiny
    asked = [Request([5, 6] * 100, [make_random_stream(0, "long", k) for k in range(2)]), *requests(chat)]
    options = {"temperature": 1.0, "max_new_tokens": 12, "batch_tokens": 4096}

    def script(body: dict, number: int) -> Reply:
        if len(body["prompt"]) + body["max_tokens"] > 211:
            return Reply(400, {"error": {"message": "This model's maximum context length is 211 tokens."}})
        return completions(*tiny)(body, number)

    with serving(script) as http:
        drawn = sampler(http.url).sample(model, chat, asked, **options)
    assert [len(group) for group in drawn] == [2, *[1] * len(TEXTS)]
    assert all(one.ids for group in drawn for one in group)
    assert "2 replies of 6 sampled in this process" in capsys.readouterr().err


def test_a_server_that_puts_prompts_into_a_template_is_refused(tiny: tuple) -> None:
    def script(body: dict, number: int) -> Reply:
        reply = completions(*tiny)(body, number)
        reply.body["usage"]["prompt_tokens"] += 9
        return reply

    with serving(script) as http, pytest.raises(OpdkitError, match=rf"{http.url}.*template"):
        draw(sampler(http.url), tiny)


def test_a_server_whose_model_has_more_tokens_is_refused(tiny: tuple) -> None:
    """The server's last token ids are beyond the rows of the local model, which could not read them."""

    def script(body: dict, number: int) -> Reply:
        reply = completions(*tiny)(body, number)
        reply.body["choices"][0]["logprobs"]["tokens"][0] = "token_id:100000"
        return reply

    with serving(script) as http, pytest.raises(OpdkitError, match=rf"{http.url}.*other weights"):
        draw(sampler(http.url), tiny)


def test_a_response_that_is_no_completion_is_asked_for_again(tiny: tuple) -> None:
    """A response without text and token ids is not an error: this process samples the reply itself."""
    server = Server("the server", "http://unused/v1", "--sample-url", "KEY", concurrency=1, retries=0, timeout=1.0)
    served, query = ServedModel(server, "m", *tiny, batch_tokens=64), _Query([5, 6], 0, 1.0, 4)
    read = lambda usage, **choice: served._read(  # noqa: E731
        SimpleNamespace(json=lambda: {"usage": usage, "choices": [{"finish_reason": "length"} | choice]}), query
    )
    assert read({}, text=None) is None
    for usage, choice in (({}, {"text": 5}), ({"prompt_tokens": "9"}, {"text": "a"}),
                          ({}, {"text": "a", "logprobs": {"token_logprobs": 5}})):  # fmt: skip
        with pytest.raises(FailedAttemptError, match="not a completion"):
            read(usage, **choice)


@pytest.mark.parametrize("leaves_space_out", [True, False])
def test_tokens_of_a_text_are_not_known_if_its_first_space_is_left_out(tiny: tuple, leaves_space_out: bool) -> None:
    """The tokenizer of Llama 2 gives the same text for a first word with a space and for one without."""
    vocabulary = {piece: n for n, piece in enumerate(["<unk>", "▁", *"\n[]/INSThi", "n", "o", "no", "▁no"])}
    backend = Tokenizer(BPE(vocabulary, [("n", "o"), ("▁", "no")], unk_token="<unk>"))
    backend.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    steps = [decoders.Replace("▁", " "), decoders.Fuse(), *[decoders.Strip(" ", 1, 0)] * leaves_space_out]
    backend.decoder = decoders.Sequence(steps)
    backend.add_special_tokens(["</s>"])
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="</s>", unk_token="<unk>")
    tokenizer.chat_template = ("{% for m in messages %}{% if m.role == 'user' %}[INST] {{ m.content }} [/INST]"
                               "{% else %} {{ m.content }} {{ eos_token }}{% endif %}{% endfor %}")  # fmt: skip
    chat, text = Chat(tokenizer, {}), "no" if leaves_space_out else " no"
    assert chat.text([vocabulary["▁no"]]) == text
    server = Server("the server", "http://unused/v1", "--sample-url", "KEY", concurrency=1, retries=0, timeout=1.0)
    served = ServedModel(server, "m", tiny[0], chat, batch_tokens=64)
    document = {"usage": {"completion_tokens": 1}, "choices": [{"text": text, "finish_reason": "length"}]}
    found = served._read(SimpleNamespace(json=lambda: document), _Query([5, 6], 0, 1.0, 1))
    assert (found and found.ids) == (None if leaves_space_out else [vocabulary["▁no"]])


def test_a_stop_token_ends_a_reply_wherever_the_server_ends_it(tiny: tuple) -> None:
    model, chat = tiny
    script = completions(model, chat)
    with serving(lambda body, n: script(body | {"stop_token_ids": []}, n)) as http:
        drawn = draw(sampler(http.url), tiny, max_new_tokens=200, samples=2)
    ends = [one for group in drawn for one in group if one.finish_reason == "stop"]
    assert ends
    for one in ends:
        assert [token in chat.stop_ids for token in one.ids] == [False] * (len(one.ids) - 1) + [True]
        assert len(one.logprobs) == len(one.ids)


def test_options_that_do_not_fit(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="--sample-url"):
        sampler("localhost:8000")
    with pytest.raises(ConfigError, match="--sample-url"):
        TeacherConfig(run=tmp_path, model="m", sample_url=("http://localhost:8000/v1",), teacher_samples=0)


def test_a_server_is_part_of_the_plan_where_replies_are_drawn(tmp_path: Path) -> None:
    """The server's address is not part of it: another server with the same weights can continue."""
    urls = [(), ("http://one/v1",), ("http://two/v1",)]
    plans = [RolloutConfig(run=tmp_path, from_run=tmp_path / "from", model="m", sample_url=url).plan() for url in urls]
    assert plans[0] != plans[1] == plans[2]
    plans = [EvalConfig(run=tmp_path, prompts="p", samples=0, sample_url=url).plan() for url in urls]
    assert plans[0] == plans[1] == plans[2]
