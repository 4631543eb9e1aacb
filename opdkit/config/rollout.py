"""Options of `opdkit rollout`."""

from dataclasses import dataclass
from pathlib import Path

from opdkit.config.fields import HOW, SPEED, WHAT, Panel, argument, check_not_file
from opdkit.config.shared import SamplingConfig, shared_option
from opdkit.errors import ConfigError

REWARDS = Panel("Rewards")


@dataclass(frozen=True, kw_only=True)
class RolloutConfig(SamplingConfig):
    """Have the student answer the hinted turns again, for an on-policy round."""

    run: Path = argument(..., "the new run directory", plan=False)
    from_run: Path = WHAT.option(..., "the run whose hinted turns are answered again; its hints carry over", plan=False)
    limit: int | None = shared_option("limit", WHAT)
    model: str = shared_option("model", WHAT, "as it is now")
    samples: int = HOW.option(
        1, "sampled replies per prompt; several are a group for --group-normalise of train", unit="replies", low=1
    )
    max_new_tokens: int = HOW.option(512, "longest reply", unit="tokens", low=1)
    template_arg: tuple[str, ...] = shared_option("template_arg", HOW, "default: those of the teacher of --from-run")
    judge_model: str | None = shared_option("judge_model", REWARDS, "rewards replies that do what the hint asks; "
                                            "default: no rewards")  # fmt: skip
    judge_url: str | None = shared_option("judge_url", REWARDS, plan=False, needs="judge_model")
    batch_tokens: int = SPEED.option(16384, "tokens in memory at once; prompts and replies", unit="tokens", low=1)

    def check_inputs(self) -> None:
        """Raise ConfigError when RUN or --from-run is a file, or when they are the same folder."""
        super().check_inputs()
        check_not_file("--from-run", self.from_run)
        if self.run.resolve() == self.from_run.resolve():
            raise ConfigError(f"--from-run {self.from_run} is RUN itself; fresh replies go into a new run")
