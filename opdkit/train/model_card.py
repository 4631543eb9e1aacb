"""Model card: the README.md beside trained weights, for people and for the hub. Its template is model_card.md.

Models are named as in the options. Paths of the run and of logs, URLs, texts and filter conditions are left out.
"""

import contextlib
import json
from pathlib import Path

from huggingface_hub import metadata_load

from opdkit.config.command_line import command_line
from opdkit.config.fields import JSON
from opdkit.config.train import TrainConfig
from opdkit.console import counted
from opdkit.model.folder import find_file
from opdkit.store.atomic import write_text
from opdkit.store.disk import disk_errors_explained
from opdkit.store.plans import manifest
from opdkit.train.data_summary import describe_signal
from opdkit.train.training_set import TrainingSet
from opdkit.version import __version__

_JUDGES = ("judge", "judge_model", "judge_first")  # options that name the judge


def make_model_card(config: TrainConfig, data: TrainingSet, epochs: int, steps: int) -> str:
    """Return the card of the student after `epochs` epochs and `steps` optimizer steps."""
    judge, teacher = (manifest(config.run, stage)["plan"]["config"] for stage in ("judge", "teacher"))
    base: JSON = {}
    with contextlib.suppress(Exception):  # no card, or a card without a valid YAML header
        base = metadata_load(str(find_file(config.model, "README.md"))) or {}
    hub_name = base.get("base_model") if Path(config.model).is_dir() else config.model
    # The second key is opdkit's own: a later training with this model as its base finds the licence there.
    licence = " ".join(str(base.get("license") or base.get("base_model_license") or "").split())
    header = {"base_model": hub_name, "base_model_license": licence}
    plan = config.plan() | {"filter": ["..."] if config.filter else []}
    options = command_line("train", TrainConfig, Path("RUN"), plan, ("model", "objective", "epochs"))[3:]
    return Path(__file__).with_suffix(".md").read_text(encoding="utf-8").format(
        header="".join(f"{key}: {json.dumps(value)}\n" for key, value in header.items() if value),
        version=__version__,
        model=config.model,
        licence=licence or "unknown: no card of the base model names one",
        data=describe_signal(data),
        judge=", ".join(f"`{judge[key]}`" for key in judge if key in _JUDGES and judge[key]) or "none",
        teacher=", ".join(f"`{name}`" for name in teacher["teacher"]) or "the base model itself, given the hint",
        objective=config.objective,
        training=f"{counted(epochs, 'epoch')}, {counted(steps, 'optimizer step')}",
        settings=f"`{' '.join(options)}`" if options else "the defaults",
    )  # fmt: skip


def add_scores(folder: Path, scores: str) -> None:
    """Replace the section of scores in a model folder's card. A card without that section is left unchanged."""
    path = folder / "README.md"
    old = path.read_text(encoding="utf-8") if path.exists() else ""
    before, heading, rest = old.partition("## Scores\n\n")
    _, next_heading, behind = rest.partition("\n## ")
    if heading and old != (new := before + heading + scores + next_heading + behind):
        with disk_errors_explained(path):
            write_text(path, new)
