"""Options of `opdkit teacher`."""

import os
from dataclasses import dataclass

from opdkit.config.fields import HOW, JSON, MEMORY, SPEED, WHAT, WHERE, Panel
from opdkit.config.shared import REPEAT, SamplingConfig, shared_option
from opdkit.config.teacher_models import parse_shares, parse_teachers
from opdkit.errors import ConfigError

PLACEMENTS = ("last-user", "tail", "system")
MODELS = Panel("Student and teacher")


@dataclass(frozen=True, kw_only=True)
class TeacherConfig(SamplingConfig):
    """Score every judged reply, with and without the hint."""

    model: str = shared_option("model", MODELS, "a folder is in Hugging Face format")
    served_as: tuple[str, ...] = shared_option("served_as", MODELS)
    teacher: tuple[str, ...] = MODELS.option(
        (), "the model that reads the hint, [NAME=]PATH; default: the student; of several, probabilities are averaged"
    )
    teacher_share: tuple[str, ...] = MODELS.expert(
        (), f"a teacher's share in the average, NAME=SHARE; default: 1; {REPEAT}"
    )
    teacher_route: str | None = MODELS.expert(
        None, "metadata field that names a session's teacher, such as metadata.tier; instead of the average"
    )
    limit: int | None = shared_option("limit", WHAT)
    max_tokens: int | None = WHAT.option(None, "longest prompt + reply; default: the model's", unit="tokens", low=2)
    too_long: str = WHAT.option(
        "drop", "a turn that does not fit; drop it, or cut whole messages off its beginning", choices=("drop", "cut")
    )
    teacher_hint: str = HOW.option(
        "judge", "the accepted hint that the teacher reads; judge: the one that the judge chose; overlap: of up to "
        "three, the one whose top tokens are most often the student's",
        choices=("judge", "longest", "shortest", "score", "overlap"),
    )  # fmt: skip
    check_hints: int = HOW.option(
        0, "test each hint on N fresh replies of the student with it and N without; dropped if replies with it do what "
        "it asks no more often than those without, and most do not; 8 are usual; hints that people decided stay",
        unit="replies", low=0, high=64,
    )  # fmt: skip
    judge_model: str | None = shared_option(
        "judge_model", HOW, "default: that of the run, else the student", expert=True, needs="check_hints"
    )
    judge_url: str | None = shared_option("judge_url", HOW, plan=False, expert=True, needs="judge_model")
    hint_placement: str = HOW.expert("last-user", "place of the hint in the prompt", choices=PLACEMENTS)
    top_k: int = HOW.option(
        20, "most likely tokens to store per position; with their log-probs under both models; 0 stores none",
        unit="tokens", low=0, high=1000,
    )  # fmt: skip
    top_k_of: str = HOW.expert("student", "the model whose top tokens are stored", choices=("student", "teacher"))
    score_unhinted: bool = HOW.expert(
        False, "also score without the hint; separates the effect of the hint from that of another model"
    )
    teacher_samples: int | None = HOW.option(
        None, "replies to sample from the hinted teacher; N per hinted turn, to train on too; default: 1, or 0 for "
        "models on several devices and for an average of teachers", unit="replies", low=0,
    )  # fmt: skip
    max_new_tokens: int = HOW.expert(
        512, "longest reply; with --teacher-samples and --check-hints", unit="tokens", low=1
    )
    batch_tokens: int = SPEED.option(16384, "tokens in memory at once", unit="tokens", low=1)
    turn_by_turn: bool = SPEED.expert(
        False, "read every prompt from its beginning; same results up to rounding, and far slower"
    )
    compile: bool = shared_option("compile", SPEED, expert=True)
    device_map: str | None = MEMORY.option(
        None,
        "spread layers over all GPUs of this process; the rest waits in memory or on disk; one process per node",
        choices=("auto", "balanced", "sequential"),
        plan=False,
    )
    tensor_parallel: bool = MEMORY.option(
        False, "under torchrun: split each layer over all GPUs; all processes score the same parts together", plan=False
    )
    dry_run: bool = shared_option("dry_run", WHERE, "replies, and the tokens that the models would read")
    price: str | None = shared_option("price", WHERE, expert=True)
    measure: int = shared_option("measure", WHERE, expert=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        parse_shares(self.teacher_share, list(parse_teachers(self.teacher)))
        if (route := self.teacher_route) is not None and not self.teacher:
            raise ConfigError(f"--teacher-route {route}: there is nothing to choose from; name teachers as NAME=PATH")
        if route is not None and self.teacher_share:
            raise ConfigError("--teacher-share is for teachers that are averaged; --teacher-route picks one of them")
        spread = [flag for flag in ("device_map", "tensor_parallel") if getattr(self, flag)]
        sampling = [flag for flag in ("teacher_samples", "check_hints") if getattr(self, flag)]
        if spread and sampling:
            sampler, flag = ("--" + name.replace("_", "-") for name in (sampling[0], spread[0]))
            raise ConfigError(f"{sampler} needs the model that samples on one device; leave out {flag} or it")
        if self.sample_url and not (self.samples or self.check_hints):
            raise ConfigError("--sample-url: nothing is sampled; pass --teacher-samples or --check-hints")
        if self.measure and self.tensor_parallel:
            raise ConfigError("--measure is for one process; leave out --tensor-parallel")
        if self.load_in_4bit and self.tensor_parallel:
            raise ConfigError("--load-in-4bit: quantized layers are not split; leave out --tensor-parallel")
        if len(spread) > 1:
            raise ConfigError("--device-map is for one process, --tensor-parallel for several; choose one")
        if self.teacher_samples and len(self.teacher) > 1 and route is None:
            raise ConfigError("--teacher-samples needs one teacher per session; an average of several cannot sample")

    @property
    def samples(self) -> int:
        """Return the number of replies that the teacher samples per hinted turn."""
        if self.teacher_samples is not None:
            return self.teacher_samples
        is_averaged = len(self.teacher) > 1 and self.teacher_route is None
        return int(not (self.device_map or self.tensor_parallel or is_averaged))

    def plan(self) -> JSON:
        """Return the fields that decide the rows, with `samples`: its default depends on fields outside the plan."""
        return super().plan() | {"teacher_samples": self.samples}

    def check_inputs(self) -> None:
        """Raise ConfigError when RUN is a file, or for --device-map with several processes on a node."""
        super().check_inputs()
        if self.device_map and int(os.environ.get("LOCAL_WORLD_SIZE", "1")) > 1:
            raise ConfigError("--device-map takes all GPUs of the machine for one process; start one process per node")
