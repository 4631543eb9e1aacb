"""Logs that grow from night to night: formats in which sessions continue, and all that may happen to log files."""

import gzip
import json
import random
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

JSON = dict[str, Any]


class World:
    """Folder of logs of one format with a random history. `everything` writes all that the nights can have seen."""

    def __init__(self, folder: Path, kind: str, seed: int) -> None:
        self.folder, self.format, self.draw = folder, kind, random.Random(f"{kind} {seed}")
        folder.mkdir()
        self.count = 0
        self.sessions: dict[str, JSON] = {}  # id -> what its next line depends on
        self.file_of: dict[str, str] = {}  # session -> file
        self.half: dict[str, bytes] = {}  # file -> the part of its last line that is not written yet
        self.gone: dict[str, bytes] = {}  # new name -> content of a deleted file
        self.nights = 0
        self.seen: defaultdict[str, Counter[bytes]] = defaultdict(Counter)  # file -> lines that any night can have seen
        self.chats: dict[str, JSON] = {}
        self.shown: dict[str, str] = {}  # chats of the current export
        self.last: dict[str, str] = {}  # each chat as a night saw it last
        self.rotations = 0

    def text(self) -> str:
        self.count += 1
        return f"text {self.count}"

    def dump(self, record: JSON) -> bytes:
        return json.dumps(record).encode() + b"\n"

    # -- records -----------------------------------------------------------------------------------------------------

    def records(self, file: str) -> list[bytes]:
        """Return the next lines of a file: of a session that continues, or of a new session."""
        if self.format == "openai":
            roles = ("user", "assistant", "user")
            return [self.dump({"messages": [{"role": role, "content": self.text()} for role in roles]})]
        going = [name for name, home in self.file_of.items() if home == file]
        if self.format == "pi":  # only the last session of a file can continue
            going = going[-1:]
        new = not going or self.draw.random() < 0.4
        name = f"s{len(self.sessions)}" if new else self.draw.choice(going)
        if new:
            self.sessions[name], self.file_of[name] = {"last": None, "messages": []}, file
        return getattr(self, self.format)(name, self.sessions[name], new)

    def pi(self, name: str, session: JSON, new: bool) -> list[bytes]:
        lines = [{"type": "session", "id": name, "timestamp": "t"}] if new else []
        for role in ("user", "assistant")[: self.draw.choice((1, 2, 2))]:
            lines.append({"type": "message", "message": {"role": role, "content": self.text()}})
        return list(map(self.dump, lines))

    def claude_code(self, name: str, session: JSON, new: bool) -> list[bytes]:
        lines = []
        for kind in ("user", "assistant")[: self.draw.choice((1, 2, 2))]:
            uuid = self.text()
            lines.append({"type": kind, "uuid": uuid, "parentUuid": session["last"], "sessionId": name,
                          "message": {"role": kind, "content": uuid, "id": uuid}})  # fmt: skip
            session["last"] = uuid
        if self.draw.random() < 0.2:
            lines.append({"type": "file-history-snapshot", "messageId": "m", "snapshot": {}})
        return list(map(self.dump, lines))

    def openclaw_rl(self, name: str, session: JSON, new: bool) -> list[bytes]:
        messages = session["messages"]
        messages.append({"role": "user", "content": self.text()})
        record = {"session_id": name, "messages": list(messages), "response_text": self.text()}
        messages.append({"role": "assistant", "content": record["response_text"]})
        return [self.dump(record)]

    def open_webui(self) -> None:
        """Change some chats and write the export again, without the chats that the user has deleted (at random)."""
        for _ in range(self.draw.randint(0, 3)):
            new = not self.chats or self.draw.random() < 0.4
            name = f"c{len(self.chats)}" if new else self.draw.choice(list(self.chats))
            chat = self.chats.setdefault(name, {"id": name, "updated_at": 0, "chat": {"history": {"messages": {}}}})
            history = chat["chat"]["history"]
            nodes = history["messages"]
            chat["updated_at"] += 1
            replies = [node for node in nodes.values() if node["role"] == "assistant"]
            what = self.draw.random()
            if replies and what < 0.2:
                self.draw.choice(replies)["annotation"] = {"rating": self.draw.choice((1, -1))}
                continue
            parent = history.get("currentId")
            if replies and what < 0.4:  # regenerated
                parent = self.draw.choice(replies)["parentId"]
            for _ in range(self.draw.randint(1, 3)):
                role = "user" if parent is None or nodes[parent]["role"] == "assistant" else "assistant"
                node = self.text()
                nodes[node] = {"id": node, "parentId": parent, "role": role, "content": node}
                parent = node
            history["currentId"] = parent
        shown = [chat for chat in self.chats.values() if self.draw.random() < 0.9]
        text = json.dumps(shown, indent=self.draw.choice((None, 1)))
        (self.folder / "export.json").write_text(text)
        self.shown = {chat["id"]: json.dumps(chat) for chat in shown}

    # -- what happens to files ---------------------------------------------------------------------------------------

    def append(self, file: str) -> None:
        data = self.half.pop(file, b"") + b"".join(b"".join(self.records(file)) for _ in range(self.draw.randint(1, 3)))
        lines = data.splitlines(keepends=True)
        if self.format == "openai" and self.draw.random() < 0.2:
            data += lines[-1] if lines[-1].startswith(b"{") else b""  # the same line twice
        cut = self.draw.random()
        if cut < 0.25:  # half a line
            keep = len(data) - self.draw.randint(1, len(data.splitlines()[-1]))
            self.half[file], data = data[keep:], data[:keep]
        elif cut < 0.4:  # a whole line without its end
            self.half[file], data = b"\n", data[:-1]
        with (self.folder / file).open("ab") as out:
            out.write(data)

    def finish(self, file: str) -> None:
        """Write the rest of a half-written line."""
        with (self.folder / file).open("ab") as out:
            out.write(self.half.pop(file, b""))

    def rotate(self, file: str, *, pack: bool) -> None:
        self.append(file)
        self.finish(file)
        self.rotations += 1
        old = self.folder / file
        stem = file.removesuffix(".jsonl")
        new = self.folder / f"{stem}-{self.rotations:03}.jsonl"
        if self.draw.random() < 0.3:  # copied and truncated: another inode
            new.write_bytes(old.read_bytes())
            old.write_bytes(b"")
        else:
            old.replace(new)
        self.seen[new.name] = self.seen.pop(file, Counter())
        if pack:
            packed = new.with_name(f"{new.name}.gz")
            packed.write_bytes(gzip.compress(new.read_bytes()))
            new.unlink()
            self.seen[packed.name] = self.seen.pop(new.name)
        if self.format == "pi":  # a new file begins with a header
            for name in [name for name, home in self.file_of.items() if home == file]:
                self.file_of[name] = new.name
        if not old.exists() or self.draw.random() < 0.7:
            self.append(file)

    def rewrite(self, file: str) -> None:
        """Replace the file by a new file: in the format openai with a line edited, dropped or added, else the same."""
        self.finish(file)
        path = self.folder / file
        lines = path.read_bytes().splitlines(keepends=True)
        if self.format == "openai" and lines:
            at = self.draw.randrange(len(lines))
            edited = json.loads(lines[at])
            edited["messages"][1]["content"] += " edited"
            lines[at : at + 1] = self.draw.choice(
                ([], [self.dump(edited)], [self.dump(edited), lines[at]], [lines[at]] * 2)
            )
        path.unlink()
        path.write_bytes(b"".join(lines))

    def delete(self, file: str) -> None:
        """Remove a file. If its last line was half-written, no night will ever see that line."""
        data, path = (self.folder / file).read_bytes(), self.folder / file
        if self.half.pop(file, b"\n") != b"\n":
            data = data[: data.rfind(b"\n") + 1]
        path.unlink()
        self.rotations += 1
        self.gone[f"{path.stem}-{self.rotations:03}.jsonl"] = data
        self.file_of = {name: home for name, home in self.file_of.items() if home != file}

    def day(self) -> None:
        """Do at random what may happen to the logs between two nights."""
        if self.format == "open_webui":
            self.open_webui()
            return
        names, rewritten = ("app.jsonl", "web.jsonl"), set()
        for file in names:
            if self.nights and (self.folder / file).exists() and self.draw.random() < 0.08:
                self.delete(file)
        for _ in range(self.draw.randint(0, 3)):
            file = self.draw.choice(names)
            what = self.draw.random()
            there = (self.folder / file).exists()
            if not there or what < 0.6:
                self.append(file)
            elif what < 0.8 and file not in rewritten:  # else it would look like a new file
                self.rotate(file, pack=self.draw.random() < 0.5)
            else:
                self.rewrite(file)
                rewritten.add(file)

    def note_night(self) -> None:
        """Record what a night can see now."""
        self.nights += 1
        self.last |= self.shown
        for path in self.folder.iterdir():
            if self.format == "openai":
                data = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
                lines = data.splitlines()
                if lines and path.name in self.half and self.half[path.name] != b"\n":
                    lines.pop()
                self.seen[path.name] |= Counter(lines)

    def everything(self, folder: Path) -> Path:
        folder.mkdir()
        if self.format == "openai":
            lines = [line for seen in self.seen.values() for line in seen.elements()]
            (folder / "all.jsonl").write_bytes(b"\n".join(lines))
        elif self.format == "open_webui":
            (folder / "all.json").write_text(f"[{', '.join(self.last.values())}]")
        else:
            for path in self.folder.iterdir():
                (folder / path.name).write_bytes(path.read_bytes())
            for name, data in self.gone.items():
                (folder / name).write_bytes(data)
        return folder
