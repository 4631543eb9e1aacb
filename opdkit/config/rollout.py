"""Options of `opdkit rollout`."""

from dataclasses import dataclass
from pathlib import Path

from opdkit.config.fields import HOW, SPEED, WHAT, argument, check_not_file, option
from opdkit.config.shared import (
    ModelOptions,
    api_key_env,
    check_judge,
    judge_model,
    judge_url,
    session_limit,
    student,
    template_arg,
)
from opdkit.errors import ConfigError

REWARDS = "Rewards"


@dataclass(frozen=True, kw_only=True)
class RolloutConfig(ModelOptions):
    """`opdkit rollout`: hinted turns of one run -> sessions, turns and verdicts of another, with fresh replies."""

    run: Path = argument("the new run directory", plan=False)
    from_run: Path = option(
        ..., "the run whose hinted turns are answered again", "its hints carry over", plan=False, panel=WHAT
    )
    limit: int | None = session_limit(WHAT)
    model: str = student(more="as it is now", panel=WHAT)
    samples: int = option(
        1,
        "sampled replies per prompt",
        "several are a group for --group-normalise of train",
        unit="replies",
        low=1,
        panel=HOW,
    )
    max_new_tokens: int = option(512, "longest reply", unit="tokens", low=1, panel=HOW)
    template_arg: tuple[str, ...] = template_arg("default: those of the teacher stage of --from-run")
    judge_model: str | None = judge_model(
        "it says whether a reply does what the hint asks, which is the reward; default: no rewards", REWARDS
    )
    judge_url: str | None = judge_url(REWARDS, plan=False)
    api_key_env: str = api_key_env(REWARDS)
    batch_tokens: int = option(
        16384, "tokens in memory at once", "prompts and replies at their longest", unit="tokens", low=1, panel=SPEED
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        check_judge(self.judge_model, self.judge_url)

    def check_inputs(self) -> None:
        """Raise ConfigError when RUN or --from-run is a file, or when they are the same folder."""
        super().check_inputs()
        check_not_file("--from-run", self.from_run)
        if self.run.resolve() == self.from_run.resolve():
            raise ConfigError(f"--from-run {self.from_run} is RUN itself; fresh replies go into a new run")
