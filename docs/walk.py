"""Write how-it-works.md, idea.svg and heat-map.svg from a run like the tutorial's: `python docs/walk.py`.

A test repeats the run and compares the words exactly and the numbers up to rounding.
"""

import html
import math
import shutil
import tempfile
from pathlib import Path
from typing import Any

import torch

from opdkit import Run
from opdkit.commands.show.tokens import level
from opdkit.config.fields import JSON
from opdkit.config.train import TrainConfig
from opdkit.config.wording import DEFAULTS
from opdkit.train.objective.losses import divergence
from opdkit.train.objective.terms import PRESETS

HERE = Path(__file__).parent
DATA = HERE.parent / "sample_data"
TURN = "openai:8:1"
OTHERS = ("openai:1:1", "openai:6:1")  # the other turns of the heat map
FILES = ("how-it-works.md", "idea.svg", "heat-map.svg")
INK, GREY, LINE = "#1b1f24", "#57606a", "#c4ccd4"
BLUE, ORANGE = {1: "#c6dbef", 2: "#2171b5", 3: "#08306b"}, {1: "#fdd0a2", 2: "#f18f43", 3: "#a63603"}


def make_run(path: Path) -> None:
    """Run the tutorial's commands up to `train`, and score the replies again under the trained model."""
    model, run = DATA / "model", Run(path)
    run.extract(DATA / "logs", limit=60)
    run.judge(judge="local", judge_model=model, votes=3, max_new_tokens=64)
    run.teacher(model=model)
    run.train(model=model)
    for stage in ("extract", "judge"):
        shutil.copytree(path / stage, after(path) / stage)
    Run(after(path)).teacher(model=path / "train/model", teacher_samples=0)


def after(run: Path) -> Path:
    """Return the run whose targets are the same replies under the trained model."""
    return run.with_name(f"{run.name}-after")


def write(run: Path) -> dict[str, str]:
    """Return file name -> text, from a run that `make_run` has made."""
    views = {turn_id: Run(run).show(turn_id) for turn_id in (TURN, *OTHERS)}
    rows = {row["written"]: row for row in Run(run).table("targets") if row["turn_id"] == TURN}
    later = next(row for row in Run(after(run)).table("targets") if row["turn_id"] == TURN)
    turns, steps = list(Run(run).table("turns")), len(list(Run(run).table("metrics")))
    page = how_it_works(views[TURN], rows, later, turns, steps)
    return dict(zip(FILES, (page, idea(views[TURN]), heat_map(list(views.values()))), strict=True))


def how_it_works(view: JSON, rows: dict[int | None, Any], later: Any, turns: list[Any], steps: int) -> str:
    """Return the page with the numbers of the run."""
    text = (HERE / "how-it-works.txt").read_text(encoding="utf-8")
    verdict, (logged, written) = view["verdict"], view["targets"]
    tokens = logged["tokens"]
    at = min(range(len(tokens)), key=lambda n: tokens[n]["advantage"])
    token, row = tokens[at], rows[None]
    near = {model: dict(token["likely"][model]) for model in ("student", "teacher")}
    wanted = max(near["teacher"], key=lambda name: near["teacher"][name])
    old, taught = (torch.tensor([list(map(float, ids)) for ids in row[name]]) for name in
                   ("support_old", "support_teacher"))  # fmt: skip
    distances = divergence(old, taught, TrainConfig.divergence_alpha)
    (weights,) = PRESETS[TrainConfig.objective]
    low = [one["text"] for one in tokens if math.exp(one["old"]) < TrainConfig.negative_below]
    sampled = dict(zip(later["support_ids"][at], later["support_old"][at], strict=True))
    ids = {text: token_id for token_id, text in _texts(view, at)}
    skipped = [turn["skip_reason"] for turn in turns if not turn["trainable"]]
    votes = "\n".join(
        f"| {n} | {_cell(reward['raw'])} | {_cell(hint['hint'])} |"
        for n, (reward, hint) in enumerate(zip(verdict["reward_votes"], verdict["hint_votes"], strict=True), 1)
    )
    scores = "\n".join(
        f"| {_token(one['text'])} | {_share(one['old'])} | {_share(one['teacher'])} | {one['old']:z.2f} | "
        f"{one['teacher']:z.2f} | {'**' * (n == at)}{one['advantage']:z.2f}{'**' * (n == at)} |"
        for n, one in enumerate(tokens)
    )
    values = {
        "turn": view["turn_id"], "index": view["message_index"], "session": view["session_id"],
        "user": view["messages"][0]["content"], "reply": view["messages"][1]["content"],
        "next": view["messages"][2]["content"], "count": view["next_count"],
        "turns": len(turns), "last": skipped.count("no next state"),
        "votes": votes, "reward": f"{verdict['reward']:+d}", "agreement": f"{verdict['reward_agreement']:.2f}",
        "hint": verdict["hint"], "words": DEFAULTS["teacher"]["hint"].format(hint=verdict["hint"]).strip(),
        "prompt": logged["prompt_tokens"], "scores": scores,
        "bad": token["text"].strip(), "good": wanted.strip(), "a": f"{token['advantage']:.2f}",
        "times": f"{round(math.exp(-token['advantage']), -2):,.0f}",
        "student_bad": _share(token["old"]), "teacher_bad": _share(token["teacher"]),
        "student_good": _share(near["student"][wanted]), "teacher_good": _share(near["teacher"][wanted]),
        "k": len(row["support_ids"][at]), "own": "".join(one["text"] for one in written["tokens"][:-1]),
        "weight": weights["reward"], "anchor": TrainConfig.anchor_weight,
        "divergence": f"{distances[at]:.2f}",
        "others": f"{distances.sum() - distances[at]:.2f}", "below": TrainConfig.negative_below,
        "low": ", ".join(map(_token, low)), "steps": steps,
        **{f"after_{name}": f"{math.exp(sampled[ids[text]]):.3f}"
           for name, text in (("bad", token["text"]), ("good", wanted))},
    }  # fmt: skip
    for name, value in values.items():
        text = text.replace(f"<<{name}>>", str(value))
    assert "<<" not in text
    return text


def _texts(view: JSON, at: int) -> list[tuple[int, str]]:
    """Return id and text of the token at a position, for the logged reply and for the teacher's."""
    return [(target["tokens"][at]["id"], target["tokens"][at]["text"]) for target in view["targets"]]


def _share(logprob: float) -> str:
    share = math.exp(logprob)
    return f"{share:.3f}" if share > 0.001 else f"{share:.4f}"


def _cell(text: str) -> str:
    return f"`{text}`" if "\\" in text else text


def _token(text: str) -> str:
    return "end of the reply" if text.startswith("<|") else f"`{text.replace(' ', '␣')}`"


def idea(view: JSON) -> str:
    """Return the picture of the idea: log, judge, two readings, and what is learned."""
    messages, verdict = view["messages"], view["verdict"]
    tokens = view["targets"][0]["tokens"][:-1]
    at = min(range(len(tokens)), key=lambda n: tokens[n]["advantage"])
    student, teacher = (_most_likely(tokens[at], model) for model in ("student", "teacher"))
    parts = [
        _text(20, 28, "1  the log", bold=True),
        *_bubble(20, 42, "user", messages[0]["content"], 230),
        *_bubble(270, 42, "assistant", messages[1]["content"], 300),
        *_bubble(590, 42, "user", messages[2]["content"], 210),
        _arrow(695, 92, 695, 122),
        _text(20, 142, "2  a judge reads request, reply and reaction", bold=True),
        *_bubble(430, 124, f"reward {verdict['reward']:+d}, and a hint", verdict["hint"], 370),
        _text(20, 214, "3  the same model reads the same reply twice, without the hint and with it", bold=True),
        *_bubble(20, 228, "student, without the hint", f'after "It is": {student}', 380),
        *_bubble(420, 228, "teacher, with the hint", f'after "It is": {teacher}', 380),
        _arrow(720, 174, 720, 228),
        _text(20, 318, "4  training moves the student towards the teacher, at the tokens where they differ", bold=True),
    ]  # fmt: skip
    reply, width = _reply(tokens, 20, 366)
    return _svg(820, 400, [*parts, *reply, _text(30 + width, 366, "orange: the teacher would not say it", GREY, 13)],
                "From a log to training: the reaction becomes a hint; the model that reads the hint shows which token "
                "was wrong")  # fmt: skip


def heat_map(views: list[JSON]) -> str:
    """Return the picture of replies: tokens in the colours of their advantages, and what the teacher prefers."""
    parts, y = [], 30
    for view in views:
        messages = view["messages"][: view["message_index"] + 1 + view["next_count"]]
        tokens = [token for token in view["targets"][0]["tokens"] if not token["text"].startswith("<|")]
        parts += [_text(20, y, f"user: {messages[view['message_index'] - 1]['content']}", GREY, 13)]
        reply, _ = _reply(tokens, 20, y + 46)
        parts += reply
        after_it = messages[view["message_index"] + 1]
        parts += [_text(20, y + 76, f"{after_it['role']}: {after_it['content']}", GREY, 13),
                  _text(420, y + 76, f"hint: {view['verdict']['hint']}", GREY, 13)]  # fmt: skip
        y += 118
    x = 20
    for text, colour in (("the teacher would say it far less", ORANGE[3]), ("less", ORANGE[2]), ("more", BLUE[2]),
                         ("far more", BLUE[3])):  # fmt: skip
        parts += [_box(x, y - 14, 16, 16, colour), _text(x + 22, y, text, GREY, 13)]
        x += 50 + 7 * len(text)
    parts += [_text(x, y, "above: the teacher's token", GREY, 13)]
    return _svg(820, y + 16, parts, "Three replies of the sample log, each token in the colour of its advantage")


def _most_likely(token: JSON, model: str) -> str:
    return ", ".join(f'"{text.strip()}" {math.exp(logprob):.2f}' for text, logprob in token["likely"][model][:2])


def _reply(tokens: list[JSON], x: float, y: float) -> tuple[list[str], float]:
    """Return tokens side by side, in the colours of their advantages, and their total width."""
    parts, begin = [], x
    for token in tokens:
        text = token["text"].replace("\n", "↵")
        width, strength = 9 * len(text), level(token)
        if abs(strength) > 1:
            colour = (BLUE if strength > 0 else ORANGE)[abs(strength)]
            parts.append(_box(x, y - 16, width, 22, colour))
        parts.append(_mono(x, y, text, "#ffffff" if strength in (-3, 2, 3) else INK, width))
        if strength < -1:
            instead = token["likely"]["teacher"][0][0].replace("\n", "↵")
            parts.append(_mono(x, y - 21, instead, BLUE[2], 9 * len(instead)))
        x += width
    return parts, x - begin


def _bubble(x: float, y: float, who: str, text: str, width: float) -> list[str]:
    outline = f'<rect x="{x}" y="{y}" width="{width}" height="50" rx="8" fill="#f6f8fa" stroke="{LINE}"/>'
    return [outline, _text(x + 12, y + 19, who, GREY, 12), _text(x + 12, y + 39, text, INK, 14)]


def _arrow(x: float, y: float, to_x: float, to_y: float) -> str:
    line = f'<line x1="{x}" y1="{y}" x2="{to_x}" y2="{to_y - 7}" stroke="{GREY}" stroke-width="1.5"/>'
    return line + f'<path d="M{to_x - 5} {to_y - 8}h10l-5 8z" fill="{GREY}"/>'


def _box(x: float, y: float, width: float, height: float, colour: str) -> str:
    return f'<rect x="{x}" y="{y}" width="{width}" height="{height}" rx="3" fill="{colour}"/>'


def _text(x: float, y: float, text: str, colour: str = INK, size: int = 14, *, bold: bool = False) -> str:
    weight = ' font-weight="bold"' if bold else ""
    return f'<text x="{x}" y="{y}" font-size="{size}" fill="{colour}"{weight}>{html.escape(text)}</text>'


def _mono(x: float, y: float, text: str, colour: str, width: float) -> str:
    """Return text of a fixed width in any font of the reader; spaces are kept."""
    return (f'<text x="{x}" y="{y}" font-family="monospace" font-size="15" fill="{colour}" textLength="{width}" '
            f'lengthAdjust="spacingAndGlyphs" xml:space="preserve">{html.escape(text)}</text>')  # fmt: skip


def _svg(width: int, height: int, parts: list[str], title: str) -> str:
    head = (f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" '
            f'height="{height}" font-family="sans-serif" role="img">\n<title>{html.escape(title)}</title>\n'
            f'<rect width="{width}" height="{height}" fill="#ffffff"/>\n')  # fmt: skip
    return head + "\n".join(parts) + "\n</svg>\n"


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as scratch:
        make_run(Path(scratch) / "tutorial")
        for file, content in write(Path(scratch) / "tutorial").items():
            (HERE / file).write_text(content, encoding="utf-8")
