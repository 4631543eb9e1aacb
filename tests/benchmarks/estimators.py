"""Expected value of each KL estimator on logged tokens, summed over the vocabulary: a table in docs/objectives.md.

python -m tests.benchmarks.estimators
"""

import torch

from opdkit.train.objective.losses import kl_to_reference

VOCABULARY, DRAWS = 50, 1000
# case -> distances of the old policy's and of the reference's logits from the student's (standard deviations); None:
# the old policy is the reference
CASES = {
    "the student has moved a little": (0.1, None),
    "the student has moved far": (1.0, None),
    "the reference is older than the old policy": (0.3, 1.0),
}
KINDS = ("k1", "k2", "k3")


def expectations(old_distance: float, reference_distance: float | None) -> tuple[list[float], list[float]]:
    """Return the means over random policies of KL(student || reference) and of the expected k1, k2 and k3 (nats).

    Also return the relative error of the expected gradient in the student's logits, for k1, k2 and k3: the norm of its
    difference from the KL's gradient over the norm of the KL's gradient.
    """
    generator = torch.Generator().manual_seed(0)
    draw = lambda: torch.randn(DRAWS, VOCABULARY, generator=generator, dtype=torch.float64)  # noqa: E731
    logits = draw().requires_grad_()
    student, old = logits.log_softmax(-1), (logits.detach() + old_distance * draw()).log_softmax(-1)
    far = None if reference_distance is None else (logits.detach() + reference_distance * draw()).log_softmax(-1)
    reference = old if far is None else far
    estimates = [old.exp() * kl_to_reference(student, reference, kind, old) for kind in KINDS]
    values = [(student.exp() * (student - reference)).sum(-1), *(estimate.sum(-1) for estimate in estimates)]
    exact, *others = (torch.autograd.grad(value.sum(), logits, retain_graph=True)[0] for value in values)
    errors = [((other - exact).norm() / exact.norm()).item() for other in others]
    return [value.mean().item() for value in values], errors


def table() -> str:
    """Return the table in Markdown."""
    lines = ["| | exact | k1 | k2 | k3 |", "|---|---|---|---|---|"]
    for case, distances in CASES.items():
        (exact, *values), errors = expectations(*distances)
        cells = [f"{value:.3f}, {error:.0%}" for value, error in zip(values, errors, strict=True)]
        lines.append(f"| {' | '.join([case, f'{exact:.3f}', *cells])} |")
    return "\n".join(lines)


if __name__ == "__main__":
    print(table())
