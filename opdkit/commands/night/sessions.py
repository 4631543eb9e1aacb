"""Choice of the sessions that a night trains on and tests with: new ones, a replay of earlier ones, held-out ones.

The chosen sessions are written as an ordinary run: the stages `extract` and `judge` of the night's folder, with the
verdicts of the nights that judged them. So teacher, train and eval need no code for nights.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path

from opdkit.commands.night.home import Home, Night
from opdkit.commands.night.turned import Change, NightSession, Opinion, find_changes
from opdkit.config.extract import ExtractConfig
from opdkit.config.fields import JSON
from opdkit.config.judge import JudgeConfig
from opdkit.config.night import NightConfig
from opdkit.evaluate.log_prompts import COMPLAINT, NEUTRAL, PRAISE
from opdkit.evaluate.similar import list_request_words
from opdkit.extract.known_turns import digest_turns
from opdkit.judge.words import split_words
from opdkit.store.joined_turns import JoinedTurn, by_session, joined_turns
from opdkit.store.part_writer import Stage
from opdkit.store.plans import fingerprint, has_stage, manifest
from opdkit.store.reading import count_parts, is_complete, read_all
from opdkit.store.reviews import decisions, plan_inputs, read_reviews_in_force
from opdkit.store.skip_reasons import NO_NEXT, READ_BEFORE
from opdkit.store.stable_hash import stable_hash
from opdkit.store.tables import REJECTED, SESSIONS, TURNS, VERDICTS
from opdkit.store.turn_ids import first_branch, is_held_out, strip_numbers

NIGHTS = 30  # most recent earlier nights to draw sessions from, so that a night's cost does not grow with the home
MOST_TESTS = 200  # sessions that a night tests with, at most: held-out ones, and in a retest as many logged since
_CALM_TESTS = 4  # at least one in this many has no complaint, if there are enough: the gate needs such tests

Sessions = dict[str, list[NightSession]]  # id of the first branch -> versions of all branches, the latest first
ReadNight = Callable[[int], list[NightSession]]  # number of a night -> its sessions: `read_sessions`


@dataclass(frozen=True)
class CurrentSessions:
    """Sessions of this night and of earlier ones, with the opinions that still count."""

    sessions: list[NightSession]
    changes: list[Change]  # all changes of what users want that still hold
    new_changes: list[Change]  # those that no earlier night found


def read_current_sessions(home: Home, night: Night, read_night: ReadNight) -> CurrentSessions:
    """Return the sessions that a night may use, without opinions that users have withdrawn or reversed since."""
    learns = set(night.record["learns"])
    earlier = [number for number in night.record["earlier"] if number not in learns][-NIGHTS:]
    read = drop_withdrawn(chain.from_iterable(map(read_night, (*earlier, *sorted(learns)))))
    # The last night that looked for changes stored all changes that held then.
    records = (home.night(n).record for n in sorted(night.record["earlier"], reverse=True) if n < night.number)
    known = [Change.from_json(row) for row in next((old["changes"] for old in records if "changes" in old), ())]
    changes, superseded = find_changes(read, learns, known)
    read = keep_opinions(read, lambda session, opinion: (session.night, opinion.turn_id) not in superseded)
    return CurrentSessions(read, changes, [change for change in changes if change not in known])


def choose_sessions(night: Night, current: Sequence[NightSession], config: NightConfig, seed: int) -> Sessions:
    """Choose the sessions of a night's run. The choice depends only on the sessions, the options and the seed.

    The run has all sessions of the nights that the promoted model has not learned from. From earlier nights, it has
    sessions without a complaint, as many as `--replay` says, and held-out sessions.
    """
    learns = set(night.record["learns"])
    new = [session for session in current if session.night in learns]
    new_ids = {session.session_id for session in new}
    old = [session for session in current if session.night not in learns
           and (session.is_held_out or session.session_id not in new_ids)]  # fmt: skip
    blamed = find_complaints(old)
    tests = choose_tests([session for session in old if session.is_held_out])
    # A turn that two nights judged counts once.
    new_turns = {opinion.key for session in new if not session.is_held_out for opinion in session.opinions}
    most = round(len(new_turns) * config.replay / (1 - config.replay))
    replay, replayed = list[NightSession](), set[str]()
    calm = [session for session in old if not session.is_held_out and session.session_id not in blamed]
    # Of the versions of a session, the latest counts.
    calm.sort(key=lambda one: (stable_hash(f"replay:{seed}:{night.number}:{one.session_id}"), -one.night))
    for session in calm:
        if len(replayed) >= most:
            break
        replay.append(session)
        replayed.update(opinion.key for opinion in session.opinions)
    return group_versions([*new, *replay, *tests])


def choose_unseen(current: Sequence[NightSession], trained: int) -> tuple[Sessions, set[str]]:
    """Return sessions that the model of night `trained` has not learned from, and the ids of those logged since.

    Earlier sessions are held-out ones. Of those logged since, at most MOST_TESTS are drawn by a hash, whether or not
    they have a complaint. A surplus of complaints would not show which model is better.
    """
    seen = {first_branch(session.session_id) for session in current
            if session.night <= trained and not session.is_held_out}  # fmt: skip
    unseen = [session for session in current if first_branch(session.session_id) not in seen]
    since = {session.session_id for session in unseen if session.night > trained}
    drawn = set(sorted(since, key=lambda name: stable_hash(f"retest:{name}"))[:MOST_TESTS])
    old = choose_tests([session for session in unseen if session.session_id not in since])
    return group_versions([*old, *(session for session in unseen if session.session_id in drawn)]), drawn


def group_versions(sessions: Sequence[NightSession]) -> Sessions:
    """Return the versions of each conversation: a later night may have other numbers for its branches."""
    versions: Sessions = defaultdict(list)
    for session in sorted(sessions, key=lambda session: -session.night):
        versions[first_branch(session.session_id)].append(session)
    return dict(versions)


def find_complaints(sessions: Sequence[NightSession]) -> set[str]:
    """Return the ids of the sessions with a complaint."""
    return {session.session_id for session in sessions if any(o.kind == COMPLAINT for o in session.opinions)}


def choose_tests(sessions: Sequence[NightSession]) -> list[NightSession]:
    """Return at most MOST_TESTS of these sessions, of each kind the newest.

    Sessions with a complaint come first, then sessions with praise, then the rest. At least one in _CALM_TESTS has no
    complaint, if there are enough such sessions.
    """
    blamed, newest = find_complaints(sessions), sorted(sessions, key=lambda session: -session.night)
    calm = sorted((session for session in newest if session.session_id not in blamed),
                  key=lambda session: all(opinion.kind != PRAISE for opinion in session.opinions))  # fmt: skip
    least = min(len(calm), MOST_TESTS // _CALM_TESTS)
    chosen = [session for session in newest if session.session_id in blamed][: MOST_TESTS - least]
    return [*chosen, *calm[: MOST_TESTS - len(chosen)]]


def read_sessions(night: Night, holdout: float) -> list[NightSession]:
    """Return the sessions of a night in which a turn has an opinion (see `read_opinion`) or has no next state."""
    sessions = []
    for part in range(count_parts(night.log, "judge") if has_stage(night.log, "judge") else 0):
        for turns in by_session(joined_turns(night.log, part)):
            name, is_kept_out = turns[0].session_id, is_held_out(turns[0].session_id, holdout)
            keys = [f"{strip_numbers(name)}:{digest.hex()}" for digest in digest_turns(turns, reactions=False)]
            read = zip(keys, map(read_opinion, turns), strict=True)
            opinions = tuple(replace(opinion, key=key) for key, opinion in read if opinion)
            unanswered = frozenset(key for key, turn in zip(keys, turns, strict=True)
                                   if turn.turn["skip_reason"] == NO_NEXT)  # fmt: skip
            if opinions or unanswered:
                sessions.append(NightSession(night.number, part, name, is_kept_out, opinions, unanswered))
    return sessions


def drop_withdrawn(read: Iterable[NightSession]) -> list[NightSession]:
    """Drop the decisions that users withdrew in a later night. Return the sessions that still have opinions."""
    sessions, last = list(read), dict[str, int]()
    for session in sorted(sessions, key=lambda session: session.night):
        last |= dict.fromkeys(session.unanswered, session.night)
    return keep_opinions(sessions, lambda session, o: not o.is_decision or last.get(o.key, 0) <= session.night)


def keep_opinions(
    sessions: Iterable[NightSession], counts: Callable[[NightSession, Opinion], bool]
) -> list[NightSession]:
    """Return the sessions with only the opinions that count, without sessions that have none left."""
    current = (replace(s, opinions=tuple(o for o in s.opinions if counts(s, o))) for s in sessions)
    return [session for session in current if session.opinions]


def read_opinion(turn: JoinedTurn) -> Opinion | None:
    """Return the user's opinion of a turn; None if the turn has neither a reward nor a hint."""
    verdict = turn.final_verdict
    if verdict is None or (verdict["reward"] is None and verdict["hint"] is None):
        return None
    is_complaint = verdict["hint"] is not None or verdict["reward"] == -1
    kind = COMPLAINT if is_complaint else PRAISE if verdict["reward"] == 1 else NEUTRAL
    request = frozenset(list_request_words(turn)) if turn.index else frozenset()
    message = turn.session["messages"][turn.index]
    said = " ".join([message["content"] or "", *(call["arguments"] for call in message["tool_calls"])])
    is_decision = bool(turn.turn["decision"]) and not turn.turn["next_count"] and turn.review is None
    return Opinion(turn.turn_id, kind, verdict["hint"], request, frozenset(split_words(said)) - request, is_decision)


def write_run(run: Path, home: Home, sessions: Sessions, extract: ExtractConfig, judge: JudgeConfig) -> None:
    """Write the stages `extract` and `judge` of a run, unless both are complete and made from the same inputs."""
    nights = {name: [version.night for version in versions] for name, versions in sessions.items()}
    used = sorted(set(chain.from_iterable(nights.values())))
    logs = {str(number): manifest(home.night(number).log, "judge")["fingerprint"] for number in used}
    decided = {name: one for n in used for name, one in decisions(read_reviews_in_force(home.night(n).log)).items()}
    inputs: JSON = {"nights": logs, "sessions": fingerprint(nights)} | plan_inputs(decided)
    if all(is_complete(run, stage) and manifest(run, stage)["plan"]["inputs"] == inputs
           for stage in ("extract", "judge")):  # fmt: skip
        return
    places = sorted({(versions[0].night, versions[0].part) for versions in sessions.values()})
    for config, tables, upstream in ((extract, [SESSIONS, TURNS, REJECTED], []), (judge, [VERDICTS], ["extract"])):
        own = replace(config, run=run, overwrite=True, shard="0/1")  # rewriting is cheap, and verdicts may have changed
        stage = Stage.open(own, tables[0].stage, tables, parts=len(places), inputs=inputs, upstream=upstream,
                           command="night")  # fmt: skip
        for part, (number, source) in enumerate(places):
            with stage.writing(part) as out:
                rows = read_rows(home, sessions, number, source)
                for table in tables:
                    out.add_rows(table.name, rows.get(table.name, ()))
                out.counters.rows_in = len(out.to_arrow(tables[0]))


def count_trained(night: Night, sessions: Sessions) -> tuple[int, int]:
    """Return the numbers of new and of replayed turns to train on, in the run that `write_run` wrote."""
    rows, learns = read_all(night.folder, "turns", ["session_id", "trainable"]), set(night.record["learns"])
    others = {strip_numbers(name): versions for name, versions in sessions.items()}  # with other numbers
    names = (first_branch(row["session_id"]) for row in rows if row["trainable"])
    latest = ((sessions.get(name) or others[strip_numbers(name)])[0] for name in names)
    counts = Counter(version.night in learns for version in latest if not version.is_held_out)
    return counts[True], counts[False]


def read_rows(home: Home, sessions: Sessions, number: int, part: int) -> dict[str, list[JSON]]:
    """Return table -> rows, of the conversations whose latest version lies in one part of a night.

    Only turns with an opinion that counts are trainable; the others appear only in prompts. Verdicts are found by what
    a turn holds: branches, and conversations that share a logged id, may have other numbers in each night.
    """
    in_part = {name: versions for name, versions in sessions.items()
               if (versions[0].night, versions[0].part) == (number, part)}  # fmt: skip
    logged = set(map(strip_numbers, in_part))
    seen = [version for versions in in_part.values() for version in versions]
    counting = {opinion.turn_id for version in seen for opinion in version.opinions}
    judged = dict[tuple[str, bytes], tuple[int, JSON]]()  # logged id and digest of a turn -> night, verdict
    for judged_in, source_part in sorted({(version.night, version.part) for version in seen}):
        for turns in by_session(joined_turns(home.night(judged_in).log, source_part, turn_ids=counting)):
            for turn, digest in zip(turns, digest_turns(turns), strict=True):
                if turn.final_verdict is not None:  # later nights overwrite earlier ones
                    judged[strip_numbers(turn.session_id), digest] = judged_in, turn.final_verdict
    rows: dict[str, list[JSON]] = {"sessions": [], "turns": [], "verdicts": []}
    for turns in by_session(joined_turns(home.night(number).log, part)):
        name = first_branch(turns[0].session_id)
        if name not in in_part and (name in sessions or strip_numbers(name) not in logged):
            continue
        own, verdicts = list[JSON](), list[JSON]()
        for turn, digest in zip(turns, digest_turns(turns), strict=True):
            judged_in, verdict = judged.get((strip_numbers(name), digest), (0, {}))
            # The verdict of an earlier night counts only if the turn is still the same. With --good and --bad, turns
            # without a next state have verdicts, too.
            same = (None, NO_NEXT) if judged_in == number else (READ_BEFORE,)
            counts = bool(verdict) and turn.turn["skip_reason"] in same
            skipped = None if counts else turn.turn["skip_reason"] or READ_BEFORE
            own.append(turn.turn | {"trainable": counts, "skip_reason": skipped})
            verdicts += [verdict | {"turn_id": turn.turn_id}] if counts else []
        if name in in_part or verdicts:
            rows["sessions"].append(turns[0].session)
            rows["turns"] += own
            rows["verdicts"] += verdicts
    return rows
