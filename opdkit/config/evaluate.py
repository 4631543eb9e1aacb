"""Options of `opdkit eval`."""

from dataclasses import dataclass
from pathlib import Path

from opdkit.config.fields import HOW, SPEED, WHAT, WHERE, Panel
from opdkit.config.shared import NamedTraining, SamplingConfig, shared_option
from opdkit.errors import ConfigError

CHECKS = Panel("Checks")


@dataclass(frozen=True, kw_only=True)
class EvalConfig(NamedTraining, SamplingConfig):
    """Compare the model before and after on held-out prompts."""

    prompts: str | None = WHAT.option(None, "JSONL file of held-out prompts with checks; or --from-log", plan=False)
    from_log: bool = WHAT.option(
        False, "prompts from complaints, praise and accepted replies in held-out sessions (`opdkit train --holdout`); "
        "instead of --prompts; writes them to RUN/from-log.jsonl, which --prompts reads", plan=False)  # fmt: skip
    max_prompts: int | None = WHAT.option(
        None, "only the first N prompts, for a cheap trial; logged replies: those of N sessions", unit="prompts", low=1
    )
    model: str | None = shared_option("model", WHAT, "before training; default: the one that was trained", default=None)
    trained: str | None = WHAT.option(None, "the model after training; default: RUN/train/model")
    served_as: tuple[str, ...] = shared_option("served_as", WHAT, plan=False)
    samples: int = HOW.option(4, "sampled replies per prompt; eval adds one greedy reply", unit="replies", low=0)
    temperature: float = HOW.option(1.0, "sampling temperature", low=0.01, high=5.0)
    max_new_tokens: int = HOW.option(256, "longest reply", unit="tokens", low=1)
    neutral_text: str | None = CHECKS.expert(
        None, "text file for the forgetting check; one passage per line; default: what the users of the logs wrote"
    )
    judge_model: str | None = shared_option(
        "judge_model", CHECKS, 'for checks written as {"judge": criterion}; default: that of the run'
    )
    judge_url: str | None = shared_option("judge_url", CHECKS, plan=False, needs="judge_model")
    json: bool = shared_option("json", WHERE, "conclusion and scores", plan=False)
    batch_tokens: int = SPEED.option(16384, "tokens in memory at once; read or sampled", unit="tokens", low=1)

    def check_inputs(self) -> None:
        """Raise ConfigError when RUN is a file, or unless either `--from-log` or an existing `--prompts` is given."""
        super().check_inputs()
        if self.from_log == (self.prompts is not None):
            raise ConfigError("pass either --prompts FILE, a JSONL file of held-out prompts and checks, or --from-log, "
                              "which makes them from the log")  # fmt: skip
        if self.prompts is not None and not Path(self.prompts).exists():
            raise ConfigError(f"--prompts {self.prompts} does not exist; name a JSONL file of prompts and checks")
