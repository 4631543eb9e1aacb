"""A judge's server that fails on a seeded share of its requests, in every way in which servers fail.

The text of an answer depends only on the messages and the seed of the request, so a test can tell a vote that the
server gave from an invented vote.
"""

import hashlib
import json
import random
import threading
import time
from collections import Counter
from typing import Any

from http_server import Reply, completion
from runs import talk

FAULTS = ("429", "429, Retry-After", "500", "reset", "hang", "HTML", "half JSON", "half a body", "another model",
          "no choices", "null")  # fmt: skip
MODEL = "judge-model"
SESSIONS = {f"s{n}": talk("Hi", "Hello", f"Use Celsius, number {n}", "Done", "thanks") for n in range(12)}
VOTES = len(SESSIONS) * 2 * 2 * 5  # turns, questions, votes
USAGE = {"prompt_tokens": 100, "completion_tokens": 7, "prompt_tokens_details": {"cached_tokens": 60}}


def text_of(body: dict[str, Any]) -> str:
    """Return the only right answer to a request: a reward and a hint, whichever of them the question asks for."""
    digest = hashlib.sha256(json.dumps([body["messages"], body["seed"]]).encode()).hexdigest()
    vote = ("-1", "1")[int(digest[0], 16) % 2]
    return rf"\boxed{{{vote}}} [HINT_START]Give the answer number {digest[:8]} first.[HINT_END]"


class Chaos:
    """Script of the server: the right answer after `seconds` (mean), or with probability `share` a fault."""

    def __init__(
        self, seed: int = 0, *, share: float = 0.3, seconds: float = 0.01, hang: float = 60.0, told: float = 1
    ) -> None:
        self.seed, self.share, self.seconds, self.hang, self.told = seed, share, seconds, hang, told
        self.sent: Counter[str] = Counter()  # answers and faults, by kind
        self.closed: list[tuple[float, float]] = []  # when a Retry-After was sent, and when it ends
        self._tries: Counter[str] = Counter()
        self._lock = threading.Lock()

    def __call__(self, body: dict[str, Any], _number: int) -> Reply:
        text = text_of(body)
        with self._lock:
            self._tries[text] += 1
            draw = random.Random(f"{self.seed}:{text}:{self._tries[text]}")
        time.sleep(self.seconds * draw.uniform(0.5, 1.5))
        fault = draw.choice(FAULTS) if draw.random() < self.share else "answer"
        with self._lock:
            self.sent[fault] += 1
            if fault == "429, Retry-After":
                self.closed.append((time.monotonic(), time.monotonic() + self.told))
        return self._reply(fault, text)

    def _reply(self, fault: str, text: str) -> Reply:
        good = {"model": MODEL} | completion(text).body
        wrong = {"model": "another-model"} | completion("Invented. " + text).body
        return {
            "answer": Reply(body=good),
            "429": Reply(429, {"error": {"message": "slow down"}}),
            "429, Retry-After": Reply(429, {"error": "slow down"}, {"Retry-After": str(self.told)}),
            "500": Reply(500, "<html>Internal Server Error</html>"),
            "reset": Reply(fault="reset"),
            "hang": Reply(fault="hang", seconds=self.hang),
            "HTML": Reply(200, "<html>Please log in</html>"),
            "half JSON": Reply(200, json.dumps(good)[: len(json.dumps(good)) // 2]),
            "half a body": Reply(body=good, fault="half"),
            "another model": Reply(body=wrong),
            "no choices": Reply(body=good | {"choices": []}),
            "null": Reply(body={"model": MODEL} | completion(None).body),
        }[fault]

    @property
    def told_seconds(self) -> float:
        """Return for how many seconds in all Retry-After asked the client to wait; overlaps count once."""
        total = end = 0.0
        for start, stop in sorted(self.closed):
            total, end = total + max(0.0, stop - max(start, end)), max(end, stop)
        return total
