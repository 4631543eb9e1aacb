"""Fixtures for the tests of the judges."""

import pytest

from opdkit.model.server import traffic


@pytest.fixture
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shorten the pauses between attempts, bypass any proxy for loopback, and unset the API key."""
    monkeypatch.setattr(traffic, "FIRST_PAUSE", 0.01)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
