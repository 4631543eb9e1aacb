"""`transformers serve` as a real OpenAI-compatible server for tests."""

import contextlib
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

_START = "from transformers.cli.transformers import main; main()"


@contextlib.contextmanager
def transformers_serve(model: Path | None, log: Path, *options: str) -> Iterator[str]:
    """Serve a model folder, or with None any that is asked for, on a free port; yields the base URL."""
    for package in ("fastapi", "uvicorn", "openai"):
        pytest.importorskip(package)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [
        sys.executable,
        "-c",
        _START,
        "serve",
        *([str(model)] if model else []),
        "--device",
        "cpu",
        "--host",
        "127.0.0.1",
        *options,
    ]
    with log.open("w") as output:
        process = subprocess.Popen([*command, "--port", str(port)], stdout=output, stderr=output)
    try:
        _wait_until_healthy(process, port, log)
        yield f"http://127.0.0.1:{port}/v1"
    finally:
        process.terminate()
        process.wait(timeout=600)


def _wait_until_healthy(process: subprocess.Popen[bytes], port: int, log: Path) -> None:
    deadline = time.monotonic() + 600
    while True:
        assert process.poll() is None, log.read_text()
        assert time.monotonic() < deadline, log.read_text()
        try:
            if httpx.get(f"http://127.0.0.1:{port}/health", timeout=5, trust_env=False).status_code == 200:
                return
        except httpx.TransportError:
            time.sleep(0.2)
