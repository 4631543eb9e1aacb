"""Scores of whole real sessions against each prompt read alone: some of tau-bench, all with OPDKIT_EXACT=1.

`python -m tests.benchmarks.scoring --exact` does the same and keeps what it found for docs/performance.md.
"""

import os

import pytest
from benchmarks import exact
from benchmarks.sessions import LOGS, Log, evenly_spaced, read, tokenizer_of

ALL = os.environ.get("OPDKIT_EXACT") == "1"
MOST = 1e-4  # nats, in float32
pytestmark = pytest.mark.skipif(not (LOGS / "taubench").is_dir(), reason="the conversations are not there")


@pytest.fixture(scope="module")
def log() -> Log:
    """Sessions of at most 16 turns, evenly spaced by their number, unless all are asked for."""
    whole = read(LOGS / "taubench")
    if ALL:
        return whole
    short = sorted((i for i, turns in enumerate(whole.turns) if len(turns) <= 16), key=lambda i: len(whole.turns[i]))
    chosen = evenly_spaced(short, 4)
    return Log([whole.sessions[i] for i in chosen], [whole.turns[i] for i in chosen])


@pytest.fixture(scope="module")
def tokenizer(log):
    return tokenizer_of(log, exact.VOCABULARY if ALL else 2048)


def test_whole_sessions_have_the_scores_of_single_turns(log, tokenizer):
    """pitfall 1, pitfall 27: with a hint at every turn that answers a user."""
    found = exact.measure(log, tokenizer, exact.OURS, None)
    assert (found.turns, found.dropped) == (sum(map(len, log.turns)), {})
    assert found.readings > found.turns
    assert found.largest <= MOST


@pytest.mark.parametrize("template", exact.TEMPLATES)
def test_templates_of_real_models(log, tokenizer, template):
    """pitfall 27: also where a template rewrites earlier turns; what it cannot render is dropped with its words."""
    pytest.importorskip("trl")
    found = exact.measure(log, tokenizer, template, exact.SAMPLE if ALL else 3)
    assert found.turns + sum(found.dropped.values()) > 0
    assert all(reason.startswith("template: ") for reason in found.dropped), found.dropped
    assert found.largest <= MOST
