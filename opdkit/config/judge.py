"""Options of `opdkit judge`."""

from dataclasses import dataclass

from opdkit.config.conditions import parse_filters
from opdkit.config.fields import option
from opdkit.config.shared import JUDGES, ModelOptions, check_server, session_limit
from opdkit.errors import ConfigError


@dataclass(frozen=True, kw_only=True)
class JudgeConfig(ModelOptions):
    """`opdkit judge`: turns -> verdicts."""

    limit: int | None = session_limit()
    judge: str = option("rules", "who judges: rules (English patterns, a smoke test), local (a model in this process), "
                        "endpoint (an OpenAI-compatible server)", choices=JUDGES)  # fmt: skip
    judge_model: str | None = option(None, "local: path of the judge; endpoint: the model's name on the server")
    judge_url: str | None = option(None, "endpoint: address of the server, for example http://localhost:8000/v1",
                                  plan=False)  # fmt: skip
    api_key_env: str = option("OPENAI_API_KEY", "endpoint: environment variable that holds the API key", plan=False)
    votes: int = option(5, "votes per question and turn; rules always give one", unit="votes", low=1, high=255)
    temperature: float = option(0.6, "sampling temperature of a vote", low=0.0, high=5.0)
    max_new_tokens: int = option(512, "a vote longer than this is cut off and counts as none", unit="tokens", low=1)
    good: tuple[str, ...] = option((), "reward a turn +1, without a vote, where the log says this of its session, or "
                                   "of the call that wrote it: written as for extract --filter, metadata.stars>=4; may "
                                   "be given repeatedly, then all must hold")  # fmt: skip
    bad: tuple[str, ...] = option((), "the same for -1; where neither holds, or both do, votes decide")
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
        if self.judge in ("local", "endpoint") and not self.judge_model:
            raise ConfigError(f"--judge {self.judge} needs --judge-model")
        if self.judge == "endpoint" and not self.judge_url:
            raise ConfigError("--judge endpoint needs --judge-url, for example http://localhost:8000/v1")
        check_server("--judge-url", self.judge_url)
        parse_filters(self.good, "--good")
        parse_filters(self.bad, "--bad")
