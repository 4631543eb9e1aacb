"""Forget users in nights, and compare all files with those of nights that never saw the users.

    python -m tests.benchmarks.forget WORK --users 20 --seed 0

Four nights, each with its own options, read a log of 24 users; the third night waits. For each user that is drawn, the
folder of the nights is copied, and `opdkit forget` removes the user from the copy. It must equal nights whose log never
had a line of this user; the nights before the user's first are shared. No file may still hold the user's text.

Compared are the names of all files, the bytes of the weights, the rows of all tables, and all other files as text,
without times, speeds, the path of the folder, line numbers of the log, and digests of plans. `EXPECTED` names the files
that may differ, and why.
"""

import argparse
import base64
import json
import random
import re
import shutil
import sqlite3
import time
import zlib
from collections import defaultdict
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from opdkit.commands.night.command import run, run_forget
from opdkit.commands.night.home import Home
from opdkit.config.fields import JSON
from opdkit.config.night import ForgetConfig, NightConfig
from opdkit.store.turn_ids import is_held_out

from .pairs import RESULTS, save_rows

SAMPLE = Path(__file__).parents[2] / "sample_data"
USERS, SESSIONS, NIGHTS, HOLDOUT = 24, 16, 4, 0.2  # SESSIONS: new sessions per night
RATE = 2e-3
WAITING = 3  # the night that waits: it has too few hints
STAGES = """
[train]
epochs = 3
learning_rate = {rate}
validate = 0
[eval]
samples = 0
max_new_tokens = 12
"""
# Times, speeds, lines in the log, digests of plans (see "manifest.json" below), also in JSON in a string of other JSON.
MEASURED = re.compile(r'\\*"(line|\w*seconds|\w*_per_second)\\*": ?([\d.e+-]+|{"values":\[[^]]*])|'
                      r'"(began|ended|time|fingerprint)": ?"[^"]*"')  # fmt: skip
PACKED = re.compile(rb"H4sI[0-9A-Za-z+/]+=*")
EXPECTED = {
    ".digests/": "names are digests of tables, whose footers hold seconds",
    "manifest.json": "plans hold the digest of the log that was read, and what follows from it",
    "ledger.sqlite": "it says up to where the log was read; compared are the digests of turns",
    "forgotten.json": "it is there to leave out what comes later",
}


def write_world(seed: int) -> list[list[JSON]]:
    """Return the log lines of each night: sample sessions with ids, users, and a word that only this user says."""
    draw = random.Random(f"forget:{seed}")
    text = (SAMPLE / "logs" / "openai.jsonl").read_text(encoding="utf-8")
    chats = [json.loads(line) for line in text.splitlines() if line.endswith("}")]
    chats = [chat for chat in chats if not any(message.get("tool_calls") for message in chat["messages"])]
    nights: list[list[JSON]] = [[] for _ in range(NIGHTS)]
    for n in range(SESSIONS * NIGHTS):
        night, messages = n // SESSIONS, [dict(message) for message in chats[n % len(chats)]["messages"]]
        # Each night has two users who come in no other night, and one who comes in all; the others come at random.
        user = {0: f"person-{night + 10}", 1: f"person-{night + 14}", 2: "person-18"}.get(n % SESSIONS, "")
        user = user or f"person-{draw.randrange(19, 10 + USERS)}"
        messages[0]["content"] += f" My word is {choose_word(user)}."
        identity, later = f"s{draw.getrandbits(32):08x}", night + 1 < NIGHTS and draw.random() < 0.15
        replies = [i for i, message in enumerate(messages) if message["role"] == "assistant"]
        for k, i in enumerate(replies):
            place = night + (later and k >= 1 and n % SESSIONS > 1)  # such a session continues in the next night
            following = messages[i + 1] if i + 1 < len(messages) else None
            nights[place].append({"session_id": identity, "turn": k + 1, "user": user, "model": "opdkit-sample",
                                  "messages": messages[:i], "response_text": messages[i]["content"],
                                  "next_state": following})  # fmt: skip
    return nights


def choose_word(user: str) -> str:
    return f"zq{zlib.crc32(user.encode()):08x}xk"


def do_nights(home: Path, work: Path, nights: list[list[JSON]], first: int, without: str = "") -> None:
    """Run the nights from `first` on, each with its own options, on a log without the user `without`."""
    log = work / "logs" / "chat.jsonl"
    log.parent.mkdir(parents=True, exist_ok=True)
    for night in range(first, len(nights) + 1):
        rows = [row for lines in nights[:night] for row in lines if row["user"] != without]
        log.write_text("".join(json.dumps(row) + "\n" for row in rows))
        stages, prompts = work / "night.toml", work / "prompts.jsonl"  # they differ each night
        stages.write_text(STAGES.format(rate=RATE * night))
        samples = (SAMPLE / "prompts.jsonl").read_text(encoding="utf-8").splitlines(keepends=True)
        prompts.write_text("".join(samples[night::8]))
        run(NightConfig(home=home, logs=(str(log.parent),), model=str(SAMPLE / "model"), judge="rules",
                        prompts=str(prompts), config=stages, holdout=HOLDOUT,
                        least_hints=1000 if night == WAITING else night))  # fmt: skip


def read_file(path: Path, roots: list[Path]) -> Any:
    """Return the content of a file that is compared."""
    if path.suffix == ".parquet":
        rows = pq.read_table(path).to_pylist()
        text = json.dumps(rows, default=str)
    elif path.name == "ledger.sqlite":
        with closing(sqlite3.connect(path)) as ledger:
            return sorted(ledger.execute("SELECT format, id, digest, count FROM turn"))
    elif path.suffix == ".safetensors" or path.suffix == ".pt":
        return path.read_bytes()
    else:
        data = path.read_bytes()
        text = (PACKED.sub(b"", data) + b"".join(unpack(data))).decode(errors="replace")
    for root in roots:
        text = text.replace(str(root), "HOME")
    return MEASURED.sub("", text)


def unpack(data: bytes) -> Iterator[bytes]:
    """Yield the data that a report holds as gzip in base64."""
    for packed in PACKED.findall(data):
        yield zlib.decompress(base64.b64decode(packed), 31)


def files_of(home: Path) -> dict[str, Path]:
    return {str(path.relative_to(home)): path for path in sorted(home.rglob("*")) if path.is_file()}


def find_differences(one: Path, other: Path, roots: list[Path]) -> tuple[dict[str, list[str]], int]:
    """Return reason -> the files that differ ("": not expected), and the number of weight files that are equal."""
    ours, theirs = files_of(one), files_of(other)
    found, weights = defaultdict[str, list[str]](list), 0
    for name in sorted(ours.keys() | theirs.keys()):
        same = name in ours and name in theirs and read_file(ours[name], roots) == read_file(theirs[name], roots)
        weights += same and name.endswith(".safetensors")
        if not same:
            found[next((why for part, why in EXPECTED.items() if part in name), "")].append(name)
    links = [[path.readlink() if (path := home / "promoted").is_symlink() else None] for home in (one, other)]
    if links[0] != links[1] or read_file(one / "ledger.sqlite", []) != read_file(other / "ledger.sqlite", []):
        found[""].append("promoted, or the turns in ledger.sqlite")
    return dict(found), weights


def files_with(texts: list[str], home: Path) -> list[str]:
    """Return the files that hold any of the texts: raw, in tables, their footers, databases, or the reports' data."""
    found = []
    for name, path in files_of(home).items():
        data = path.read_bytes()
        read = [data, *unpack(data)]
        if path.suffix == ".parquet":
            table = pq.read_table(path)
            footer = [*(table.schema.metadata or {}).values()]
            read += [json.dumps(table.to_pylist(), default=str, ensure_ascii=False).encode(), *footer]
        if path.suffix == ".sqlite":
            with closing(sqlite3.connect(path)) as ledger:
                read.append("\n".join(ledger.iterdump()).encode())
        if any(text.encode() in part for text in texts for part in read):
            found.append(name)
    return found


def test_user(work: Path, nights: list[list[JSON]], user: str) -> JSON:
    """Forget a user, compare the files, and return the row of results."""
    mine = [row for lines in nights for row in lines if row["user"] == user]
    appears = [n for n, lines in enumerate(nights, 1) if any(row["user"] == user for row in lines)]
    others = json.dumps([row for lines in nights for row in lines if row["user"] != user])
    texts = [
        user,
        choose_word(user),
        *sorted({t for row in mine for t in texts_of(row) if json.dumps(t)[1:-1] not in others}),
    ]
    sessions = {row["session_id"] for row in mine}
    ours, theirs = work / "ours", work / "theirs"
    for folder in (ours, theirs):
        shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(work / f"home-{NIGHTS}", ours, symlinks=True)
    held_before = len(files_with(texts, ours))
    start = time.monotonic()
    run_forget(ForgetConfig(home=ours, where=(f"metadata.user={user}",)))
    seconds = time.monotonic() - start
    if appears[0] > 1:
        shutil.copytree(work / f"home-{appears[0] - 1}", theirs, symlinks=True)
    do_nights(theirs, work, nights, appears[0], without=user)
    differences, weights = find_differences(ours, theirs, [*work.glob("home-*"), ours, theirs])
    held_out = sum(is_held_out(f"chat:{name}", HOLDOUT) for name in sessions)
    return {
        "user": user, "nights": appears, "sessions": len(sessions), "held_out": held_out,
        "in_waiting_night": WAITING in appears, "promoted": Home(ours).find_promoted(),
        "models": len(list(ours.rglob("model.safetensors"))), "weights_equal": weights,
        "files": len(files_of(ours)), "other_differences": differences.pop("", []),
        "expected_differences": {why: len(names) for why, names in differences.items()},
        "files_with_text_before": held_before, "files_with_text": files_with(texts, ours),
        "files_with_session_ids": files_with(sorted(sessions), ours), "seconds": seconds,
    }  # fmt: skip


def texts_of(row: JSON) -> set[str]:
    """Return the user messages of a line that are long enough to identify the user."""
    messages = [*row["messages"], row["next_state"] or {}]
    return {one["content"] for one in messages if one.get("role") == "user" and len(one["content"]) >= 20}


def draw_users(nights: list[list[JSON]], count: int, seed: int) -> list[str]:
    """Return users at random, after one each of: night 1 only, last night only, all nights, waiting night, held out."""
    users = sorted({row["user"] for lines in nights for row in lines})
    draw = random.Random(f"users:{seed}")
    draw.shuffle(users)
    came = {
        user: [n for n, lines in enumerate(nights, 1) if any(row["user"] == user for row in lines)] for user in users
    }
    held = {user: {row["session_id"] for lines in nights for row in lines if row["user"] == user} for user in users}
    kinds = [
        [user for user in users if is_kind(came[user])]
        for is_kind in (
            lambda one: one == [1],
            lambda one: one == [NIGHTS],
            lambda one: len(one) == NIGHTS,
            lambda one: WAITING in one,
        )
    ]
    kinds.append([user for user in users if all(is_held_out(f"chat:{name}", HOLDOUT) for name in held[user])])
    return list(dict.fromkeys([*(some[0] for some in kinds if some), *users]))[:count]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("work", type=Path)
    parser.add_argument("--users", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--results", type=Path, default=RESULTS)
    options = parser.parse_args()
    nights = write_world(options.seed)
    for night in range(1, NIGHTS + 1):
        home = options.work / f"home-{night}"
        shutil.rmtree(home, ignore_errors=True)
        if night > 1:
            shutil.copytree(options.work / f"home-{night - 1}", home, symlinks=True)
        do_nights(home, options.work, nights[:night], night)
    rows = []
    for user in draw_users(nights, options.users, options.seed):
        rows.append(test_user(options.work, nights, user))
        print(json.dumps(rows[-1]), flush=True)
    good = sum(row["weights_equal"] == row["models"] and not row["other_differences"] for row in rows)
    clean = sum(not row["files_with_text"] for row in rows)
    print(f"equal: {good} of {len(rows)}; without their text: {clean} of {len(rows)}")
    print(save_rows("forget", rows, options.results))


if __name__ == "__main__":
    main()
