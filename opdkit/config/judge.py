"""Options of `opdkit judge`."""

from dataclasses import dataclass, replace
from pathlib import Path

from opdkit.config.conditions import parse_filters
from opdkit.config.fields import HOW, SPEED, WHAT, WHERE, Panel, PythonFunction
from opdkit.config.shard import parse_shard
from opdkit.config.shared import JUDGES, REPEAT, WordedOptions, check_key_env, check_server, shared_option
from opdkit.config.wording import judge_texts
from opdkit.errors import ConfigError

WHO = Panel("Who judges")
MODELS = ("local", "endpoint", "batch")  # judges that are models
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
    judge_model: str | None = shared_option("judge_model", WHO, "needed by --judge local, endpoint and batch")
    judge_url: str | None = shared_option("judge_url", WHO, plan=False)
    api_key_env: str = shared_option("api_key_env", WHO)
    judge_first: str | None = WHO.expert(
        None,
        "a smaller model that is asked first; the judge is asked only if the first one's votes differ, fail or "
        "see a hint; a path, or with --judge-first-url its name on a server; docs/guide.md#choose-a-judge",
    )
    judge_first_url: str | None = WHO.expert(
        None,
        "address of the first judge's server; may be that of --judge-url; default: the model runs in this process",
        plan=False, check=check_server, needs="judge_first",
    )  # fmt: skip
    judge_first_key_env: str | None = WHO.expert(
        None,
        "environment variable that holds the key of the first judge's server; default: that of --api-key-env",
        plan=False, check=check_key_env, needs="judge_first_url",
    )  # fmt: skip
    out: Path | None = WHO.option(
        None,
        "batch: the file of requests to write; one per vote that has no answer yet, in the form of OpenAI's Batch API",
        plan=False,
    )
    in_: tuple[str, ...] = WHO.option(
        (),
        "batch: a file of answers to read; in any order, as OpenAI's Batch API or `vllm run-batch` wrote it; "
        f"{REPEAT}; with --out, the requests that are left are written",
        plan=False,
    )
    limit: int | None = shared_option("limit", WHAT)
    good: tuple[str, ...] = WHAT.option(
        (),
        "reward +1, without a vote, if this holds; a condition as for extract --filter (metadata.stars>=4) on "
        f"the session or on the call that wrote the turn; {REPEAT}, then all must hold",
        check=parse_filters,
    )
    bad: tuple[str, ...] = WHAT.option(
        (), "reward -1, without a vote, if this holds; as --good; both or none: votes decide", check=parse_filters
    )
    conflicts: str = WHAT.expert(
        "rating",
        "what wins if a reply was rated +1, but was also edited, discarded for another one, or complained about; "
        "rating: +1 and no hint; hint: -1 and the hint; neither: it trains nothing",
        choices=("rating", "hint", "neither"),
    )
    criterion: Path | None = shared_option("criterion", HOW)
    votes: int = HOW.option(5, "per question and turn; rules always give one", unit="votes", low=1, high=255)
    all_votes: bool = HOW.expert(
        False,
        "endpoint: ask for all votes; by default, opdkit stops asking once more votes can change neither the reward "
        "nor whether there is a hint",
    )
    weigh_votes: bool = HOW.expert(
        False,
        "weigh each vote by its confidence; the probability of its decision's tokens, from the local model or the "
        "server's log-probs; if a vote has none, each vote on the question counts as one",
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
    batch_tokens: int = SPEED.expert(65536, "tokens in memory at once; local: prompts and votes", unit="tokens", low=1)
    concurrency: int = shared_option("concurrency", SPEED)
    timeout: float = SPEED.expert(120.0, "give up on a request after this", unit="seconds", low=0.1, plan=False)
    retries: int = SPEED.expert(
        6,
        "endpoint: further attempts of a request; with growing pauses; batch: 0 counts what failed as failed votes",
        low=0,
        plan=False,
    )
    dry_run: bool = shared_option("dry_run", WHERE, "turns, questions, and the tokens that a model would read")
    price: str | None = shared_option("price", WHERE, expert=True)
    judge_first_price: str | None = shared_option("price", WHERE, "for --judge-first", expert=True)
    measure: int = shared_option("measure", WHERE, expert=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.judge in MODELS and not self.judge_model:
            raise ConfigError(f"--judge {self.judge} needs --judge-model")
        if self.min_hint_chars > self.max_hint_chars:
            raise ConfigError(f"--min-hint-chars is {self.min_hint_chars}, more than --max-hint-chars")
        if self.judge == "endpoint" and not self.judge_url:
            raise ConfigError("--judge endpoint needs --judge-url, for example http://localhost:8000/v1")
        if self.judge_url and self.judge not in ("endpoint", "batch"):
            raise ConfigError(f"--judge-url is for --judge endpoint or batch, and --judge is {self.judge}")
        if self.judge_model and self.judge not in MODELS:
            raise ConfigError(f"--judge-model is for a model as the judge, and --judge is {self.judge}")
        if self.weigh_votes and (self.judge in WARNINGS or isinstance(self.judge, PythonFunction)):
            raise ConfigError(f"--weigh-votes needs a model as the judge: --judge {self.judge} has no probabilities")
        if self.criterion and self.judge not in MODELS:
            raise ConfigError(f"--criterion needs a model as the judge: --judge {self.judge} reads no text")
        if self.judge == "batch" and not (self.out or self.in_ or self.dry_run):
            raise ConfigError("--judge batch needs --out FILE, for the requests to send, or --in FILE, their answers")
        if self.judge == "batch" and self.measure:
            raise ConfigError("--measure asks the judge, and --judge batch cannot be asked now: leave it out")
        if self.judge != "batch" and (self.out or self.in_):
            raise ConfigError(f"--out and --in are for --judge batch, and --judge is {self.judge}")
        if self.judge_first and self.judge not in ("local", "endpoint"):
            reason = ", whose requests are written before the first judge has answered" if self.judge == "batch" else ""
            raise ConfigError(f"--judge-first needs --judge endpoint or local, not --judge {self.judge}{reason}")
        if self.judge_first in JUDGES:
            raise ConfigError(f"--judge-first is {self.judge_first!r}; it names a model: a path, or with "
                              "--judge-first-url its name on a server")  # fmt: skip
        if self.judge_first and (self.votes == 1 or self.temperature == 0):
            raise ConfigError("--judge-first needs --votes 2 or more and a --temperature above 0: one vote, or greedy "
                              "ones, always agree")  # fmt: skip
        if self.judge_first_price and not self.judge_first:
            raise ConfigError("--judge-first-price needs --judge-first")

    @property
    def first(self) -> "JudgeConfig | None":
        """Configuration of the first judge on its own, which gives all votes; None without `--judge-first`."""
        if self.judge_first is None:
            return None
        return replace(self, judge="endpoint" if self.judge_first_url else "local", judge_model=self.judge_first,
                       judge_url=self.judge_first_url,
                       api_key_env=self.api_key_env if self.judge_first_key_env is None else self.judge_first_key_env,
                       price=self.judge_first_price, all_votes=True, judge_first=None, judge_first_url=None,
                       judge_first_key_env=None, judge_first_price=None)  # fmt: skip

    def check_inputs(self) -> None:
        """Raise ConfigError for batch files that cannot be read or written, besides the errors about the wording."""
        super().check_inputs()
        judge_texts(self.wording, self.criterion)
        for path in map(Path, self.in_):
            if not path.is_file():
                kind = "a folder: name the files in it" if path.is_dir() else "not there, or not a file"
                raise ConfigError(f"--in {path} is {kind}")
            with path.open("rb") as file:
                if file.read(2) == b"\x1f\x8b":
                    raise ConfigError(f"--in {path} is compressed: unpack it first (gunzip)")
            if self.out and self.out.exists() and self.out.samefile(path):
                raise ConfigError(f"--out {self.out} would replace the answers that --in reads: name another file")
        if self.out and self.out.is_dir():
            raise ConfigError(f"--out {self.out} is a folder: name a file")
        if self.out and parse_shard(self.shard)[1] > 1:
            raise ConfigError("--out is for one process, which writes the requests of all parts: leave out --shard")
