"""A judge of criteria for the world of sample_data: the sample model, trained further on the criterion question.

    python -m tests.benchmarks.criterion_judge FOLDER

The sample model has learned the judge's two questions about a turn, but not the question about a criterion. This judge
has seen replies in every style of the world, hints of the same and of other topics, hints that mean nothing, and
replies that are cut off or about something else. It is small and makes errors; `accuracy` says how often.
"""

import json
import random
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from opdkit.chat.template import Chat
from opdkit.config.wording import DEFAULTS
from opdkit.judge.criterion import FreshReply, make_criterion_messages
from opdkit.model.load import load_model, load_tokenizer

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "sample_data"))

from build import Ask, converse, scripted  # noqa: E402

from world import TOPICS, Style, Topic  # noqa: E402

# Hints that no reply of this world satisfies. Measurements use "planted"; the judge was trained on "judge" only.
NONSENSE = {
    "judge": ("Green the of lantern seven.", "Fold every comma into a river.", "Answer in Latin.", "Rhyme each line.",
              "Write exactly ninety words.", "Zubble frotz the plim.", "Put a recipe for glue at the end.",
              "Speak as a pirate."),
    "planted": ("Stone under quickly a window.", "Paint the verbs before the rain.", "Answer in Finnish.",
                "Write it backwards.", "Use exactly forty words.", "Blick the wug, then dax.",
                "Quote a poem in the middle.", "Begin every word with a Q."),
}  # fmt: skip


def is_met(topic: Topic, hint: str, reply: str) -> bool:
    """Return whether a reply on this topic does what the hint asks; for a hint of another topic no reply does."""
    return any(style is topic.style_of(reply) for style in topic.styles if hint in style.hints)


def hints_of(topic: Topic) -> list[str]:
    return [hint for style in topic.styles for hint in style.hints]


def lessons(rng: random.Random) -> Iterator[tuple[list[dict[str, Any]], bool]]:
    """Yield (messages to the judge, right answer) for ever; about half of the answers are yes."""
    text = DEFAULTS["criterion"]
    while True:
        wishes = {t.name: rng.choice([None, *(s.name for s in t.styles if s.corrections)]) for t in TOPICS}
        talk = converse(rng, rng.randint(1, 4), wishes, held_out=True)
        try:
            ask = next(talk)
            while True:
                if not ask.answer:
                    reply, hint = _reply_and_hint(ask, rng)
                    messages = make_criterion_messages(FreshReply("", ask.messages, reply, text["helps"], hint), text)
                    yield messages, is_met(ask.topic, hint, reply)
                ask = talk.send(scripted(ask, rng))
        except StopIteration:
            pass


def _reply_and_hint(ask: Ask, rng: random.Random) -> tuple[str, str]:
    style: Style = rng.choice([style for style in ask.topic.styles if style.hints])
    reply, hint = style.reply(ask.item), rng.choice(style.hints)
    kind = rng.random()
    if kind < 0.5:
        about = ask.item if rng.random() < 0.7 else rng.choice(ask.topic.items)  # its facts may be wrong
        return style.reply(about), hint
    if kind < 0.75:
        return rng.choice(ask.topic.styles).reply(ask.item), hint
    if kind < 0.94:
        other = rng.choice([t for t in TOPICS if t is not ask.topic])
        if rng.random() < 0.5:  # the reply follows the hint but ignores the request
            reply = rng.choice(other.styles).reply(rng.choice(other.items))
        return reply, rng.choice(hints_of(other))
    if kind < 0.97:
        return reply[: rng.randint(1, 8)], hint
    return reply, rng.choice(NONSENSE["judge"])


def build(folder: Path, *, steps: int = 900, batch: int = 16, peak: float = 2e-3, seed: int = 0) -> Path:
    """Train the judge and save it. On one machine, the same arguments give the same weights."""
    torch.manual_seed(seed)
    source = ROOT / "sample_data/model"
    tokenizer = load_tokenizer(str(source))
    chat, model = Chat(tokenizer, {}), load_model(str(source), device="cpu", dtype="float32")
    model.train().requires_grad_(True)
    optimizer = torch.optim.AdamW(model.parameters(), lr=peak, betas=(0.9, 0.98))
    rows = lessons(random.Random(seed))
    for step in range(steps):
        for group in optimizer.param_groups:
            group["lr"] = peak * min(1, (step + 1) / 20) * (1 - step / steps)
        pool = [(chat.prompt_ids(messages), answer) for messages, answer in (next(rows) for _ in range(batch))]
        replies = {yes: [*tokenizer(rf"\boxed{{{1 if yes else -1}}}")["input_ids"], tokenizer.eos_token_id]
                   for yes in (True, False)}  # fmt: skip
        width = max(len(ids) + len(replies[yes]) for ids, yes in pool)
        ids_BT = torch.zeros(len(pool), width, dtype=torch.long)
        wanted_BT = torch.full((len(pool), width), -100)
        for row, (ids, yes) in enumerate(pool):
            end = len(ids) + len(replies[yes])
            ids_BT[row, :end] = torch.tensor(ids + replies[yes])
            wanted_BT[row, len(ids) - 1 : end - 1] = torch.tensor(replies[yes])
        asked = wanted_BT >= 0
        hidden = model.model(input_ids=ids_BT, use_cache=False).last_hidden_state[asked]
        loss = torch.nn.functional.cross_entropy(model.lm_head(hidden), wanted_BT[asked])
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        if step % 20 == 0 or step == steps - 1:
            print(f"step {step} loss {loss.item():.4f}", flush=True)
    model.to(torch.bfloat16).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def accuracy(folder: Path, questions: int = 300, seed: int = 99) -> dict[str, float]:
    """Return the shares of right votes on replies that follow the hint ("yes") and on those that do not ("no")."""
    from opdkit.config.judge import JudgeConfig
    from opdkit.judge.local import LocalJudge
    from opdkit.judge.parse import parse_reward
    from opdkit.judge.votes import Question

    rows = lessons(random.Random(seed))
    asked = [next(rows) for _ in range(questions)]
    config = JudgeConfig(run=folder, judge="local", judge_model=str(folder), votes=1, max_new_tokens=12)
    answers = LocalJudge(config).ask([Question(str(n), "criterion", m) for n, (m, _) in enumerate(asked)])
    text = DEFAULTS["criterion"]["question"]
    right: dict[bool, list[bool]] = {True: [], False: []}
    for [answer], (_, yes) in zip(answers, asked, strict=True):
        right[yes].append(parse_reward(answer, text).score == (1 if yes else -1))
    return {"yes" if yes else "no": sum(of) / len(of) for yes, of in right.items()}


if __name__ == "__main__":
    print(json.dumps(accuracy(build(Path(sys.argv[1])))))
