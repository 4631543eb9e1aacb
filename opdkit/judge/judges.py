"""Judges that are models: loaded when they are needed, and tried before the votes of earlier ones are removed."""

from pathlib import Path
from typing import Any, NamedTuple

from opdkit.config.commands import load_function
from opdkit.config.judge import JudgeConfig
from opdkit.judge.votes import TRIAL

# "module:class", imported only when chosen. The class takes the configuration and the folder of the stage that the
# votes are for, and has the methods `ask` (an Ask) and `count_work`.
MODEL_JUDGES = {"local": "opdkit.judge.local:LocalJudge", "endpoint": "opdkit.judge.endpoint:Endpoint",
          "batch": "opdkit.judge.batch:Batch"}  # fmt: skip
FIRST_JUDGES = MODEL_JUDGES | {"endpoint": "opdkit.judge.endpoint:FirstEndpoint"}  # first judges of a cascade
SERVED = ("endpoint", "batch")  # answers are stored as they arrive, and may differ the next time


class Judges(NamedTuple):
    """Judge, which in a cascade is the second one, and first judge of a cascade; None for one that there is not."""

    judge: Any = None
    first: Any = None


def load_judges(config: JudgeConfig, folder: Path | None = None, tried: Judges | None = None) -> Judges:
    """Return the judges that are models; those in `tried` are loaded. `folder`: of the stage that the votes are for."""
    if config.judge not in MODEL_JUDGES:
        return Judges()
    (judge, first), where = tried or Judges(), [folder] if folder else []
    judge = judge or load_function(MODEL_JUDGES[config.judge])(config, *where)
    if config.first:
        first = first or load_function(FIRST_JUDGES[config.first.judge])(config.first, *where)
    return Judges(judge, first)


def try_judges(config: JudgeConfig) -> Judges:
    """Return the local judges, loaded. Ask each endpoint a trial question, and look at the files of a batch.

    Endpoints are opened later, when the folder of the stage is there. Raises OpdkitError if a judge cannot be used.
    """
    if config.judge == "batch":
        load_function("opdkit.judge.batch:check_answers")(config.in_)
    tried = []
    for one, judges in ((config, MODEL_JUDGES), (config.first, FIRST_JUDGES)):
        judge: Any = load_function(judges[one.judge])(one) if one and one.judge in ("local", "endpoint") else None
        if one and one.judge == "endpoint":
            judge.ask([TRIAL])
            judge = None
        tried.append(judge)
    return Judges(*tried)
