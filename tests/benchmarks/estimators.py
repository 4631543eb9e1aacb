"""What each KL estimator expects on logged tokens, by enumeration of the vocabulary: a table in docs/objectives.md.

python -m tests.benchmarks.estimators
"""

import torch

from opdkit.train.objective.kl import kl_to_reference

VOCABULARY, DRAWS = 50, 1000
# what was compared -> how far the logits of the old policy and of the reference are from the student's (standard
# deviation); None: the old policy is the reference
CASES = {
    "the student has moved a little": (0.1, None),
    "the student has moved far": (1.0, None),
    "the reference is older than the old policy": (0.3, 1.0),
}


def expectations(old_distance: float, reference_distance: float | None) -> list[float]:
    """Return the mean over random policies of KL(student || reference) and of what k1, k2 and k3 expect (nats)."""
    generator = torch.Generator().manual_seed(0)
    draw = lambda: torch.randn(DRAWS, VOCABULARY, generator=generator, dtype=torch.float64)  # noqa: E731
    logits = draw()
    student, old = logits.log_softmax(-1), (logits + old_distance * draw()).log_softmax(-1)
    reference = old if reference_distance is None else (logits + reference_distance * draw()).log_softmax(-1)
    exact = (student.exp() * (student - reference)).sum(-1)
    estimates = [(old.exp() * kl_to_reference(student, reference, k, old)).sum(-1) for k in ("k1", "k2", "k3")]
    return [values.mean().item() for values in (exact, *estimates)]


def table() -> str:
    """Return the table in Markdown."""
    rows = [(case, *(f"{value:.3f}" for value in expectations(*distances))) for case, distances in CASES.items()]
    return "\n".join(
        ["| | exact | k1 | k2 | k3 |", "|---|---|---|---|---|", *(f"| {' | '.join(row)} |" for row in rows)]
    )


if __name__ == "__main__":
    print(table())
