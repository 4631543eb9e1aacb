"""Every command in docs/ runs: page by page, as it stands but for names (a small log, a tiny model, a server here)."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from sample_world import DATA, MODEL
from transformers_server import transformers_serve

DOCS = Path(__file__).parent.parent / "docs"
WALKED = ("tutorial.md", "guide.md", "logs.md")
# Pages whose commands are run elsewhere: each example of commands.md by tests/test_cli.py, Slurm's by tests/slurm.
ELSEWHERE = {"commands.md", "cluster.md"}
pytestmark = pytest.mark.slow


def scripts(page: str) -> str:
    return "".join(re.findall(r"```bash\n(.*?)```", (DOCS / page).read_text(encoding="utf-8"), re.DOTALL))


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


def test_the_tutorial(tmp_path: Path, warm_path: str) -> None:
    """As it stands, on fewer sessions."""
    (tmp_path / "sample_data").symlink_to(DATA)
    run(
        scripts("tutorial.md"),
        tmp_path,
        {"--limit 60": "--limit 12", "--samples 2": "--samples 1 --max-prompts 6"},
        warm_path,
    )
    assert (tmp_path / "runs/tutorial/report.html").stat().st_size > 10_000
    assert (tmp_path / "runs/tutorial/train/model/model.safetensors").exists()


def test_the_guide(tmp_path: Path, warm_path: str) -> None:
    log = (DATA / "logs" / "openai.jsonl").read_text(encoding="utf-8").splitlines()[:6]
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / "monday.jsonl").write_text("\n".join(log) + "\n", encoding="utf-8")
    prompts = (DATA / "prompts.jsonl").read_text(encoding="utf-8").splitlines()[:4]
    (tmp_path / "held-out.jsonl").write_text("\n".join(prompts) + "\n", encoding="utf-8")
    labels = '{"turn_id": "monday:1:1", "reward": -1}\n{"turn_id": "monday:2:1", "reward": 1}\n'
    (tmp_path / "labels.jsonl").write_text(labels, encoding="utf-8")
    with transformers_serve(MODEL, tmp_path / "server.log") as url:
        names = {"http://localhost:8000/v1": url, "Qwen/Qwen3-32B": str(MODEL), "Qwen/Qwen3-4B": str(MODEL)}
        run(scripts("guide.md"), tmp_path, names, warm_path)
    assert (tmp_path / "runs/second/train/model/model.safetensors").exists()


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


def test_the_pages_are_a_site_whose_links_resolve(tmp_path: Path) -> None:
    pytest.importorskip("mkdocs", reason="pip install -e '.[test]' has it")
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(tmp_path)],
        cwd=DOCS.parent, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    pictures = re.findall(r"!\[[^]]+\]\(([^)]+)\)", "".join(p.read_text(encoding="utf-8") for p in DOCS.glob("*.md")))
    assert pictures
    for name in [*pictures, "index.html", "guide/index.html"]:
        assert (tmp_path / name).exists(), name
