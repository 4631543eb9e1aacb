"""Judge that is asked through files in the format of OpenAI's Batch API, which `vllm run-batch` also reads.

    {"custom_id": "3-reward-0-1f6e...-s12_4", "method": "POST", "url": "/v1/chat/completions", "body": {...}}

`--out` writes a line for each vote that has no answer yet, `--in` reads answers, in any order. Answers are kept per
part, like those of a server, and a part that has all of its votes is judged by the same code. There are no rounds of
votes: the first file asks for all of them.

A custom_id holds the part, the question, the vote, and a digest of the turn's id, the seed and the body. So an answer
counts only for the request that it answers: not in another run, and not after an option has changed what is sent.
Memory holds the questions and answers of one part, and 16 bytes per line of the files.
"""

import contextlib
import json
import re
import shlex
from array import array
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import BinaryIO

from opdkit.config.command_line import command_line
from opdkit.config.fields import JSON
from opdkit.config.judge import JudgeConfig
from opdkit.console import counted, progress, say, verb, warn
from opdkit.errors import OpdkitError
from opdkit.judge.endpoint import NO_SYSTEM, Endpoint
from opdkit.judge.kept_answers import KeptAnswers, answers_file
from opdkit.judge.votes import NO_ANSWER, Answer, Question, VoteRequest
from opdkit.model.server.traffic import FailedAttemptError
from opdkit.store.atomic import replaced_file
from opdkit.store.disk import disk_errors_explained
from opdkit.store.part_writer import Stage
from opdkit.store.stable_hash import stable_hash
from opdkit.store.stopping import raise_if_requested

LONGEST_ID = 64  # characters of a custom_id (letters, digits, "_", "-"), which every service accepts
MOST_REQUESTS, MOST_BYTES = 50_000, 200_000_000  # OpenAI's limits per file
_OF_ONE_COMMAND = ("in_", "out", "overwrite", "retries", "shard")  # options that the next command does not repeat
_SHOWN = 5  # lines or kinds of errors that a message names

Line = tuple[str, VoteRequest, JSON]  # custom_id, the vote that it asks for, and the body without the seed


class Batch(Endpoint):
    """Chat model that is asked through files. After `exchange`, `next` says what to do about missing votes."""

    def __init__(self, config: JudgeConfig, folder: Path | None = None) -> None:
        super().__init__(config, folder)
        self.where = "the batch"
        self.next, self.is_waiting = "", False
        self.names: Counter[str] = Counter()  # models that answer requests of this run, by number of lines
        self.counts: Counter[str] = Counter()  # lines, by category
        self.failures: Counter[str] = Counter()  # failed requests, by kind of error
        self.examples: dict[str, list[str]] = defaultdict(list)  # the first of each category and kind

    def exchange(
        self, stage: Stage, parts: Sequence[int], questions_of: Callable[[int], Sequence[Question]]
    ) -> list[int]:
        """Read the answers of `--in`, write `--out`, and return those of `parts` that have all of their votes.

        Raises OpdkitError if no line of a file can be read, or if all readable lines answer requests of another run.
        """
        check_answers(self.config.in_)
        complete, left, size = list[int](), 0, 0
        with contextlib.ExitStack() as files:
            answers = [files.enter_context(Path(path).open("rb")) for path in self.config.in_]
            places = self._find_lines(stage, parts, answers)
            out = None
            if self.config.out:
                out = files.enter_context(files.enter_context(replaced_file(self.config.out)).open("wb"))
            for part in progress(parts, "batch", len(parts), "parts"):
                raise_if_requested()
                lines = list(self._write_lines(part, questions_of(part)))
                kept = KeptAnswers(answers_file(stage, part), stage.fingerprint)
                with disk_errors_explained(stage.folder), contextlib.closing(kept):
                    if part in places:
                        self._store(answers, places.pop(part), {name: request for name, request, _ in lines}, kept)
                missing = [(name, request, body) for name, request, body in lines if kept.find(request) is None]
                left += len(missing)
                if not missing:
                    complete.append(part)
                elif out:
                    for custom_id, request, body in missing:
                        line = {"custom_id": custom_id, "method": "POST", "url": "/v1/chat/completions",
                                "body": body | {"seed": request.seed}}  # fmt: skip
                        size += out.write(json.dumps(line).encode() + b"\n")
            if answers:
                self._report()
        self._advise(left, size, len(parts) - len(complete))
        return complete

    def _write_lines(self, part: int, questions: Sequence[Question]) -> Iterator[Line]:
        """Yield the requests for all votes on the questions of a part."""
        for question in questions:
            body = self._make_body(question) | self.extra_body | ({"logprobs": True} if self.config.weigh_votes else {})
            digest = stable_hash(json.dumps(body), self.config.seed, question.turn_id, question.name, bits=64)
            name = re.sub(r"\W", "_", question.turn_id, flags=re.ASCII)
            for vote, request in enumerate(self._make_requests([question])):
                start = f"{part}-{question.name}-{vote}-{digest:016x}-"
                room = LONGEST_ID - len(start)
                yield start + name[-room:], request, body

    def _find_lines(self, stage: Stage, parts: Sequence[int], files: Sequence[BinaryIO]) -> dict[int, "array[int]"]:
        """Return part -> [file number, byte offset, ...] of the lines that answer it. Count the other lines."""
        places: dict[int, array[int]] = defaultdict(lambda: array("Q"))
        wanted, done = set(parts), {part for part in range(stage.parts) if stage.is_done(part)}
        for number, file in enumerate(files):
            offset = 0
            for line_number, line in enumerate(file, 1):
                start, offset = offset, offset + len(line)
                if not line.strip():
                    continue
                self.counts["lines"] += 1
                try:
                    record = read_record(line)
                except ValueError:
                    self.counts["unreadable"] += 1
                    self._show("unreadable", f"{file.name} line {line_number:,}")
                    continue
                head = record["custom_id"].partition("-")[0]
                part = int(head) if re.fullmatch(r"\d{1,9}", head, re.ASCII) else stage.parts
                if part in wanted:
                    places[part].extend((number, start))
                elif part < stage.parts:
                    self.counts["done" if part in done else "of other shards"] += 1
                else:
                    self.counts["unasked"] += 1
                    self._show("unasked", record["custom_id"])
        return places

    def _store(
        self, files: Sequence[BinaryIO], places: "array[int]", requests: Mapping[str, VoteRequest], kept: KeptAnswers
    ) -> None:
        """Read the lines at `places` and add the first answer to each of `requests` to `kept`."""
        new, failed, records = set[str](), dict[str, FailedAttemptError](), list[JSON]()
        for number, offset in zip(places[::2], places[1::2], strict=True):
            files[number].seek(offset)
            record = read_record(files[number].readline())
            if record["custom_id"] not in requests:
                self.counts["unasked"] += 1
                self._show("unasked", record["custom_id"])
                continue
            records.append(record)
            body = (record["response"] or {}).get("body")
            name = body.get("model") if isinstance(body, dict) else None
            self.names.update([name] if isinstance(name, str) and name else [])
        for record in records:
            custom_id = record["custom_id"]
            request = requests[custom_id]
            try:
                answer = self._read_answer(record, request.question.name)
            except FailedAttemptError as failure:
                failed.setdefault(custom_id, failure)
                continue
            before = kept.find(request)
            if before is None:
                kept.add(request, answer)
                new.add(custom_id)
            else:
                self.counts["known" if custom_id not in new else "duplicate"] += 1
                self.counts["different"] += before.text != answer.text
        self.counts["new"] += len(new)
        for custom_id, error in failed.items():
            if kept.find(requests[custom_id]) is None:
                kind = error.reason.partition(":")[0]
                self.failures[kind] += 1
                self._show(kind, f"{error.reason} ({custom_id})")
                if self.config.retries == 0:
                    answer = error.fallback or Answer("", error=f"{NO_ANSWER}: {error.reason}")
                    kept.add(requests[custom_id], answer)

    def _read_answer(self, record: JSON, question: str) -> Answer:
        """Return the answer in a line. Raises FailedAttemptError for any error except a prompt that does not fit."""
        response, error = record["response"] or {}, record["error"]
        status, body = response.get("status_code"), response.get("body")
        if status == 200 and not error:
            if self.identity.known is None and self.names:
                (most_common, _), *_ = self.names.most_common(1)
                self.identity.settle(self.model if self.model in self.names else most_common)
            self.identity.answered = self.identity.known in self.names  # whether before or after this line
            return self._read(SimpleNamespace(json=lambda: body), question)
        document = error or body
        failure = SimpleNamespace(status_code=status, json=lambda: document, text=json.dumps(document))
        if unfit := self._find_too_long(failure, question):
            return unfit
        code = error.get("code") if isinstance(error, dict) else None
        kind = f"HTTP {status}" if isinstance(status, int) else self._clean(str(code or "no response"))
        raise FailedAttemptError(f"{kind}: {self.excerpt(failure)}")

    def _show(self, kind: str, example: str) -> None:
        """Remember an example for a message, unless there are enough."""
        if len(self.examples[kind]) < _SHOWN:
            self.examples[kind].append(example)

    def _report(self) -> None:
        """Report what was read. Raises OpdkitError if all readable lines answer requests of another run."""
        counts, names, examples = self.counts, ", ".join(self.config.in_), self.examples
        others = {"known": "given before", "duplicate": "given twice", "done": "of parts that are judged",
                  "of other shards": "of other shards"}  # fmt: skip
        texts = [f"{counts[key]:,} {others[key]}" for key in others if counts[key]]
        say(", ".join([f"{names}: {counted(counts['lines'], 'line')}, {counted(counts['new'], 'new answer')}", *texts]))
        if number := counts["different"]:
            warn(f"{counted(number, 'answer')} {verb(number, 'differs', 'differ')} from the first one to the same "
                 "request: the first one counts")  # fmt: skip
        fate = "count as failed votes (--retries 0)" if self.config.retries == 0 else "have to be asked again"
        for kind, number in self.failures.most_common(_SHOWN):
            advice = ". Its template takes no system message: --judge endpoint sends none, where --judge batch does"
            warn(f"{counted(number, 'request')} failed, which {fate}, such as: {examples[kind][0]}"
                 f"{advice if NO_SYSTEM.search(examples[kind][0]) else ''}")  # fmt: skip
        if number := counts["unreadable"]:
            warn(f"{counted(number, 'line')} could not be read and were left out: {', '.join(examples['unreadable'])}")
        if number := counts["unasked"]:
            text = (f"{counted(number, 'line')} of {names} answer requests that this run does not send, such as "
                    f"{examples['unasked'][0]}: they are of another run, or of other options")  # fmt: skip
            if number == counts["lines"] - counts["unreadable"]:
                raise OpdkitError(f"{text}; name the answers to what --out wrote last")
            warn(text)

    def _advise(self, left: int, size: int, parts: int) -> None:
        """Report what was written, and set `next` and `is_waiting`: `left` votes in `parts` parts have no answer."""
        config, options = self.config, self.config.effective()
        again = shlex.join(command_line("judge", JudgeConfig, config.run, options, _OF_ONE_COMMAND))
        if config.out:
            say(f"{config.out}: {counted(left, 'request')}, {size / 1e6:,.1f} MB" if left else
                f"{config.out} is empty: every vote is there")  # fmt: skip
            if left > MOST_REQUESTS or size > MOST_BYTES:
                say(f"OpenAI takes {MOST_REQUESTS:,} requests and {MOST_BYTES // 10**6} MB per file: split it between "
                    "lines (`split -l`); vLLM takes it as it is")  # fmt: skip
        self.is_waiting = left > 0
        if left:
            then = (f"once {config.out} is answered, `{again} --in ANSWERS`" if config.out else
                    f"`{again} --out FILE` writes the requests")  # fmt: skip
            self.next = f"Without an answer: {counted(left, 'vote')} in {counted(parts, 'part')}; {then}."


def check_answers(paths: Sequence[str]) -> None:
    """Raise OpdkitError for a file of `--in` with lines, none of which is an answer."""
    for path in paths:
        first_bad = ""
        with Path(path).open("rb") as file:
            for number, line in enumerate(file, 1):
                try:
                    read_record(line)
                    break
                except ValueError as error:
                    first_bad = first_bad or (f"line {number:,}: {error}" if line.strip() else "")
            else:
                if first_bad:
                    raise OpdkitError(f"--in {path} holds no answers of a batch ({first_bad}): name the file that the "
                                      "service wrote, or `vllm run-batch -o`")  # fmt: skip


def read_record(line: bytes) -> JSON:
    """Return the record in a line of answers: custom_id, response, error. Raises ValueError for anything else."""
    try:
        record = json.loads(line)
    except (ValueError, RecursionError):
        raise ValueError("not JSON, or cut off") from None
    if not isinstance(record, dict) or not isinstance(record.get("custom_id"), str):
        raise ValueError("no custom_id")
    known = {name: record.get(name) for name in ("custom_id", "response", "error")}
    if not (isinstance(known["response"], dict | None) and (known["response"] or known["error"])):
        raise ValueError("neither a response nor an error")
    return known
