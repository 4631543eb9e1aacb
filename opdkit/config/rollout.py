"""Options of `opdkit rollout`."""

from dataclasses import dataclass
from pathlib import Path

from opdkit.config.fields import argument, check_not_file, option
from opdkit.config.shared import TEMPLATE_ARG_HELP, ModelOptions, check_judge, session_limit
from opdkit.errors import ConfigError


@dataclass(frozen=True, kw_only=True)
class RolloutConfig(ModelOptions):
    """`opdkit rollout`: hinted turns of one run -> sessions, turns and verdicts of another, with fresh replies."""

    run: Path = argument("the new run directory", plan=False)
    from_run: Path = option(..., "the run whose hinted turns are answered afresh; its hints carry over", plan=False)
    limit: int | None = session_limit("sessions of --from-run")
    model: str = option(..., "the student as it is now: a folder in Hugging Face format, or a name on the hub")
    samples: int = option(1, "replies to each prompt; several are a group for the --group-normalise of train",
                          unit="replies", low=1)  # fmt: skip
    max_new_tokens: int = option(512, "a longer reply is cut off", unit="tokens", low=1)
    template_arg: tuple[str, ...] = option((), f"{TEMPLATE_ARG_HELP} (default: as in --from-run)")
    judge_model: str | None = option(None, "model that says whether a reply does what the hint asks, which is its "
                                     "reward: a path, or with --judge-url its name on the server (default: no "
                                     "rewards)")  # fmt: skip
    judge_url: str | None = option(None, "OpenAI-compatible server of the judge model", plan=False)
    api_key_env: str = option("OPENAI_API_KEY", "environment variable that holds the server's API key", plan=False)
    batch_tokens: int = option(16384, "tokens held at once, prompts and replies at their longest", unit="tokens",
                               low=1)  # fmt: skip

    def __post_init__(self) -> None:
        super().__post_init__()
        check_judge(self.judge_model, self.judge_url)

    def check_inputs(self) -> None:
        """Raise ConfigError when RUN or --from-run is a file, or when they are the same folder."""
        super().check_inputs()
        check_not_file("--from-run", self.from_run)
        if self.run.resolve() == self.from_run.resolve():
            raise ConfigError(f"--from-run {self.from_run} is RUN itself; fresh replies go into a run of their own")
