"""Arguments of the chat template that hold for a stage: its own, or those that an earlier stage recorded."""

from collections.abc import Sequence
from pathlib import Path

from opdkit.config.fields import parse_pairs
from opdkit.errors import ConfigError
from opdkit.store.plans import has_stage, manifest

_FLAG = "--template-arg"


def choose_template_args(run: Path, stage: str, given: Sequence[str] = (), *, binding: bool = True) -> tuple[str, ...]:
    """Return the arguments, each as NAME=VALUE, that `stage` of `run` recorded; `given` if it recorded none.

    `given` is the `--template-arg` of the calling stage. With `binding`, the caller reads what `stage` wrote: its
    prompts must be the same, so another `given` raises ConfigError. Otherwise the caller samples replies of its own:
    `given` wins, and `stage` need not exist.
    """
    if not binding and (given or not has_stage(run, stage)):
        return tuple(given)
    recorded = manifest(run, stage)["plan"]["config"].get("template_arg")
    if recorded is None:  # an extract stage records them only in a rollout's run
        return tuple(given)
    if given and parse_pairs(given, _FLAG) != parse_pairs(recorded, _FLAG):
        raise ConfigError(
            f"{_FLAG} {' '.join(given)} differs from that of the {stage} stage of {run} "
            f"({' '.join(recorded) or 'none'}); leave it out: the same arguments are used"
        )
    return tuple(recorded)
