from pathlib import Path

import pytest
from small_logs import chat, jsonl


@pytest.fixture
def log(tmp_path) -> Path:
    """Write a log of 20 sessions, one per line and with one turn each."""
    return jsonl(tmp_path / "log.jsonl", *(chat(f"u{i}", f"a{i}", f"v{i}", n=i) for i in range(20)))


@pytest.fixture
def shared_data() -> Path:
    """Return the folder of real logs beside the checkout; skip the test if there is none."""
    folder = Path(__file__).parents[3] / "shared" / "data"
    if not folder.is_dir():
        pytest.skip("../shared/data is not here")
    return folder
