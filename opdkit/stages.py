"""Every option of every stage, declared once. Imports nothing heavy, so that `opdkit --help` answers at once."""

import importlib
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from opdkit.config import StageConfig, argument, build, option, parse_pairs, parse_shard
from opdkit.errors import ConfigError
from opdkit.roster import check_roster

FORMATS = ("auto", "openai", "sharegpt", "openclaw_rl", "pi")
JUDGES = ("rules", "local", "endpoint")
OBJECTIVES = ("opd", "binary", "combine", "topk", "hybrid", "distill", "blend", "alternate")
HINT_SELECTIONS = ("judge", "longest", "shortest", "score", "overlap")
PLACEMENTS = ("last-user", "tail", "system")
DTYPES = ("auto", "float32", "bfloat16", "float16")
_TEMPLATE_ARG_HELP = "argument for the chat template, as NAME=VALUE (enable_thinking=false); may be given repeatedly"


def check_server(flag: str, url: str | None) -> None:
    """Raise ConfigError unless `url` is null or a plain http(s) address; what is wrong with it is not shown."""
    if url is None:
        return
    try:
        parts = urlsplit(url)
        plain = parts.scheme in ("http", "https") and parts.hostname and (parts.port is None or parts.port > 0)
    except ValueError:
        raise ConfigError(f"{flag} is no address; write it like http://localhost:8000/v1") from None
    if parts.username or parts.password or parts.query or parts.fragment:
        raise ConfigError(f"{flag} holds more than an address; put the key into the variable that --api-key-env names")
    if not plain:
        raise ConfigError(f"{flag} is {url!r}; write it like http://localhost:8000/v1")


def check_judge(model: str | None, url: str | None) -> None:
    """Raise ConfigError for a `--judge-url` that is no address or comes without the `--judge-model` to ask for."""
    if url and not model:
        raise ConfigError("--judge-url needs --judge-model, the model's name on that server")
    check_server("--judge-url", url)


@dataclass(frozen=True, kw_only=True)
class ExtractConfig(StageConfig):
    """`opdkit extract`: logs -> sessions, turns, rejected."""

    logs: tuple[str, ...] = argument("JSONL files (.jsonl, .gz, .zst), folders of them, - for standard input, "
                                     "or hf:NAME[:SPLIT]", plan=False)  # fmt: skip
    format: str = option("auto", "the log format; auto looks at the data", choices=FORMATS)
    part_mb: float = option(8.0, "size of a part, in log unpacked; a session is never divided", unit="MB", low=1e-6)
    max_line_mb: int = option(64, "longer lines are rejected unread", unit="MB", low=1)
    redact: bool = option(False, "write [email], [key] and [phone] in place of e-mail addresses, API keys and tokens, "
                          "and phone numbers, wherever the log has them")  # fmt: skip
    redact_pattern: tuple[str, ...] = option((), "write [NAME] in place of what a regular expression matches, as "
                                             "NAME=REGEX; may be given repeatedly, without --redact, too")  # fmt: skip
    workers: int = option(1, "processes that share the parts of this shard", unit="processes", low=1, plan=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.redact_pattern:
            from opdkit.logs.redact import own_patterns  # imported here: few ask for it

            own_patterns(self.redact_pattern)


@dataclass(frozen=True, kw_only=True)
class ModelOptions(StageConfig):
    """What every stage that runs a model lets the user choose."""

    device: str = option(
        "auto", "torch device; auto takes the launcher's GPU if there is one, else the CPU", plan=False
    )
    dtype: str = option("auto", "weights and activations; auto is bfloat16 on a GPU and float32 on a CPU",
                        choices=DTYPES)  # fmt: skip
    template_arg: tuple[str, ...] = option((), _TEMPLATE_ARG_HELP)
    seed: int = option(0, "seed of every random draw", low=0)

    def __post_init__(self) -> None:
        super().__post_init__()
        parse_pairs(self.template_arg, "--template-arg")


@dataclass(frozen=True, kw_only=True)
class JudgeConfig(ModelOptions):
    """`opdkit judge`: turns -> verdicts."""

    judge: str = option("rules", "who judges: rules (English patterns, a smoke test), local (a model in this process), "
                        "endpoint (an OpenAI-compatible server)", choices=JUDGES)  # fmt: skip
    model: str | None = option(None, "local: path of the judge; endpoint: the model's name on the server")
    base_url: str | None = option(None, "endpoint: address of the server, for example http://localhost:8000/v1",
                                  plan=False)  # fmt: skip
    api_key_env: str = option("OPENAI_API_KEY", "endpoint: environment variable that holds the API key", plan=False)
    votes: int = option(5, "votes per question and turn; rules always give one", unit="votes", low=1, high=255)
    temperature: float = option(0.6, "sampling temperature of a vote", low=0.0, high=5.0)
    max_new_tokens: int = option(512, "a vote longer than this is cut off and counts as none", unit="tokens", low=1)
    hint_select: str = option("consensus", "which accepted hint is chosen; consensus: the one that has most words in "
                              "common with all votes", choices=("consensus", "longest", "shortest", "score"),
                              )  # fmt: skip
    max_hint_chars: int = option(600, "a longer hint is not accepted", unit="characters", low=11)
    max_section_chars: int = option(6000, "request, reply and next state are each cut to this in the judge's prompt",
                                    unit="characters", low=100)  # fmt: skip
    batch_tokens: int = option(65536, "local: tokens held at once, prompts and votes at their longest", unit="tokens",
                               low=1)  # fmt: skip
    concurrency: int = option(16, "endpoint: requests under way at once", unit="requests", low=1, plan=False)
    timeout: float = option(120.0, "endpoint: give up on a request after this", unit="seconds", low=0.1, plan=False)
    retries: int = option(6, "endpoint: attempts after the first, with growing pauses", low=0, plan=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.judge in ("local", "endpoint") and not self.model:
            raise ConfigError(f"--judge {self.judge} needs --model")
        if self.judge == "endpoint" and not self.base_url:
            raise ConfigError("--judge endpoint needs --base-url, for example http://localhost:8000/v1")
        check_server("--base-url", self.base_url)


@dataclass(frozen=True, kw_only=True)
class TeacherConfig(ModelOptions):
    """`opdkit teacher`: verdicts -> targets."""

    model: str = option(..., "the student: a folder in Hugging Face format, or a name on the hub")
    teacher: tuple[str, ...] = option((), "the model that reads the hint, as PATH or NAME=PATH (default: the student "
                                      "itself); given repeatedly, their probabilities are averaged")  # fmt: skip
    teacher_weight: tuple[str, ...] = option((), "weight of a teacher in the average, as NAME=WEIGHT (default: 1); "
                                             "may be given repeatedly")  # fmt: skip
    teacher_route: str | None = option(None, "metadata field of a session whose value names its teacher, instead of "
                                       "the average of all")  # fmt: skip
    unhinted: bool = option(False, "also the teacher's log-probs without the hint, which tell the effect of the hint "
                            "from that of other weights")  # fmt: skip
    support: int = option(20, "tokens stored at each position, with the log-probs of both models; 0 is none",
                          unit="tokens", low=0, high=1000)  # fmt: skip
    support_of: str = option("student", "whose most likely tokens are stored", choices=("student", "teacher"))
    hint_select: str = option("judge", "which accepted hint the teacher reads: the judge's choice, or another one; "
                              "overlap scores up to three and takes the one whose top tokens are most often the "
                              "student's", choices=HINT_SELECTIONS)  # fmt: skip
    hint_placement: str = option("last-user", "where the hint goes in the teacher's prompt", choices=PLACEMENTS)
    written: int = option(0, "replies to each hinted prompt that the teacher writes itself, having read the hint; "
                          "trained on beside the logged one", unit="replies", low=0)  # fmt: skip
    max_new_tokens: int = option(512, "with --written: a longer reply is cut off", unit="tokens", low=1)
    max_tokens: int | None = option(None, "longest prompt + reply (default: what the model was built for)",
                                    unit="tokens", low=2)  # fmt: skip
    too_long: str = option("drop", "a turn that does not fit: drop it, or cut whole messages off its beginning",
                           choices=("drop", "cut"))  # fmt: skip
    batch_tokens: int = option(16384, "tokens scored at once", unit="tokens", low=1)
    turn_by_turn: bool = option(False, "read every prompt from its beginning, instead of once what the prompts of "
                                "a session share: the same numbers but for rounding, and far slower")  # fmt: skip

    def __post_init__(self) -> None:
        super().__post_init__()
        check_roster(self.teacher, self.teacher_weight, self.teacher_route)
        if self.written and len(self.teacher) > 1 and self.teacher_route is None:
            raise ConfigError("--written needs one teacher to each session; an average of several writes nothing")


@dataclass(frozen=True, kw_only=True)
class TrainConfig(ModelOptions):
    """`opdkit train`: targets -> a better model."""

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
    blame_below: float = option(0.95, "a negative reward falls on the tokens that the student gave less than this "
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


@dataclass(frozen=True, kw_only=True)
class EvalConfig(ModelOptions):
    """`opdkit eval`: before and after, on prompts that were held out."""

    prompts: str = option(..., "JSONL of held-out prompts with checks", plan=False)
    limit: int | None = option(None, "only the first N prompts, and the judged turns of the first N sessions, for a "
                               "cheap trial", unit="prompts", low=1)  # fmt: skip
    model: str | None = option(None, "the model before (default: the one that was trained)")
    trained: str | None = option(None, "the model after (default: RUN/train/model)")
    samples: int = option(4, "sampled replies per prompt, besides the greedy one", unit="replies", low=0)
    temperature: float = option(1.0, "sampling temperature of the replies", low=0.01, high=5.0)
    max_new_tokens: int = option(256, "longest reply", unit="tokens", low=1)
    neutral: str | None = option(None, "text file for the forgetting check, one passage a line "
                                 "(default: what the users of the logs wrote)")  # fmt: skip
    judge_model: str | None = option(None, "model for checks written as {\"judge\": criterion}: a path, or with "
                                     "--judge-url its name on the server")  # fmt: skip
    judge_url: str | None = option(None, "OpenAI-compatible server of the judge model")
    api_key_env: str = option("OPENAI_API_KEY", "environment variable that holds the server's API key", plan=False)
    batch_tokens: int = option(16384, "tokens read at once, or held while replies are written", unit="tokens", low=1)

    def __post_init__(self) -> None:
        super().__post_init__()
        check_judge(self.judge_model, self.judge_url)


@dataclass(frozen=True, kw_only=True)
class RolloutConfig(ModelOptions):
    """`opdkit rollout`: hinted turns of one run -> sessions, turns and verdicts of another, with fresh replies."""

    run: Path = argument("the new run directory", plan=False)
    from_: Path = option(..., "the run whose hinted turns are answered afresh; its hints carry over", plan=False)
    limit: int | None = option(None, "only the hinted turns of the first N sessions of --from, for a cheap trial",
                               unit="sessions", low=1)  # fmt: skip
    model: str = option(..., "the student as it is now: a folder in Hugging Face format, or a name on the hub")
    samples: int = option(1, "replies to each prompt; several are a group for the --group-normalise of train",
                          unit="replies", low=1)  # fmt: skip
    max_new_tokens: int = option(512, "a longer reply is cut off", unit="tokens", low=1)
    template_arg: tuple[str, ...] = option((), f"{_TEMPLATE_ARG_HELP} (default: those of the teacher stage of --from)")
    judge_model: str | None = option(None, "model that says whether a reply does what the hint asks, which is its "
                                     "reward: a path, or with --judge-url its name on the server (default: no "
                                     "rewards)")  # fmt: skip
    judge_url: str | None = option(None, "OpenAI-compatible server of the judge model", plan=False)
    api_key_env: str = option("OPENAI_API_KEY", "environment variable that holds the server's API key", plan=False)
    batch_tokens: int = option(16384, "tokens held at once, prompts and replies at their longest", unit="tokens",
                               low=1)  # fmt: skip

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.run.resolve() == self.from_.resolve():
            raise ConfigError(f"--from {self.from_} is RUN itself; fresh replies go into a run of their own")
        check_judge(self.judge_model, self.judge_url)


@dataclass(frozen=True, kw_only=True)
class RunConfig(StageConfig):
    """`opdkit run`: extract, judge, teacher and train with one configuration."""

    logs: tuple[str, ...] = argument("logs, as for extract")
    model: str | None = option(None, "the student: a folder in Hugging Face format, or a name on the hub")
    judge: str | None = option(None, "who judges", choices=JUDGES)
    judge_model: str | None = option(None, "the judge's model (default with --judge local: the student)")
    base_url: str | None = option(None, "address of the judge's server")
    objective: str | None = option(None, "what to train on", choices=OBJECTIVES)
    learning_rate: float | None = option(None, "peak learning rate of the training", low=0.0)
    seed: int | None = option(None, "seed of every random draw", low=0)
    config: Path | None = option(None, "TOML file, one table a stage; flags win")
    set: tuple[str, ...] = option((), "any option of any stage, as STAGE.OPTION=VALUE; may be given repeatedly")

    def __post_init__(self) -> None:
        super().__post_init__()
        if parse_shard(self.shard)[1] > 1:
            raise ConfigError("run does all parts in one process; for several, start the stages one by one")
        parse_pairs(self.set, "--set")


ORDER = ("extract", "judge", "teacher", "train")  # of a pipeline
_WORD = re.compile(r"[\w.,:+/-]+", re.ASCII)


@dataclass(frozen=True, kw_only=True)
class SlurmConfig(RunConfig):
    """`opdkit slurm`: the pipeline as batch jobs. A value written STAGE=VALUE is for that stage, others are for all."""

    shards: int = option(4, "tasks of extract, judge and teacher each; every one does each N-th part", unit="tasks",
                         low=1)  # fmt: skip
    max_running: int | None = option(None, "tasks of one stage that run at once (default: all)", unit="tasks", low=1)
    nodes: int = option(1, "nodes of the training", unit="nodes", low=1)
    processes: int | None = option(None, "training processes a node (default: its GPUs, or 1)", low=1)
    partition: tuple[str, ...] = option((), "partition, as NAME or STAGE=NAME; may be given repeatedly")
    account: tuple[str, ...] = option((), "account, as NAME or STAGE=NAME; may be given repeatedly")
    time: tuple[str, ...] = option((), "time limit of a task, as Slurm writes it or STAGE=TIME (teacher=4:00:00); may "
                                   "be given repeatedly (default: the partition's)")  # fmt: skip
    gpus: tuple[str, ...] = option((), "GPUs of a task, or of a node of the training: COUNT, TYPE:COUNT or "
                                   "STAGE=...; may be given repeatedly")  # fmt: skip
    cpus: tuple[str, ...] = option((), "CPU cores of a task, as N or STAGE=N; may be given repeatedly")
    mem: tuple[str, ...] = option((), "memory of a node, as SIZE (64G) or STAGE=SIZE; may be given repeatedly")
    sbatch: tuple[str, ...] = option((), "another option of sbatch, as --constraint=a100 or STAGE=--exclusive; may be "
                                     "given repeatedly")  # fmt: skip
    setup: tuple[str, ...] = option((), "shell line before the command, such as `module load cuda`; may be given "
                                    "repeatedly")  # fmt: skip
    notice: int = option(120, "a stage is asked to stop this long before the time limit; Slurm may ask a minute "
                         "earlier", unit="seconds", low=10)  # fmt: skip
    max_requeues: int = option(100, "how often a task that ran out of time is queued again", low=0)
    submit: bool = option(False, "submit the jobs, too")

    def __post_init__(self) -> None:
        if self.shard != "auto" or self.overwrite:
            raise ConfigError("--shard and --overwrite are for the stages: --shards says how many tasks there are, and "
                              "a task that is queued again must not throw away what it has done")  # fmt: skip
        super().__post_init__()
        if "-" in self.logs:
            raise ConfigError("LOGS is -: a batch job has no standard input; name a file")
        for name in ("partition", "account", "time", "gpus", "cpus", "mem"):
            for value in map(_without_stage, getattr(self, name)):
                if not _WORD.fullmatch(value):
                    raise ConfigError(f"--{name} is {value!r}; write it as VALUE or STAGE=VALUE, where STAGE is one "
                                      f"of: {', '.join(ORDER)}")  # fmt: skip
        for line in map(_without_stage, self.sbatch):
            if not line.startswith("-") or not line.isprintable():
                raise ConfigError(f"--sbatch is {line!r}; write it as sbatch's own options are, --constraint=a100")

    def of_stage(self, name: str, stage: str) -> list[str]:
        """The values of a repeatable option that hold for a stage: those for all, then its own."""
        values: tuple[str, ...] = getattr(self, name)
        own = [_without_stage(v) for v in values if v.startswith(f"{stage}=")]
        return [v for v in values if not v.startswith(_STAGE_PREFIXES)] + own


_STAGE_PREFIXES = tuple(f"{stage}=" for stage in ORDER)


def _without_stage(value: str) -> str:
    """VALUE of STAGE=VALUE, and of VALUE itself."""
    return value.partition("=")[2] if value.startswith(_STAGE_PREFIXES) else value


# stage -> its configuration, and "module:function" imported only when the stage runs.
STAGES: dict[str, tuple[type[StageConfig], str]] = {
    "extract": (ExtractConfig, "opdkit.extract:run"),
    "judge": (JudgeConfig, "opdkit.judge:run"),
    "teacher": (TeacherConfig, "opdkit.teacher:run"),
    "train": (TrainConfig, "opdkit.train:run"),
    "eval": (EvalConfig, "opdkit.evaluate:run"),
    "rollout": (RolloutConfig, "opdkit.rollout:run"),
}


# What is configured from options: the stages, and the commands that run four of them.
COMMANDS: dict[str, tuple[type[StageConfig], str]] = STAGES | {
    "run": (RunConfig, "opdkit.pipeline:run"),
    "slurm": (SlurmConfig, "opdkit.slurm:run"),
}
TABLES_OF_TOML = (*STAGES, "slurm")


def configure(command: str, flags: Mapping[str, Any], file: Path | None) -> StageConfig:
    """The configuration of a command: flags over its table in a TOML file over the defaults. Raises ConfigError."""
    own = file if command in TABLES_OF_TOML else None  # run has no table: it hands the file on to its stages
    return build(COMMANDS[command][0], flags, own, command, TABLES_OF_TOML)


def imported(target: str) -> Callable[..., Any]:
    """ "opdkit.judge:run" -> the function; its module, and with it torch, is imported here and not above."""
    module, _, name = target.partition(":")
    function: Callable[[Any], Any] = getattr(importlib.import_module(module), name)
    return function


def home(run: Path, stage: str) -> Path:
    """The folder of one stage in a run."""
    return run / stage
