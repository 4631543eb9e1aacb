"""Tests the recall of `--redact` by kind, on labelled strings in the documented formats (redaction_kinds.py)."""

import pytest
from redaction_kinds import KINDS, cases, is_left

from opdkit.extract.redact import Redactor


@pytest.fixture(scope="module")
def redactor():
    return Redactor(True, ())


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_is_replaced(redactor, kind):
    """Secrets are replaced in prose, settings, JSON, code, headers and brackets."""
    for text, secrets in cases(kind):
        redacted = redactor.text(text)
        assert not any(is_left(secret, redacted) for secret in secrets), f"{text!r} -> {redacted!r}"
        assert redactor.text(redacted) == redacted  # a placeholder is not redacted again
