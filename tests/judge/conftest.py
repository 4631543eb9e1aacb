"""Fixtures of the tests of judges."""

import pytest

from opdkit.model.server import traffic


@pytest.fixture
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a server on loopback be asked again soon, past any proxy and without a key."""
    monkeypatch.setattr(traffic, "FIRST_PAUSE", 0.01)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
