"""Number of logged sessions until a preference holds three times in a row (the metric of OpenClaw-RL v2).

A preference is what the users of one topic keep asking for. Its log holds the sessions in which they ask for it, in an
order drawn by the seed. After each session the model is trained from the start on all sessions so far. It then answers
held-out requests of the topic, which are shuffled too, with one sampled reply each.
"""

import random
from pathlib import Path

from opdkit.config.extract import ExtractConfig
from opdkit.config.fields import JSON
from opdkit.config.judge import JudgeConfig
from opdkit.config.teacher import TeacherConfig
from opdkit.evaluate.checks import read_prompts
from opdkit.extract.stage import run as extract
from opdkit.judge.stage import run as judge
from opdkit.teacher.stage import run as teach

from .noise import labels
from .runs import DATA, MAX_NEW_TOKENS, MODEL, PROMPTS, branch, final_model, first_replies, trained

IN_A_ROW = 3
MOST = 16  # sessions; if a preference does not hold by then, its number counts as MOST + 1
EPOCHS = 12  # a log of a few sessions is one step per epoch


def until_it_holds(work: Path, topic: str, preference: str, options: JSON, seed: int, most: int = MOST) -> JSON:
    """Return the smallest number of sessions (None: more than `most`), and which replies passed after each number."""
    run = scored_log(work / f"sessions-{topic}-{seed}", preference, seed, most)
    asked = [p for p in read_prompts(PROMPTS) if p.domain == topic]
    random.Random(f"{seed}:{topic}").shuffle(asked)
    held: list[list[bool]] = []
    for sessions in range(most + 1):
        model = MODEL
        if sessions:
            here = branch(run, run / "trained")
            trained(here, MODEL, options | {"limit": sessions}, seed, EPOCHS)
            model = final_model(here)
        replies = first_replies(model, asked[:IN_A_ROW], seed, 1)
        held.append([bool(reply.passed) for reply in replies])
        if is_held := all(held[-1]) and len(replies) == IN_A_ROW:
            break
    return {"sessions": sessions if is_held else None, "held": held}


def scored_log(run: Path, preference: str, seed: int, most: int) -> Path:
    """Write at most `most` sessions in which users ask for the preference, shuffled; judge and score them."""
    wanted = {turn.rpartition(":")[0] for turn, label in labels().items() if label["wanted"] == preference}
    lines = (DATA / "logs" / "openai.jsonl").read_text(encoding="utf-8").splitlines()
    chosen = [line for number, line in enumerate(lines, start=1) if f"openai:{number}" in wanted]
    random.Random(f"{seed}:{preference}").shuffle(chosen)
    run.mkdir(parents=True, exist_ok=True)
    log = run / "log.jsonl"
    log.write_text("\n".join(chosen[:most]) + "\n", encoding="utf-8")
    extract(ExtractConfig(run=run, logs=(str(log),)))
    judge(JudgeConfig(run=run, judge="local", judge_model=str(MODEL), max_new_tokens=MAX_NEW_TOKENS))
    teach(TeacherConfig(run=run, model=str(MODEL)))
    return run
