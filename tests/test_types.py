"""Tests of the Python interface's types: what pyright refuses and mypy accepts, and what an editor completes."""

import contextlib
import importlib.util
import inspect
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from opdkit.api import Run

ROOT = Path(__file__).parents[1]
needs_pyright = pytest.mark.skipif(importlib.util.find_spec("pyright") is None, reason="pyright is not installed")

RIGHT = """
from pathlib import Path
from typing import Any

import opdkit

def judge(prompt: list[dict[str, Any]], reply: dict[str, Any], next_state: Any) -> tuple[int, str | None]:
    return 1, None

run = opdkit.Run(Path("runs/try"))
print(run.extract(["a", Path("b")], filter={"model": "x"}, format=lambda record: dict(record["chat"])).line())
print(run.judge(judge=judge, votes=3, good="stars>=4").counters.rows_out)
print(run.judge(judge="local", judge_model=Path("m"), temperature=1, config="opdkit.toml").parts)
print(run.train(model="m", learning_rate=1e-3).where)
scores = run.evaluate(prompts="p.jsonl", samples=None, check=lambda reply, row: bool(row["answer"] in reply))
print(scores.find("passed_sampled")["after"])
print(run.train(model="m", name="b").where, run.training("b").compare("a", prompts=Path("p.jsonl")).sentence)
print(run.turns(worst=3)[0]["turn_id"], run.show("x")["verdict"], len(run.scores()))
print(run.rollout(from_run=run, model="m").parts, run.compare(run, Path("other")).sentence)
print(run.calibrate("labels.jsonl").accuracy, run.check(deep=True), run.table("turns").pandas())
"""
WRONG = """
import opdkit

run = opdkit.Run("runs/try")
run.judge(judge="local", vote=3)
run.judge(judge="local", votes="many")
"""


def script(folder: Path, text: str) -> Path:
    """Write a script beside a configuration of pyright that finds this opdkit; return its path."""
    (folder / "pyrightconfig.json").write_text(json.dumps({"extraPaths": [str(ROOT)]}))
    (folder / "script.py").write_text(text)
    return folder / "script.py"


def pyright(folder: Path, text: str) -> list[tuple[int, str]]:
    """Return (line, rule) of each error, as an editor shows them."""
    command = [sys.executable, "-m", "pyright", "--outputjson", "--pythonpath", sys.executable, "-p", str(folder)]
    script(folder, text)
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=folder)
    found = json.loads(done.stdout)["generalDiagnostics"]
    return [(one["range"]["start"]["line"] + 1, one["rule"]) for one in found if one["severity"] == "error"]


@needs_pyright
def test_pyright_refuses_a_misspelt_option_and_a_wrong_type(tmp_path: Path) -> None:
    assert pyright(tmp_path, WRONG) == [(5, "reportCallIssue"), (6, "reportArgumentType")]
    assert pyright(tmp_path, WRONG.replace("vote=3", "judge_model=3")) == [(n, "reportArgumentType") for n in (5, 6)]
    assert pyright(tmp_path, WRONG.replace('"many"', "3").replace("vote=3", "votes=None")) == []
    assert pyright(tmp_path, WRONG.replace('"many"', "3").replace('"local", vote=3', '"lokal"')) == [
        (5, "reportArgumentType")
    ]


@needs_pyright
def test_pyright_knows_the_names_of_the_package(tmp_path: Path) -> None:
    assert pyright(tmp_path, "import opdkit\nopdkit.Runs('x')\nopdkit.OpdkitError\n") == [
        (2, "reportAttributeAccessIssue")
    ]


@needs_pyright
def test_pyright_accepts_what_the_interface_takes(tmp_path: Path) -> None:
    assert pyright(tmp_path, RIGHT) == []


@pytest.mark.slow
def test_mypy_strict_accepts_the_interface_and_a_script_on_it(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "mypy", "--strict", "--cache-dir", str(ROOT / ".mypy_cache"), "opdkit/api.py",
               "opdkit/__init__.py", "opdkit/options.pyi", str(script(tmp_path, RIGHT))]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)
    assert done.returncode == 0, done.stdout
    script(tmp_path, WRONG)
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)
    assert re.findall(r"script\.py:(\d+): error", done.stdout) == ["5", "6"]


class Editor:
    """Client of a language server on standard input and output."""

    def __init__(self, process: "subprocess.Popen[bytes]") -> None:
        self.process, self.number = process, 0

    def notify(self, method: str, **params: Any) -> None:
        self._send({"jsonrpc": "2.0", "method": method, "params": params})

    def ask(self, method: str, **params: Any) -> Any:
        self.number += 1
        self._send({"jsonrpc": "2.0", "id": self.number, "method": method, "params": params})
        while True:
            message = self._receive()
            if message.get("id") == self.number and "method" not in message:
                return message["result"]
            if "id" in message:  # the server asks for settings
                empty = [{} for _ in message["params"].get("items", [])]
                self._send({"jsonrpc": "2.0", "id": message["id"], "result": empty})

    def _send(self, message: dict[str, Any]) -> None:
        data = json.dumps(message).encode()
        assert self.process.stdin
        self.process.stdin.write(b"Content-Length: %d\r\n\r\n%b" % (len(data), data))
        self.process.stdin.flush()

    def _receive(self) -> dict[str, Any]:
        assert self.process.stdout
        length = 0
        while (line := self.process.stdout.readline().strip()) or not length:
            assert self.process.poll() is None, "the language server has ended"
            if line.lower().startswith(b"content-length:"):
                length = int(line.split(b":")[1])
        return dict(json.loads(self.process.stdout.read(length)))


@contextlib.contextmanager
def open_editor(folder: Path) -> Iterator[Editor]:
    command = [sys.executable, "-m", "pyright.langserver", "--stdio"]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL, cwd=folder) as process:
        editor = Editor(process)
        capabilities = {"workspace": {"configuration": True, "workspaceFolders": True}}
        folders = [{"uri": folder.as_uri(), "name": "folder"}]
        editor.ask("initialize", processId=None, rootUri=folder.as_uri(), capabilities=capabilities,
                   workspaceFolders=folders)  # fmt: skip
        editor.notify("initialized")
        try:
            yield editor
        finally:
            process.kill()


METHODS = {name: method for name, method in vars(Run).items() if hasattr(method, "__signature__")}


@needs_pyright
def test_an_editor_completes_every_option_of_every_method(tmp_path: Path) -> None:
    lines = ["import opdkit", 'run = opdkit.Run("runs/try")', *(f"run.{name}()" for name in METHODS)]
    path = script(tmp_path, "\n".join(lines))
    with open_editor(tmp_path) as editor:
        document = {"uri": path.as_uri(), "languageId": "python", "version": 1, "text": "\n".join(lines)}
        editor.notify("textDocument/didOpen", textDocument=document)
        for number, (name, method) in enumerate(METHODS.items(), start=2):
            place = {"line": number, "character": len(lines[number]) - 1}
            found = editor.ask("textDocument/completion", textDocument={"uri": path.as_uri()}, position=place)
            options = {
                parameter for parameter in inspect.signature(method).parameters if parameter not in ("self", "others")
            }
            assert {f"{option}=" for option in options} <= {item["label"] for item in found["items"]}, name
    assert len(METHODS) == 17
