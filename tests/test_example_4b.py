"""Tests that docs/example-4b.md is computed from what was measured, and that its commands run."""

import importlib.util
import os
import re
import subprocess
from pathlib import Path

import pytest
from sample_world import DATA, MODEL
from transformers_server import transformers_serve

DOCS = Path(__file__).parent.parent / "docs"
PAGE = (DOCS / "example-4b.md").read_text(encoding="utf-8")
_spec = importlib.util.spec_from_file_location("example_4b", DOCS / "example_4b.py")
assert _spec
assert _spec.loader
example = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(example)


def test_the_page_is_up_to_date() -> None:
    assert example.page() == PAGE, "run: python docs/example_4b.py"


def test_what_fits_is_what_the_page_says() -> None:
    """The words yes, no and hardly agree with the numbers beside them."""
    rows = re.findall(r"^\| .*? \| ([\d.]+) \| (\w+) \| (\w+) \|$", PAGE, re.MULTILINE)
    assert len(rows) == 4
    for needed, in_80, in_24 in rows:
        assert in_80 == ("yes" if float(needed) < 72 else "no")
        assert in_24 == ("yes" if float(needed) < 20 else "hardly" if float(needed) < 24 else "no")


def test_the_order_of_the_costs_is_what_the_page_says() -> None:
    values = example.numbers()
    assert values["judge_minutes"] > values["train_checkpointed"] > values["teacher_minutes"]


@pytest.mark.slow
def test_its_commands_run(tmp_path: Path, warm_path: str) -> None:
    (tmp_path / "sample_data").symlink_to(DATA)
    (tmp_path / "logs").mkdir()
    log = (DATA / "logs" / "openai.jsonl").read_text(encoding="utf-8").splitlines()[:1]
    (tmp_path / "logs" / "air.jsonl").write_text("\n".join(log) + "\n", encoding="utf-8")
    prompt = (DATA / "prompts.jsonl").read_text(encoding="utf-8").splitlines()[0]
    (tmp_path / "held-out.jsonl").write_text(prompt + "\n", encoding="utf-8")
    script = "set -euo pipefail\n" + "".join(re.findall(r"```bash\n(.*?)```", PAGE, re.DOTALL))
    with transformers_serve(MODEL, tmp_path / "server.log") as url:
        models = ("Qwen/Qwen3-32B", "Qwen/Qwen3-4B", "models/Qwen3-4B")
        names = {"http://localhost:8000/v1": url} | dict.fromkeys(models, str(MODEL))
        names["--measure 4 --price"] = "--measure 1 --price"
        names["--template-arg enable_thinking=false"] = ""  # the sample model's template takes no arguments
        for old, new in names.items():
            assert old in script
            script = script.replace(old, new)
        environment = os.environ | {"NO_PROXY": "127.0.0.1", "OMP_NUM_THREADS": "1", "PATH": warm_path}
        done = subprocess.run(["bash", "-c", script], cwd=tmp_path, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "runs/air/train/model/model.safetensors").exists()
    assert (tmp_path / "runs/air/train/adapter").is_dir()
    numbers = re.findall(r"\d+,\d+", PAGE.split("The dry run of the judge counts")[1])
    assert len(numbers) == 5
    assert [number for number in numbers if number not in done.stdout] == []
    assert "804 votes" in done.stderr
