"""Options of `opdkit eval`."""

from dataclasses import dataclass
from pathlib import Path

from opdkit.config.fields import option
from opdkit.config.shared import ModelOptions, check_judge
from opdkit.errors import ConfigError


@dataclass(frozen=True, kw_only=True)
class EvalConfig(ModelOptions):
    """`opdkit eval`: before and after, on prompts that were held out."""

    prompts: str = option(..., "JSONL of held-out prompts with checks", plan=False)
    max_prompts: int | None = option(None, "only the first N prompts, and the judged turns of the first N "
                                     "sessions, for a cheap trial", unit="prompts", low=1)  # fmt: skip
    model: str | None = option(None, "the model before (default: the one that was trained)")
    trained: str | None = option(None, "the model after (default: RUN/train/model)")
    samples: int = option(4, "sampled replies per prompt, besides the greedy one", unit="replies", low=0)
    temperature: float = option(1.0, "sampling temperature of the replies", low=0.01, high=5.0)
    max_new_tokens: int = option(256, "longest reply", unit="tokens", low=1)
    neutral_text: str | None = option(None, "text file for the forgetting check, one passage a line "
                                 "(default: what the users of the logs wrote)")  # fmt: skip
    judge_model: str | None = option(None, "model for checks written as {\"judge\": criterion}: a path, or with "
                                     "--judge-url its name on the server")  # fmt: skip
    judge_url: str | None = option(None, "OpenAI-compatible server of the judge model")
    api_key_env: str = option("OPENAI_API_KEY", "environment variable that holds the server's API key", plan=False)
    batch_tokens: int = option(16384, "tokens read at once, or held while replies are written", unit="tokens", low=1)

    def __post_init__(self) -> None:
        super().__post_init__()
        check_judge(self.judge_model, self.judge_url)

    def check_inputs(self) -> None:
        """Raise ConfigError when RUN is a file, or when the file of prompts is missing."""
        super().check_inputs()
        if not Path(self.prompts).exists():
            raise ConfigError(f"--prompts {self.prompts} is not there; name a JSONL file of prompts and checks")
