"""Options of `opdkit train`."""

import importlib.util
from dataclasses import dataclass

from opdkit.config.fields import option
from opdkit.config.shared import OBJECTIVES, ModelOptions, session_limit
from opdkit.errors import ConfigError


@dataclass(frozen=True, kw_only=True)
class TrainConfig(ModelOptions):
    """`opdkit train`: targets -> a better model."""

    limit: int | None = session_limit()
    model: str = option(..., "the student: the model that the teacher stage scored")
    objective: str = option(
        "blend", "opd: teacher - student on the logged token; binary: the reward; combine: opd + 0.2 binary; topk: "
        "teacher - student on the tokens of the support; hybrid: topk + 0.2 binary; distill: divergence from the "
        "teacher over the support; blend: distill + 0.1 binary; alternate: a step of binary on turns without a hint, "
        "a step of opd on those with one", choices=OBJECTIVES,
    )  # fmt: skip
    reward_weight: float | None = option(None, "weight of the reward term (default: the objective's)", low=0.0)
    teacher_weight: float | None = option(None, "weight of the teacher term (default: the objective's)", low=0.0)
    support_weight: float | None = option(None, "weight of the support term (default: the objective's)", low=0.0)
    divergence_weight: float | None = option(None, "weight of the divergence term (default: the objective's)", low=0.0)
    advantage_clip: float = option(1.0, "teacher advantages are clipped to +-C; 0 is off", unit="nats", low=0.0)
    clip_low: float = option(0.2, "lower clip of the probability ratio: 1 - this", low=0.0, high=1.0)
    clip_high: float = option(0.28, "upper clip of the probability ratio: 1 + this", low=0.0)
    clip_low_end: float | None = option(None, "--clip-low moves to this until the last step, linearly (default: it "
                                        "stays)", low=0.0, high=1.0)  # fmt: skip
    clip_high_end: float | None = option(None, "--clip-high moves to this until the last step, linearly (default: it "
                                         "stays)", low=0.0)  # fmt: skip
    dual_clip: float = option(0.0, "bound of the probability ratio where the advantage is negative, over 1; 0 is off",
                              low=0.0)  # fmt: skip
    divergence_alpha: float = option(
        0.5, "0: forward KL(teacher, student), 1: reverse KL(student, teacher), between: generalised Jensen-Shannon "
        "with the mixture (1 - this) student + this teacher", low=0.0, high=1.0,
    )  # fmt: skip
    kl_coef: float = option(0.0, "weight of the KL to the student before training; 0 is off", low=0.0)
    kl_estimator: str = option("k3", "how that KL is estimated from the logged token", choices=("k1", "k2", "k3"))
    min_advantage: float = option(0.0, "teacher terms: skip tokens where teacher and student differ by less",
                                  unit="nats", low=0.0)  # fmt: skip
    skip_first: int = option(0, "teacher terms: skip the first tokens of a reply, which may echo the hint",
                             unit="tokens", low=0)  # fmt: skip
    confidence_weight: bool = option(False, "teacher terms: weigh each token by the teacher's probability of it")
    behavior_cap: float = option(2.0, "tokens whose log-probs the log has are weighed by their probability under the "
                                 "student over that in the log, at most this; 0 is off", low=0.0)  # fmt: skip
    negative_below: float = option(0.95, "a negative reward falls on the tokens that the student gave less than this "
                                "probability; 1 is all of them", low=0.0, high=1.0)  # fmt: skip
    group_normalise: str = option(
        "off", "rewards of turns with the same prompt less their mean, over their standard deviation. repeated: a "
        "prompt that comes once keeps its reward; all: it gets 0", choices=("off", "repeated", "all"),
    )  # fmt: skip
    overlong_max: int = option(0, "replies of this many tokens lose 1 of their reward; 0 is off", unit="tokens", low=0)
    overlong_cache: int = option(200, "the deduction begins this many tokens earlier", unit="tokens", low=1)
    aggregation: str = option("token-mean", "a term is the mean over all its tokens of a step, or the mean of its "
                              "turns' means", choices=("token-mean", "turn-mean"))  # fmt: skip
    order: str = option("random", "order of the turns: easy is where the mean absolute advantage is small",
                        choices=("random", "easy-first", "hard-first"))  # fmt: skip
    epochs: int = option(1, "passes over the targets", unit="epochs", low=1)
    batch_by: str = option("session", "session: an optimizer step takes whole sessions until it has --batch-turns "
                           "turns, and their turns share what they have in common; turn: each turn is drawn alone",
                           choices=("session", "turn"))  # fmt: skip
    batch_turns: int = option(16, "turns in one optimizer step, over all processes; with whole sessions, at least",
                              unit="turns", low=1)  # fmt: skip
    micro_batch_tokens: int = option(8192, "tokens in one forward pass; a longer turn goes alone", unit="tokens", low=1)
    learning_rate: float | None = option(None, "peak learning rate (default: 1e-5, with LoRA 1e-4)", low=0.0)
    schedule: str = option("cosine", "learning rate after the warm-up: half a cosine down to 0, or constant",
                           choices=("cosine", "constant"))  # fmt: skip
    warmup_steps: int = option(0, "steps over which the learning rate rises from 0", unit="steps", low=0)
    weight_decay: float = option(0.1, "AdamW weight decay", low=0.0)
    beta1: float = option(0.9, "AdamW beta 1", low=0.0, high=1.0)
    beta2: float = option(0.98, "AdamW beta 2", low=0.0, high=1.0)
    max_grad_norm: float = option(1.0, "gradients are scaled down to this norm; 0 is off", low=0.0)
    lora_rank: int = option(0, "train LoRA adapters of this rank instead of all weights; 0 is off", low=0)
    lora_alpha: float = option(32.0, "LoRA scale", low=0.0)
    gradient_checkpointing: bool = option(False, "recompute activations in the backward pass: slower, less memory")
    sharding: str = option("none", "several processes: each holds the whole model (none), or its share of weights, "
                           "gradients and optimizer state (fsdp), where one GPU cannot hold them",
                           choices=("none", "fsdp"), plan=False)  # fmt: skip
    holdout: float = option(0.0, "share of the sessions kept out of training for `opdkit eval`", low=0.0, high=0.9)
    max_turns_per_session: int | None = option(None, "train on at most this many turns of a session, drawn by --seed, "
                                               "so that no single user decides what is learned", unit="turns",
                                               low=1)  # fmt: skip
    checkpoint_every: int = option(
        100, "steps between checkpoints; 0 is none but where the training is stopped", unit="steps", low=0, plan=False
    )
    keep_epochs: bool = option(False, "also keep the model as it is after each epoch, in train/epochs/N/model; holds "
                               "the weights twice while it writes")  # fmt: skip
    tracker: str | None = option(None, "also log to tensorboard, wandb or trackio",
                                 choices=("tensorboard", "wandb", "trackio"), plan=False)  # fmt: skip
    dry_run: bool = option(False, "say what would be trained on, in how many steps, and write nothing", plan=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        if 0 < self.dual_clip <= 1:
            raise ConfigError(f"--dual-clip is {self.dual_clip:g}; it must be over 1 (3 is usual), or 0 for off")
        if 0 < self.overlong_max < self.overlong_cache:
            raise ConfigError(f"--overlong-max is {self.overlong_max}; it must be at least --overlong-cache, which is "
                              f"{self.overlong_cache}")  # fmt: skip

    def check_inputs(self) -> None:
        """Raise ConfigError when RUN is a file, or when the package that trains adapters is missing."""
        super().check_inputs()
        if self.lora_rank and importlib.util.find_spec("peft") is None:
            raise ConfigError("--lora-rank needs the package peft: pip install peft")
