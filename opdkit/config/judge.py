"""Options of `opdkit judge`."""

from dataclasses import dataclass

from opdkit.config.conditions import parse_filters
from opdkit.config.fields import HOW, SPEED, WHAT, expert, option
from opdkit.config.shared import JUDGES, REPEAT, ModelOptions, api_key_env, judge_model, judge_url, session_limit
from opdkit.errors import ConfigError

WHO = "Who judges"


@dataclass(frozen=True, kw_only=True)
class JudgeConfig(ModelOptions):
    """`opdkit judge`: turns -> verdicts."""

    judge: str = option(
        "rules",
        "who judges",
        "rules: English patterns, a smoke test; local: a model in this process; endpoint: an OpenAI-compatible server",
        choices=JUDGES,
        panel=WHO,
    )
    judge_model: str | None = judge_model("needed by --judge local and endpoint", WHO)
    judge_url: str | None = judge_url(WHO, plan=False)
    api_key_env: str = api_key_env(WHO)
    limit: int | None = session_limit(WHAT)
    good: tuple[str, ...] = option(
        (),
        "reward +1, without a vote, where this holds",
        "a condition as for extract --filter (metadata.stars>=4) on the session or on the call that wrote the turn; "
        f"{REPEAT}, then all must hold",
        panel=WHAT,
        check=parse_filters,
    )
    bad: tuple[str, ...] = option(
        (),
        "reward -1, without a vote, where this holds",
        "as --good; where neither or both hold, votes decide",
        panel=WHAT,
        check=parse_filters,
    )
    votes: int = option(5, "per question and turn", "rules always give one", unit="votes", low=1, high=255, panel=HOW)
    temperature: float = option(0.6, "sampling temperature", low=0.0, high=5.0, panel=HOW)
    max_new_tokens: int = option(
        512, "longest reply", "a vote that is cut off does not count", unit="tokens", low=1, panel=HOW
    )
    hint_select: str = option(
        "consensus",
        "choice among the accepted hints",
        "consensus: the hint that has most words in common with all votes",
        choices=("consensus", "longest", "shortest", "score"),
        panel=HOW,
    )
    max_hint_chars: int = expert(600, "reject longer hints", unit="characters", low=11, panel=HOW)
    max_section_chars: int = expert(
        6000,
        "longest section of the judge's prompt",
        "request, reply and next state are each cut to this",
        unit="characters",
        low=100,
        panel=HOW,
    )
    batch_tokens: int = option(
        65536, "tokens in memory at once", "local: longest prompts and votes", unit="tokens", low=1, panel=SPEED
    )
    concurrency: int = option(16, "endpoint: parallel requests", unit="requests", low=1, plan=False, panel=SPEED)
    timeout: float = expert(120.0, "give up on a request after this", unit="seconds", low=0.1, plan=False, panel=SPEED)
    retries: int = expert(
        6, "endpoint: further attempts of a request", "with growing pauses", low=0, plan=False, panel=SPEED
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.judge in ("local", "endpoint") and not self.judge_model:
            raise ConfigError(f"--judge {self.judge} needs --judge-model")
        if self.judge == "endpoint" and not self.judge_url:
            raise ConfigError("--judge endpoint needs --judge-url, for example http://localhost:8000/v1")
