"""The endpoint judge against `transformers serve`, with a real (tiny, random) model behind it."""

import socket
import subprocess
import sys
import time
from pathlib import Path

import httpx
import pytest
from runs import talk, write_extract

from opdkit import judge
from opdkit.errors import OpdkitError
from opdkit.stages import JudgeConfig
from opdkit.store import read_all

for package in ("fastapi", "uvicorn", "openai"):
    pytest.importorskip(package)
pytestmark = pytest.mark.slow

START = "from transformers.cli.transformers import main; main()"


@pytest.fixture(scope="module")
def server(plain_model_dir: Path, tmp_path_factory):
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    log = tmp_path_factory.mktemp("serve") / "log"
    command = [sys.executable, "-c", START, "serve", str(plain_model_dir), "--device", "cpu", "--host", "127.0.0.1"]
    with log.open("w") as output:
        process = subprocess.Popen([*command, "--port", str(port)], stdout=output, stderr=output)
    try:
        deadline = time.monotonic() + 120
        while True:
            assert process.poll() is None, log.read_text()
            assert time.monotonic() < deadline, log.read_text()
            try:
                if httpx.get(f"http://127.0.0.1:{port}/health", timeout=5, trust_env=False).status_code == 200:
                    break
            except httpx.TransportError:
                time.sleep(0.2)
        yield f"http://127.0.0.1:{port}/v1"
    finally:
        process.terminate()
        process.wait(timeout=30)


def config(run: Path, url: str, model: Path, **fields) -> JudgeConfig:
    small = {"votes": 2, "max_new_tokens": 8, "timeout": 60.0, "retries": 1, "concurrency": 2, "shard": "0/1"}
    return JudgeConfig(run=run, judge="endpoint", base_url=url, model=str(model), **(small | fields))


def test_a_real_server_end_to_end(server: str, plain_model_dir: Path, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    run = write_extract(tmp_path / "run", {"s": talk("Hi", "Hello <|im_end|>", "Use Celsius", "Done", "thanks")})
    summary = judge.run(config(run, server, plain_model_dir))
    rows = list(read_all(run, "verdicts"))
    assert [r["turn_id"] for r in rows] == ["s:1", "s:3"]
    assert summary.counters.extra["votes"] == 8
    votes = [v for r in rows for v in r["hint_votes"] + r["reward_votes"]]
    assert all(v["error"] for v in votes)  # a random model gives no valid vote in 8 tokens
    assert len({v["raw"] for v in votes}) > 1
    assert "cut off by the token limit" in {v["error"] for v in votes}


def test_a_model_that_is_not_served_is_named(server: str, plain_model_dir: Path, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    run = write_extract(tmp_path / "run", {"s": talk("Hi", "Hello", "thanks")})
    with pytest.raises(OpdkitError, match=r"refuses the request \(HTTP 400\): Server is pinned to"):
        judge.run(config(run, server, tmp_path / "other"))
    assert not (run / "judge" / "verdicts").exists()
