"""Options of `opdkit teacher`."""

import os
from dataclasses import dataclass

from opdkit.config.fields import option
from opdkit.config.shared import ModelOptions, session_limit
from opdkit.config.teachers import check_roster
from opdkit.errors import ConfigError

HINT_SELECTIONS = ("judge", "longest", "shortest", "score", "overlap")
PLACEMENTS = ("last-user", "tail", "system")


@dataclass(frozen=True, kw_only=True)
class TeacherConfig(ModelOptions):
    """`opdkit teacher`: verdicts -> targets."""

    limit: int | None = session_limit()
    model: str = option(..., "the student: a folder in Hugging Face format, or a name on the hub")
    teacher: tuple[str, ...] = option((), "the model that reads the hint, as PATH or NAME=PATH (default: the student "
                                      "itself); given repeatedly, their probabilities are averaged")  # fmt: skip
    teacher_share: tuple[str, ...] = option((), "weight of a teacher in the average, as NAME=WEIGHT (default: 1); "
                                             "may be given repeatedly")  # fmt: skip
    teacher_route: str | None = option(None, "metadata field of a session whose value names its teacher, instead of "
                                       "the average of all")  # fmt: skip
    score_unhinted: bool = option(False, "also score without the hint: this separates the effect of the hint from that "
                                  "of another model")  # fmt: skip
    device_map: str | None = option(None, "spread models that are too large for one GPU, layer by layer, over all GPUs "
                                    "of this process; what does not fit there waits in memory or on disk. One "
                                    "process a node then", choices=("auto", "balanced", "sequential"),
                                    plan=False)  # fmt: skip
    tensor_parallel: bool = option(
        False,
        "under torchrun: every process holds a share of each layer of models that are "
        "too large for one GPU, and all score the same parts together",
        plan=False,
    )
    top_k: int = option(20, "tokens stored at each position, with the log-probs of both models; 0 is none",
                          unit="tokens", low=0, high=1000)  # fmt: skip
    top_k_of: str = option("student", "whose most likely tokens are stored", choices=("student", "teacher"))
    teacher_hint: str = option("judge", "which accepted hint the teacher reads: the judge's choice, or another one; "
                              "overlap scores up to three and takes the one whose top tokens are most often the "
                              "student's", choices=HINT_SELECTIONS)  # fmt: skip
    hint_placement: str = option("last-user", "where the hint goes in the teacher's prompt", choices=PLACEMENTS)
    teacher_samples: int = option(0, "also sample N replies from the hinted teacher per hinted turn, and train on "
                                  "them", unit="replies", low=0)  # fmt: skip
    max_new_tokens: int = option(512, "with --teacher-samples: a longer reply is cut off", unit="tokens", low=1)
    max_tokens: int | None = option(None, "longest prompt + reply (default: what the model was built for)",
                                    unit="tokens", low=2)  # fmt: skip
    too_long: str = option("drop", "a turn that does not fit: drop it, or cut whole messages off its beginning",
                           choices=("drop", "cut"))  # fmt: skip
    batch_tokens: int = option(16384, "tokens scored at once", unit="tokens", low=1)
    turn_by_turn: bool = option(False, "read every prompt from its beginning, instead of once what the prompts of "
                                "a session share: the same numbers but for rounding, and far slower")  # fmt: skip

    def __post_init__(self) -> None:
        super().__post_init__()
        check_roster(self.teacher, self.teacher_share, self.teacher_route)
        spread = [flag for flag in ("device_map", "tensor_parallel") if getattr(self, flag)]
        if spread and self.teacher_samples:
            flag = "--" + spread[0].replace("_", "-")
            raise ConfigError(
                f"--teacher-samples needs the teacher on one device; leave out {flag} or --teacher-samples"
            )
        if len(spread) > 1:
            raise ConfigError("--device-map is for one process, --tensor-parallel for several; choose one")
        if self.teacher_samples and len(self.teacher) > 1 and self.teacher_route is None:
            raise ConfigError("--teacher-samples needs one teacher per session; an average of several cannot sample")

    def check_inputs(self) -> None:
        """Raise ConfigError when RUN is a file, or for --device-map in one of several processes on a node."""
        super().check_inputs()
        if self.device_map and int(os.environ.get("LOCAL_WORLD_SIZE", "1")) > 1:
            raise ConfigError("--device-map takes all GPUs of the machine for one process; start one process per node")
