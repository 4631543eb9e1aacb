from pathlib import Path

import pytest
from small_logs import chat, jsonl


@pytest.fixture
def log(tmp_path) -> Path:
    """20 sessions of one turn, one per line."""
    return jsonl(tmp_path / "log.jsonl", *(chat(f"u{i}", f"a{i}", f"v{i}", n=i) for i in range(20)))


@pytest.fixture
def shared_data() -> Path:
    """Real logs beside the checkout; a test that needs them is skipped where they are not."""
    folder = Path(__file__).parents[3] / "shared" / "data"
    if not folder.is_dir():
        pytest.skip("../shared/data is not here")
    return folder
