"""Tests of a training's best state: which one it is, and when a training ends, rolls back, adds a cycle, or fails."""

import pytest
from validation_rows import validation_row as _row

from opdkit.config.fields import JSON
from opdkit.errors import NothingLearnedError, OpdkitError
from opdkit.train.best_state import (
    PATIENCE,
    check_better,
    find_best,
    has_stalled,
    has_two_broken,
    is_broken,
    is_nearer,
    needs_another_cycle,
    trace_steps,
)


def test_the_best_state_has_the_least_score() -> None:
    rows = [
        _row(0, 0.3, 0.0),
        _row(5, 0.1, 0.1),
        _row(10, 0.05, 0.1),
        _row(15, 0.2, 0.3),
    ]
    assert find_best(rows)["step"] == 10
    assert find_best([_row(0, 0.3, 0.0), _row(5, 0.4, 0.0)])["step"] == 0
    assert find_best([rows[0], _row(5, 0.1, 0.05), _row(10, 0.1, 0.05)])["step"] == 10, "of equal ones the last"


@pytest.mark.parametrize(
    ("after", "nearer"),
    [
        ((3.6, 4.6, 5.6), True),  # all a little nearer
        ((4.0, 5.0, 5.1), False),  # only one nearer
        ((6.2, 5.5, 2.4), False),  # one nearer, the others further away
        ((6.0, 6.0, 0.5), True),  # nearer by more than a tenth
        ((4.0, 5.0, 6.0), False),
        ((4.1, 5.1, 6.1), False),
    ],
)
def test_a_small_gain_counts_where_chance_gains_less(after: tuple[float, ...], nearer: bool) -> None:
    """A small gain must exceed its standard error: (-2.2, -0.5, 3.6) have the mean 0.3 and the standard error 1.7."""

    def row(kls: tuple[float, ...]) -> JSON:
        replies = [{"turn_id": f"log:{n}:1", "kl": kl} for n, kl in enumerate(kls)]
        return {"hint_kl": sum(kls) / len(kls), "hint_kls": replies}

    assert is_nearer(row(after), row((4.0, 5.0, 6.0))) is nearer


def test_a_state_that_has_forgotten_is_not_the_best() -> None:
    rows = [_row(0, 9.0, 0.0), _row(5, 3.0, 0.5), _row(10, 0.1, 2.6)]
    assert find_best(rows)["step"] == 5
    assert find_best([rows[0], rows[2]])["step"] == 0
    assert find_best([rows[0], rows[2] | {"forgotten": 0.1}])["step"] == 10
    assert find_best([rows[0], rows[2] | {"kept_kl": None, "forgotten": None}])["step"] == 10, "without such prompts"


def test_the_best_state_is_nearer_to_the_hints_and_may_move_elsewhere() -> None:
    """Replies that nobody complained about may change, too, but by no more than half of what was gained on hints."""
    rows = [_row(0, 2.0, 0.0), _row(5, 1.0, 0.5), _row(10, 2.1, 0.0)]
    assert find_best(rows)["step"] == 5
    assert find_best([rows[0], rows[2]])["step"] == 0
    assert find_best([rows[0], _row(5, 1.0, 0.55), rows[2]])["step"] == 0
    assert find_best([rows[0], _row(5, 0.6, 2.4)])["step"] == 5, "it follows the hints, which may ask for it elsewhere"
    assert find_best([rows[0], _row(5, 0.7, 2.4)])["step"] == 0


def test_without_hints_the_best_state_is_the_last_that_has_not_forgotten() -> None:
    rows = [
        _row(0, None, 0.0),
        _row(5, None, 1.0),
        _row(10, None, 2.0),
        _row(15, None, 3.0),
    ]
    assert find_best(rows)["step"] == 10
    assert find_best([rows[0], rows[3]])["step"] == 0


def test_a_training_ends_where_it_is_in_vain() -> None:
    good, worse = [_row(0, 0.3, 0.0), _row(5, 0.1, 0.0)], _row(9, 0.2, 0.0)
    assert not has_stalled([*good, *[worse] * (PATIENCE - 1)], 0)
    assert has_stalled([*good, *[worse] * PATIENCE], 0)
    assert not has_stalled([*good, *[worse] * PATIENCE], 9), "a new cycle may first be worse"
    slow = [_row(step, 5.0 - 0.1 * step, 0.0) for step in range(PATIENCE + 2)]
    assert find_best(slow)["step"] == 0, "as may be by chance"
    assert not has_stalled(slow, 0), "but it still improves"
    moved = [_row(step, 5.0 - 0.1 * step, 0.2 * step) for step in range(PATIENCE + 2)]
    assert has_stalled(moved, 0)
    assert not has_stalled(moved, 0, "hint_kl")


def test_another_cycle_follows_one_that_ends_with_much_to_learn_and_was_not_in_vain() -> None:
    """Much is left to learn if the score is more than a hundredth of the score before training."""

    def cycle(*distances: float | None) -> bool:
        return needs_another_cycle([_row(step, d, 0.0) for step, d in enumerate(distances)], 0, len(distances) - 1)

    assert cycle(3.0, 2.0, 1.5)
    assert cycle(3.0, 1.5, 2.0), "still nearer than before training: few replies decide which state was best"
    assert not cycle(3.0, 1.5, 2.9), "the steps were in vain"
    assert cycle(3.0, 2.75, 2.9), "so little may be chance"
    assert cycle(3.0, 3.1, 3.1), "nothing is learned yet, and nothing lost"
    assert not cycle(3.0, 0.02, 0.021), "there is little more to learn"
    assert cycle(3.0, 2.0, 0.031)
    assert not cycle(3.0, 2.0, 0.029)
    assert cycle(3.0, 1.5, 1.5), "the same distance can be left by other turns of the next cycle"
    assert not cycle(3.0, 2.0, 4.6), "broken"
    assert not cycle(None, None, None)
    moved = [_row(0, 3.0, 0.0), _row(4, 0.02, 0.5), _row(8, 0.2, 0.1)]
    assert needs_another_cycle(moved, 0, 8)
    assert not needs_another_cycle(moved, 0, 8, "hint_kl"), "one of the states has learned the hints"
    assert needs_another_cycle([_row(0, 3.0, 0.0), _row(4, 0.04, 0.5)], 0, 4, "hint_kl")
    falls = [_row(0, 3.0, 0.0), _row(4, 1.0, 1.0), _row(8, 0.8, 1.2)]  # the score stays
    assert needs_another_cycle(falls, 4, 8, "hint_kl")
    assert not needs_another_cycle(falls, 4, 8)
    assert needs_another_cycle([_row(0, 3.0, 0.0), _row(4, 0.02, 0.011)], 0, 4), "kept replies count, too"
    assert not needs_another_cycle([_row(0, 3.0, 0.0), _row(4, 0.02, 0.009)], 0, 4)
    assert not needs_another_cycle([_row(0, None, 0.0), _row(4, None, 2.0)], 0, 4), "without hints, nothing says so"
    rows = [_row(0, 3.0, 0.0), _row(4, 2.0, 0.0), _row(8, 1.6, 0.0)]
    assert [needs_another_cycle(rows, start, end) for start, end in ((0, 4), (4, 8), (4, 9))] == [True, True, False]
    in_vain = [*rows[:2], _row(8, 1.9, 0.0)]
    assert not needs_another_cycle(in_vain, 4, 8), "the second cycle brought no more than chance"
    assert needs_another_cycle(in_vain, 0, 8), "but much was left after the first"


def test_two_broken_states_are_no_place_to_go_on_from() -> None:
    """A broken state is clearly further from the hints than an earlier one, or lost replies without a complaint."""
    before, better, worse, forgot = (
        _row(0, 0.3, 0.0),
        _row(5, 0.1, 2.0),
        _row(9, 0.5, 0.2),
        _row(9, 0.1, 2.6),
    )
    assert [is_broken([before, row]) for row in (before, better, worse, forgot)] == [False, False, True, True]
    relapses = [[before, _row(5, 0.02, 0.0), _row(9, hint_kl, 0.0)] for hint_kl in (0.21, 0.23)]
    assert list(map(is_broken, relapses)) == [False, True], "two thirds of the first distance are lost again"
    assert has_two_broken([*relapses[1], _row(12, 0.25, 0.0)])
    assert not has_two_broken([*relapses[1], _row(12, 0.1, 0.0)])
    assert has_two_broken([before, worse, worse])
    assert has_two_broken([before, better, worse, _row(12, 0.1, 2.6)])
    others = ([before], [before, worse], [before, worse, better], [before, better, worse])
    assert not any(has_two_broken(rows) for rows in others)
    unhinted = [_row(0, None, 0.0), _row(5, None, 5.0)]
    assert [has_two_broken([*unhinted, _row(9, None, moved)]) for moved in (1.0, 5.0)] == [False, True]


def test_what_was_measured_before_going_back_no_longer_counts() -> None:
    went_back = [_row(0, 6.0, 0.0), _row(5, 0.5, 0.0), _row(10, 4.9, 0.0), _row(15, 5.2, 0.0)]
    assert has_two_broken(went_back)
    again = [*went_back[:3], went_back[3] | {"went_back_to": 5}, _row(20, 4.8, 0.0)]
    assert not has_two_broken(again), "only one is broken since"
    assert has_two_broken([*again, _row(25, 4.8, 0.0)])
    assert has_stalled([*went_back, again[4]], 0)
    assert not has_stalled(again, 0)


def test_steps_that_were_taken_back_led_to_no_later_state() -> None:
    def trace(kept: int, went_back_to: dict[int, int]) -> list[int]:
        return trace_steps([_row(n, 1.0, 0.0) | {"went_back_to": went_back_to.get(n)} for n in range(0, 13, 2)], kept)

    assert trace(3, {}) == [1, 2, 3]
    assert trace(12, {4: 2, 8: 6}) == [1, 2, 5, 6, 9, 10, 11, 12]
    assert trace(3, {4: 2}) == [1, 2, 3]
    assert trace(5, {4: 0}) == [5]
    assert trace_steps([], 2) == [1, 2], "without validation"


def test_a_training_does_not_go_back_to_where_it_is() -> None:
    """The state nearest to the hints may have forgotten, or may have changed too many other replies to be the best."""
    forgot = [_row(0, 3.0, 0.0), *(_row(step, 0.05, 3.0) | {"forgotten": 0.5} for step in (5, 10))]
    assert has_two_broken(forgot)
    assert not is_broken([*forgot, _row(15, 2.5, 0.1)]), "no state that could be kept was nearer"
    drifted = [_row(0, 6.0, 0.0), _row(5, 0.2, 5.0), _row(10, 4.6, 0.7), _row(15, 4.3, 0.2)]
    drifted = [row | {"forgotten": 0.0} for row in drifted]
    assert is_broken(drifted)
    assert is_broken(drifted[:-1])
    assert find_best(drifted) is drifted[-1]
    assert not has_two_broken(drifted)


def test_a_training_goes_on_while_the_score_falls_even_if_no_state_could_be_kept_yet() -> None:
    rows = [_row(0, 4.0, 0.0), _row(5, 3.5, 0.6), _row(10, 3.0, 0.8), _row(15, 2.5, 1.0)]
    assert find_best(rows)["step"] == 0
    assert not has_stalled(rows, 0)


def test_the_error_names_the_step_that_moved_most() -> None:
    rows = [_row(0, 0.3, 0.0), _row(4, 2.0, 1.0)]
    metrics = [{"step": n, "step_kl": kl, "shift": 0.1, "turn_ids": [f"log:{n}:1"] * 2}
               for n, kl in enumerate((0.1, None, 0.9, 0.2), start=1)]  # fmt: skip
    with pytest.raises(OpdkitError, match="no nearer to the hints than chance would") as caught:
        check_better(rows, metrics)
    assert str(caught.value).count("log:3:1") == 1, "once, also where the teacher wrote a second reply"
    with pytest.raises(OpdkitError, match="nobody complained about more than half as far as"):
        check_better([_row(0, 2.0, 0.0), _row(4, 1.0, 2.0)], metrics)
    check_better([rows[0], _row(4, 0.1, 0.05)], metrics)
    with pytest.raises(OpdkitError, match=r"more than half as far as .* after step 4, 3\.00 nats"):
        check_better([_row(0, 4.0, 0.0), _row(4, 3.0, 0.9), _row(8, 4.3, 0.0)], metrics)


def test_a_state_that_only_forgets_is_no_better_either() -> None:
    """Its score can be below the score before training, so the worst state must not be that before the first step."""
    forgot = _row(4, 0.5, 1.4) | {"forgotten": 0.2}
    with pytest.raises(NothingLearnedError, match=r"lost replies that nobody complained about.*log:1:1"):
        check_better([_row(0, 3.0, 0.0), forgot], [{"step": 1, "step_kl": 0.1, "shift": 0.1, "turn_ids": ["log:1:1"]}])


def test_the_error_names_what_was_lost_if_all_that_is_nearer_has_lost_it() -> None:
    """A later state that went back to the beginning is no nearer, but the error shows the one that was."""
    rows = [_row(0, 9.7, 0.0), _row(4, 6.3, 6.6) | {"forgotten": 0.5}, _row(8, 9.7, 0.2) | {"forgotten": 0.0}]
    metrics = [{"step": 4, "step_kl": 0.1, "shift": 0.1, "turn_ids": ["log:1:1"]}]
    with pytest.raises(NothingLearnedError, match=r"lost replies that nobody complained about.*6\.30 nats"):
        check_better(rows, metrics)
