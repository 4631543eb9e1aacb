"""Sessions that a night trains on: new ones, some of earlier nights, those kept out of training; wishes that turn."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from night_logs import judged_night, options
from small_logs import chat

from opdkit.commands.night.gather import NightSession, Opinion, find_turned, gather, write_run
from opdkit.commands.night.home import Home
from opdkit.config.extract import ExtractConfig
from opdkit.config.judge import JudgeConfig
from opdkit.evaluate.log_prompts import COMPLAINT, NEUTRAL, PRAISE
from opdkit.store.reading import read_all
from opdkit.train.targets import is_held_out

THINGS = [f"{a} {b}" for a in "red blue green old new big small round".split() for b in "car boat house tree".split()]


def praised(*things: str) -> list[dict]:
    return [chat(f"Tell me about the {thing}.", f"The {thing} is fine.", "Thanks, perfect!") for thing in things]


def corrected(*things: str) -> list[dict]:
    after = "Please use French instead.", "Oui.", "Thanks!"
    return [chat(f"Please describe {thing} in short", f"It is {thing}.", *after) for thing in things]


@pytest.fixture
def home(tmp_path: Path) -> Home:
    """Night 1: 32 praised chats, learned. Night 2: 16 corrected chats about something else."""
    home = Home(tmp_path)
    judged_night(home, 1, *praised(*THINGS), decision="promoted")
    judged_night(home, 2, *corrected(*(f"{name} of Rome" for name in THINGS[:16])))
    return home


def trainable(run: Path) -> Iterator[str]:
    return (row["turn_id"] for row in read_all(run, "turns") if row["trainable"])


def write(home: Home, number: int, **changed: object) -> Path:
    night = home.night(number)
    chosen = gather(home, night, options(home, **changed), seed=0)
    write_run(home, night, chosen, ExtractConfig(run=night.folder, logs=("x",)),
              JudgeConfig(run=night.folder, judge="rules"))  # fmt: skip
    return night.folder


def test_a_night_learns_what_is_new_and_replays_its_share(home: Home) -> None:
    chosen = gather(home, home.night(2), options(home, replay=0.25), seed=0)
    new = [row["turn_id"] for row in read_all(home.night(2).log, "verdicts") if row["reward"] is not None]
    assert chosen.new == sum(not is_held_out(name.rpartition(":")[0], 0.2) for name in new)
    assert chosen.replayed == round(chosen.new / 3)
    run = write(home, 2, replay=0.25)
    trained = [name for name in trainable(run) if not is_held_out(name.rpartition(":")[0], 0.2)]
    assert len(trained) == chosen.new + chosen.replayed
    assert {name.partition(":")[0] for name in trained} == {"log@1", "log@2"}
    verdicts = {row["turn_id"]: row for row in read_all(run, "verdicts")}
    judged = {row["turn_id"]: row for n in (1, 2) for row in read_all(home.night(n).log, "verdicts")}
    assert verdicts.keys() == set(trainable(run))
    assert all(judged[name] == row for name, row in verdicts.items()), "nothing is judged twice"


def test_sessions_kept_out_are_kept_out_of_every_night(home: Home) -> None:
    run = write(home, 2)
    names = {row["session_id"] for row in read_all(run, "sessions")}
    out = {row["session_id"] for row in read_all(home.night(1).log, "sessions") if is_held_out(row["session_id"], 0.2)}
    assert out, "the test would show nothing"
    assert out <= names, "those of earlier nights decide, too"


def test_no_replay_and_the_same_draw_each_time(home: Home) -> None:
    assert gather(home, home.night(2), options(home, replay=0.0), seed=0).replayed == 0
    first, again, other = (gather(home, home.night(2), options(home), seed=seed).sessions for seed in (0, 0, 1))
    assert list(first) == list(again)
    assert first.keys() != other.keys()


def test_a_run_that_was_killed_half_way_is_written_again(home: Home) -> None:
    run = write(home, 2)
    whole = {name: list(read_all(run, name)) for name in ("sessions", "turns", "verdicts")}
    next((run / "judge" / "verdicts").glob("part-*.parquet")).unlink()
    assert {name: list(read_all(write(home, 2), name)) for name in whole} == whole


def test_nights_that_were_not_learned_from_are_new(home: Home) -> None:
    night = judged_night(home, 3, *praised("kind dog", "wild cat"), learns=[2, 3])
    chosen = gather(home, night, options(home), seed=0)
    both = [opinion for versions in chosen.sessions.values() for one in versions for opinion in one.opinions
            if one.night in (2, 3) and not one.is_held_out]  # fmt: skip
    assert chosen.new == len(both)


def said(night: int, *opinions: tuple[str, str, str, str | None]) -> list[NightSession]:
    """A session of a night for each (request, reply, kind, hint)."""
    return [
        NightSession(night, 0, f"{night}-{n}", False, (Opinion(f"{night}-{n}:1", kind, hint, frozenset(request.split()),
                                                               frozenset(reply.split()) - frozenset(request.split())),))
        for n, (request, reply, kind, hint) in enumerate(opinions)
    ]  # fmt: skip


LIST, TABLE = "here are some a b c", "| a | b | c |"
REJECTED, LIKED = ("list the files", LIST, COMPLAINT, "Use a table."), ("list the files", TABLE, PRAISE, None)
PRAISED_BEFORE = ("list the files", LIST, PRAISE, None)


def test_praise_that_users_take_back_no_longer_counts() -> None:
    old = said(1, PRAISED_BEFORE, PRAISED_BEFORE, PRAISED_BEFORE, ("sing a song", "la la", PRAISE, None))
    turned, superseded = find_turned([*old, *said(2, *[REJECTED] * 6, LIKED)])
    assert (turned, superseded) == (["Use a table."], {(1, "1-0:1"), (1, "1-1:1"), (1, "1-2:1")})
    assert find_turned([*old, *said(2, *[REJECTED] * 5)]) == ([], set()), "five complaints may be chance"
    other = [("show all my photos", LIST, kind, None) for kind in (PRAISE, NEUTRAL)]
    superseded = find_turned([*said(1, *[PRAISED_BEFORE] * 3, *other), *said(2, *[REJECTED] * 6, LIKED)])[1]
    assert {(1, "1-3:1"), (1, "1-4:1")} <= superseded, "whatever was asked, and also what was only accepted"


def test_a_wish_that_turns_takes_no_other_praise_with_it() -> None:
    """Under one hint there may be replies that were rejected for other reasons: praise of their kinds stays."""
    asking = ("a flight to Rome", "On which day shall I book it?", PRAISE, None)
    wrong = ("a flight to Oslo", "On which day shall I book Rome?", COMPLAINT, "Use a table.")
    turned, superseded = find_turned([*said(1, *[PRAISED_BEFORE] * 3, *[asking] * 4), *said(2, *[REJECTED] * 6, wrong)])
    assert (turned, superseded) == (["Use a table."], {(1, f"1-{n}:1") for n in range(3)})


def test_of_a_session_only_what_turned_no_longer_counts(home: Home) -> None:
    first = [chat(f"Please describe {thing} in short", "Oui. C'est bien.", "Thanks, perfect!", f"It has {n} wheels.",
                  f"Thanks, perfect! Now my {thing}?", f"Yours is number {n}.", "Thanks, perfect!")
             for n, thing in enumerate(THINGS[:8])]  # fmt: skip
    again = [chat(f"Please describe {thing} in short", "Oui. C'est bien.", "Please use English instead.", "It is.")
             for thing in THINGS[8:20]]  # fmt: skip
    judged_night(home, 3, *first, learns=[3])
    chosen = gather(home, judged_night(home, 4, *again, learns=[3, 4]), options(home, replay=0.0), seed=0)
    assert len(chosen.turned) == 1
    left = [opinion for versions in chosen.sessions.values() for one in versions if one.night == 3
            for opinion in one.opinions]  # fmt: skip
    assert len(left) == 16
    assert not any("oui" in opinion.reply for opinion in left)


def test_a_turn_is_found_however_long_ago_it_was() -> None:
    nights = [*said(1, *[PRAISED_BEFORE] * 4), *said(3, *[REJECTED] * 3), *said(4, *[REJECTED] * 8), *said(6, LIKED)]
    assert find_turned(nights)[1] == {(1, f"1-{n}:1") for n in range(4)}, "complaints outnumber the praise by now"


def test_complaints_about_what_users_now_like_no_longer_count() -> None:
    old = said(1, PRAISED_BEFORE, PRAISED_BEFORE, ("list the files", TABLE, COMPLAINT, "No markup."))
    assert find_turned([*old, *said(2, *[REJECTED] * 6, LIKED)])[1] == {(1, "1-0:1"), (1, "1-1:1"), (1, "1-2:1")}


def test_complaints_that_asked_for_what_is_rejected_now_no_longer_count() -> None:
    first = ("list the files", "files? no", COMPLAINT, "Write plain words.")
    both = NightSession(1, 0, "s", False, (*said(1, first)[0].opinions, *said(1, PRAISED_BEFORE)[0].opinions))
    alone = said(2, first)
    turned, superseded = find_turned([both, *alone, *said(3, *[REJECTED] * 6)])
    assert turned == ["Use a table."]
    assert (2, alone[0].opinions[0].turn_id) in superseded, "the same wish, in another session"


def test_a_wish_that_stays_is_not_turned_around() -> None:
    old = said(1, *[REJECTED] * 3, *[LIKED] * 5)
    assert find_turned([*old, *said(2, *[REJECTED] * 6, LIKED)]) == ([], set())
    others = [("list the files", LIST, COMPLAINT, hint) for hint in ("Draw columns.", "I want cells and rows.")]
    assert find_turned([*old, *said(2, *others * 3)]) == ([], set()), "in whatever words"


def test_single_complaints_do_not_turn_what_most_users_like() -> None:
    assert find_turned([*said(1, *[PRAISED_BEFORE] * 5), *said(2, REJECTED, *[PRAISED_BEFORE] * 4)]) == ([], set())


def test_hints_that_most_users_now_contradict_no_longer_count() -> None:
    old = said(1, *[("the weather", "20 F", COMPLAINT, "Use Celsius.")] * 2, ("a joke", "ha", COMPLAINT, "Be brief."))
    new = [("how warm is it", "20 C", COMPLAINT, "Use Fahrenheit, not Celsius.")]
    assert find_turned([*old, *said(2, *new * 6)]) == (["Use Fahrenheit, not Celsius."], {(1, "1-0:1"), (1, "1-1:1")})
    still = said(2, *new, *[("the weather", "20 F", COMPLAINT, "Use Celsius.")] * 9)
    assert find_turned([*old, *still]) == ([], set()), "a single user contradicts all others"
