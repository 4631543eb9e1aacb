"""Options of `opdkit teacher`."""

import os
from dataclasses import dataclass

from opdkit.config.fields import HOW, MEMORY, SPEED, WHAT, expert, option
from opdkit.config.shared import REPEAT, ModelOptions, session_limit, student
from opdkit.config.teachers import check_teachers
from opdkit.errors import ConfigError

HINT_SELECTIONS = ("judge", "longest", "shortest", "score", "overlap")
PLACEMENTS = ("last-user", "tail", "system")
MODELS = "Student and teacher"


@dataclass(frozen=True, kw_only=True)
class TeacherConfig(ModelOptions):
    """`opdkit teacher`: verdicts -> targets."""

    model: str = student(panel=MODELS)
    teacher: tuple[str, ...] = option(
        (),
        "the model that reads the hint, [NAME=]PATH",
        "default: the student itself; if given repeatedly, their probabilities are averaged",
        panel=MODELS,
    )
    teacher_share: tuple[str, ...] = expert(
        (), "share of a teacher in the average, NAME=SHARE", f"default: 1; {REPEAT}", panel=MODELS
    )
    teacher_route: str | None = expert(
        None, "metadata field that names a session's teacher", "instead of the average of all teachers", panel=MODELS
    )
    limit: int | None = session_limit(WHAT)
    max_tokens: int | None = option(
        None, "longest prompt + reply", "default: the model's own limit", unit="tokens", low=2, panel=WHAT
    )
    too_long: str = option(
        "drop",
        "a turn that does not fit",
        "drop it, or cut whole messages off its beginning",
        choices=("drop", "cut"),
        panel=WHAT,
    )
    teacher_hint: str = option(
        "judge",
        "the accepted hint that the teacher reads",
        "judge: the one that the judge chose; overlap: score up to three hints and take the one whose top tokens are "
        "most often the student's",
        choices=HINT_SELECTIONS,
        panel=HOW,
    )
    hint_placement: str = option("last-user", "place of the hint in the prompt", choices=PLACEMENTS, panel=HOW)
    top_k: int = option(
        20,
        "most likely tokens to store per position",
        "with the log-probs of both models; 0 stores none",
        unit="tokens",
        low=0,
        high=1000,
        panel=HOW,
    )
    top_k_of: str = expert(
        "student", "the model whose top tokens are stored", choices=("student", "teacher"), panel=HOW
    )
    score_unhinted: bool = expert(
        False, "also score without the hint", "separates the effect of the hint from that of another model", panel=HOW
    )
    teacher_samples: int = option(
        0,
        "replies to sample from the hinted teacher",
        "N per hinted turn; training uses them beside the logged reply",
        unit="replies",
        low=0,
        panel=HOW,
    )
    max_new_tokens: int = expert(512, "longest reply", "with --teacher-samples", unit="tokens", low=1, panel=HOW)
    batch_tokens: int = option(16384, "tokens in memory at once", unit="tokens", low=1, panel=SPEED)
    turn_by_turn: bool = expert(
        False,
        "read every prompt from its beginning",
        "instead of reading once what the prompts of a session share: equal up to rounding, and far slower",
        panel=SPEED,
    )
    device_map: str | None = option(
        None,
        "spread layers over all GPUs of this process",
        "for models too large for one GPU; what does not fit waits in memory or on disk; one process per node",
        choices=("auto", "balanced", "sequential"),
        plan=False,
        panel=MEMORY,
    )
    tensor_parallel: bool = option(
        False,
        "under torchrun: split each layer over all GPUs",
        "for models too large for one GPU; all processes score the same parts together",
        plan=False,
        panel=MEMORY,
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        check_teachers(self.teacher, self.teacher_share, self.teacher_route)
        spread = [flag for flag in ("device_map", "tensor_parallel") if getattr(self, flag)]
        if spread and self.teacher_samples:
            flag = "--" + spread[0].replace("_", "-")
            raise ConfigError(f"--teacher-samples needs the teacher on one device; leave out {flag} or it")
        if len(spread) > 1:
            raise ConfigError("--device-map is for one process, --tensor-parallel for several; choose one")
        if self.teacher_samples and len(self.teacher) > 1 and self.teacher_route is None:
            raise ConfigError("--teacher-samples needs one teacher per session; an average of several cannot sample")

    def check_inputs(self) -> None:
        """Raise ConfigError when RUN is a file, or for --device-map in one of several processes on a node."""
        super().check_inputs()
        if self.device_map and int(os.environ.get("LOCAL_WORLD_SIZE", "1")) > 1:
            raise ConfigError("--device-map takes all GPUs of the machine for one process; start one process per node")
