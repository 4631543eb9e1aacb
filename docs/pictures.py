"""Draw the pictures of objectives.md with opdkit's own losses and a reply of the sample log.

python docs/pictures.py
"""

import tempfile
from pathlib import Path

import matplotlib as mpl
import torch
from matplotlib import pyplot as plt
from torch import Tensor

from opdkit.commands.run import run_stage
from opdkit.config.extract import ExtractConfig
from opdkit.config.fields import StageConfig
from opdkit.config.judge import JudgeConfig
from opdkit.config.teacher import TeacherConfig
from opdkit.config.train import TrainConfig
from opdkit.store.reading import read_all
from opdkit.train.objective.advantages import penalise_overlong
from opdkit.train.objective.losses import divergence, policy_gradient

HERE = Path(__file__).parent
DATA = HERE.parent / "sample_data"
# Colours that colour-blind people can tell apart (Okabe and Ito); the line styles differ too.
BLUE, ORANGE, GREEN = "#0072B2", "#D55E00", "#009E73"


def clip(folder: Path) -> None:
    """Draw the loss of the clipped policy gradient against the ratio, for a good and a bad token."""
    figure, panels = plt.subplots(1, 2, figsize=(7.2, 2.8), layout="constrained", sharey=True)
    rho = torch.linspace(0.01, 4, 400)
    low, high = TrainConfig.clip_low, TrainConfig.clip_high
    for axes, advantage in zip(panels, (1.0, -1.0), strict=True):
        for label, colour, line, dual in (("clipped", BLUE, "-", 0.0), ("and --dual-clip 3", ORANGE, "--", 3.0)):
            if dual and advantage > 0:
                continue
            loss, _, _ = policy_gradient(
                rho.log(), torch.zeros_like(rho), torch.full_like(rho, advantage), low, high, dual
            )
            axes.plot(rho, loss, color=colour, linestyle=line, label=label)
        axes.axvspan(1 - low, 1 + high, color="0.9", zorder=0)
        axes.set(xlabel="probability now / before training", title=f"A = {advantage:+.0f}")
        axes.legend(frameon=False)
    panels[0].set_ylabel("loss at the token")
    _save(figure, folder / "objectives-clip.svg")


def divergences(folder: Path) -> None:
    """Draw three divergences from a teacher that gives a token 0.9, against the student's probability of it."""
    figure, axes = plt.subplots(figsize=(7.2, 3.0), layout="constrained")
    student = torch.linspace(0.005, 0.995, 199)
    teacher = torch.full_like(student, 0.9)
    kinds = ((0.0, "forward KL (alpha 0)", BLUE, "-"), (0.5, "Jensen-Shannon (alpha 0.5)", GREEN, "-."),
             (1.0, "reverse KL (alpha 1)", ORANGE, "--"))  # fmt: skip
    for alpha, label, colour, line in kinds:
        axes.plot(
            student, divergence(_binary(student), _binary(teacher), alpha), color=colour, linestyle=line, label=label
        )
    axes.axvline(0.9, color="0.6", linewidth=0.8)
    axes.set(
        xlabel="student's probability of a token to which the teacher gives 0.9", ylabel="divergence, nats", ylim=(0, 3)
    )
    axes.legend(frameon=False)
    _save(figure, folder / "objectives-divergence.svg")


def penalties(folder: Path) -> None:
    """Draw the overlong penalty against the length of a reply, in both shapes."""
    figure, axes = plt.subplots(figsize=(7.2, 2.6), layout="constrained")
    longest, cache = 1000, 200
    lengths = range(700, 1101)
    for shape, colour, line in (("linear", BLUE, "-"), ("quadratic", ORANGE, "--")):
        values = [penalise_overlong(length, longest, cache, shape) for length in lengths]
        axes.plot(lengths, values, color=colour, linestyle=line, label=f"--overlong-shape {shape}")
    axes.axvspan(longest - cache, longest, color="0.9", zorder=0)
    axes.set(xlabel="sampled tokens of the reply", ylabel="added to its reward", ylim=(-1.1, 0.1))
    axes.legend(frameon=False, loc="lower left")
    _save(figure, folder / "objectives-overlong.svg")


def _binary(probability: Tensor) -> Tensor:
    """Return log-probs [N, 1] of a support of one token; the remaining mass is the other bin."""
    return probability.log().unsqueeze(-1)


def tokens(folder: Path) -> None:
    """Draw one logged reply token by token: its probabilities under student and hinted teacher, and the advantage."""
    row, texts = _corrected_reply()
    student, teacher = torch.tensor(row["old_logprobs"]), torch.tensor(row["teacher_logprobs"])
    figure, (above, below) = plt.subplots(2, 1, figsize=(7.2, 4.0), layout="constrained", sharex=True)
    places = range(len(texts))
    above.plot(places, student.exp(), "o-", color=BLUE, label="student, without the hint")
    above.plot(places, teacher.exp(), "s--", color=ORANGE, label="teacher, with the hint")
    above.set(ylabel="probability", ylim=(-0.05, 1.05), title=f"hint: {row['hint']}")
    above.legend(frameon=False)
    advantage = teacher - student
    below.bar(places, advantage, color=[BLUE if a >= 0 else ORANGE for a in advantage])
    below.axhline(0, color="0.4", linewidth=0.8)
    below.set(ylabel="advantage, nats")
    below.set_xticks(list(places), labels=texts, rotation=60, ha="right")
    _save(figure, folder / "objectives-tokens.svg")


def _corrected_reply() -> tuple[dict[str, object], list[str]]:
    """Return the target with the largest mean absolute advantage among the log's short replies, and its tokens."""
    from opdkit.model.load import load_tokenizer

    model = str(DATA / "model")
    with tempfile.TemporaryDirectory() as scratch:
        run = Path(scratch) / "run"
        stages: dict[str, StageConfig] = {
            "extract": ExtractConfig(run=run, logs=(str(DATA / "logs" / "openai.jsonl"),), limit=12),
            "judge": JudgeConfig(run=run, judge="local", judge_model=model, votes=3, max_new_tokens=64),
            "teacher": TeacherConfig(run=run, model=model, top_k=0),
        }
        for name, config in stages.items():
            run_stage(name, config)
        hinted = [row for row in read_all(run, "targets") if row["hint"] and len(row["response_ids"]) <= 24]

    def size(row: dict[str, object]) -> float:
        return (torch.tensor(row["teacher_logprobs"]) - torch.tensor(row["old_logprobs"])).abs().mean().item()

    row = max(hinted, key=size)
    tokenizer = load_tokenizer(model)
    return row, [tokenizer.decode([i]).replace(" ", "␣").replace("\n", "↵") for i in row["response_ids"]]


def _save(figure: plt.Figure, path: Path) -> None:
    figure.savefig(path, metadata={"Date": None, "Creator": None})
    plt.close(figure)


def draw(folder: Path) -> None:
    """Draw all pictures into `folder`; one version of matplotlib always writes the same bytes."""
    mpl.rcParams.update({"svg.hashsalt": "opdkit", "svg.fonttype": "none", "font.size": 9, "axes.spines.top": False,
                         "axes.spines.right": False})  # fmt: skip
    folder.mkdir(parents=True, exist_ok=True)
    clip(folder)
    divergences(folder)
    penalties(folder)
    tokens(folder)


if __name__ == "__main__":
    draw(HERE)
