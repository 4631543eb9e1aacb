"""Options of `opdkit judge`."""

from dataclasses import dataclass
from pathlib import Path

from opdkit.config.conditions import parse_filters
from opdkit.config.fields import HOW, SPEED, WHAT, WHERE, Panel, PythonFunction
from opdkit.config.shared import REPEAT, WordedOptions, shared_option
from opdkit.config.wording import judge_texts
from opdkit.errors import ConfigError

WHO = Panel("Who judges")
WARNINGS = {
    "rules": "the verdicts are those of --judge rules, English patterns to try the pipeline out: they miss many "
    "corrections and take some requests for one, and what is trained on them can be worse than before. To train, have "
    "a model judge: `opdkit judge RUN --overwrite` with --judge local or --judge endpoint, then the later stages again",
    "reaction": "nothing is judged with --judge reaction: each reaction itself is the hint, and irrelevant ones teach "
    "as much as relevant ones",
}


@dataclass(frozen=True, kw_only=True)
class JudgeConfig(WordedOptions):
    """Have a judge vote on every turn: a reward, and a hint at what was wanted."""

    judge: str = shared_option("judge", WHO, default=...)
    judge_model: str | None = shared_option("judge_model", WHO, "needed by --judge local and endpoint")
    judge_url: str | None = shared_option("judge_url", WHO, plan=False)
    api_key_env: str = shared_option("api_key_env", WHO)
    limit: int | None = shared_option("limit", WHAT)
    good: tuple[str, ...] = WHAT.option(
        (),
        "reward +1, without a vote, where this holds; a condition as for extract --filter (metadata.stars>=4) on "
        f"the session or on the call that wrote the turn; {REPEAT}, then all must hold",
        check=parse_filters,
    )
    bad: tuple[str, ...] = WHAT.option(
        (), "reward -1, without a vote, where this holds; as --good; both or none: votes decide", check=parse_filters
    )
    conflicts: str = WHAT.expert(
        "rating",
        "what holds where a reply was rated +1, and was edited, given up for another one, or complained of next; "
        "rating: +1 and no hint; hint: -1 and the hint; neither: it trains nothing",
        choices=("rating", "hint", "neither"),
    )
    criterion: Path | None = shared_option("criterion", HOW)
    votes: int = HOW.option(5, "per question and turn; rules always give one", unit="votes", low=1, high=255)
    weigh_votes: bool = HOW.option(
        False,
        "weigh each vote by its confidence; the probability of its decision's tokens, from the local model or the "
        "server's log-probs; where a vote has none, all votes of the question count as one",
    )
    temperature: float = HOW.expert(0.6, "sampling temperature", low=0.0, high=5.0)
    max_new_tokens: int = HOW.option(512, "longest reply; a vote that is cut off does not count", unit="tokens", low=1)
    hint_select: str = HOW.expert(
        "consensus",
        "choice among the accepted hints; consensus: the hint that has most words in common with all votes",
        choices=("consensus", "longest", "shortest", "score"),
    )
    min_hint_chars: int = HOW.expert(
        2, "reject shorter hints; two can be a whole instruction in Chinese", unit="characters", low=1
    )
    max_hint_chars: int = HOW.expert(600, "reject longer hints", unit="characters", low=1)
    max_section_chars: int = HOW.expert(
        6000, "longest section of the judge's prompt; request, reply and next state each", unit="characters", low=100
    )
    batch_tokens: int = SPEED.option(65536, "tokens in memory at once; local: prompts and votes", unit="tokens", low=1)
    concurrency: int = SPEED.option(16, "endpoint: parallel requests", unit="requests", low=1, plan=False)
    timeout: float = SPEED.expert(120.0, "give up on a request after this", unit="seconds", low=0.1, plan=False)
    retries: int = SPEED.expert(6, "endpoint: further attempts of a request; with growing pauses", low=0, plan=False)
    dry_run: bool = shared_option("dry_run", WHERE, "turns, questions, and the tokens that a model would read")
    price: str | None = shared_option("price", WHERE, expert=True)
    measure: int = shared_option("measure", WHERE, expert=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.judge in ("local", "endpoint") and not self.judge_model:
            raise ConfigError(f"--judge {self.judge} needs --judge-model")
        if self.min_hint_chars > self.max_hint_chars:
            raise ConfigError(f"--min-hint-chars is {self.min_hint_chars}, more than --max-hint-chars")
        if self.judge == "endpoint" and not self.judge_url:
            raise ConfigError("--judge endpoint needs --judge-url, for example http://localhost:8000/v1")
        if self.weigh_votes and (self.judge in WARNINGS or isinstance(self.judge, PythonFunction)):
            raise ConfigError(f"--weigh-votes needs a model as the judge: --judge {self.judge} has no probabilities")
        if self.criterion and self.judge not in ("local", "endpoint"):
            raise ConfigError(f"--criterion needs a model as the judge: --judge {self.judge} reads no text")

    def check_inputs(self) -> None:
        super().check_inputs()
        judge_texts(self.wording, self.criterion)
