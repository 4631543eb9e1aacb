"""Say which models a command loads. Nothing here imports pyarrow, so that commands without tables start faster."""

from opdkit.config.fields import CommandConfig
from opdkit.config.teacher_models import parse_teachers
from opdkit.console import say


def list_models(config: CommandConfig) -> list[str]:
    """Return the models, by path or name, that the options make a command load; not those behind a server."""
    options = vars(config)
    judge = options.get("judge_model") if options.get("judge") == "local" else None
    first = options.get("judge_first") if not options.get("judge_first_url") else None
    single = [first, judge, *(options.get(name) for name in ("model", "trained", "reference"))]
    return [str(model) for model in (*single, *parse_teachers(options.get("teacher", ())).values()) if model]


def announce_models(name: str, config: CommandConfig) -> None:
    """Say which models a command loads. Called before its module is imported: torch alone takes seconds."""
    models = list_models(config) or ([f"{vars(config)['run']}/train/model"] if name == "eval" else [])
    if models and name not in ("init", "run", "slurm", "night"):  # these load none, or their stages announce them
        is_measured = not vars(config).get("dry_run") or vars(config).get("measure")
        what = "" if is_measured and name != "doctor" else "the tokenizer of "  # a dry run loads no weights
        say(f"{name}: loading torch and {what}{' and '.join(dict.fromkeys(models))} ...")
