"""Tests that the README's walk-through runs, unchanged except for names: a small log, a tiny model, a local server."""

import json
import os
import re
import subprocess
from pathlib import Path

import pytest
from sample_world import DATA, MODEL
from transformers_server import transformers_serve

README = Path(__file__).parent.parent / "README.md"
pytestmark = pytest.mark.slow


def walk_through() -> str:
    section = README.read_text(encoding="utf-8").split("## On your own logs")[1]
    found = re.search(r"```bash\n(.*?)```", section, re.DOTALL)
    assert found
    return found[1]


def test_the_walk_through_runs(tmp_path: Path, warm_path: str) -> None:
    script = walk_through()
    log = (DATA / "logs" / "openai.jsonl").read_text(encoding="utf-8").splitlines()[:4]
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / "monday.jsonl").write_text("\n".join(log) + "\n", encoding="utf-8")
    subprocess.run(["gzip", tmp_path / "logs" / "monday.jsonl"], check=True)
    row = re.search(r'^# +(\{"prompt".*?\}\})', script, re.MULTILINE)
    assert row
    assert json.loads(row[1])["check"], "the row in the README is a row that works"
    (tmp_path / "held-out.jsonl").write_text(row[1] + "\n", encoding="utf-8")
    with transformers_serve(MODEL, tmp_path / "server.log") as url:
        for old, new in {
            "http://localhost:8000/v1": url, "Qwen/Qwen3-32B": str(MODEL), "Qwen/Qwen3-4B": str(MODEL),
            "accelerate launch -m opdkit ": "opdkit ", "OPENAI_API_KEY=...": "OPENAI_API_KEY=secret-key-of-a-test",
        }.items():  # fmt: skip
            assert old in script
            script = script.replace(old, new)
        script = "set -euo pipefail\n" + script
        environment = os.environ | {"NO_PROXY": "127.0.0.1", "OMP_NUM_THREADS": "1", "PATH": warm_path}
        done = subprocess.run(["bash", "-c", script], cwd=tmp_path, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    assert "right replies" in done.stdout
    assert (tmp_path / "runs/mine/train/model/model.safetensors").exists()
    written = [p for p in (tmp_path / "runs").rglob("*") if p.is_file()]
    assert not any(b"secret-key-of-a-test" in p.read_bytes() for p in written), "the key reaches no file"
