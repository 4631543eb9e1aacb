"""File of prompts that `eval --from-log` makes from the sessions held out of training."""

import json
from pathlib import Path

from opdkit.config.command_line import quote
from opdkit.config.evaluate import EvalConfig
from opdkit.config.fields import JSON, read_text
from opdkit.config.wording import read_wording
from opdkit.console import say
from opdkit.errors import ConfigError, NoPromptsError
from opdkit.evaluate.log_prompts import count_reactions, describe_prompts, make_prompts, read_reactions
from opdkit.evaluate.models import load_chat
from opdkit.model.behavior_policy import list_student_names
from opdkit.store.atomic import write_text
from opdkit.store.joined_turns import CHECKED, JUDGED
from opdkit.store.plans import has_stage, identify_model, manifest


def read_held_out_share(run: Path) -> float:
    """Return the share of sessions that `opdkit train --holdout` kept out of training; 0.0 without a training."""
    return float(manifest(run, "train")["plan"]["config"]["holdout"]) if has_stage(run, "train") else 0.0


def write_log_prompts(config: EvalConfig, names: dict[str, str], share: float | None = None) -> Path:
    """Write RUN/from-log.jsonl for `--from-log`, and return its path. `share`: held out; None: as in the training.

    Raises NoPromptsError if no held-out session gives a prompt; ConfigError if the file exists with other contents,
    unless `--overwrite`; OpdkitError for models that cannot be loaded.
    """
    path, rows = config.run / "from-log.jsonl", list[JSON]()
    # A night, which passes `share`, makes prompts before the teacher stage checks hints, and again if it resumes later.
    columns = CHECKED if share is None else JUDGED
    share = read_held_out_share(config.run) if share is None else share
    if share:
        chat, longest = load_chat(config, names)
        reactions = list(read_reactions(config.run, share, columns))
        counts, criteria = count_reactions(config.run, reactions, columns), read_wording(config.wording)["criterion"]
        room, before = longest - config.max_new_tokens, names["before"]
        own_names = list_student_names(before, identify_model(before).get("files", {}), config.served_as)
        rows, left_out = make_prompts(reactions, counts, chat, room, criteria, own_names)
        say(describe_prompts(rows, left_out, 2 * (1 + config.samples)))
    if not rows:
        what = "none of which makes a prompt" if share else "and there are none"
        raise NoPromptsError(f"--from-log takes its prompts from the sessions of {config.run} held out of training, "
                             f"{what}: train again, with `opdkit train {quote(config.run)} --holdout 0.3 --overwrite "
                             "...`, or write prompts for --prompts")  # fmt: skip
    text = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
    if path.exists() and read_text(path, "--from-log") != text and not config.overwrite:
        raise ConfigError(f"{path} holds other prompts than --from-log makes now: pass it as --prompts if it was "
                          "edited, or pass --overwrite to write it again")  # fmt: skip
    write_text(path, text)
    say(f"written to {path}: read it, edit it, and pass it as --prompts the next time")
    return path
