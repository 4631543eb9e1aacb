"""Tests of the sessions of a night: new ones, replayed ones of earlier nights, and those held out of training."""

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from night_logs import judged_night, options
from small_logs import chat

from opdkit.commands.night.home import Home, Night
from opdkit.commands.night.sessions import (
    CurrentSessions,
    Sessions,
    choose_sessions,
    choose_tests,
    choose_unseen,
    count_trained,
    read_current_sessions,
    read_sessions,
    write_run,
)
from opdkit.commands.night.turned import NightSession, Opinion
from opdkit.config.extract import ExtractConfig
from opdkit.config.judge import JudgeConfig
from opdkit.evaluate.log_prompts import COMPLAINT, NEUTRAL, PRAISE
from opdkit.judge import stage as judge
from opdkit.store.plans import manifest
from opdkit.store.reading import read_all
from opdkit.store.reviews import Review, append
from opdkit.store.turn_ids import is_held_out

THINGS = [f"{a} {b}" for a in "red blue green old new big small round".split() for b in "car boat house tree".split()]


def praised(*things: str) -> list[dict]:
    return [chat(f"Tell me about the {thing}.", f"The {thing} is fine.", "Thanks, perfect!") for thing in things]


def corrected(*things: str) -> list[dict]:
    after = "Please use French instead.", "Oui.", "Thanks!"
    return [chat(f"Please describe {thing} in short", f"It is {thing}.", *after) for thing in things]


@pytest.fixture
def home(tmp_path: Path) -> Home:
    """Return a home: night 1 has learned 32 praised chats; night 2 has 16 corrected chats about something else."""
    home = Home(tmp_path)
    judged_night(home, 1, *praised(*THINGS), decision="promoted")
    judged_night(home, 2, *corrected(*(f"{name} of Rome" for name in THINGS[:16])))
    return home


def trainable(run: Path) -> Iterator[str]:
    return (row["turn_id"] for row in read_all(run, "turns") if row["trainable"])


def read_current(home: Home, night: Night) -> CurrentSessions:
    return read_current_sessions(home, night, lambda number: read_sessions(home.night(number), 0.2))


def choose(home: Home, night: Night, seed: int = 0, **changed: object) -> Sessions:
    config = options(home, **changed)
    return choose_sessions(night, read_current(home, night).sessions, config, seed)


def write(home: Home, number: int, **changed: object) -> Path:
    night = home.night(number)
    chosen = choose(home, night, **changed)
    write_run(night.folder, home, chosen, ExtractConfig(run=night.folder, logs=("x",)),
              JudgeConfig(run=night.folder, judge="rules"))  # fmt: skip
    return night.folder


def count(home: Home, number: int, **changed: object) -> tuple[int, int]:
    night = home.night(number)
    return count_trained(night, choose(home, night, **changed))


def test_a_night_learns_what_is_new_and_replays_its_share(home: Home) -> None:
    read = [row["turn_id"] for row in read_all(home.night(2).log, "verdicts") if row["reward"] is not None]
    new = sum(not is_held_out(name.rpartition(":")[0], 0.2) for name in read)
    run = write(home, 2, replay=0.25)
    assert count(home, 2, replay=0.25) == (new, round(new / 3))
    trained = [name for name in trainable(run) if not is_held_out(name.rpartition(":")[0], 0.2)]
    assert len(trained) == new + round(new / 3)
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
    write(home, 2, replay=0.0)
    assert count(home, 2, replay=0.0)[1] == 0
    first, again, other = (choose(home, home.night(2), seed) for seed in (0, 0, 1))
    assert list(first) == list(again)
    assert first.keys() != other.keys()


def test_a_replayed_reply_counts_as_its_user_rated_it_last(tmp_path: Path) -> None:
    """Night 2 reads the chats of night 1 again, since their users have rated the replies. Night 3 replays one."""
    home = Home(tmp_path)
    for number, rated in ((1, {}), (2, {"decision": {"rating": 1}})):
        chats = [chat(f"Where is the {thing}?", "Here.", "And what is it?") for thing in THINGS]
        for one in chats:
            one["messages"][1] |= rated
        judged_night(home, number, *chats, name="log@1", learns=[1, 2], decision="promoted")
    judged_night(home, 3, *corrected(*THINGS[:12]))
    run = write(home, 3, replay=0.05)
    assert count(home, 3, replay=0.05)[1] == 1
    assert [row["reward"] for row in read_all(run, "verdicts") if row["turn_id"].startswith("log@1")
            and not is_held_out(row["turn_id"].rpartition(":")[0], 0.2)] == [1]  # fmt: skip


def test_a_last_reply_with_an_outcome_is_learned_from(tmp_path: Path) -> None:
    """--good gives it a reward without a reaction. The night learns from it, and a later one can replay it."""
    home = Home(tmp_path)
    for number in (1, 2):
        chats = [chat(f"Where is the {thing}?", "Here.", "What is it?", f"Number {number}.") for thing in THINGS]
        night = judged_night(home, number, *(one | {"stars": n % 6} for n, one in enumerate(chats)))
        judge.run(JudgeConfig(run=night.log, judge="rules", good=("metadata.stars>=4",), overwrite=True))
        last = {row["turn_id"] for row in read_all(night.log, "verdicts") if row["reward"] == 1}
        assert len([name for name in last if name.endswith(":3")]) == 10
        assert last <= set(trainable(write(home, number)))
        night.write(night.record | {"decision": "promoted"})
    later = judged_night(home, 3, *corrected(*THINGS))
    assert any(name.endswith(":3") for name in trainable(write(home, later.number)) if name.startswith("log@2"))


def test_a_run_that_was_killed_half_way_is_written_again(home: Home) -> None:
    run = write(home, 2)
    whole = {name: list(read_all(run, name)) for name in ("sessions", "turns", "verdicts")}
    next((run / "judge" / "verdicts").glob("part-*.parquet")).unlink()
    assert {name: list(read_all(write(home, 2), name)) for name in whole} == whole


def test_a_task_of_a_slurm_array_writes_the_whole_run(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"ID": 1, "COUNT": 4, "MIN": 0, "MAX": 3}.items():
        monkeypatch.setenv(f"SLURM_ARRAY_TASK_{name}", str(value))
    assert {name.partition(":")[0] for name in trainable(write(home, 2, replay=0.25))} == {"log@1", "log@2"}


def test_complaints_of_a_session_that_went_on_stay_tests(home: Home) -> None:
    """A night takes earlier versions only of held-out sessions: it does not train on old complaints again."""

    def session(night: int, name: str, is_held_out: bool) -> NightSession:
        return NightSession(night, 0, name, is_held_out, (Opinion("t", COMPLAINT, None, frozenset(), frozenset()),))

    sessions = [session(night, name, name == "log:a") for night in (1, 2) for name in ("log:a", "log:b")]
    chosen = choose_sessions(home.night(2), sessions, options(home), 0)
    nights = {name: [version.night for version in versions] for name, versions in chosen.items()}
    assert nights == {"log:a": [2, 1], "log:b": [2]}


def test_a_run_of_before_a_decision_is_written_again(home: Home) -> None:
    run = write(home, 2)
    before = manifest(run, "judge")["fingerprint"]
    name = next(row["turn_id"] for row in read_all(run, "verdicts") if row["turn_id"].startswith("log@2"))
    append(home.night(2).log, [Review(name, hint_decided=True, hint="Be brief.")])
    hints = {row["turn_id"]: row["hint"] for row in read_all(write(home, 2), "verdicts")}
    assert hints[name] == "Be brief."
    assert manifest(run, "judge")["fingerprint"] != before, "targets made from the old hint are outdated"


def test_nights_that_were_not_learned_from_are_new(home: Home) -> None:
    night = judged_night(home, 3, *praised("kind dog", "wild cat"), learns=[2, 3])
    both = [opinion for versions in choose(home, night).values() for one in versions for opinion in one.opinions
            if one.night in (2, 3) and not one.is_held_out]  # fmt: skip
    write(home, 3)
    assert count(home, 3)[0] == len(both)


def test_a_turn_that_two_nights_judged_counts_once_and_one_that_is_gone_does_not(home: Home) -> None:
    """Nights 4 and 6 read the chats of nights 3 and 5 again: one turn of each is judged again, the other is gone."""
    asked = "Tell me about the {}.", "The {} is fine.", "Thanks, perfect! Where is it?", "Here, the {}."
    for first, decision, word in ((3, "promoted", "shop"), (5, None, "farm")):
        things = [f"{thing} {word}" for thing in THINGS]
        for night, texts in ((first, (*asked, "Great, thanks!")), (first + 1, (*asked[:2], "Great, thanks!"))):
            chats = [chat(*(text.format(thing) for text in texts)) for thing in things]
            learns = [3, 4] if decision else [5, 6]
            judged_night(home, night, *chats, name=f"log@{first}", decision=decision, learns=learns)
    run = write(home, 6, replay=0.25)
    trained = Counter(name.partition(":")[0] for name in trainable(run)
                      if not is_held_out(name.rpartition(":")[0], 0.2))  # fmt: skip
    new = trained.pop("log@5")
    assert count(home, 6, replay=0.25) == (new, trained.total())


def test_of_a_session_only_what_turned_no_longer_counts(home: Home) -> None:
    first = [chat(f"Please describe {thing} in short", "Oui. C'est bien.", "Thanks, perfect!", f"It has {n} wheels.",
                  f"Thanks, perfect! Now my {thing}?", f"Yours is number {n}.", "Thanks, perfect!")
             for n, thing in enumerate(THINGS[:8])]  # fmt: skip
    again = [chat(f"Please describe {thing} in short", "Oui. C'est bien.", "Please use English instead.", "It is.")
             for thing in THINGS[8:20]]  # fmt: skip
    judged_night(home, 3, *first, learns=[3])
    current = read_current(home, judged_night(home, 4, *again, learns=[3, 4]))
    assert current.new_changes == current.changes
    assert len(current.changes) == 1
    left = [opinion for one in current.sessions if one.night == 3 for opinion in one.opinions]
    assert len(left) == 16
    assert not any("oui" in opinion.reply for opinion in left)


def test_a_change_is_found_once_and_stays(home: Home) -> None:
    """Night 5 reads only praise, which does not end the change, and the change is not reported as new again."""
    first = [chat(f"Please describe {thing} in short", "Oui. C'est bien.", "Thanks, perfect!") for thing in THINGS[:9]]
    again = [chat(f"Please describe {thing} in short", "Oui. C'est bien.", "Please use English instead.", "It is.")
             for thing in THINGS[9:20]]  # fmt: skip
    judged_night(home, 3, *first, learns=[3])
    night = judged_night(home, 4, *again, learns=[3, 4])
    found = read_current(home, night)
    night.write(night.record | {"changes": [one.to_json() for one in found.changes]})
    later = read_current(home, judged_night(home, 5, *first[:2], learns=[3, 4, 5]))
    assert (len(found.new_changes), later.new_changes) == (1, [])
    assert later.changes == found.changes


def test_old_complaints_are_tests_before_newer_sessions_without_one() -> None:
    def session(night: int, n: int, kind: str) -> NightSession:
        opinion = Opinion("t", kind, None, frozenset(), frozenset())
        return NightSession(night, 0, f"{kind}-{night}-{n}", True, (opinion,))

    old = [session(1, n, COMPLAINT) for n in range(300)]
    calm = [session(2, n, PRAISE) for n in range(20)] + [session(3, n, NEUTRAL) for n in range(500)]
    chosen = Counter(one.opinions[0].kind for one in choose_tests([*old, *calm]))
    assert chosen == {COMPLAINT: 150, PRAISE: 20, NEUTRAL: 30}
    newest = choose_tests([*old, session(2, 0, COMPLAINT), *calm[:1]])
    assert [one.night for one in newest[:2]] == [2, 1]
    assert len(newest) == 200
    assert len(choose_tests(old[:5] + calm)) == 200


def test_what_tests_a_model_again_is_what_it_has_not_learned_from(home: Home) -> None:
    """A retest uses all sessions logged since, except continued ones, and the held-out sessions of earlier nights."""
    things = [f"{name} of Rome" for name in THINGS[:16]]
    gone_on = [chat(*[m["content"] for m in talk["messages"]], "Bien.", "Thanks, perfect!")
               for talk in corrected(*things[:4])]  # fmt: skip
    judged_night(home, 3, *gone_on, name="log@2", learns=[2, 3])
    night = judged_night(home, 4, *corrected(*(f"{name} of Bonn" for name in THINGS[:12])), learns=[2, 3, 4])
    current = read_current(home, night).sessions
    chosen, since = choose_unseen(current, 2)
    held_out = {one.session_id for one in current if is_held_out(one.session_id, 0.2)}
    assert {name for name in since if name.startswith("log@4")} == {f"log@4:{n}" for n in range(1, 13)}
    assert chosen.keys() == held_out | {f"log@4:{n}" for n in range(1, 13)}
    assert since <= chosen.keys()
    assert {name for name in chosen if name.startswith("log@2")} <= held_out


def test_another_branch_of_a_session_that_a_model_learned_from_does_not_test_it(home: Home) -> None:
    """An edit or a regenerated reply moves what was read before to another branch of the same conversation."""

    def session(night: int, name: str) -> NightSession:
        return NightSession(night, 0, name, False, (Opinion("t", COMPLAINT, None, frozenset(), frozenset()),))

    chosen, since = choose_unseen([session(2, "log:a"), session(5, "log:a#branch-2"), session(5, "log:b")], 2)
    assert chosen.keys() == since == {"log:b"}


def test_a_run_of_other_options_is_written_again(home: Home) -> None:
    """A night that was killed after this step may be run again with another --replay."""
    trained = [{name.partition(":")[0] for name in trainable(write(home, 2, replay=share))
                if not is_held_out(name.rpartition(":")[0], 0.2)} for share in (0.5, 0.0)]  # fmt: skip
    assert trained == [{"log@1", "log@2"}, {"log@2"}]
    path = home.night(2).folder / "extract" / "manifest.json"
    written = path.stat().st_mtime_ns
    write(home, 2, replay=0.0)
    assert path.stat().st_mtime_ns == written, "the same sessions"
