"""Tests of scores of whole real sessions against each prompt read alone: some of tau-bench, all with OPDKIT_EXACT=1.

`python -m tests.benchmarks.scoring --exact` does the same and stores the results for docs/performance.md.
"""

import os

import pytest
from benchmarks import exact
from benchmarks.sessions import LOGS, Log, evenly_spaced, read, tokenizer_of

ALL = os.environ.get("OPDKIT_EXACT") == "1"
MOST = 1e-4  # nats, in float32
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not (LOGS / "taubench").is_dir(), reason="the conversations are not there"),
]


@pytest.fixture(scope="module")
def whole() -> Log:
    return read(LOGS / "taubench")


@pytest.fixture(scope="module")
def log(whole) -> Log:
    """Return three sessions of at most 8 turns, or all sessions with OPDKIT_EXACT=1."""
    short = sorted((i for i, turns in enumerate(whole.turns) if len(turns) <= 8), key=lambda i: len(whole.turns[i]))
    return whole if ALL else log_of_turns(whole, evenly_spaced(short, 3))


def log_of_turns(log: Log, chosen: list[int]) -> Log:
    return Log([log.sessions[i] for i in chosen], [log.turns[i] for i in chosen])


def shortest_with_tools(log: Log) -> Log:
    used = [i for i, s in enumerate(log.sessions) if sum(m["role"] == "tool" for m in s["messages"][:-2])]
    return log_of_turns(log, [min(used, key=lambda i: len(log.turns[i]))])


@pytest.fixture(scope="module")
def tokenizer(log):
    return tokenizer_of(log, exact.VOCABULARY if ALL else 2048)


def test_whole_sessions_have_the_scores_of_single_turns(log, tokenizer):
    """Every turn that answers a user is also read with a hint."""
    actual = exact.measure(log, tokenizer, exact.OURS, None)
    assert (actual.turns, actual.dropped) == (sum(map(len, log.turns)), {})
    assert actual.readings > actual.turns
    assert actual.largest <= MOST


@pytest.mark.parametrize("template", exact.TEMPLATES)
def test_templates_of_real_models(whole, tokenizer, template):
    """Some templates rewrite earlier turns; turns that a template cannot render are dropped with its message."""
    pytest.importorskip("trl")
    actual = exact.measure(whole if ALL else shortest_with_tools(whole), tokenizer, template, exact.SAMPLE)
    assert actual.turns >= 1  # DeepSeek's opens a thought, which these replies lack: only replies after a tool are left
    assert all(r.startswith("template: ") or r == "reply does not continue the prompt" for r in actual.dropped)
    assert actual.largest <= MOST
