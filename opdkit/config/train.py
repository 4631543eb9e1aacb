"""Options of `opdkit train`."""

import importlib.util
import math
from dataclasses import dataclass
from pathlib import Path

from opdkit.config.conditions import parse_session_filters
from opdkit.config.fields import HOW, MEMORY, WHERE, Panel
from opdkit.config.shared import OBJECTIVES, REPEAT, ModelOptions, NamedTraining, shared_option
from opdkit.errors import ConfigError

DATA, LOSS = Panel("What to train on"), Panel("Objective")
ENOUGH_STEPS, MOST_EPOCHS = 90, 10  # a small log needs more passes; more than these hardly help
FEWEST = 3  # prompts of a kind to validate on; with one or two hints, there is no validation
MOST_CYCLES = 5  # of the schedule: while much is left to learn, train for as many epochs again


def fit_epochs(steps: int) -> int:
    """Return the number of epochs, 1 to MOST_EPOCHS, for ENOUGH_STEPS optimizer steps with `steps` per epoch."""
    return min(MOST_EPOCHS, math.ceil(ENOUGH_STEPS / max(1, steps)))


@dataclass(frozen=True, kw_only=True)
class TrainConfig(NamedTraining, ModelOptions):
    """Train the student on the teacher's and the judge's signal."""

    model: str = shared_option("model", DATA, "the model that the teacher stage scored")
    limit: int | None = shared_option("limit", DATA)
    filter: tuple[str, ...] = DATA.expert(
        (),
        "keep only sessions with FIELD=VALUE; as `opdkit extract --filter`; FIELD may also be session, the "
        f"session's id; {REPEAT}",
        check=parse_session_filters,
    )
    max_turns_per_session: int | None = DATA.expert(
        None, "at most N turns of a session; drawn by --seed, so that no user outweighs all others", unit="turns", low=1
    )
    holdout: float = DATA.option(0.0, "share of the sessions to keep for eval", low=0.0, high=0.9)
    order: str = DATA.expert(
        "random", "order of the turns; easy: advantages near 0", choices=("random", "easy-first", "hard-first")
    )
    objective: str = DATA.option(
        "blend",
        "what to learn from; opd: teacher - student on the logged token; binary: the reward; combine: opd + 0.2 "
        "binary; topk: teacher - student on the tokens of the support; hybrid: topk + 0.2 binary; distill: "
        "divergence from the teacher over the support; blend: distill + 0.1 binary; alternate: one step of binary "
        "on turns without a hint, one step of opd on turns with one",
        choices=OBJECTIVES,
    )
    reward_weight: float | None = LOSS.expert(None, "weight of the reward term; default: the objective's", low=0.0)
    teacher_weight: float | None = LOSS.expert(None, "weight of the teacher term; default: the objective's", low=0.0)
    support_weight: float | None = LOSS.expert(None, "weight of the support term; default: the objective's", low=0.0)
    divergence_weight: float | None = LOSS.expert(
        None, "weight of the divergence term; default: the objective's", low=0.0
    )
    advantage_clip: float = LOSS.expert(1.0, "clip teacher advantages to +-C; 0 is off", unit="nats", low=0.0)
    clip_low: float = LOSS.expert(0.2, "lower clip of the probability ratio: 1 - this", low=0.0, high=1.0)
    clip_high: float = LOSS.expert(0.28, "upper clip of the probability ratio: 1 + this", low=0.0)
    clip_low_end: float | None = LOSS.expert(
        None, "move --clip-low linearly to this by the last step", low=0.0, high=1.0
    )
    clip_high_end: float | None = LOSS.expert(None, "move --clip-high linearly to this by the last step", low=0.0)
    dual_clip: float = LOSS.expert(0.0, "bound of the ratio for negative advantages; above 1; 0 is off", low=0.0)
    divergence_alpha: float = LOSS.expert(
        0.5,
        "0 is forward KL, 1 is reverse KL; 0: KL(teacher, student); 1: KL(student, teacher); between: generalised "
        "Jensen-Shannon divergence with the mixture (1 - this) student + this teacher",
        low=0.0,
        high=1.0,
    )
    forward_kl: float = LOSS.expert(
        0.02, "weight of an added forward KL; teaches a student that is sure of another token; 0 is off", low=0.0
    )
    kl_coef: float = LOSS.expert(0.0, "weight of the KL to the reference; 0 is off", low=0.0)
    anchor_weight: float = LOSS.expert(
        0.2, "weight of the divergence from the old policy; on turns without a complaint; 0 is off", low=0.0
    )
    reference: str | None = LOSS.expert(
        None,
        "frozen model of the KL of --kl-coef; with the student's tokenizer; default: the student before training",
        needs="kl_coef",
    )
    kl_estimator: str = LOSS.expert(
        "k1", "estimator of the KL of --kl-coef; from the logged token", choices=("k1", "k2", "k3")
    )
    min_advantage: float = LOSS.expert(
        0.0, "skip tokens with a smaller difference; teacher terms: that of teacher and student", unit="nats", low=0.0
    )
    skip_first: int = LOSS.expert(
        0, "skip the first tokens of a reply; teacher terms: they may echo the hint", unit="tokens", low=0
    )
    confidence_weight: bool = LOSS.expert(False, "weigh tokens by the teacher's probability; teacher terms")
    behavior_cap: float = LOSS.expert(
        2.0, "cap of the importance weight of a token; student's probability over the logged one; 0 is off", low=0.0
    )
    negative_below: float = LOSS.expert(
        0.95, "negative rewards: only tokens less likely than this; under the student; 1 is all", low=0.0, high=1.0
    )
    group_normalise: str = LOSS.expert(
        "off",
        "normalise rewards of equal prompts; less their mean, over their standard deviation; repeated: a prompt "
        "that comes once keeps its reward; all: it gets 0",
        choices=("off", "repeated", "all"),
    )
    group_scale: str = LOSS.expert(
        "std", "divisor of --group-normalise; none: rewards less their mean (Dr. GRPO)", choices=("std", "none")
    )
    overlong_max: int = LOSS.expert(0, "replies of N tokens lose 1 of their reward; 0 is off", unit="tokens", low=0)
    overlong_cache: int = LOSS.expert(200, "the deduction begins N tokens earlier", unit="tokens", low=1)
    overlong_shape: str = LOSS.expert(
        "linear", "rise of the deduction; quadratic: slow at first", choices=("linear", "quadratic")
    )
    aggregation: str = LOSS.expert(
        "token-mean",
        "mean over tokens, or over turns; token-mean: all tokens of a step; turn-mean: the means of its turns",
        choices=("token-mean", "turn-mean"),
    )
    epochs: int | None = HOW.option(
        None,
        f"passes over the targets; default: as many as make {ENOUGH_STEPS} steps, at most {MOST_EPOCHS}, and up to "
        f"{MOST_CYCLES} times as many while the replies are far from the teacher's",
        unit="epochs",
        low=1,
    )
    learning_rate: float | None = HOW.option(None, "peak learning rate; default: found by --step-limit", low=0.0)
    step_limit: float = HOW.expert(
        1.0, "largest KL of one optimizer step; on some of its own replies; a larger step is made smaller; 0 is off",
        unit="nats", low=0.0,
    )  # fmt: skip
    batch_turns: int = HOW.option(
        16, "turns per optimizer step; over all processes; with whole sessions, at least this many", unit="turns", low=1
    )
    batch_by: str = HOW.expert(
        "session",
        "draw whole sessions, or single turns; session: whole ones until --batch-turns; what they share is read once",
        choices=("session", "turn"),
    )
    validate: int = HOW.option(
        32,
        "prompts to find the best state with; N with a hint, and N without a complaint, kept out of training if "
        "the log has enough; a state that is worse than before training is not written; 0 is off",
        unit="prompts",
        low=0,
    )
    schedule: str = HOW.expert(
        "cosine", "learning rate after the warm-up; cosine: half a cosine down to 0", choices=("cosine", "constant")
    )
    warmup_steps: int = HOW.expert(0, "steps over which the learning rate rises from 0", unit="steps", low=0)
    weight_decay: float = HOW.expert(0.1, "AdamW weight decay", low=0.0)
    beta1: float = HOW.expert(0.9, "AdamW beta 1", low=0.0, high=0.9999)
    beta2: float = HOW.expert(0.98, "AdamW beta 2", low=0.0, high=0.9999)
    epsilon: float = HOW.expert(
        0.1, "AdamW epsilon, as a share of the largest gradient so far; of its root mean square", low=0.0
    )
    max_grad_norm: float = HOW.expert(1.0, "scale gradients down to this norm; 0 is off", low=0.0)
    lora_rank: int = MEMORY.option(0, "train LoRA adapters of this rank, 0 for none; instead of all weights", low=0)
    lora_alpha: float = MEMORY.expert(32.0, "LoRA scale", low=0.0)
    load_in_4bit: bool = shared_option(
        "load_in_4bit", MEMORY, "the adapters are trained over them; the teacher stage needs it, too",
        expert=True, needs="lora_rank",
    )  # fmt: skip
    micro_batch_tokens: int = MEMORY.option(
        8192, "per forward pass; a longer turn goes alone", unit="tokens", low=1, plan=False
    )
    gradient_checkpointing: bool = MEMORY.option(False, "less memory, slower: recompute activations", plan=False)
    compile: bool = shared_option("compile", MEMORY, expert=True)
    sharding: str = MEMORY.option(
        "none",
        "split the training over processes; none: each process holds the whole model; fsdp: each holds a share of "
        "weights, gradients, optimizer state",
        choices=("none", "fsdp"),
        plan=False,
    )
    shard: str = WHERE.expert("auto", "which parts to do, as I/N; training has no parts: only auto", plan=False)
    checkpoint_every: int = WHERE.expert(
        100,
        "steps between checkpoints, at most 10 minutes; 0: only when the training is stopped",
        unit="steps",
        low=0,
        plan=False,
    )
    keep_epochs: bool = WHERE.expert(
        False, "also keep the model after each epoch; in train/epochs/N/model; holds the weights twice while it writes"
    )
    tracker: str | None = WHERE.expert(None, "also log to", choices=("tensorboard", "wandb", "trackio"), plan=False)
    dry_run: bool = shared_option("dry_run", WHERE)

    def __post_init__(self) -> None:
        super().__post_init__()
        if 0 < self.dual_clip <= 1:
            raise ConfigError(f"--dual-clip is {self.dual_clip:g}; it must be above 1 (3 is usual), or 0 for off")
        if 0 < self.overlong_max < self.overlong_cache:
            raise ConfigError(f"--overlong-max is {self.overlong_max}; it must be at least --overlong-cache, which is "
                              f"{self.overlong_cache}")  # fmt: skip
        if self.group_scale == "none" and self.group_normalise == "off":
            raise ConfigError("--group-scale none needs --group-normalise repeated or all")
        if 0 < self.validate < FEWEST:
            raise ConfigError(f"--validate is {self.validate}; it must be at least {FEWEST}, or 0 for off")
        if self.load_in_4bit and self.sharding != "none":
            raise ConfigError("--load-in-4bit: quantized weights are not split over processes; use --sharding none")
        if self.dtype == "float16":
            raise ConfigError("--dtype float16 is too narrow to train in; use bfloat16 or float32")

    def check_inputs(self) -> None:
        """Raise ConfigError when RUN is a file, --overwrite would remove a model in use, or a package is missing."""
        super().check_inputs()
        for name, path in (("model", self.model), ("reference", self.reference)):
            if self.overwrite and path and Path(path).resolve().is_relative_to((self.run / "train").resolve()):
                raise ConfigError(f"--{name} {path} is among what --overwrite removes: move it out of there first")
        if self.lora_rank and importlib.util.find_spec("peft") is None:
            raise ConfigError("--lora-rank needs the package peft: pip install peft")
        packages = {"tensorboard": ("tensorboard", "tensorboardX"), "wandb": ("wandb",), "trackio": ("trackio",)}
        if self.tracker and not any(map(importlib.util.find_spec, packages[self.tracker])):
            raise ConfigError(f"--tracker {self.tracker} needs its package: pip install {self.tracker}")
