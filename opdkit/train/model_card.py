"""Model card: the README.md beside trained weights, for people and for the hub.

It says what the run knows of the weights. Models are named as the options named them; paths of the run and of its logs,
addresses, and texts of the logs are left out.
"""

from pathlib import Path

from huggingface_hub import ModelCardData, metadata_load, try_to_load_from_cache

from opdkit.config.command_line import command_line
from opdkit.config.fields import JSON
from opdkit.config.train import TrainConfig
from opdkit.console import counted
from opdkit.store.atomic import write_text
from opdkit.store.plans import manifest
from opdkit.store.turn_ids import logged_session_id
from opdkit.train.data_summary import hints_and_rewards
from opdkit.train.training_set import TrainingSet
from opdkit.version import __version__

SCORES = "## Scores\n\n"


def model_card(config: TrainConfig, data: TrainingSet, epochs: int, steps: int) -> str:
    """Return the card of the student after so many epochs and optimizer steps."""
    judge, teacher = (manifest(config.run, stage)["plan"]["config"] for stage in ("judge", "teacher"))
    judges = [f"`{name}`" for name in (judge.get("judge"), judge.get("judge_model")) if name]
    base = _card_of(config.model)
    hinted, rewards = hints_and_rewards(data)
    sessions = {logged_session_id(turn.session_id) for turn in data.turns}
    named = ("model", "objective", "epochs")
    settings = " ".join(command_line("train", TrainConfig, Path("RUN"), config.plan(), named)[3:])
    facts = {
        "Base model": f"`{config.model}`",
        "Licence of the base model": base.get("license") or "unknown: no card of the base model names one",
        "Data": f"{counted(len(data.turns), 'reply')} in {counted(len(sessions), 'session')}; {hinted} with a hint; "
                f"rewards: {rewards.count(1)} +1, {rewards.count(0)} 0, {rewards.count(-1)} -1",
        "Judge": ", ".join(judges) or "none",
        "Teacher": ", ".join(f"`{name}`" for name in teacher["teacher"]) or "the base model itself, given the hint",
        "Objective": f"`{config.objective}`, {counted(epochs, 'epoch')}, {counted(steps, 'optimizer step')}",
        "Other settings": f"`{settings}`" if settings else "the defaults",
    }  # fmt: skip
    hub_name = base.get("base_model") if Path(config.model).is_dir() else config.model
    header = ModelCardData(
        base_model=hub_name, library_name="transformers", pipeline_tag="text-generation", tags=["opdkit"]
    )
    return (
        f"---\n{header.to_yaml()}\n---\n\n# Trained with opdkit {__version__}\n\n"
        + "".join(f"- {name}: {' '.join(str(fact).split())}\n" for name, fact in facts.items())
        + f"\n{SCORES}Not measured yet: `opdkit eval RUN --prompts FILE` adds them here.\n"
    )


def adapter_card(card: str) -> str:
    """Return the card of a model as that of the LoRA adapters alone."""
    return card.replace(": transformers\n", ": peft\n", 1).replace("- opdkit\n", "- opdkit\n- lora\n", 1)


def add_scores(folder: Path, scores: str) -> None:
    """Replace the scores in the card of a model folder; a card without such a section stays as it is."""
    path = folder / "README.md"
    text = path.read_text(encoding="utf-8") if path.exists() else ""
    before, heading, _ = text.partition(SCORES)
    if heading:
        write_text(path, before + heading + scores)


def _card_of(model: str) -> JSON:
    """Return the header of a model's own card, in its folder or in the hub's cache; {} where none can be read."""
    try:
        path = Path(model) / "README.md" if Path(model).is_dir() else try_to_load_from_cache(model, "README.md")
        return metadata_load(str(path)) or {}
    except Exception:  # there is none, or its author wrote something else than a header of YAML
        return {}
