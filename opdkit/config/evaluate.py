"""Options of `opdkit eval`."""

from dataclasses import dataclass
from pathlib import Path

from opdkit.config.fields import HOW, SPEED, WHAT, option
from opdkit.config.shared import ModelOptions, api_key_env, check_judge, judge_model, judge_url, student
from opdkit.errors import ConfigError

CHECKS = "Checks"


@dataclass(frozen=True, kw_only=True)
class EvalConfig(ModelOptions):
    """`opdkit eval`: before and after, on prompts that were held out."""

    prompts: str = option(..., "JSONL file of held-out prompts with checks", plan=False, panel=WHAT)
    max_prompts: int | None = option(
        None,
        "only the first N prompts, for a cheap trial",
        "and the judged turns of the first N sessions",
        unit="prompts",
        low=1,
        panel=WHAT,
    )
    model: str | None = student(None, "before training; default: the one that was trained", WHAT)
    trained: str | None = option(None, "the model after training", "default: RUN/train/model", panel=WHAT)
    samples: int = option(
        4, "sampled replies per prompt", "eval adds one greedy reply", unit="replies", low=0, panel=HOW
    )
    temperature: float = option(1.0, "sampling temperature", low=0.01, high=5.0, panel=HOW)
    max_new_tokens: int = option(256, "longest reply", unit="tokens", low=1, panel=HOW)
    neutral_text: str | None = option(
        None,
        "text file for the forgetting check",
        "one passage per line; default: what the users of the logs wrote",
        panel=CHECKS,
    )
    judge_model: str | None = judge_model('for checks written as {"judge": criterion}', CHECKS)
    judge_url: str | None = judge_url(CHECKS)
    api_key_env: str = api_key_env(CHECKS)
    batch_tokens: int = option(
        16384, "tokens in memory at once", "read, or held while replies are sampled", unit="tokens", low=1, panel=SPEED
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        check_judge(self.judge_model, self.judge_url)

    def check_inputs(self) -> None:
        """Raise ConfigError when RUN is a file, or when the file of prompts is missing."""
        super().check_inputs()
        if not Path(self.prompts).exists():
            raise ConfigError(f"--prompts {self.prompts} is not there; name a JSONL file of prompts and checks")
