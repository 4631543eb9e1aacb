"""Write docs/sample-world.md: the effect of each objective on a small model, from logs to held-out replies."""

from statistics import median

from opdkit.config.fields import JSON

from .ablation_sections import defaults, opd_recipe
from .experiments import (
    DEFAULT,
    LEARNING_RATES,
    LONG,
    LONG_RATE,
    ORDERS,
    PREFERENCES,
    PRESETS,
    ROUND_EPOCHS,
    ROUND_SAMPLES,
    ROUNDS,
    SHORT,
    SIZES,
    TOO_HIGH,
    TUNING_SEEDS,
    VOTES,
    WRITTEN,
    WRONG,
    ends,
    mean,
    mean_corrected,
)
from .lookup import NOISE, Results, after_short, curve, gain, score, seeds_of, table
from .noise import exact_reward_accuracy
from .runs import REPLIES, SAMPLES, SESSIONS
from .sessions import IN_A_ROW, MOST

# -- the page -------------------------------------------------------------------------------------------------------


def page(results: JSON) -> str:
    """Return docs/sample-world.md."""
    found = Results(results)
    sections = (
        _head,
        _presets,
        _written,
        _batches,
        defaults,
        opd_recipe,
        _forgetting,
        _sizes,
        _rounds,
        _sessions,
        _noise,
        _rates,
    )
    parts = [section(found) for section in sections]
    return "\n\n".join(part.strip() for part in parts) + "\n"


def _head(found: Results) -> str:
    log, rewards = found.log, found.log["rewards"]
    return f"""
# What each objective does to a model

Written by `python -m tests.benchmarks.learning` from `tests/benchmarks/learning/results.json`; do not edit.

The sample model (1.4M parameters) learns from the first {SESSIONS} sessions of `sample_data/logs`:
{log["turns"]} judged turns, {log["hinted"]} of them with a hint. The rewards are {rewards["1"]} times +1,
{rewards["0"]} times 0, and {rewards["-1"]} times -1. The same model is the judge. *Accuracy* is the share of first
replies to held-out requests that are as the user wants, in the four topics where users correct the assistant ({SAMPLES}
replies per request, sampled at temperature 1; the logs never mention what is requested). Before training it is
{found.base():.2f}. Each number is the mean of {len(seeds_of(found, "base"))} seeds
({len(seeds_of(found, "short", DEFAULT))} for the short trainings of the default). Learning rates were chosen with other
seeds (see the end). All other options have their defaults. What training brings in other worlds, with everything at its
default: [learning.md](learning.md). All this was measured with the sample model and log of version 0.1.0, before the
tool named an order that it does not know (CHANGELOG.md), and with twice the largest learning rate that a step may have
now ([objectives.md](objectives.md#the-size-of-a-step)).
"""


def _presets(found: Results) -> str:
    rows = []
    for name in PRESETS:
        short, values = after_short(found, name, "passed_sampled", "corrected"), curve(found, name)
        title = f"**{name}** (default)" if name == DEFAULT else name
        rows.append([title, f"{found.numbers['tuned'][name]:g}", f"{short:.3f}", _cost(found, name),
                     *(f"{v:.2f}" for v in values), f"{max(values) - values[-1]:.2f}"])  # fmt: skip
    heads = ["objective", "rate", f"{SHORT} epochs", "cost", *(f"{e} of {LONG}" for e in range(1, LONG + 1)),
             "best - last"]  # fmt: skip
    return f"""
## Accuracy

Accuracy after {SHORT} epochs, at the best learning rate of the objective; the cost of that training in tokens read,
relative to `opd` (objectives with a reward also read the turns that have no hint); and accuracy after each epoch of a
training of {LONG} epochs at {LONG_RATE:g}. The learning rate falls to 0 by the end of a training.

{table(heads, rows)}

![accuracy against epochs; the bands reach from the lowest to the highest seed](learning-epochs.svg)
"""


def _cost(found: Results, name: str, kind: str = "short") -> str:
    """Return the tokens that a training read, relative to opd on the log alone."""
    mine, opd = (mean(s["cost"]["tokens"] for s in seeds_of(found, k, n)) for k, n in ((kind, name), ("short", "opd")))
    return f"{mine / opd:.1f}"


def _written(found: Results) -> str:
    rows = []
    for name in WRITTEN:
        for kind, title in (("short", "the log"), ("written", f"the log and {REPLIES} written replies")):
            rate = found.numbers["tuned"][name if kind == "short" else f"{name}, written"]
            shares = (after_short(found, name, "passed_sampled", d, kind=kind) for d in ("corrected", "uncorrected"))
            rows.append([name, title, f"{rate:g}", *(f"{share:.3f}" for share in shares), _cost(found, name, kind)])
    heads = ["objective", "trained on", "rate", "corrected", "uncorrected", "cost"]
    return f"""
## Replies that the teacher writes

Wrong replies after training on a short log are mostly mixtures of two habits, such as `leaves at 10 pm`: the logged
replies never show what follows the beginning that the teacher prefers. With
`opdkit teacher --teacher-samples {REPLIES}` the teacher, which reads the hint, also writes {REPLIES} replies of its own
per hinted prompt. Shares of right first replies after {SHORT} epochs, in the corrected topics and in the topics that
nobody corrects:

{table(heads, rows)}
"""


def by_turn(found: Results, name: str) -> float:
    """Return the accuracy after a short training whose steps take single turns, as a mean over the seeds."""
    return mean(mean_corrected(seed["passed"]) for seed in seeds_of(found, "turn", name))


def _batches(found: Results) -> str:
    rows = [
        [name, f"{after_short(found, name, 'passed_sampled', 'corrected'):.3f}", f"{by_turn(found, name):.3f}",
         _cost(found, name), _cost(found, name, "turn")]
        for name in PRESETS
    ]  # fmt: skip
    heads = ["objective", "whole sessions", "single turns", "cost, sessions", "cost, turns"]
    return f"""
## Whole sessions or single turns

An optimizer step takes whole sessions (`--batch-by session`, the default), so that what their turns have in common is
read once, or turns drawn one by one. Accuracy after {SHORT} epochs at the same learning rate:

{table(heads, rows)}
"""


def _forgetting(found: Results) -> str:
    rows = [
        [name, f"{gain(found, name):+.3f}",
         *(f"{after_short(found, name, 'passed_sampled', 'uncorrected', c):.3f}" for c in ("before", "after")),
         f"{after_short(found, name, 'kl_replies', 'uncorrected'):.4f}",
         f"{after_short(found, name, 'kl_neutral', 'all'):.4f}"]
        for name in PRESETS
    ]  # fmt: skip
    heads = ["objective", "gain, corrected", "uncorrected, before", "after", "KL, replies", "KL, users' texts"]
    echo = found.cells["echo"]
    lengths = [
        [domain, *(f"{score(echo['scores'], 'reply_tokens', domain, c):.1f}" for c in ("before", "after"))]
        for domain in sorted({r["domain"] for r in echo["scores"] if r["metric"] == "reply_tokens"})
    ]
    echoed = round(score(echo["scores"], "hint_echo", "all") * echo["replies"])
    return f"""
## What it forgets

Nobody corrects two of the topics, songs and capitals. After {SHORT} epochs: the share of first replies there that are
right; and KL(before || after) over the whole vocabulary, in nats per token, on the model's own earlier replies there
and on the texts of the users in the logs.

{table(heads, rows)}

![KL on uncorrected topics against gain](learning-forgetting.svg)

Of {echo["replies"]:,} replies sampled after {SHORT} epochs of the default objective, {echoed} repeat a hint or its
marker. Tokens per reply, before and after:

{table(["topic", "before", "after"], lengths)}
"""


def _sizes(found: Results) -> str:
    measured = {
        sessions: (cell, mean(map(mean_corrected, cell["passed"])))
        for sessions, cell in ((n, found.cells[f"size-{n}"]) for n in SIZES)
    }
    measured[SESSIONS] = (found.log, after_short(found, DEFAULT, "passed_sampled", "corrected"))
    rows = [
        [str(sessions), str(log["turns"]), str(log["hinted"]), f"{share:.3f}"]
        for sessions, (log, share) in sorted(measured.items())
    ]
    return f"""
## How much log it takes

Accuracy after {SHORT} epochs of the default objective on the first sessions of the log:

{table(["sessions", "judged turns", "with a hint", "accuracy"], rows)}

"""


def _rounds(found: Results) -> str:
    rows = []
    for name in ROUNDS:
        seeds = seeds_of(found, "rounds", name)
        shares = (mean(mean_corrected(s[key]) for s in seeds) for key in ("first", "second"))
        rows.append([name, *(f"{share:.3f}" for share in shares)])
    return f"""
## A second round

After a training of {ROUND_EPOCHS} epochs on the log, the trained model answers the logged prompts of the hinted turns
again ({ROUND_SAMPLES} replies each, `opdkit rollout`). These replies are scored, and the model trains on them for one
epoch.

{table(["objective", "after the log", "after its own replies"], rows)}
"""


def _sessions(found: Results) -> str:
    rows, every = [], []
    for topic in PREFERENCES:
        cells = [found.cells[f"sessions-{topic}-{order}"]["sessions"] for order in range(ORDERS)]
        numbers = [MOST + 1 if c is None else c for c in cells]
        every += numbers
        rows.append([topic, *(str(c) if c is not None else f"> {MOST}" for c in cells), f"{median(numbers):g}"])
    heads = ["preference of", *(f"order {o + 1}" for o in range(ORDERS)), "median"]
    return f"""
## How many sessions it takes

The smallest number of logged sessions after which {IN_A_ROW} held-out replies in a row are as the user prefers (the
metric of OpenClaw-RL v2), with the default objective. The log of each preference holds the sessions in which users ask
for it, in {ORDERS} orders.

{table(heads, rows)}

Median of all: {median(every):g}.
"""


def _noise(found: Results) -> str:
    clean = found.noise(*NOISE, "passed")
    rows = [["0%", "1", "1.000", "1.000", "1.000", f"{clean:.3f}", "0.000"]]
    for wrong in WRONG:
        for votes in VOTES:
            after = found.noise(wrong, votes, "passed")
            rows.append([f"{wrong:.0%}", str(votes), f"{exact_reward_accuracy(wrong, votes):.3f}",
                         *(f"{found.noise(wrong, votes, k):.3f}" for k in ("rewards_right", "hints_right")),
                         f"{after:.3f}", f"{clean - after:.3f}"])  # fmt: skip
    heads = ["wrong votes", "votes", "rewards right, exact", "rewards right", "hints right", "after training", "lost"]
    return f"""
## A judge that is wrong

Accuracy after {SHORT} epochs of the default objective on the votes of a judge that is wrong at a known rate. *Exact*
is the probability that the votes give the right reward if the three rewards are equally frequent (in the log they are
not).

{table(heads, rows)}

![rewards right and accuracy after training against the number of votes](learning-noise.svg)
"""


def _rates(found: Results) -> str:
    rows = []
    for name, written in [*((n, False) for n in PRESETS), *((n, True) for n in WRITTEN)]:
        title = f"{name}, written" if written else name
        best = found.numbers["tuned"][title]
        shares = {rate: f"{ends(found.numbers['rates'], name, rate, written):.3f}" for rate in LEARNING_RATES}
        rows.append([title, *(f"**{share}**" if rate == best else share for rate, share in shares.items())])
    high = seeds_of(found, "long", "opd too high")
    fallen = ", ".join(f"{mean_corrected(seed['epochs'][-1]):.2f}" for seed in high)
    return f"""
## Learning rates

Accuracy over all six topics, corrected or not, after {SHORT} epochs, with {len(TUNING_SEEDS)} seeds that the tables of
results do not use; each objective takes its best rate. These rates suit this model of 1.4M
parameters and no other. All trainings on this page take the rate that they are given, without a limit for a step and
without validation ([objectives.md](objectives.md#the-size-of-a-step)), to compare the objectives as they are; by
default `opdkit train` has both, and finds its rate. A rate that is best for {SHORT} epochs can be too high for more
epochs where an objective follows the sampled token alone: at {TOO_HIGH:g}, {LONG} epochs of `opd` ended at {fallen} in
the corrected topics with {len(high)} seeds. So all long trainings take {LONG_RATE:g}.

{table(["objective", *(f"{rate:g}" for rate in LEARNING_RATES)], rows)}
"""
