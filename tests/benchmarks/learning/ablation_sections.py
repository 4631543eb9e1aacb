"""Sections of docs/sample-world.md on the ablations: defaults against the original values, the KL term, opd.

A section gives its answer first. The answers are written by hand; tests/benchmarks/test_learning.py checks them.
"""

from collections.abc import Sequence

from opdkit.config.fields import JSON

from .ablations import (
    ABLATIONS,
    KL,
    KL_COEF,
    NOISE_VOTES,
    OPD,
    Variant,
    rate_of,
    recipe,
)
from .experiments import (
    DEFAULT,
    LONG,
    LONG_RATE,
    ROUND_SAMPLES,
    SHORT,
    TUNING_SEEDS,
    VARIANTS,
    WRONG,
    ends,
    mean,
    mean_corrected,
    rate_name,
    slug,
)
from .lookup import Results, curve, score, seeds_of, table
from .runs import REPLIES

Shares = list[float]  # one per seed
SECOND_LOOK = "other seeds: original - default"
UNCORRECTED = ("music", "capitals")


def shares_of_default(found: Results, objective: str) -> dict[str, Shares]:
    """Return corrected, uncorrected -> the shares after short trainings under the defaults, seed by seed."""
    seeds = seeds_of(found, "short", objective)[: len(seeds_of(found, "base"))]
    return {domain: [score(seed["scores"], "passed_sampled", domain) for seed in seeds]
            for domain in ("corrected", "uncorrected")}  # fmt: skip


def shares_of(found: Results, variant: Variant) -> dict[str, Shares]:
    """Return the same for a variant."""
    return by_domain(seeds_of(found, "ablation", variant.name))


def by_domain(seeds: Sequence[JSON]) -> dict[str, Shares]:
    """Return corrected, uncorrected -> the shares passed, seed by seed."""
    return {"corrected": [mean_corrected(seed["passed"]) for seed in seeds],
            "uncorrected": [mean(seed["passed"][d] for d in UNCORRECTED) for seed in seeds]}  # fmt: skip


def second_look(found: Results, variant: Variant) -> float:
    """Return the accuracy with the original value minus that with the default, as a mean over the tuning seeds."""
    rates, tuned = found.numbers["rates"], found.numbers["tuned"]
    default = rate_name(variant.objective, tuned[variant.objective])
    stem = rate_name(variant.name, tuned[variant.name]) if variant.rates else f"again-{slug(variant.name)}"
    original = rates if variant.rates else found.cells
    return mean(
        mean_corrected(original[f"{stem}-{seed}"]["passed"]) - mean_corrected(rates[f"{default}-{seed}"]["passed"])
        for seed in TUNING_SEEDS
    )


def is_clearly_above(first: Shares, second: Shares) -> bool:
    """Return whether every seed of `first` is above every seed of `second`."""
    return min(first) > max(second)


def _shown(values: Shares, others: Shares) -> str:
    return f"**{_spread(values)}**" if is_clearly_above(values, others) else _spread(values)


def _spread(values: Shares) -> str:
    return f"{mean(values):.3f} ({min(values):.2f} to {max(values):.2f})"


def _compared(found: Results, question: str, default: str, original: str) -> str:
    """Return the table of one question: each objective with the default and with the original value."""
    rows = []
    for variant in ABLATIONS[question]:
        sides = shares_of_default(found, variant.objective), shares_of(found, variant)
        rates = found.numbers["tuned"][variant.objective], rate_of(variant, found.numbers["tuned"])
        rows.append([variant.objective, *_two_sides(rates, sides), f"{second_look(found, variant):+.3f}"])
    heads = ["objective", *(f"{value}: {what}" for value in (default, original)
                            for what in ("rate", "corrected", "uncorrected"))]  # fmt: skip
    return table([*heads, SECOND_LOOK], rows)


def _long(found: Results) -> str:
    """Return the table of long trainings with other values, one seed each."""
    rows = []
    for name, (preset, _) in VARIANTS.items():
        values = curve(found, name)
        first_seed = mean_corrected(seeds_of(found, "long", preset)[0]["epochs"][-1])
        rows.append([name, *(f"{v:.2f}" for v in values), f"{values[-1] - first_seed:+.2f}"])
    heads = ["variant", *(f"{e} of {LONG}" for e in range(1, LONG + 1)), "last, against the default"]
    return table(heads, rows)


def _hints(found: Results) -> str:
    """Return the table of hints: the local judge's, and those of a judge that is wrong at a known rate."""
    rows = []
    for variant in ABLATIONS["hint"]:
        right = [found.cells[f"hints-{source}"]["right"] for source in ("base", variant.source)]
        sides = shares_of_default(found, variant.objective), shares_of(found, variant)
        look = f"{second_look(found, variant):+.3f}"
        rows.append([f"{variant.objective}, the local judge", *_two_sides(right, sides), look])
    for wrong in WRONG:
        cells = [seeds_of(found, f"{kind}-{wrong:g}-{NOISE_VOTES}") for kind in ("noise", "longest")]
        right = [mean(seed["hints_right"] for seed in seeds) for seeds in cells]
        sides = by_domain(cells[0]), by_domain(cells[1])
        rows.append([f"{DEFAULT}, a judge that is wrong in {wrong:.0%}", *_two_sides(right, sides), ""])
    heads = [f"{value}: {what}" for value in ("consensus", "longest") for what in ("right", "corrected", "uncorrected")]
    return table(["objective, judge", *heads, SECOND_LOOK], rows)


def _two_sides(first: Sequence[float], sides: tuple[dict[str, Shares], dict[str, Shares]]) -> list[str]:
    """Return the columns of both sides: a number, then the shares in the corrected and in the uncorrected topics."""
    row = []
    for number, side, other in zip(first, sides, sides[::-1], strict=True):
        row += [f"{number:.3g}", *(_shown(side[domain], other[domain]) for domain in side)]
    return row


def _kl(found: Results) -> str:
    """Return the table of the KL term: its effect in a training, and the estimates for models trained without it."""
    without = seeds_of(found, "ablation", KL[0].name)
    rows = []
    for variant in KL:
        name, domains = variant.change.removeprefix("KL "), shares_of(found, variant)
        drift = mean(seed["kl"]["exact"] for seed in seeds_of(found, "ablation", variant.name))
        estimate = mean(seed["kl"][name] for seed in without) if variant.options else None
        rows.append([name, *map(_spread, domains.values()), f"{drift:.3f}",
                     "" if estimate is None else f"{estimate:,.3f}"])  # fmt: skip
    return table(["KL term", "corrected", "uncorrected", "exact KL after training", "estimate without the term"], rows)


def _opd(found: Results) -> str:
    """Return the table of what was tried for opd, on the tuning seeds."""
    rates = found.numbers["rates"]
    rows = [_tried(found, "defaults", "opd", found.numbers["tuned"]["opd"])]
    rows += [_tried(found, v.change, v.name, found.numbers["tuned"][v.name]) for v in OPD]
    chosen = recipe(rates)
    rows = [[f"**{cell}**" for cell in row] if row[0] == chosen.change else row for row in rows]
    return table(["opd", "rate", "corrected", "uncorrected", "all six topics"], rows)


def _tried(found: Results, title: str, name: str, rate: float) -> list[str]:
    rates = found.numbers["rates"]
    domains = by_domain([rates[f"{rate_name(name, rate)}-{seed}"] for seed in TUNING_SEEDS])
    return [title, f"{rate:g}", *(f"{mean(v):.3f}" for v in domains.values()), f"{ends(rates, name, rate):.3f}"]


def defaults(found: Results) -> str:
    """Return the section that compares the defaults with the original values."""
    return f"""
## Defaults against the original values

Some defaults differ from the implementations that opdkit follows (OpenClaw-RL and others). Each table compares one
with the original value after {SHORT} epochs: the mean of {len(seeds_of(found, "base"))} seeds, and their lowest and
highest value. **Bold** is clearly better: each seed is above each seed of the other side. Both sides train at the rate
that is best for the default; only the constant schedule has its own, because its mean rate is twice as high. The last
column is a second look at the corrected topics with {len(TUNING_SEEDS)} other seeds, those that chose the rates.

### The hint: consensus or longest

**Consensus.** The longest hint is wrong more often, with the local judge and with judges of a known error rate. Where
{WRONG[1]:.0%} of the votes are wrong, that clearly costs accuracy. With the local judge, `topk` loses on the first
seeds and not in the second look; for the others it makes no difference. *Right* is the share of hints that ask for what
the user wants.

{_hints(found)}

### Tokens per position: K = 20 or 4

**No clear difference.** `topk` is better with 20 in both looks, within the spread of the seeds. K = 20 stores five
times as much as K = 4.

{_compared(found, "support", "K 20", "K 4")}

### The learning rate: cosine or constant

**No clear difference in the corrected topics**, where each has its own rate; the best rate of a constant schedule is
lower. In the uncorrected topics `blend` keeps clearly more with a constant rate, but little more.

{_compared(found, "schedule", "cosine", "constant")}

### The weight of the reward: 0.1 to 0.2 or 1

**The default, for `blend`; open for the others.** `blend` is clearly better with 0.1, and also in the second look. With
`hybrid` the first look shows no difference and the second favours 0.2. With `combine` the first favours 1, within the
spread of the seeds, and the second shows no difference. A reward speaks at each token, a teacher only where it
disagrees, and a negative reward does not say what to write instead.

{_compared(found, "weight", "default", "1")}

### Blame: uncertain tokens or all tokens

**Uncertain tokens for `binary`; open beside a teacher.** A reward is one number for a whole reply. Where it is
negative, policy gradient takes probability from each token, also from those that any good reply has at that place. The
ratio clip lets each of them fall from 1.0 to 0.8, and a reply of fifteen such tokens then seldom survives:
`leaves at 33:30 C`. So by default (`--negative-below 0.95`) a negative reward applies only to tokens that the student
was not sure of. Without that, `binary` is clearly worse, also in the topics that nobody corrects. Beside a teacher
there is no clear difference. `hybrid` is better with all tokens on the first seeds and in the long training, within
the spread of the seeds, and not in the second look.

{_compared(found, "blame", "uncertain", "all")}

### The KL term: k1, k2 or k3

**k1, where one is wanted; none by default.** At a coefficient of {KL_COEF:g}, k2 and k3 prevent much of what the
training should teach; k1 and the exact KL cost little accuracy. The logged tokens come from the model before training,
and only k1 is weighted for that. k2 and k3 grow without bound where the student gives up a logged token. That is what
users asked for: k2 and k3 hold on to the replies that they complained about. But k1 does not hold the model back
either: after training the exact KL is as large as without the term, and only the exact term lowers it. So `--kl-coef`
is 0.

The exact KL is KL(student || model before training), summed over the vocabulary, in nats per token of the logged
replies. The exact term is part of this benchmark; opdkit has no option for it. The last column is what each estimator
gives for the models of the first row.

{_kl(found)}

### Longer trainings

After {LONG} epochs at {LONG_RATE:g}, one seed each, compared with the same seed under the defaults:

{_long(found)}
"""


def opd_recipe(found: Results) -> str:
    """Return the section on opd."""
    chosen = recipe(found.numbers["rates"])
    shares, before = shares_of(found, chosen), shares_of_default(found, "opd")
    rate = rate_of(chosen, found.numbers["tuned"])
    return f"""
## A recipe for opd

**`opd` needs all of the following, and still learns less than `distill` or the default.** Clip neither the ratio nor
the advantage, train at a low rate, also train on replies of the teacher, and train again on the model's own replies:

```sh
opdkit teacher RUN --model MODEL --teacher-samples {REPLIES}
opdkit train RUN --model MODEL --objective opd --clip-low 1 --clip-high 10 --advantage-clip 0 \\
    --learning-rate {rate:g} --epochs {chosen.epochs}
opdkit rollout RUN2 --from-run RUN --model RUN/train/model --samples {ROUND_SAMPLES}
opdkit teacher RUN2 --model RUN/train/model
opdkit train RUN2 --model RUN/train/model --objective opd --clip-low 1 --clip-high 10 --advantage-clip 0 \\
    --learning-rate {rate:g}
```

`opd` learns from the logged token alone. It can lower what the log shows, but it learns what to write instead only from
replies that show it. The clip stops each token after a change of -20% or +28%. Unclipped, the same training follows the
teacher further, and a rate that is a little too high breaks the model. Settings were tried on tuning seeds alone, the
later ones after a look at the earlier; the best over all six topics (bold) is the recipe.

{_opd(found)}

With the seeds of the other tables: corrected {_spread(shares["corrected"])}, uncorrected
{_spread(shares["uncorrected"])}. Under the defaults: corrected {_spread(before["corrected"])}, uncorrected
{_spread(before["uncorrected"])}.
"""
