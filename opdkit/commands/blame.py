"""`opdkit blame`: find the users, sessions and turns that made the model worse, and propose a training without them."""

import json
import re
import shlex
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from opdkit.config.blame import BlameConfig
from opdkit.config.command_line import command_line, quote
from opdkit.config.conditions import SESSION, USERS, find_rejection, parse_session_filters, read_logged_value
from opdkit.config.evaluate import EvalConfig
from opdkit.config.fields import JSON, did_you_mean, from_saved
from opdkit.config.train import TrainConfig
from opdkit.console import counted, escape_markdown, format_markdown_table, say
from opdkit.errors import ConfigError, OpdkitError
from opdkit.evaluate.blame import WeightedReply, WorsePrompt, blame_turns, find_worse_prompts
from opdkit.evaluate.checks import HeldOutPrompt, read_evaluated_prompts
from opdkit.evaluate.conclusion import check_evaluated
from opdkit.evaluate.generation import prompt_ids
from opdkit.evaluate.models import load_chat, model_names
from opdkit.model.load import load_model, load_template
from opdkit.model.scoring import PromptResponse
from opdkit.store.logged_fields import read_logged_fields
from opdkit.store.plans import manifest, stage_dir
from opdkit.store.reading import read_all, read_arrow, read_part
from opdkit.store.template_args import choose_template_args
from opdkit.store.turn_ids import session_of
from opdkit.train.best_state import find_best, trace_steps
from opdkit.train.schedule import make_objectives
from opdkit.train.targets import load_prompts
from opdkit.train.training_set import load_training_set

_STANDS_OUT = 0.5  # share of the largest blame; groups with at least this much are left out of the proposed training
_HINTS = 3  # hints to show per group


@dataclass(frozen=True)
class Blame:
    """Answer to "who taught it that?". Each share is relative to the summed blame of the groups with positive blame."""

    sentence: str
    domains: list[JSON]  # domains that got worse: share of right replies before and after
    by: str
    groups: list[JSON]  # value, sessions, turns, share, hints; largest share first
    turns: list[JSON]  # turn_id, value, share, hint; largest share first
    commands: list[str]  # train without the worst groups, evaluate that training, and compare

    def markdown(self, most: int = 10) -> str:
        """Return the answer as Markdown, with `most` lines per table."""
        groups = [[row["value"] or "(none)", *(f"{row[name]:,}" for name in ("sessions", "turns")),
                   f"{row['share']:.1%}", "; ".join(row["hints"])] for row in self.groups[:most]]  # fmt: skip
        turns = [[row["turn_id"], row["value"] or "(none)", f"{row['share']:.1%}", row["hint"] or ""]
                 for row in self.turns[:most]]  # fmt: skip
        groups, turns = ([list(map(escape_markdown, row)) for row in rows] for rows in (groups, turns))
        blocks = [escape_markdown(self.sentence)]
        if self.groups:
            blocks.append(format_markdown_table([[self.by, "sessions", "turns", "blame", "hints"], *groups]))
            blocks.append(format_markdown_table([["turn", self.by, "blame", "hint"], *turns]))
        if self.commands:
            blocks += ["Train without them, and compare:", "\n".join(f"    {command}" for command in self.commands)]
        return "\n\n".join(blocks)


def run(config: BlameConfig) -> None:
    """Print the answer as Markdown. Raises what `blame` raises."""
    answer = blame(config)
    print(json.dumps(asdict(answer), indent=2) if config.json else answer.markdown(config.lines))


def blame(config: BlameConfig) -> Blame:
    """Return who taught the model what it now does worse.

    Raises OpdkitError if the run's own training is not evaluated, or a stage before the training or the evaluation was
    run again since; ConfigError for an unknown field or domain.
    """
    run = config.run
    check_evaluated(run, "train")
    trained = from_saved(TrainConfig, manifest(run, "train")["configuration"], run=run, overwrite=False)
    evaluated = from_saved(EvalConfig, manifest(run, "eval")["configuration"], run=run, overwrite=False)
    if evaluated.trained:
        raise OpdkitError(f"{run}/eval is of another model than this run trained ({evaluated.trained}): run `opdkit "
                          f"eval {quote(run)} ... --overwrite` without --trained")  # fmt: skip
    measured = read_arrow(run, "replies", 0)
    if config.domain and config.domain not in (known := measured["domain"].unique().to_pylist()):
        raise ConfigError(f"--domain is {config.domain!r}; {did_you_mean(config.domain, known)}")
    domains, worse_prompts = find_worse_prompts(measured, config.domain)
    session_groups, by = group_sessions(config)
    if not worse_prompts:
        why = "the share of right replies did not fall" if domains else "no prompt has a verdict on both models"
        return Blame(f"Nothing to blame: {why} in {config.domain or 'any domain'}.", [], by, [], [], [])

    # The training set as training read it, and the replies that define what was lost.
    chat = load_template(trained.model, choose_template_args(run, "teacher", trained.template_arg))
    objectives = make_objectives(trained)
    data, prompts = load_training_set(trained, objectives, chat)
    taught_ids = read_taught_turns(run)
    kept = [(reply, n) for reply, n in zip(data.replies, data.phases, strict=True) if reply.turn_id in taught_ids]
    data = replace(data, replies=[reply for reply, _ in kept], phases=[n for _, n in kept])
    known_prompts = read_evaluated_prompts(run, f"run `opdkit eval {quote(run)} --prompts FILE --overwrite`")
    replies = weigh_replies(worse_prompts, known_prompts, evaluated)
    model = load_model(trained.model, device=config.device, dtype="float32")
    taught, worse = counted(len(data.replies), "reply"), counted(len(worse_prompts), "prompt")
    say(f"what {taught} taught about {worse} that got worse")
    scores = blame_turns(model, replies, data, prompts or load_prompts(run, data.replies, chat), objectives,
                         trained.micro_batch_tokens)  # fmt: skip

    # Sum per turn (which may also have replies that the teacher wrote) and per group.
    targets = read_all(run, "targets", ["turn_id", "hint"])
    hints = {row["turn_id"]: row["hint"] for row in targets if row["hint"] is not None}
    blame_of = Counter[str]()
    for reply, score in zip(data.replies, scores.tolist(), strict=True):
        blame_of[reply.turn_id] += score
    rows = [{"turn_id": turn_id, "value": session_groups[session_of(turn_id)], "share": score,
             "hint": hints.get(turn_id)} for turn_id, score in blame_of.items()]  # fmt: skip
    groups, fallen = sum_groups(rows), [row for row in domains if row["after"] < row["before"]]
    worst = choose_worst(groups)
    left_out = count_left_out(run, write_filter(by, worst), rows)
    sentence = write_sentence(fallen, by, groups, worst, left_out)
    commands = write_commands(run, trained, evaluated, by, worst) if leaves_out_worst(worst, left_out) else []
    return Blame(sentence, fallen, by, groups, rows, commands)


def read_taught_turns(run: Path) -> set[str]:
    """Return the turns of the steps that led to the state that became the model: other steps taught it nothing."""
    turn_ids: list[list[str]] = read_arrow(run, "metrics", 0, ["turn_ids"])["turn_ids"].to_pylist()
    measured = read_part(run, "validations", 0)
    kept = find_best(measured)["step"] if measured else len(turn_ids)
    return {turn_id for step in trace_steps(measured, kept) for turn_id in turn_ids[step - 1]}


def group_sessions(config: BlameConfig) -> tuple[dict[str, str | None], str]:
    """Return session id -> the value that blame is summed by, None if the log has no single one; and the field's name.

    A value is text, a number, true or false; a list of equal values, such as one per call, counts as one value. `by` is
    by default a field of USERS that half of the sessions have, else SESSION. Raises ConfigError if no session has it.
    """
    sessions = list(read_logged_fields(config.run))
    fields = [config.by] if config.by else [*(f"metadata.{name}" for name in USERS), SESSION]
    least = 1 if config.by else len(sessions) / 2
    for by in fields:
        values = dict[str, str | None]()
        for session in sessions:
            logged = read_logged_value(by, session, session.format)
            texts = {str(value).lower() if isinstance(value, bool) else str(value)
                     for value in (logged if isinstance(logged, list) else [logged])
                     if isinstance(value, (str, int, float)) and value != ""}  # fmt: skip
            values[session.session_id] = texts.pop() if len(texts) == 1 else None
        if sum(value is not None for value in values.values()) >= least:
            return values, by
    raise ConfigError(f"--by {config.by}: no session of {config.run} has one value of it")


def weigh_replies(
    worse_prompts: Sequence[WorsePrompt], prompts: Mapping[str, HeldOutPrompt], config: EvalConfig
) -> list[WeightedReply]:
    """Return the sampled replies to the prompts that got worse, each weighted by how much its prompt got worse."""
    chat, longest = load_chat(config, model_names(config))
    total, weighted = sum(worse.share for worse in worse_prompts), list[WeightedReply]()
    for worse in worse_prompts:
        ids = prompt_ids(chat, prompts[worse.prompt_id], config.max_new_tokens, longest)
        for rows, sign in ((worse.failing, 1.0), (worse.passing, -1.0)):
            for row in rows:
                reply = chat.reply_ids(row["reply"])
                if row["finish_reason"] == "stop" and chat.end_id is not None:
                    reply = [*reply, chat.end_id]
                if reply:
                    weight = sign * worse.share / total / len(rows)
                    weighted.append(WeightedReply(PromptResponse(ids, reply), weight))
    return weighted


def sum_groups(rows: list[JSON]) -> list[JSON]:
    """Return the groups with the sums over their turns, largest share first. Sorts `rows` in the same way.

    Divides the blame of each turn, in place, by the summed blame of the groups whose blame is positive.
    """
    members = defaultdict[str | None, list[JSON]](list)
    for row in rows:
        members[row["value"]].append(row)
    sums = {value: sum(row["share"] for row in own) for value, own in members.items()}
    total = sum(max(0.0, blame) for blame in sums.values()) or 1.0
    for row in rows:
        row["share"] /= total
    rows.sort(key=lambda row: -row["share"])
    groups = list[JSON]()
    for value in sorted(members, key=lambda value: -sums[value]):
        hints = Counter[str]()
        for row in members[value]:
            hints.update({row["hint"]: row["share"]} if row["hint"] else {})
        sessions = {session_of(row["turn_id"]) for row in members[value]}
        groups.append({
            "value": value, "sessions": len(sessions), "turns": len(members[value]), "share": sums[value] / total,
            "hints": [hint for hint, share in hints.most_common(_HINTS) if share > 0],
        })  # fmt: skip
    return groups


def choose_worst(groups: Sequence[JSON]) -> list[JSON]:
    """Return the groups to train without: those that have a value and at least _STANDS_OUT of the largest blame.

    If less than half of the turns would be left, only the first of them; none if it holds all turns.
    """
    least = max(1e-9, _STANDS_OUT * groups[0]["share"])
    worst = [row for row in groups if row["value"] and row["share"] >= least]
    turns = sum(row["turns"] for row in groups)
    if 2 * sum(row["turns"] for row in worst) > turns:
        worst = [row for row in worst[:1] if row["turns"] < turns]
    return worst


def write_filter(by: str, worst: Sequence[JSON]) -> str:
    """Return the condition that leaves out the worst groups; "" if there are none."""
    # A condition reads | as a separator and * ? [ as patterns, and ignores outer spaces. Each of these characters, and
    # each that is not printable, is written as ?, which matches any character.
    values = [re.sub(r"[|*?\[\]]|^\s+|\s+$", lambda found: "?" * len(found[0]), row["value"]) for row in worst]
    text = "|".join("".join(c if c.isprintable() else "?" for c in value) for value in values)
    return f"{by}!={text}" if values else ""


def count_left_out(run: Path, condition: str, rows: Sequence[JSON]) -> Counter[str | None]:
    """Return, per value, how many of the sessions with turns in `rows` a condition leaves out."""
    values = {session_of(row["turn_id"]): row["value"] for row in rows}
    filters = parse_session_filters([condition] if condition else [])
    return Counter(values[session.session_id] for session in read_logged_fields(run)
                   if session.session_id in values and find_rejection(filters, session, session.format))  # fmt: skip


def leaves_out_worst(worst: Sequence[JSON], left_out: Counter[str | None]) -> bool:
    """Return True if there are worst groups, and the sessions with a value that are left out are exactly theirs."""
    named = {value: count for value, count in left_out.items() if value is not None}
    return bool(worst) and named == {row["value"]: row["sessions"] for row in worst}


def write_sentence(
    fallen: Sequence[JSON], by: str, groups: Sequence[JSON], worst: Sequence[JSON], left_out: Counter[str | None]
) -> str:
    """Return the answer in words, with a note if the condition on the `worst` groups also leaves out other sessions."""
    falls = "; ".join(f"in {row['domain']}, right replies fell from {row['before']:.1%} to {row['after']:.1%}"
                      for row in fallen)  # fmt: skip
    falls = f"{falls[0].upper()}{falls[1:]}."
    if not worst:
        return f"{falls} No {by} stands out as the one that taught this."
    names, turns = ", ".join(row["value"] for row in worst), sum(row["turns"] for row in groups)
    others = f" This also leaves out {counted(left_out[None], 'session')} without a {by}." if left_out[None] else ""
    if not leaves_out_worst(worst, left_out):
        others = f" No condition on {by} leaves out exactly these: try `--by {SESSION}`, or another field."
    return (f"{falls} {sum(row['share'] for row in worst):.0%} of the blame is on {by} {names}: "
            f"{sum(row['turns'] for row in worst):,} of {counted(turns, 'turn')}.{others}")  # fmt: skip


def write_commands(run: Path, trained: TrainConfig, evaluated: EvalConfig, by: str, worst: Sequence[JSON]) -> list[str]:
    """Return the commands that train without the worst groups, evaluate that training, and compare both."""
    base = stage_dir(run, "teacher").parent  # for a named training: the run whose targets it shares
    name = "without-" + re.sub(r"[^\w.+-]+", "-", worst[0]["value"])[:40] + ("-and-others" if len(worst) > 1 else "")
    train = trained.effective() | {"name": name, "filter": [*trained.filter, write_filter(by, worst)]}
    measure = evaluated.effective() | {"name": name, "model": None}
    lines = [command_line("train", TrainConfig, base, train, ("shard",)),
             command_line("eval", EvalConfig, base, measure, ("shard",)),
             ["opdkit", "compare", str(base), *([run.resolve().stem] if run != base else []), name]]  # fmt: skip
    return [shlex.join(words) for words in lines]
