"""Training benchmark: the usual way and opdkit's have the same gradient."""

from benchmarks.models import build
from benchmarks.training import Step, compare

from opdkit.model.scoring import PromptResponse
from opdkit.train.policy import Policy


def test_both_ways_have_the_same_gradient() -> None:
    a, b, c, d = ([n] * 9 for n in range(1, 5))
    step = Step([PromptResponse(a, b), PromptResponse(a + b + c, d), PromptResponse(d, a + c)], ["0", "0", "1"])
    found = compare("three turns", Policy(build("1m", 64)), step, 1, {})
    assert (found.facts["tokens read, usual"], found.facts["tokens read, ours"]) == (81, 63)
    assert float(found.facts["difference of the gradients, relative"]) <= 1e-5
    assert len(found.ratios) == 1
