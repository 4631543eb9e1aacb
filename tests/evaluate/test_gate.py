"""Tests of opdkit/evaluate/gate.py: which models are stopped, which are not, and what is reported as not known."""

from itertools import product
from statistics import NormalDist

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from numpy.typing import NDArray

from opdkit.config.fields import JSON
from opdkit.evaluate.bootstrap import score_rise
from opdkit.evaluate.gate import FALSE_STOPS, POWER, Decision, compare_shares, decide, find_faults, sum_units
from opdkit.store.tables import REPLIES, to_arrow

Rates = NDArray[np.float64]  # per prompt: probability of a right reply
LIMIT = NormalDist().inv_cdf(1 - FALSE_STOPS / 5)
CALM = [
    {"metric": "kl_replies", "domain": "all", "before": 0.0, "after": 0.04, "chance": 0.01, "count": 60},
    {"metric": "reply_tokens", "domain": "all", "before": 80.0, "after": 85.0, "chance": 0.01, "count": 60},
]


def row(prompt: str, model: str, passed: bool | None, sample: int = 0, **more: str | None) -> JSON:
    return {"prompt_id": prompt, "domain": prompt.partition("-")[0], "model": model, "sample": sample, "kl": None,
            "session": None, "probe": None, "hollow": None, "called": None, "reply": f"{passed}",
            "finish_reason": "stop", "passed": passed, "hint_echo": None} | more  # fmt: skip


def answer(domain: str, fell: int, rose: int, same: int, **after: str | None) -> list[JSON]:
    """Return a greedy reply to each prompt of a domain, before and after; `after`: fields of all replies after."""
    sides = [(True, False)] * fell + [(False, True)] * rose + [(True, True)] * same
    return [row(f"{domain}-{n}", model, passed, **(after if model == "after" else {})) for n, pair in enumerate(sides)
            for model, passed in zip(("before", "after"), pair, strict=True)]  # fmt: skip


def decide_on(rows: list[JSON], scores: list[JSON] = CALM, **options) -> Decision:
    return decide(to_arrow(REPLIES, rows), scores, **options)


def find(decision: Decision, domain: str) -> JSON:
    return {row["domain"]: row for row in decision.domains}[domain]


def falls(fell: int, rose: int = 0, same: int = 0, size: float = 1.0) -> NDArray[np.float64]:
    """Return the shares before minus those after."""
    return np.array([size] * fell + [-size] * rose + [0.0] * same)


# -- the comparison ----------------------------------------------------------------------------------------------------


def test_of_greedy_replies_it_is_mcnemars_test() -> None:
    assert score_rise(falls(10, 2, 20)) == pytest.approx((10 - 2 - 1) / 12**0.5)
    assert score_rise(falls(0, 10, 20)) == 0, "a rise is no loss"
    assert score_rise(falls(0, 0, 20)) == 0


@given(st.lists(st.integers(-4, 1), min_size=6, max_size=12), st.sampled_from([0.025, 0.005, 0.0025]))
@example([1, -3, -4, -4, -4, -4], 0.025)  # its exact p is 2/64
def test_no_loss_is_found_that_chance_makes_more_often_than_asked(quarters: list[int], level: float) -> None:
    """The oracle: if training changed nothing, all signs of the differences are equally likely."""
    if score_rise(-np.array(quarters) / 4) >= NormalDist().inv_cdf(1 - level):
        sizes = [abs(q) for q in quarters if q]
        sums = np.array([sum(map(int.__mul__, sizes, signs)) for signs in product((-1, 1), repeat=len(sizes))])
        assert (sums <= sum(quarters)).mean() <= level


def test_a_small_rise_beside_them_does_not_make_losses_larger() -> None:
    assert score_rise(np.array([1.0] * 6 + [-1 / 16])) < score_rise(falls(6))


def test_a_change_within_the_noise_of_the_model_before_is_no_loss() -> None:
    fell = falls(16, same=16, size=0.25)
    assert score_rise(fell) > LIMIT
    noise = np.full(32, 0.25)  # as of replies that are right in half of the samples
    assert score_rise(fell, noise.sum()) == pytest.approx((4 - 0.25) / 8**0.5)
    found = compare_shares(np.stack([fell, 0 * fell, noise, np.ones(32)], 1), LIMIT)
    assert (found["worse"], found["noise"]) == (False, pytest.approx(1.96 * (0.25 / 32) ** 0.5))


@pytest.mark.parametrize(("count", "prompts"), [(30, 1), (120, 1), (600, 1), (60, 4)])
def test_the_loss_that_would_be_found_is_found_as_often_as_it_says(count: int, prompts: int) -> None:
    """Prompts, or sessions of four, fail at random at the rate `finds`; a rate a third lower is found less often."""
    rng = np.random.default_rng(count)
    size = compare_shares(np.repeat([[prompts, prompts, 0.0, prompts]], count, 0), LIMIT)["finds"]
    found = [np.mean([score_rise(prompts * (rng.random(count) < loss)) >= LIMIT for _ in range(400)])
             for loss in (size, size * 2 / 3)]  # fmt: skip
    assert found[0] >= POWER - 0.02
    assert found[1] < POWER - 0.1


def test_more_prompts_and_more_samples_find_smaller_losses() -> None:
    def finds(count: int, noise: float = 0.0) -> float | None:
        return compare_shares(np.repeat([[0.5, 0.5, noise, 1.0]], count, 0), LIMIT)["finds"]

    sizes = [finds(count) for count in (12, 30, 120, 600)]
    assert sizes == sorted(sizes, reverse=True)
    assert finds(120, 0.1) > finds(120)
    assert finds(6) is None, "six prompts show no loss, however large"
    assert compare_shares(np.repeat([[0.5, 0.5, 0.0, 1.0]], 5, 0), LIMIT)["worse"] is None


# -- sessions ----------------------------------------------------------------------------------------------------------


def test_the_prompts_of_a_session_are_summed() -> None:
    shares_N4 = np.array([[1.0, 0.0, 0.25, 7], [0.5, 1.0, 0.0, 2], [1.0, 1.0, 0.5, 7]])
    assert sorted(sum_units(shares_N4).tolist()) == [[0.5, 1.0, 0.0, 1.0], [2.0, 1.0, 0.75, 2.0]]
    assert sum_units(shares_N4[:0]).shape == (0, 4)


def test_a_session_is_one_case_however_many_prompts_it_makes() -> None:
    """Seven prompts fell: as prompts of one session or of two, they are only one or two losses."""
    rows = answer("a", 7, 0, 33)
    assert not decide_on(rows).ship
    for width in (7, 4):
        together = [reply | {"session": f"log:{int(reply['prompt_id'][2:]) // width}"} for reply in rows]
        found = find(decide_on(together), "a")
        assert (found["worse"], found["prompts"]) == (False, 40)
        assert (found["before"], found["after"]) == (1.0, 33 / 40)
    alone = [reply | {"session": f"log:{reply['prompt_id']}"} for reply in rows]
    assert decide_on(alone) == decide_on(rows), "a session of one prompt is a prompt"
    few = [reply | {"session": f"log:{int(reply['prompt_id'][2:]) % 5}"} for reply in rows]
    assert find(decide_on(few), "a")["worse"] is None, "five sessions are too few"


def test_chance_stops_as_rarely_where_training_changes_whole_sessions() -> None:
    """Eight prompts of a session change together, as often for the better as for the worse."""
    rng, stops = np.random.default_rng(5), []
    for _ in range(2000):
        changes = np.repeat(rng.choice([-0.5, 0.0, 0.5], 10), 8) + rng.choice([-0.25, 0.0, 0.25], 80)
        before = rng.uniform(0.75, 1, 80)
        rows = np.stack([before, before + changes, 0 * before], 1)
        stops.append([compare_shares(sum_units(np.c_[rows, unit_N]), 1.96)["worse"]
                      for unit_N in (np.arange(80) // 8, np.arange(80))])  # fmt: skip
    together, each = np.mean(stops, 0)
    assert together <= FALSE_STOPS < 2 * FALSE_STOPS < each


# -- the decision ------------------------------------------------------------------------------------------------------


def test_a_loss_in_one_domain_stops_and_is_named() -> None:
    others = answer("dates", 1, 2, 30)
    stopped = decide_on(answer("billing", 14, 1, 30) + others)
    assert not stopped.ship
    assert "in billing, right replies fell from 97.8% to 68.9%" in stopped.sentence
    assert [row["worse"] for row in stopped.domains] == [True, True, False]  # all, billing, dates
    assert (find(stopped, "billing")["prompts"], find(stopped, "all")["prompts"]) == (45, 78)
    assert decide_on(answer("billing", 3, 1, 41) + others).ship
    assert decide_on(answer("billing", 0, 14, 30) + others).ship


def test_a_loss_where_nobody_complained_stops_although_each_domain_is_too_small_to_show_it() -> None:
    """Five of seven prompts fall in each of four domains; a larger gain where users corrected the model hides this."""
    small = [reply for name in "abcd" for reply in answer(name, 5, 0, 2)]
    kinds = [{"metric": "passed_greedy", "domain": kind, "before": before, "after": after, "difference": after - before,
              "low": None, "high": None, "chance": 1e-6, "count": count, "units": count}
             for kind, before, after, count in (("all", 0.47, 0.8, 60), ("corrected", 0.0, 1.0, 32),
                                                ("uncorrected", 1.0, 0.29, 28))]  # fmt: skip
    rows = answer("asked", 0, 32, 0) + small
    assert decide_on(rows).ship
    stopped = decide_on(rows, CALM + kinds)
    assert not stopped.ship
    assert "in uncorrected, right replies fell from 100.0% to 29.0%" in stopped.sentence
    assert decide_on(rows, CALM + [kind | {"chance": 0.5} for kind in kinds]).ship
    in_doubt = decide_on(rows, CALM + [kind | {"chance": 0.04} for kind in kinds])
    assert in_doubt.ship, "of so many comparisons, chance alone makes one like this"
    assert "Taken alone, the fall where nobody complained is beyond chance (100.0% to 29.0%)" in in_doubt.sentence


@pytest.mark.parametrize(("count", "comparisons"), [(4, 0), (30, 2)])
def test_too_few_prompts_where_nobody_complained_are_no_comparison(count: int, comparisons: int) -> None:
    """All prompts and one domain with enough prompts are two comparisons, and the limit is that of two."""
    rows = answer("asked", 0, 0, count) + answer("b", 0, 0, 1)
    known = {"before": 1.0, "after": 1.0, "difference": 0.0, "low": None, "high": None, "chance": None}
    kinds = [{"metric": "passed_greedy", "domain": kind, "count": n, "units": n} | known
             for kind, n in (("all", count + 1), ("uncorrected", 3))]  # fmt: skip
    decision = decide_on(rows, CALM + kinds)
    assert decision.comparisons == comparisons
    assert (find(decision, "uncorrected")["prompts"], find(decision, "uncorrected")["worse"]) == (3, None)


def test_replies_where_nobody_complained_are_compared_if_as_many_where_users_complained_changed_alike() -> None:
    fell = {"metric": "passed_greedy", "before": 1.0, "after": 0.0, "difference": -1.0, "low": None, "high": None,
            "chance": 1e-6, "units": 20, "count": 20}  # fmt: skip
    rows = [reply for name in "abcdefgh" for reply in answer(name, 5, 0, 0)]
    kinds = [fell | {"domain": kind} for kind in ("corrected", "uncorrected")]
    decision = decide_on(rows, [*CALM, fell | {"domain": "all", "units": 40, "count": 40}, *kinds])
    assert find(decision, "uncorrected")["worse"]
    twice = decide_on(rows, CALM + [fell | {"domain": kind} for kind in ("all", "uncorrected")])
    assert "uncorrected" not in {row["domain"] for row in twice.domains}, "this row of the table has all its values"


def test_the_same_replies_ship_and_a_single_domain_is_everything() -> None:
    decision = decide_on(answer("billing", 0, 0, 30))
    assert decision.ship
    assert [row["domain"] for row in decision.domains] == ["billing"]
    assert (decision.comparisons, decision.reasons) == (1, [])


def test_where_no_reply_is_ever_right_nothing_is_compared() -> None:
    """The check may be wrong, or the limit may cut off each reply."""
    rows = [row(f"a-{n}", model, False) for n in range(30) for model in ("before", "after")]
    assert decide_on(rows).reasons == ["right replies cannot be compared: no reply of either model is right"]
    assert decide_on([one | {"passed": one["model"] == "after"} for one in rows]).ship


def test_every_further_domain_makes_the_others_harder_to_stop() -> None:
    fell = answer("a", 7, 0, 30)
    assert not decide_on(fell).ship
    more = [reply for n in range(12) for reply in answer(f"{n}", 0, 0, 8)]
    assert decide_on(fell + more).ship


def test_sampled_replies_decide_and_those_without_a_verdict_do_not_count() -> None:
    rows = answer("a", 20, 0, 0) + [row(f"a-{n}", model, passed, sample + 1) for n in range(20)
                                    for model in ("before", "after")
                                    for sample, passed in enumerate((True, n < 10, None if n else True))]  # fmt: skip
    decision = decide_on(rows)
    assert decision.ship
    found = find(decision, "a")
    assert found["before"] == found["after"] == pytest.approx((2 / 3 + 9 + 10 / 2 + 1 / 3) / 20)
    unknown = decide_on([row(f"a-{n}", model, None) for n in range(9) for model in ("before", "after")])
    assert not unknown.ship
    assert (find(unknown, "a")["prompts"], find(unknown, "a")["worse"]) == (0, None)


def test_too_few_prompts_are_said_and_stop_where_no_loss_may_go_unseen() -> None:
    rows = answer("a", 0, 0, 200) + answer("few", 2, 0, 2)
    decision = decide_on(rows)
    assert decision.ship
    assert "few: 4 prompts with a verdict, too few" in decision.sentence
    assert find(decision, "few")["worse"] is None
    strict = decide_on(rows, max_loss=0.15)
    assert [reason.split(",")[0] for reason in strict.reasons] == ["in few"]
    assert decide_on(answer("a", 0, 0, 200), max_loss=0.15).ship
    assert not decide_on(answer("a", 0, 0, 200), max_loss=0.02).ship
    assert not decide_on(answer("a", 0, 0, 5)).ship, "nothing is known"


LOOP = "and so on, " * 40


@pytest.mark.parametrize(("check", "fields"), [
    ("cut_off", {"finish_reason": "length"}), ("hint_echo", {"hint_echo": "as you hinted"}),
    ("refusal", {"reply": "I'm sorry, but I can't help with that."}), ("loop", {"reply": LOOP}),
    ("broken_call", {"reply": '<tool_call>{"name": </tool_call>'}),
])  # fmt: skip
def test_faults_that_became_more_stop_unless_they_are_allowed(check: str, fields: JSON) -> None:
    rows = answer("a", 0, 0, 20)
    stopped = decide_on(rows + answer("b", 0, 0, 20, **fields))
    assert [row["check"] for row in stopped.checks if row["worse"]] == [check]
    assert "0.5, 0 before" in stopped.sentence
    assert not stopped.ship
    assert decide_on(rows + answer("b", 0, 0, 20, **fields), allowed=[check]).ship
    assert decide_on(rows + answer("b", 0, 0, 2, **fields)).ship, "two of 22 replies may be chance"


@pytest.mark.parametrize(("check", "metric", "changed"), [
    ("drift", "kl_replies", {"after": 0.35}),
    ("length", "reply_tokens", {"after": 130.0}), ("length", "reply_tokens", {"after": 30.0}),
])  # fmt: skip
def test_drift_and_length_have_the_ranges_of_eval(check: str, metric: str, changed: JSON) -> None:
    scores = [row | changed if row["metric"] == metric else row for row in CALM]
    rows = answer("a", 0, 0, 30)
    stopped = decide_on(rows, scores)
    assert [row["check"] for row in stopped.checks if row["worse"]] == [check]
    assert not stopped.ship
    assert decide_on(rows, scores, allowed=[check]).ship
    unsure = [row | {"chance": 0.2} if row["metric"] == "reply_tokens" else row for row in scores]
    assert decide_on(rows, unsure).ship is (check == "length"), "a length that may be chance does not stop"


@pytest.mark.parametrize(("text", "faults"), [
    ("I cannot help with that.", {"refusal"}), ("I’m not able to provide this.", {"refusal"}),
    ("Unfortunately we can't do that here.", {"refusal"}), ("I can't help but smile.", set()),
    ("I am not going to help with that.", {"refusal"}), ("We must decline.", {"refusal"}),
    ("I cannot and will not help with this.", {"refusal"}), ("I won't be able to help with that.", {"refusal"}),
    ("I'm sorry, but as an AI I cannot generate that.", {"refusal"}), ("I will be able to help.", set()),
    ("I'm sorry. I can’t share this.", {"refusal"}), ("I can't help with that; it is illegal.", {"refusal"}),
    ("I won't give up! Here is the answer: 4", set()), ("Sure. As I can't share files here, I paste it.", set()),
    ("As I can't share files here, I paste the table.", set()), ("I cannot give all digits: 3.14", set()),
    ("We will not share your data; here is the summary.", set()), ("It is 4. I can't give more digits.", set()),
    ("I can help with that.", set()), ("The shop cannot provide spare parts.", set()), ("", set()),
    ("<think>I can't help with that, or can I?</think>Here it is.", set()), (LOOP, {"loop"}),
    ('<tool_call>{"name": "f", "arguments": {}}</tool_call>', set()), ("<tool_call>f(", {"broken_call"}),
])  # fmt: skip
def test_faults_of_a_reply(text: str, faults: set[str]) -> None:
    assert find_faults(text) == faults


def test_the_markdown_begins_with_the_decision_and_its_tables_are_whole() -> None:
    decision = decide_on(answer("a|b\x1b", 14, 1, 30) + answer("dates", 0, 0, 4))
    first, domains, checks, _ = decision.markdown().split("\n\n")
    assert first.startswith("**Do not ship:** in all, right replies fell")
    assert "\x1b" not in decision.markdown()
    for table in (domains, checks):
        assert {line.replace("\\|", "").count("|") for line in table.splitlines()} == {table.split("\n")[0].count("|")}
    assert [line.split(" | ")[-1] for line in domains.splitlines()[2:]] == [
        "**worse** |", "**worse** |", "too few prompts |"]  # fmt: skip
    assert decide_on(answer("a", 0, 0, 30)).markdown().startswith("**Ship:** ")


def test_no_domain_writes_markup_into_a_pull_request() -> None:
    """Domains may be the words of users, from hints that a judge took from their complaints."""
    name = r"ask @org/admins [x](http://e) <img src=x> a\|b"
    markdown = decide_on(answer(name, 14, 1, 30) + answer("dates", 0, 0, 4)).markdown()
    assert markdown.count(r"ask @<!-- -->org/admins \[x\](http://e) \<img src=x\> a\\\|b") == 2
    assert name not in markdown


# -- a hundred nights --------------------------------------------------------------------------------------------------

DOMAINS, PROMPTS, SAMPLES = ("billing", "dates", "travel"), 600, 4


def draw_rates(rng: np.random.Generator) -> Rates:
    """Draw rates as of real models: two of three prompts are nearly always or never right, the others are between."""
    kinds = rng.choice(3, PROMPTS, p=[0.45, 0.2, 0.35])
    near = rng.uniform(0, 0.02, PROMPTS)
    return np.choose(kinds, [1 - near, near, rng.uniform(0, 1, PROMPTS)])


def shift_rates(rates: Rates, change: float) -> Rates:
    """Move the log-odds of all prompts by one number, so that the mean changes by `change`."""
    odds = np.log(rates.clip(1e-3, 1 - 1e-3) / (1 - rates.clip(1e-3, 1 - 1e-3)))
    low, high = -20.0, 20.0
    for _ in range(50):
        middle = (low + high) / 2
        moved = 1 / (1 + np.exp(-odds - middle))
        low, high = (middle, high) if moved.mean() - rates.mean() < change else (low, middle)
    return moved


def break_prompts(rng: np.random.Generator, rates: Rates, loss: float) -> Rates:
    """Make single prompts always fail, drawn among those mostly right, until the mean has fallen by `loss`."""
    broken, left = rates.copy(), loss * len(rates)
    for n in rng.permutation(np.flatnonzero(rates > 0.5)):
        step = min(left, broken[n])
        broken[n], left = broken[n] - step, left - step
    return broken


def train_rates(rng: np.random.Generator, rates: Rates) -> Rates:
    """Exchange the rates of one prompt in 25: any training moves single prompts both ways."""
    moved = rng.choice(len(rates), len(rates) // 25, replace=False)
    trained = rates.copy()
    trained[moved] = rates[rng.permutation(moved)]
    return trained


def simulate_night(seed: int, losses: dict[str, tuple[float, bool]], gains: dict[str, float]) -> Decision:
    """Return a night's decision. `losses`: domain -> (fall of its mean, if of single prompts); `gains`: its rise."""
    rng, tables = np.random.default_rng(seed), []
    for domain in DOMAINS:
        before = draw_rates(rng)
        after = train_rates(rng, before)
        if domain in gains:
            after = shift_rates(after, gains[domain])
        if domain in losses:
            loss, is_of_prompts = losses[domain]
            after = break_prompts(rng, after, loss) if is_of_prompts else shift_rates(after, -loss)
        for model, rates in (("before", before), ("after", after)):
            passed, cut = rng.random((2, PROMPTS, SAMPLES)) < np.stack([rates, np.full(PROMPTS, 0.01)])[..., None]
            count = passed.size
            tables.append(pa.table({
                "prompt_id": np.repeat([f"{domain}-{n}" for n in range(PROMPTS)], SAMPLES), "domain": [domain] * count,
                "model": [model] * count, "sample": np.tile(np.arange(SAMPLES) + 1, PROMPTS),
                "reply": np.where(passed, "right", "wrong").ravel(), "passed": passed.ravel(),
                "finish_reason": np.where(cut, "length", "stop").ravel(), "called": pa.nulls(count, pa.bool_()),
                **{name: pa.nulls(count, pa.string()) for name in ("session", "hint_echo", "hollow", "probe")},
            }))  # fmt: skip
    return decide(pa.concat_tables(tables), CALM)


def simulate_nights(first_seed: int) -> tuple[list[Decision], list[Decision]]:
    """Return the decisions on 80 good nights, half of them better in one domain, and on 20 with a loss in one domain.

    Half of the losses are exactly 0.05. Alternately, single prompts fail or all get a little worse. Another domain
    gets better at the same time.
    """
    sizes = [0.05] * 10 + [0.06, 0.07, 0.08, 0.09, 0.1, 0.12, 0.14, 0.16, 0.18, 0.2]
    good = [simulate_night(first_seed + n, {}, {} if n % 2 else {DOMAINS[n % 3]: 0.02 + n / 400}) for n in range(80)]
    bad = [simulate_night(first_seed + 80 + n, {DOMAINS[n % 3]: (loss, n % 2 == 0)}, {DOMAINS[(n + 1) % 3]: 0.1})
           for n, loss in enumerate(sizes)]  # fmt: skip
    return good, bad


def test_of_a_hundred_nights_the_bad_ones_are_stopped() -> None:
    """With as many prompts per domain as the guide names for a loss of 0.05."""
    good, bad = simulate_nights(0)
    assert sum(not night.ship for night in good) <= 2
    assert sum(not night.ship for night in bad) >= 19
    unchanged = [find(night, domain)["finds"] for night in good[1::2] for domain in DOMAINS]
    assert 0.04 <= np.mean(unchanged) <= 0.06


def test_a_share_that_cannot_fall_so_far_is_not_missed() -> None:
    """One of 30 replies is right before, and all are right after, so a loss of 0.1 cannot have happened."""
    rows = answer("new", 0, 29, 1) + answer("old", 0, 0, 200)
    assert decide_on(rows, max_loss=0.1).ship
    assert "The weakest evidence is for old" in decide_on(rows).sentence


def test_a_failure_that_is_allowed_is_in_the_first_sentence() -> None:
    scores = [CALM[0] | {"after": 0.9}, CALM[1]]
    assert not decide_on(answer("a", 0, 0, 40), scores).ship
    allowed = decide_on(answer("a", 0, 0, 40), scores, allowed=["drift"])
    assert allowed.ship
    assert "failed, but allowed: drift" in allowed.sentence


def test_a_drift_that_is_nowhere_finite_fails() -> None:
    lost = decide_on(answer("a", 0, 0, 40), [CALM[0] | {"count": 0, "after": None}])
    assert not lost.ship
    assert "not finite" in lost.sentence


def test_without_samples_the_noise_is_not_known() -> None:
    assert find(decide_on(answer("a", 0, 0, 40)), "a")["noise"] is None


def test_thinking_that_is_still_open_is_no_refusal() -> None:
    assert find_faults("<think>I can't give that from memory, so") == set()
    assert find_faults("<think>Well</think>I can't help with that.") == {"refusal"}
