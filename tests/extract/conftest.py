from pathlib import Path

import pytest
from small_logs import chat, jsonl


@pytest.fixture
def log(tmp_path) -> Path:
    """20 sessions of one turn, a line each."""
    return jsonl(tmp_path / "log.jsonl", *(chat(f"u{i}", f"a{i}", f"v{i}", n=i) for i in range(20)))
