"""Tests that every command in docs/ runs, page by page, unchanged except for names (of logs, models and servers)."""

import contextlib
import json
import os
import re
import subprocess
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from sample_world import DATA, MODEL, labels
from transformers_server import transformers_serve

DOCS = Path(__file__).parent.parent / "docs"
WALKED = ("tutorial.md", "guide.md", "logs.md", "nights.md", "privacy.md")
# Pages whose commands are run elsewhere: examples of commands.md by tests/test_cli.py, Slurm's by tests/commands/slurm,
# the example's by tests/test_example_4b.py.
ELSEWHERE = {"commands.md", "cluster.md", "example-4b.md"}
# Changes with which the tutorial runs on fewer sessions.
FEWER = {"--limit 60": "--limit 12", "--samples 2": "--samples 1 --max-prompts 6"}
pytestmark = pytest.mark.slow


def scripts(page: str) -> str:
    return "".join(blocks(page))


def blocks(page: str) -> list[str]:
    return re.findall(r"```bash\n(.*?)```", (DOCS / page).read_text(encoding="utf-8"), re.DOTALL)


def fewer(script: str) -> str:
    for old, new in FEWER.items():
        script = script.replace(old, new)
    return script


def test_every_page_with_commands_is_run() -> None:
    pages = {path.name for path in DOCS.glob("*.md") if "```bash" in path.read_text(encoding="utf-8")}
    assert pages == {*WALKED, *ELSEWHERE}


def run(script: str, folder: Path, names: dict[str, str], path: str) -> None:
    for old, new in names.items():
        assert old in script, f"{old} is not on the page any more"
        script = script.replace(old, new)
    script = "set -euo pipefail\n" + script
    environment = os.environ | {"NO_PROXY": "127.0.0.1", "OMP_NUM_THREADS": "1", "PATH": path}
    done = subprocess.run(["bash", "-c", script], cwd=folder, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr


def test_the_tutorial(tmp_path: Path, warm_path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The tutorial runs as its notebook, in a kernel, on fewer sessions; a failing cell ends the test with its error.

    tests/test_docs.py keeps the notebook in step with the page.
    """
    nbclient = pytest.importorskip("nbclient", reason="pip install -e '.[test]' has it")
    pytest.importorskip("ipykernel", reason="pip install -e '.[test]' has it")
    import nbformat

    (tmp_path / "sample_data").symlink_to(DATA)
    notebook = nbformat.read(DOCS / "tutorial.ipynb", as_version=4)
    nbformat.validate(notebook)
    for cell in notebook.cells:
        for old, new in FEWER.items():
            cell.source = cell.source.replace(old, new)
    monkeypatch.setenv("PATH", warm_path)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setenv("PYTHONPATH", str(DOCS.parent))
    done = nbclient.NotebookClient(notebook, timeout=300, resources={"metadata": {"path": str(tmp_path)}}).execute()
    commands = [cell for cell in done.cells if cell.source.startswith("%%bash -e\n")]
    assert "".join(cell.source.removeprefix("%%bash -e\n") + "\n" for cell in commands) == fewer(scripts("tutorial.md"))
    shown = [output for cell in done.cells for output in cell.get("outputs", []) if "data" in output]
    assert ["background-color" in output["data"]["text/html"] for output in shown] == [True], "the heat maps"
    printed = "".join(output.get("text", "") for cell in commands for output in cell.outputs)
    for text in ("It is [--8--]6 F", "log-prob, +1 replies", "log-prob, -1 replies"):
        assert text in printed, "what the tutorial says that one sees"
        assert text in (DOCS / "tutorial.md").read_text(encoding="utf-8")
    assert (tmp_path / "runs/tutorial/report.html").stat().st_size > 10_000
    assert (tmp_path / "runs/tutorial/train/model/model.safetensors").exists()


def test_the_guide(tmp_path: Path, warm_path: str) -> None:
    log = (DATA / "logs" / "openai.jsonl").read_text(encoding="utf-8").splitlines()[:2]
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / "monday.jsonl").write_text("\n".join(log) + "\n", encoding="utf-8")
    prompts = (DATA / "prompts.jsonl").read_text(encoding="utf-8").splitlines()[:4]
    (tmp_path / "held-out.jsonl").write_text("\n".join(prompts) + "\n", encoding="utf-8")
    labels = '{"turn_id": "monday:1:1", "reward": -1}\n{"turn_id": "monday:2:1", "reward": 1}\n'
    (tmp_path / "labels.jsonl").write_text(labels, encoding="utf-8")
    with transformers_serve(MODEL, tmp_path / "server.log") as url:
        names = {"http://localhost:8000/v1": url, "http://localhost:8001/v1": url, "Qwen/Qwen3-32B": str(MODEL),
                 "Qwen/Qwen3-4B": str(MODEL)}  # fmt: skip
        run("".join(b for b in blocks("guide.md") if "runs/chats" not in b), tmp_path, names, warm_path)
    assert (tmp_path / "runs/second/train/model/model.safetensors").exists()


def test_the_guide_from_a_chat_export_alone(tmp_path: Path, warm_path: str) -> None:
    """There are five commands; thumbs, an edit and a regenerated reply count; held-out sessions become prompts."""
    sessions = []
    for n, line in enumerate((DATA / "logs" / "openai.jsonl").read_bytes().split(b"\n"), 1):
        with contextlib.suppress(json.JSONDecodeError):  # one line of the sample is damaged, on purpose
            sessions.append((n, json.loads(line)["messages"]))
    wanted = {row["turn_id"]: row["wanted"] for row in labels()}
    chats = [open_webui_chat(n, messages, wanted) for n, messages in sessions
             if all(message.get("content") and message["role"] != "tool" for message in messages)]  # fmt: skip
    (tmp_path / "chat-export.json").write_text(json.dumps(chats[:24]), encoding="utf-8")
    (script,) = (block for block in blocks("guide.md") if "runs/chats" in block)
    assert script.count("opdkit ") == script.count("\n") == 5
    run(script, tmp_path, {"Qwen/Qwen3-4B": str(MODEL)}, warm_path)
    folder = tmp_path / "runs" / "chats"
    decisions = [d for d in pq.read_table(folder / "extract" / "turns")["decision"].to_pylist() if d]
    found = {name for d in decisions for name in ("rating", "comment", "edited", "kept") if d[name] not in (None, "")}
    assert found == {"rating", "comment", "edited", "kept"}
    mined = list(map(json.loads, (folder / "from-log.jsonl").read_text(encoding="utf-8").splitlines()))
    assert {row.get("corrected") for row in mined} >= {True, False}
    assert pq.read_table(folder / "eval" / "scores").num_rows > 0
    assert (folder / "train/model/model.safetensors").exists()


def open_webui_chat(number: int, messages: list[dict[str, str]], wanted: dict[str, str | None]) -> dict[str, object]:
    """Return a chat of the sample log as Open WebUI exports it; a few of its replies are rated, edited, regenerated."""
    history: dict[str, dict[str, object]] = {}
    last = None
    for place, message in enumerate(messages):
        if message["role"] == "system":
            continue
        name = f"{number}-{place}"
        history[name] = {"id": name, "parentId": last, "childrenIds": [], "content": message["content"],
                         "role": message["role"], "done": True}  # fmt: skip
        if last:
            history[last]["childrenIds"] = [name]
        if message["role"] == "assistant" and number % 5 == 1:
            is_bad = bool(wanted.get(f"openai:{number}:{place}"))
            history[name]["annotation"] = {"rating": -1 if is_bad else 1, "comment": "Not as I want it." * is_bad}
        last = name
    replies = [name for name, item in history.items() if item["role"] == "assistant"]
    if number % 10 == 2:
        history[replies[0]] |= {"originalContent": history[replies[0]]["content"], "content": "It is 21 C."}
    if number % 10 == 3:
        other = history[replies[-1]] | {"id": "again", "content": "What do you mean?", "childrenIds": []}
        history["again"] = other
        history[str(other["parentId"])]["childrenIds"] = [replies[-1], "again"]
    return {"id": f"chat-{number}", "title": "A chat", "chat": {"history": {"messages": history, "currentId": last}}}


def test_the_page_of_logs(tmp_path: Path, warm_path: str) -> None:
    (tmp_path / "logs").mkdir()
    said = [
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": "Yes?"},
        {"role": "user", "content": "?"},
    ]
    record = {"messages": said, "model": "gpt-4o", "timestamp": "2026-02-01T10:00:00Z", "reward": 1.0}
    (tmp_path / "logs" / "a.jsonl").write_text(json.dumps(record) + "\n", encoding="utf-8")
    run(scripts("logs.md"), tmp_path, {}, warm_path)
    for name in ("try", "some"):
        assert pq.read_table(tmp_path / "runs" / name / "extract" / "turns").num_rows == 1


def test_the_page_on_nights_and_its_line_of_cron(tmp_path: Path, warm_path: str) -> None:
    page = (DOCS / "nights.md").read_text(encoding="utf-8")
    (options,) = re.findall(r"```toml\n(.*?)```", page, re.DOTALL)
    (line,) = re.findall(r"^0 3 \* \* \* (.*)$", page, re.MULTILINE)
    log = (DATA / "logs" / "openai.jsonl").read_text(encoding="utf-8").splitlines()
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / "chat.jsonl").write_text("\n".join(log[:8]) + "\n", encoding="utf-8")
    with transformers_serve(MODEL, tmp_path / "server.log") as url:
        names = {"http://localhost:8000/v1": url, "Qwen/Qwen3-32B": str(MODEL), "Qwen/Qwen3-4B": str(MODEL)}
        for old, new in names.items():
            assert old in options
            options = options.replace(old, new)
        (tmp_path / "night.toml").write_text(options, encoding="utf-8")
        run(scripts("nights.md"), tmp_path, {}, warm_path)
        with (tmp_path / "logs" / "chat.jsonl").open("a", encoding="utf-8") as out:
            out.write("\n".join(log[8:12]) + "\n")
        run(line, tmp_path, {"/srv/assistant": str(tmp_path), "systemctl restart vllm": "touch restarted"}, warm_path)
    said = (tmp_path / "nights.log").read_text(encoding="utf-8")
    assert said.startswith("night 2: waits. ")
    assert (tmp_path / "restarted").exists()
    assert (tmp_path / "nights" / "nights" / "0001" / "night.json").exists()


def test_the_script_of_the_page_on_nights_restarts_the_server_once_for_each_model(tmp_path: Path) -> None:
    (script,) = re.findall(r"```sh\n(.*?)```", (DOCS / "nights.md").read_text(encoding="utf-8"), re.DOTALL)
    (tmp_path / "nights").mkdir()
    stubs = {"opdkit": 'ln -sfn "$MODEL" nights/promoted; exit "$STATUS"', "systemctl": "echo again >> restarts"}
    for name, body in stubs.items():
        (tmp_path / name).write_text(f"#!/bin/bash\n{body}\n", encoding="utf-8")
        (tmp_path / name).chmod(0o755)
    counts = []
    for model, status in (("1", 0), ("1", 0), ("2", 1), ("2", 0)):  # the second model comes with a night that fails
        variables = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "MODEL": model, "STATUS": str(status)}
        words = ["bash", "-c", script.replace("/srv/assistant", str(tmp_path))]
        assert subprocess.run(words, env=variables, check=False).returncode == status
        counts.append((tmp_path / "restarts").read_text().count("again"))
    assert counts == [1, 1, 2, 2]


def test_the_page_on_privacy_leaves_no_session_of_a_user(tmp_path: Path, warm_path: str) -> None:
    (tmp_path / "logs").mkdir()
    (tmp_path / "runs" / "mine").mkdir(parents=True)
    records = [
        {"messages": [{"role": "user", "content": f"Hi, {user}"}, {"role": "assistant", "content": "Yes?"},
                      {"role": "user", "content": f"No, I said {user}."}], "user": user}
        for user in ("u-1", "u-1234", "u-2")
    ]  # fmt: skip
    (tmp_path / "logs" / "a.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    run(scripts("privacy.md"), tmp_path, {}, warm_path)
    left = tmp_path / "runs" / "without"
    tables = [pq.read_table(path).to_pylist() for path in left.rglob("*.parquet")]
    assert sum(map(len, tables)) == 3 * 2, "two sessions, turns and verdicts"
    assert "u-1234" not in json.dumps(tables)
    with_the_name = {path.name for path in left.rglob("*") if path.is_file() and b"u-1234" in path.read_bytes()}
    assert with_the_name == {"manifest.json", "part-00000.parquet"}, "the filter and its count, as the page says"
    assert not (tmp_path / "runs" / "mine").exists()
