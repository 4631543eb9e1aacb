"""Tests that `opdkit doctor` finds what will not work, says what to do about it, and changes nothing."""

import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path
from types import SimpleNamespace

import httpx
import huggingface_hub
import psutil
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from chat_templates import QWEN
from http_server import Reply, completion, serving
from huggingface_hub.errors import RepositoryNotFoundError
from safetensors.torch import load_file, save_file
from typer.testing import CliRunner

from opdkit.cli import app
from opdkit.commands.doctor import machine, model, report, server
from opdkit.commands.doctor.finding import NOTE, OK, PROBLEM, Finding, format_gb
from opdkit.commands.doctor.report import examine, examine_logs
from opdkit.config.doctor import DoctorConfig
from opdkit.model.load import load_model
from opdkit.store.atomic import host_name

MODEL = Path(__file__).parents[3] / "sample_data" / "model"


def states(findings: list[Finding]) -> set[str]:
    return {finding.state for finding in findings}


def problem(findings: list[Finding]) -> Finding:
    (found,) = [finding for finding in findings if finding.state == PROBLEM]
    assert found.remedy, "a problem without a remedy"
    return found


def test_a_healthy_setup_ends_with_exit_code_0_and_says_what_was_not_looked_at():
    shown = CliRunner().invoke(app, ["doctor", str(MODEL.parent / "logs"), "--model", str(MODEL), "--device", "cpu"])
    assert shown.exit_code == 0
    assert "openclaw.jsonl: openclaw_rl" in shown.stdout
    assert "1.4 million parameters" in shown.stdout
    assert "not looked at: --judge-url" in shown.stderr


def test_problems_end_with_exit_code_1_and_json_holds_every_finding(tmp_path):
    shown = CliRunner().invoke(app, ["doctor", "--model", str(tmp_path / "none"), "--device", "cpu", "--json"])
    assert shown.exit_code == 1
    found = json.loads(shown.stdout)
    assert all(set(row) == {"topic", "state", "what", "remedy"} for row in found)
    assert [row["topic"] for row in found if row["state"] == PROBLEM] == ["model"]


def test_every_problem_has_a_remedy(tmp_path):
    config = DoctorConfig(logs=(str(tmp_path / "no.jsonl"),), model=str(tmp_path), run=tmp_path / "x", device="xpu:7")
    found = [finding for finding in examine(config) if finding.state == PROBLEM]
    assert {finding.topic for finding in found} == {"device", "model", "logs"}
    assert all(finding.remedy for finding in found)


# -- the machine ------------------------------------------------------------------------------------------------------


def test_a_package_of_another_version_is_named_with_the_command_that_mends_it(monkeypatch):
    real = machine.version
    monkeypatch.setattr(machine, "version", lambda name: "4.0.0" if name == "transformers" else real(name))
    found = problem(list(machine.versions()))
    assert "transformers is 4.0.0" in found.what
    assert found.remedy.startswith('pip install "transformers')


def test_a_driver_without_a_torch_that_uses_it_is_a_problem(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(machine.shutil, "which", lambda name: "/usr/bin/nvidia-smi")
    monkeypatch.setattr(torch.version, "cuda", None)
    assert "built for CPUs" in problem(list(machine.devices("cpu"))).what
    monkeypatch.setattr(torch.version, "cuda", "12.8")
    assert "CUDA_VISIBLE_DEVICES" in problem(list(machine.devices("cpu"))).remedy


def test_the_run_directory_must_be_one_that_can_be_written(tmp_path, monkeypatch):
    (found,) = machine.room(tmp_path / "a" / "b")
    assert found.state in (OK, NOTE)
    assert not (tmp_path / "a").exists(), "looking changes nothing"
    (tmp_path / "file").touch()
    assert "is a file" in problem(list(machine.room(tmp_path / "file" / "run"))).what
    monkeypatch.setattr(machine.os, "access", lambda path, mode: False)
    assert "cannot be written" in problem(list(machine.room(tmp_path))).what


# -- the model --------------------------------------------------------------------------------------------------------


def test_sizes_are_those_of_the_weights_that_are_stored():
    (file,) = MODEL.glob("*.safetensors")
    header, _ = model.read_header(file)
    assert {n: tuple(t["shape"]) for n, t in header.items()} == {n: tuple(t.shape) for n, t in load_file(file).items()}


@pytest.mark.parametrize("shards", [1, 2])
def test_weights_that_a_folder_holds_twice_are_counted_once(tmp_path, shards):
    """As in Mistral's folders, which also hold the weights as consolidated.safetensors."""
    folder = tmp_path / "m"
    shutil.copytree(MODEL, folder)
    shutil.copy(folder / "model.safetensors", folder / "consolidated.safetensors")
    if shards > 1:
        tensors = list(load_file(folder / "model.safetensors").items())
        (folder / "model.safetensors").unlink()
        names = [f"model-0000{n + 1}-of-0000{shards}.safetensors" for n in range(shards)]
        for n, name in enumerate(names):
            save_file(dict(tensors[n::shards]), folder / name)
        placed = {tensor: names[n % shards] for n, (tensor, _) in enumerate(tensors)}
        (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": placed}), encoding="utf-8")
    ours, theirs = (next(model.examine(str(place), "cpu", "auto", 0)).what for place in (folder, MODEL))
    assert ours.removeprefix(str(folder)) == theirs.removeprefix(str(MODEL))


@pytest.mark.parametrize("content", [b"", b"1234567", b"\xff" * 16, b"\x02\0\0\0\0\0\0\0{"])
def test_weights_that_are_none_are_a_problem_and_not_a_crash(tmp_path, content):
    shutil.copytree(MODEL, tmp_path / "m")
    (tmp_path / "m" / "model.safetensors").write_bytes(content)
    assert "cannot be read" in problem(list(model.examine(str(tmp_path / "m"), "cpu", "auto", 0))).what


def test_what_training_takes_is_told_before_it_fails(monkeypatch):
    parameters = sum(t.numel() for t in load_file(next(MODEL.glob("*.safetensors"))).values())
    monkeypatch.setattr(psutil, "virtual_memory", lambda: type("M", (), {"available": 12 * parameters})())
    found = problem(list(model.examine(str(MODEL), "cpu", "float32", 0)))
    needed, free = format_gb(20 * parameters), format_gb(12 * parameters)
    assert found.what == f"train: {needed} of {free} free on memory, without activations"
    assert "--lora-rank" in found.remedy
    assert PROBLEM not in states(list(model.examine(str(MODEL), "cpu", "float32", 4)))


def test_4_bits_are_counted_as_they_are_held(monkeypatch):
    """The estimate is within 2% of the loaded bytes: packed weights, 8-bit scales, the scales of those, the rest."""
    pytest.importorskip("bitsandbytes")
    loaded = load_model(str(MODEL), device="cpu", dtype="bfloat16", load_in_4bit=True)
    states = [p.quant_state for p in loaded.parameters() if hasattr(p, "quant_state")]
    held = sum(t.nbytes for s in states for t in (s.absmax, s.state2.absmax)) + sum(
        p.nbytes for p in loaded.parameters()
    )
    whole = 2 * sum(t.numel() for t in load_file(next(MODEL.glob("*.safetensors"))).values())
    assert held < 0.5 * whole, "a test that sees the difference"

    def scoring(available: int, *, load_in_4bit: bool) -> str:
        monkeypatch.setattr(psutil, "virtual_memory", lambda: type("M", (), {"available": available})())
        found = model.examine(str(MODEL), "cpu", "bfloat16", 4, load_in_4bit=load_in_4bit)
        return next(f.state for f in found if f.topic == "memory")

    assert scoring(round(1.02 * held), load_in_4bit=True) == NOTE
    assert scoring(round(0.98 * held), load_in_4bit=True) == PROBLEM
    assert scoring(round(1.02 * held), load_in_4bit=False) == PROBLEM


def test_a_model_that_nobody_knows_cannot_be_counted_in_4_bits(tmp_path):
    shutil.copytree(MODEL, tmp_path / "m")
    config = json.loads((MODEL / "config.json").read_text()) | {"model_type": "other"}
    (tmp_path / "m" / "config.json").write_text(json.dumps(config))
    found = list(model.examine(str(tmp_path / "m"), "cpu", "auto", 0, load_in_4bit=True))
    assert ("model", PROBLEM) in {(finding.topic, finding.state) for finding in found}


def test_the_gpu_of_a_mac_is_found(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)
    found = [f for f in machine.devices("cpu") if f.topic == "GPU"]
    assert [(f.state, f.what.partition(":")[0]) for f in found] == [(OK, "mps")]


def test_a_folder_without_a_tokenizer_is_a_problem(tmp_path):
    shutil.copytree(MODEL, tmp_path / "m")
    for file in (tmp_path / "m").glob("token*"):
        file.unlink()
    assert problem(list(model.examine(str(tmp_path / "m"), "cpu", "auto", 0))).topic == "tokenizer"


def test_a_template_that_wants_to_be_told_about_thinking_is_noted(tmp_path):
    shutil.copytree(MODEL, tmp_path / "m")
    template = (MODEL / "chat_template.jinja").read_text(encoding="utf-8")
    (tmp_path / "m" / "chat_template.jinja").write_text(
        "{% if enable_thinking %}{% endif %}" + template, encoding="utf-8"
    )
    found = [f for f in model.examine(str(tmp_path / "m"), "cpu", "auto", 0) if f.topic == "template"]
    assert found[0].state == NOTE
    assert "enable_thinking=false" in found[0].remedy


@pytest.mark.parametrize(
    ("template", "names"),
    [
        ("{% generation %}" + QWEN + "{% endgeneration %}", {"enable_thinking"}),
        (QWEN, {"enable_thinking"}),  # sets `content` and `reasoning` in nested conditions
        ("{% if day is not defined %}{% if now %}{% set day = now() %}{% endif %}{% endif %}{{ day }}", {"day", "now"}),
        ("{% set thinking = thinking | default(true) %}{{ thinking }}", {"thinking"}),
        ("{{ messages | fromjson }}{{ day }}", set()),  # a filter that only the client knows
    ],
)
def test_the_arguments_of_a_template_are_names_that_it_does_not_set_itself(template, names):
    assert model.arguments(template) == names


def test_a_name_on_the_hub_is_no_problem_and_nothing_is_downloaded(monkeypatch):
    """The only request is for the metadata of config.json."""
    asked, hosts = [], []
    monkeypatch.setattr(huggingface_hub, "get_hf_file_metadata", asked.append)
    monkeypatch.setattr(socket, "getaddrinfo", lambda host, *_, **__: hosts.append(host))
    assert states(list(model.examine("someone/some-model", "cpu", "auto", 0))) == {NOTE}
    assert asked == [huggingface_hub.hf_hub_url("someone/some-model", "config.json")]
    assert hosts == []


def test_a_name_that_the_hub_lacks_is_a_problem(monkeypatch):
    def fail(_url):
        raise RepositoryNotFoundError("no such name", response=SimpleNamespace(headers={}, request=None))

    monkeypatch.setattr(huggingface_hub, "get_hf_file_metadata", fail)
    (finding,) = model.examine("someone/some-model", "cpu", "auto", 0)
    assert (finding.state, "someone/some-model" in finding.what) == (PROBLEM, True)


# -- the server -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("status", "body", "state", "words"),
    [
        (200, completion("yes").body, OK, "answered 'yes'"),
        (200, completion(None).body, NOTE, "empty answer"),
        (401, "no", PROBLEM, "KEY_OF_TEST is not set"),
        (404, "no", PROBLEM, "/v1"),
        (404, {"error": "not a chat model"}, PROBLEM, "not a chat model"),
        (403, {"error": "your country is not supported"}, PROBLEM, "your country"),
        (429, "no", NOTE, "--concurrency"),
        (503, {"error": {"message": "Loading model"}}, NOTE, "Loading model"),
        (429, {"error": {"message": "pay", "code": "insufficient_quota"}}, PROBLEM, "KEY_OF_TEST has no credit left"),
        (400, {"error": {"message": "pay", "type": "budget_exceeded"}}, PROBLEM, "KEY_OF_TEST has no credit left"),
        (200, "<html>", PROBLEM, "OpenAI-compatible"),
        (200, [], PROBLEM, "OpenAI-compatible"),
        (500, {"error": "x"}, PROBLEM, "OpenAI-compatible"),
    ],
)
def test_what_a_server_answers_is_told_apart(status, body, state, words, monkeypatch):
    monkeypatch.delenv("KEY_OF_TEST", raising=False)
    with serving(lambda *_: Reply(status, body), ["judge"]) as there:
        found = list(server.examine(there.url.removesuffix("/v1"), "judge", "KEY_OF_TEST", 5.0))
    assert found[-1].state == state
    assert words in f"{found[-1].what} {found[-1].remedy}"


def test_a_server_that_wants_a_key_where_none_is_sent(monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "sk-secret")
    with serving(lambda *_: Reply(401, {})) as there:
        found = list(examine(DoctorConfig(judge_url=there.url, judge_model="judge", api_key_env="")))
    assert "--api-key-env" in problem(found).remedy
    assert there.headers
    assert not any("Authorization" in headers for headers in there.headers)


def test_a_model_that_the_server_does_not_list_is_named_with_what_it_has():
    with serving(lambda *_: completion("yes"), ["judge"]) as there:
        found = list(server.examine(there.url, "jugde", "KEY_OF_TEST", 5.0))
    assert found[0].remedy.startswith("--judge-model: did you mean 'judge'")


@pytest.mark.parametrize("status", [400, 422])
def test_a_judge_that_the_judge_stage_can_ask_is_no_problem(status):
    """OpenAI's reasoning models name the token limit differently, and the URL may end in /chat/completions."""
    said = "Unsupported parameter: 'max_tokens' is not supported. Use 'max_completion_tokens' instead."
    with serving(
        lambda body, _: completion("yes") if "max_tokens" not in body else Reply(status, {"error": {"message": said}}),
        ["judge"],
    ) as there:
        found = list(server.examine(f"{there.url}/chat/completions", "judge", "KEY_OF_TEST", 5.0))
    assert states(found) == {OK}


def test_nobody_there_is_a_problem():
    assert "cannot be reached" in problem(list(server.examine("http://127.0.0.1:9", "m", "KEY_OF_TEST", 1.0))).what


def test_a_certificate_that_is_not_trusted_is_no_matter_of_the_port(monkeypatch):
    def fail(*_args: object) -> None:
        raise httpx.ConnectError("[SSL: CERTIFICATE_VERIFY_FAILED] certificate verify failed: self-signed certificate")

    monkeypatch.setattr(httpx.Client, "get", fail)
    found = problem(list(server.examine("https://127.0.0.1:9/v1", "m", "KEY_OF_TEST", 1.0)))
    assert "SSL_CERT_FILE" in found.remedy
    assert "port" not in found.remedy


def test_a_key_of_two_lines_is_a_problem_and_not_shown(monkeypatch):
    monkeypatch.setenv("KEY_OF_TEST", "sk-secret\nsk-other")
    finding = problem(list(server.examine("http://127.0.0.1:9/v1", "judge", "KEY_OF_TEST", 1.0)))
    assert "KEY_OF_TEST" in finding.what
    assert "secret" not in str(finding)


@pytest.mark.parametrize("status", [403, 500])
def test_the_key_is_never_shown(monkeypatch, status):
    """Some servers repeat the key in their answer. No finding may show it."""
    monkeypatch.setenv("KEY_OF_TEST", "sk-secret")
    with serving(lambda *_: Reply(status, {"error": "sk-secret is wrong"})) as there:
        found = list(server.examine(there.url, "judge", "KEY_OF_TEST", 5.0))
        assert there.headers[-1]["Authorization"] == "Bearer sk-secret"
    assert problem(found)
    assert "sk-secret" not in str(found)


# -- the logs ---------------------------------------------------------------------------------------------------------


def test_logs_that_are_not_there_or_not_known_are_problems(tmp_path):
    (tmp_path / "a.jsonl").write_text('{"foo": 1}\n', encoding="utf-8")
    assert "unknown format" in problem(list(examine_logs([str(tmp_path / "a.jsonl")]))).what
    assert problem(list(examine_logs([str(tmp_path / "none.jsonl")]))).topic == "logs"
    (tmp_path / "b.jsonl.gz").write_bytes(b"\x1f\x8b\x08\x00broken")
    assert problem(list(examine_logs([str(tmp_path / "b.jsonl.gz")]))).topic == "logs"
    (tmp_path / "c.jsonl").touch()
    assert "no JSON lines" in problem(list(examine_logs([str(tmp_path / "c.jsonl")]))).what


def test_every_packing_that_extract_reads_is_looked_into(tmp_path):
    """Arrays, JSON over several lines, Parquet and members of zip files are read; a refused member gives the reason."""
    chat = {"messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello"}]}
    (tmp_path / "one_line.json").write_text(json.dumps([chat]), encoding="utf-8")
    (tmp_path / "lines.json").write_text(json.dumps([chat, chat], indent=1), encoding="utf-8")
    pq.write_table(pa.Table.from_pylist([chat]), tmp_path / "rows.parquet")
    with zipfile.ZipFile(tmp_path / "export.zip", "w") as archive:
        archive.write(tmp_path / "lines.json", "chats/lines.json")
        archive.writestr("../outside.json", json.dumps([chat]))
    found = list(examine_logs([str(tmp_path)]))
    assert [finding.what.removeprefix(f"{tmp_path}/") for finding in found if finding.state == OK] == [
        "export.zip/chats/lines.json: openai", "lines.json: openai", "one_line.json: openai", "rows.parquet: openai",
    ]  # fmt: skip
    assert "path leaves the archive" in problem(found).what


def test_files_that_an_export_holds_beside_the_chats_are_no_problem(tmp_path):
    """users.json and projects.json of a Claude.ai export are only noted. A folder with nothing else is a problem."""
    (tmp_path / "users.json").write_text('[{"uuid": "u"}]')
    (tmp_path / "projects.json").write_text("[]")
    assert problem(list(examine_logs([str(tmp_path)]))).what == "none of these files holds a log"
    (tmp_path / "chats.jsonl").write_text('{"messages": [{"role": "user", "content": "Hi"}]}\n')
    found = list(examine_logs([str(tmp_path)]))
    assert [finding.state for finding in found] == [OK, NOTE, NOTE]
    assert problem(list(examine_logs([str(tmp_path / "users.json")]))).remedy.startswith("--format")


def test_copies_of_logs_that_a_killed_doctor_leaves_are_removed(tmp_path, monkeypatch):
    """A killed doctor leaves unzipped logs, with texts of users, in a temporary folder. The next doctor removes it."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "tmp"))
    with subprocess.Popen([sys.executable, "-c", ""]) as process:
        process.wait()
    killed = tmp_path / "tmp" / f"opdkit-extract-1-0123abcd-{host_name()}-{process.pid}"
    killed.mkdir(parents=True)

    def find_format(*_arguments):
        folders.update(path.name.rpartition("-")[2] for path in (tmp_path / "tmp").glob("opdkit-extract-*"))

    folders = set()
    monkeypatch.setattr(report, "find_format", find_format)
    (tmp_path / "a.jsonl").write_text('{"foo": 1}\n', encoding="utf-8")
    list(examine_logs([str(tmp_path / "a.jsonl")]))
    assert folders == {str(os.getpid())}, "others find its folder, and it removes what they left"


@pytest.mark.parametrize("template", ["{% if", "{{ nofunc('x') }}", "{{ raise_exception('no') }}"])
def test_a_template_that_cannot_be_rendered_is_a_problem(template, tmp_path):
    folder = shutil.copytree(MODEL, tmp_path / "model")
    (folder / "chat_template.jinja").write_text(template)
    found = problem(list(model.examine(str(folder), "cpu", "auto", 0)))
    assert found.topic == "template"
    assert "cannot be rendered" in found.what
