"""Options of `opdkit train`."""

import importlib.util
from dataclasses import dataclass

from opdkit.config.fields import HOW, MEMORY, WHERE, expert, option
from opdkit.config.shared import OBJECTIVES, ModelOptions, session_limit, student
from opdkit.errors import ConfigError

DATA, LOSS = "What to train on", "Objective"


@dataclass(frozen=True, kw_only=True)
class TrainConfig(ModelOptions):
    """`opdkit train`: targets -> a better model."""

    model: str = student(more="the model that the teacher stage scored", panel=DATA)
    limit: int | None = session_limit(DATA)
    max_turns_per_session: int | None = option(
        None,
        "at most N turns of a session",
        "drawn by --seed, so that no single user decides what is learned",
        unit="turns",
        low=1,
        panel=DATA,
    )
    holdout: float = option(0.0, "share of the sessions to keep for eval", low=0.0, high=0.9, panel=DATA)
    order: str = expert(
        "random",
        "order of the turns",
        "easy turns have a small mean absolute advantage",
        choices=("random", "easy-first", "hard-first"),
        panel=DATA,
    )
    objective: str = option(
        "blend",
        "what to learn from",
        "opd: teacher - student on the logged token; binary: the reward; combine: opd + 0.2 binary; topk: teacher - "
        "student on the tokens of the support; hybrid: topk + 0.2 binary; distill: divergence from the teacher over "
        "the support; blend: distill + 0.1 binary; alternate: one step of binary on turns without a hint, one step of "
        "opd on turns with one",
        choices=OBJECTIVES,
        panel=DATA,
    )
    reward_weight: float | None = expert(
        None, "weight of the reward term", "default: the objective's", low=0.0, panel=LOSS
    )
    teacher_weight: float | None = expert(
        None, "weight of the teacher term", "default: the objective's", low=0.0, panel=LOSS
    )
    support_weight: float | None = expert(
        None, "weight of the support term", "default: the objective's", low=0.0, panel=LOSS
    )
    divergence_weight: float | None = expert(
        None, "weight of the divergence term", "default: the objective's", low=0.0, panel=LOSS
    )
    advantage_clip: float = expert(1.0, "clip teacher advantages to +-C", "0 is off", unit="nats", low=0.0, panel=LOSS)
    clip_low: float = expert(0.2, "lower clip of the probability ratio: 1 - this", low=0.0, high=1.0, panel=LOSS)
    clip_high: float = expert(0.28, "upper clip of the probability ratio: 1 + this", low=0.0, panel=LOSS)
    clip_low_end: float | None = expert(
        None,
        "move --clip-low to this, linearly",
        "reached at the last step; default: it stays",
        low=0.0,
        high=1.0,
        panel=LOSS,
    )
    clip_high_end: float | None = expert(
        None, "move --clip-high to this, linearly", "reached at the last step; default: it stays", low=0.0, panel=LOSS
    )
    dual_clip: float = expert(
        0.0, "bound of the ratio for negative advantages", "above 1; 0 is off", low=0.0, panel=LOSS
    )
    divergence_alpha: float = expert(
        0.5,
        "0 is forward KL, 1 is reverse KL",
        "0: KL(teacher, student); 1: KL(student, teacher); between: generalised Jensen-Shannon divergence with the "
        "mixture (1 - this) student + this teacher",
        low=0.0,
        high=1.0,
        panel=LOSS,
    )
    kl_coef: float = expert(0.0, "weight of the KL to the untrained student", "0 is off", low=0.0, panel=LOSS)
    kl_estimator: str = expert(
        "k3", "estimator of that KL", "from the logged token", choices=("k1", "k2", "k3"), panel=LOSS
    )
    min_advantage: float = expert(
        0.0,
        "skip tokens with a smaller difference",
        "teacher terms: the difference of teacher and student",
        unit="nats",
        low=0.0,
        panel=LOSS,
    )
    skip_first: int = expert(
        0,
        "skip the first tokens of a reply",
        "teacher terms: these tokens may echo the hint",
        unit="tokens",
        low=0,
        panel=LOSS,
    )
    confidence_weight: bool = expert(False, "weigh tokens by the teacher's probability", "teacher terms", panel=LOSS)
    behavior_cap: float = expert(
        2.0,
        "cap of the importance weight of a token",
        "tokens with logged log-probs are weighed by their probability under the student over the logged one; 0 is off",
        low=0.0,
        panel=LOSS,
    )
    negative_below: float = expert(
        0.95,
        "negative rewards: only tokens less likely than this",
        "a negative reward falls only on tokens to which the student gave a smaller probability; 1 is all of them",
        low=0.0,
        high=1.0,
        panel=LOSS,
    )
    group_normalise: str = expert(
        "off",
        "normalise rewards of equal prompts",
        "less their mean, over their standard deviation; repeated: a prompt that comes once keeps its reward; all: it "
        "gets 0",
        choices=("off", "repeated", "all"),
        panel=LOSS,
    )
    overlong_max: int = expert(
        0, "replies of N tokens lose 1 of their reward", "0 is off", unit="tokens", low=0, panel=LOSS
    )
    overlong_cache: int = expert(200, "the deduction begins N tokens earlier", unit="tokens", low=1, panel=LOSS)
    aggregation: str = expert(
        "token-mean",
        "mean over tokens, or over turns",
        "token-mean: over all tokens of a step; turn-mean: over the means of its turns",
        choices=("token-mean", "turn-mean"),
        panel=LOSS,
    )
    epochs: int = option(1, "passes over the targets", unit="epochs", low=1, panel=HOW)
    learning_rate: float | None = option(
        None, "peak learning rate", "default: 1e-5, with LoRA 1e-4", low=0.0, panel=HOW
    )
    batch_turns: int = option(
        16,
        "turns per optimizer step",
        "over all processes; with whole sessions, at least this many",
        unit="turns",
        low=1,
        panel=HOW,
    )
    batch_by: str = expert(
        "session",
        "draw whole sessions, or single turns",
        "session: a step takes whole sessions until it has --batch-turns turns, and reads once what they share",
        choices=("session", "turn"),
        panel=HOW,
    )
    schedule: str = expert(
        "cosine",
        "learning rate after the warm-up",
        "cosine: half a cosine down to 0",
        choices=("cosine", "constant"),
        panel=HOW,
    )
    warmup_steps: int = expert(0, "steps over which the learning rate rises from 0", unit="steps", low=0, panel=HOW)
    weight_decay: float = expert(0.1, "AdamW weight decay", low=0.0, panel=HOW)
    beta1: float = expert(0.9, "AdamW beta 1", low=0.0, high=1.0, panel=HOW)
    beta2: float = expert(0.98, "AdamW beta 2", low=0.0, high=1.0, panel=HOW)
    max_grad_norm: float = expert(1.0, "scale gradients down to this norm", "0 is off", low=0.0, panel=HOW)
    lora_rank: int = option(
        0, "train LoRA adapters of this rank; 0 is off", "instead of all weights", low=0, panel=MEMORY
    )
    lora_alpha: float = expert(32.0, "LoRA scale", low=0.0, panel=MEMORY)
    micro_batch_tokens: int = option(
        8192, "per forward pass", "a longer turn goes alone", unit="tokens", low=1, panel=MEMORY
    )
    gradient_checkpointing: bool = option(False, "less memory, slower: recompute activations", panel=MEMORY)
    sharding: str = option(
        "none",
        "split the training over processes",
        "none: each process holds the whole model; fsdp: each holds a share of weights, gradients, optimizer state",
        choices=("none", "fsdp"),
        plan=False,
        panel=MEMORY,
    )
    shard: str = expert(
        "auto", "which parts to do, as I/N", "training has no parts: only auto", plan=False, panel=WHERE
    )
    checkpoint_every: int = option(
        100,
        "steps between checkpoints",
        "0: only where the training is stopped",
        unit="steps",
        low=0,
        plan=False,
        panel=WHERE,
    )
    keep_epochs: bool = expert(
        False,
        "also keep the model after each epoch",
        "in train/epochs/N/model; holds the weights twice while it writes",
        panel=WHERE,
    )
    tracker: str | None = expert(
        None, "also log to", choices=("tensorboard", "wandb", "trackio"), plan=False, panel=WHERE
    )
    dry_run: bool = option(False, "report what would be done, write nothing", plan=False, panel=WHERE)

    def __post_init__(self) -> None:
        super().__post_init__()
        if 0 < self.dual_clip <= 1:
            raise ConfigError(f"--dual-clip is {self.dual_clip:g}; it must be above 1 (3 is usual), or 0 for off")
        if 0 < self.overlong_max < self.overlong_cache:
            raise ConfigError(f"--overlong-max is {self.overlong_max}; it must be at least --overlong-cache, which is "
                              f"{self.overlong_cache}")  # fmt: skip

    def check_inputs(self) -> None:
        """Raise ConfigError when RUN is a file, or when the package that trains adapters is missing."""
        super().check_inputs()
        if self.lora_rank and importlib.util.find_spec("peft") is None:
            raise ConfigError("--lora-rank needs the package peft: pip install peft")
