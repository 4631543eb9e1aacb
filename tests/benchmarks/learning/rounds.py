"""Second round: the trained model answers the logged prompts again, and learns from those replies."""

from pathlib import Path

from opdkit.config.fields import JSON
from opdkit.config.rollout import RolloutConfig
from opdkit.config.teacher import TeacherConfig
from opdkit.rollout.stage import run as rollout
from opdkit.teacher.stage import run as teach

from .runs import MAX_NEW_TOKENS, MODEL, branch, final_model, passed, trained


def two_rounds(
    work: Path, name: str, options: JSON, seed: int, epochs: int, samples: int, source: str = "base"
) -> JSON:
    """Train on the log, then for an epoch on the trained model's rollout; return the shares passed after each round."""
    first, second = (work / f"rounds-{name}-{seed}-{number}" for number in (1, 2))
    branch(work / source, first)
    trained(first, MODEL, options, seed, epochs)
    student = final_model(first)
    rollout(RolloutConfig(run=second, from_run=first, model=str(student), samples=samples, seed=seed,
                          max_new_tokens=MAX_NEW_TOKENS))  # fmt: skip
    teach(TeacherConfig(run=second, model=str(student)))
    trained(second, student, options, seed, 1)
    return {"first": passed(student, seed), "second": passed(final_model(second), seed)}
