from pathlib import Path

import pytest


@pytest.fixture
def shared_data() -> Path:
    """Real logs beside the checkout; a test that needs them is skipped where they are not."""
    folder = Path(__file__).parents[4] / "shared" / "data"
    if not folder.is_dir():
        pytest.skip("../shared/data is not here")
    return folder
