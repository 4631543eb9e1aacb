"""`opdkit forget`: remove people's sessions from all nights, and retrain the models that learned from them.

The result is what the nights would be if these sessions had never been read. Their rows are removed from the tables,
and the nights from the first that read one are redone in order. Matching sessions in later logs are left out as well.
"""

import json
import secrets
from collections import Counter
from collections.abc import Collection, Sequence
from itertools import product
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from opdkit.commands.night.home import Home, Night, read_json
from opdkit.config.conditions import find_rejection, flat, parse_filters, parse_number, read_logged_value
from opdkit.config.fields import JSON, did_you_mean
from opdkit.console import say
from opdkit.errors import OpdkitError
from opdkit.extract.known_turns import digest_replies, forget_turns
from opdkit.judge.kept_answers import drop_answers
from opdkit.store.atomic import find_left_overs, move_into_place, remove_entries, temporary_file, write_text
from opdkit.store.counters import COUNTERS_KEY, TURN_COUNT, Counters
from opdkit.store.digests import digest_file, forget_digest, record_digest
from opdkit.store.disk import disk_errors_explained
from opdkit.store.logged_fields import LoggedFields, read_logged_fields
from opdkit.store.plans import fingerprint, has_stage, stage_dir
from opdkit.store.reading import count_parts, is_complete, part_path, read_all
from opdkit.store.reviews import drop_reviews, reviews_dir
from opdkit.store.skip_reasons import FORGOTTEN
from opdkit.store.tables import TABLES, choose_parquet_options
from opdkit.store.turn_ids import first_branch, strip_numbers

_FILE = "forgotten.json"
_TABLES = {"judge": ("escalated", "verdicts"), "extract": ("turns", "sessions")}  # sessions last: a resume needs them


def forget(home: Home, where: Sequence[str]) -> int:
    """Remove the sessions that match `where` from all nights, and reset the nights from the first that read one.

    Return the number of sessions. The caller finishes the nights; matching sessions that are copied but not read yet
    are left out when they are read. Raises OpdkitError if all copies are read and no session matches. After a kill,
    `finish_forgetting` resumes.
    """
    before = read_forgotten(home)
    # A call with the same conditions as before uses the existing entry and its salt.
    entry = next((old for old in before if make_entry(where, old.get("salt", "")).items() <= old.items()),
                 make_entry(where, secrets.token_hex(16)))  # fmt: skip
    nights = home.list_nights()
    found = find_versions(nights, entry)
    is_all_read = all(is_complete(night.log, "extract") for night in nights)
    if is_all_read and not found and entry not in before:
        sessions = [session for night in nights for session in read_logged_fields(night.log)]
        names = {f"metadata.{name}{key}" for session in sessions for name, value in session.metadata.items()
                 for key in ([f".{key}" for key in value] if isinstance(value, dict) else [""])}  # fmt: skip
        for field in [condition.field for condition in parse_filters(where, "--where")]:
            if all(read_logged_value(field, session, session.format) in (None, "", []) for session in sessions):
                known = ("model", "format", "source", *sorted(names))
                raise OpdkitError(f"--where: no session has {field}; {did_you_mean(field, known)}")
        raise OpdkitError(f"the nights have read no session with {' and '.join(where)}; a value that --redact replaced "
                          "cannot be named")  # fmt: skip
    places = sorted({*entry.get("sessions", ()), *found})
    entries = [*(old for old in before if old != entry), entry | {"done": False, "sessions": places}]
    write_text(home.path / _FILE, json.dumps(entries, indent=2) + "\n")
    finish_forgetting(home)
    return len(set(found.values()))


def finish_forgetting(home: Home) -> None:
    """Finish each `forget` that a kill interrupted. Raises OpdkitError if there are nights, but no ledger."""
    nights, forgotten = home.list_nights(), read_forgotten(home)
    if nights and not home.ledger.exists():
        raise OpdkitError(f"{home.ledger} is gone: all logs would be read again; put a copy back, or use a new HOME")
    remove_entries(find_left_overs(home.path / "nights"))  # of a night whose removal was killed
    if not (undone := [entry for entry in forgotten if not entry["done"]]):
        return
    found = [find_sessions(night, undone) for night in nights]
    first = next((n for n, sessions in enumerate(found) if sessions), None)
    if first is not None:
        for folder in [path for path in home.path.rglob("*") if path.is_dir()]:
            remove_entries(find_left_overs(folder))  # of killed processes; they may hold the text
        forget_turns(home.ledger, {name: log_format for sessions in found for name, log_format in sessions.items()})
        home.go_back(nights[first])
        for n in reversed(range(first, len(nights))):  # the first night last: a resume finds it and redoes all
            reset(nights[n])
            drop_reviews(nights[n].folder, {name for sessions in found[: n + 1] for name in sessions})
            drop_sessions(nights[n], undone)
    done = [{name: entry[name] for name in entry if name != "sessions"} | {"done": True} for entry in forgotten]
    write_text(home.path / _FILE, json.dumps(done, indent=2) + "\n")


def make_entry(where: Sequence[str], salt: str) -> JSON:
    """Return the entry of forgotten.json for conditions, with FIELD=TEXT as a digest, so that the file names nobody."""
    filters = parse_filters(where, "--where")
    named = [condition for condition in filters if salt and condition.op == "=" and condition.field != "time"
             and not set("*?[|") & {*condition.value}]  # fmt: skip
    described: JSON = {"where": [condition.text for condition in filters if condition not in named]}
    if named:
        digests = []
        for condition in named:  # digest the text, and its number if it has one, so that 17 matches 17.0
            values = (condition.value, normalize_value(parse_number(condition.value)))
            digests.append([condition.field, [fingerprint({salt: value}) for value in values if value is not None]])
        described |= {"named": digests, "salt": salt}
    return described


def normalize_value(value: Any) -> Any:
    """Return a whole float as an int, a bool as "true" or "false", and other values unchanged."""
    if isinstance(value, bool):
        return str(value).lower()
    return int(value) if isinstance(value, float) and value.is_integer() else value


def is_described(session: LoggedFields, entry: JSON) -> bool:
    """Return True if a session meets all conditions of an entry of forgotten.json."""
    if find_rejection(parse_filters(entry["where"], "--where"), session, session.format) is not None:
        return False
    for field, digests in entry.get("named", ()):
        logged = read_logged_value(field, session, session.format)
        if not any(fingerprint({entry["salt"]: normalize_value(value)}) in digests for value in flat(logged)):
            return False
    return True


def read_forgotten(home: Home) -> list[JSON]:
    """Return the entries of forgotten.json, see `make_entry`; "done" says that all sessions of an entry are gone.

    Until then, "sessions" are the night and id of those that were found.
    """
    path = home.path / _FILE
    return list(read_json(path, "put a copy back, and call the same command again")) if path.exists() else []


def reset(night: Night) -> None:
    """Remove everything of a night but its options, the log records that it read and judged, and review decisions.

    Its record is removed last: a night without a record is still to be done.
    """
    reviews = reviews_dir(night.folder)
    keep = [night.log, night.news, night.folder / "options", night.folder / "night.json", reviews.parent]
    remove_entries([path for path in sorted(night.folder.iterdir()) if path not in keep])
    remove_entries([path for path in reviews.parent.glob("*") if path != reviews])
    (night.folder / "night.json").unlink(missing_ok=True)


def find_sessions(night: Night, entries: Sequence[JSON]) -> dict[str, str]:
    """Return the sessions of a night that an entry of forgotten.json names or describes: id -> format."""
    if not is_complete(night.log, "extract"):  # its sessions are dropped when they are read
        return {}
    return {fields.session_id: fields.format for fields in read_logged_fields(night.log)
            if any(f"{night.number}:{fields.session_id}" in entry.get("sessions", ()) or is_described(fields, entry)
                   for entry in entries)}  # fmt: skip


def find_versions(nights: Sequence[Night], entry: JSON) -> dict[str, Any]:
    """Return the sessions that an entry describes, and their versions in all nights.

    The keys are "NIGHT:ID"; versions with the same first reply have the same value. An earlier night may have read a
    session before the log named its user. If several conversations share a logged id, their numbers may change from
    night to night: then one version holds the last reply of the other.
    """
    described = {f"{night.number}:{name}" for night in nights for name in find_sessions(night, [entry])}
    id_of = {place: strip_numbers(place.partition(":")[2]) for place in described}
    logged, replies = set(id_of.values()), dict[str, list[tuple[str, bytes]]]()
    for night in (night for night in nights if logged and is_complete(night.log, "extract")):
        for row in read_all(night.log, "sessions", ["session_id", "messages"]):
            if (name := strip_numbers(row["session_id"])) in logged:
                place = f"{night.number}:{row['session_id']}"
                id_of[place], replies[place] = name, [(name, digest) for digest in digest_replies(row["messages"])]
    held, last = ({reply for place in described for reply in replies[place][first:]} for first in (0, -1))
    numbers = Counter(map(strip_numbers, {first_branch(place.partition(":")[2]) for place in replies}))
    return {place: (id_of[place], *own[:1]) for place, own in replies.items()
            if place in described or not held.isdisjoint(own[-1:]) or not last.isdisjoint(own)
            # Ids that begin with ~ are digests of how conversations begin, which several may share.
            or (numbers[id_of[place]] == 1 and ":~" not in id_of[place])}  # fmt: skip


def drop_sessions(night: Night, entries: Sequence[JSON]) -> None:
    """Remove the sessions that match an entry from the tables of a night's log, and all that was made from that log."""
    if not (found := find_sessions(night, entries)):
        return
    made = [path for path in sorted(night.log.iterdir()) if path.name not in _TABLES]
    for path in (path for path in made if path.name != ".failed"):
        say(f"{path} is removed: it may hold what is to be forgotten")
    remove_entries([*made, stage_dir(night.log, "extract") / ".tmp"])
    drop_answers(stage_dir(night.log, "judge"), found)
    drop_reviews(night.log, found)
    for stage, tables in _TABLES.items():
        parts = count_parts(night.log, stage) if has_stage(night.log, stage) else 0
        for table, part in product(tables, range(parts)):
            if (path := part_path(night.log, table, part)).exists():
                with disk_errors_explained(path):
                    rewrite(path, table, part, found)


def rewrite(path: Path, table: str, part: int, sessions: Collection[str]) -> None:
    """Rewrite one part without the rows of these sessions, and count them among its dropped rows."""
    arrow = pq.read_table(path)
    ids = arrow["session_id"] if "session_id" in arrow.column_names else pc.replace_substring_regex(
        arrow["turn_id"], pattern=r":\d+$", replacement="")  # fmt: skip
    kept = arrow.filter(pc.invert(pc.is_in(ids, pa.array(list(sessions), pa.string()))))
    if gone := arrow.num_rows - kept.num_rows:
        counters = Counters.from_json((arrow.schema.metadata or {})[COUNTERS_KEY])
        counters.rows_out -= gone
        counters.drop(FORGOTTEN, gone)
        if table == "sessions" and (turns := part_path(path.parents[2], "turns", part)).exists():  # rewritten before
            counters.counts[TURN_COUNT] = Counter({"": pq.read_metadata(turns).num_rows})
        kept = kept.replace_schema_metadata(kept.schema.metadata | {COUNTERS_KEY: counters.to_json().encode()})
        folder, before = stage_dir(path.parents[2], TABLES[table].stage), digest_file(path)
        with temporary_file(path) as temporary:
            pq.write_table(kept, temporary, **choose_parquet_options(kept.schema))
            record_digest(folder, table, part, digest_file(temporary))
            move_into_place(temporary, path)
        forget_digest(folder, table, part, before)
