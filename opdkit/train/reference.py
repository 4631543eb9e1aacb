"""Log-probs of the replies under a frozen reference model (`--reference`), for the KL term.

The reference reads every reply once, before the student is loaded: the two models are never in memory together, and
training cannot change the reference. A resumed training reads the same files again; their digests are in its plan.
"""

from collections import defaultdict
from dataclasses import replace

import numpy as np
from accelerate import Accelerator
from accelerate.utils import gather_object
from numpy.typing import NDArray

from opdkit.chat.template import Chat
from opdkit.config.fields import JSON
from opdkit.config.train import TrainConfig
from opdkit.console import counted, progress, say
from opdkit.errors import ConfigError, OpdkitError
from opdkit.model.folder import pin_model
from opdkit.model.load import check_same_tokenizer, context_length, load_model, load_tokenizer
from opdkit.model.memory import TooLargeError
from opdkit.model.scoring import LogprobQuery
from opdkit.model.tree_reading import logprobs_in_trees
from opdkit.train.forwards import deal, pack_side_by_side
from opdkit.train.targets import Prompts, Reply, make_sequence


def check_reference(config: TrainConfig, chat: Chat) -> JSON:
    """Return the plan's input that pins the files of `--reference`; {} without a reference.

    Raises ConfigError if its tokenizer is not the student's, OpdkitError for a path that is not a model.
    """
    if config.reference is None:
        return {}
    identity = pin_model(config.reference)
    check_same_tokenizer(chat.tokenizer, load_tokenizer(config.reference))
    return {"reference": identity}


def add_reference(replies: list[Reply], prompts: Prompts, config: TrainConfig, accelerator: Accelerator) -> list[Reply]:
    """Return the replies with their log-probs under `--reference`; unchanged without a reference.

    Each process reads its share of the sessions, with common prefixes once. Raises ConfigError for a reply that exceeds
    the reference's context, OpdkitError for a log-prob that is not finite or a reply that does not fit into memory.
    """
    if config.reference is None:
        return replies
    model = load_model(config.reference, device=config.device, dtype=config.dtype, load_in_4bit=config.load_in_4bit)
    if (longest := max(map(len, replies))) > (context := context_length(model)):
        raise ConfigError(f"--reference was built for at most {context} tokens, and a turn has {longest}: pass another "
                          "one, or leave such turns out with --max-tokens of the teacher stage")  # fmt: skip
    by_session = defaultdict[str, list[int]](list)
    for i, reply in enumerate(replies):
        by_session[reply.branch_root].append(i)
    sessions, size = list(by_session.values()), config.micro_batch_tokens
    # Upper bound of the tokens per session, given that each prompt contains the replies before it.
    sizes = [max(len(replies[i]) for i in one) + sum(len(replies[i].response_ids) for i in one) for one in sessions]
    own = deal(sizes, accelerator.num_processes)[accelerator.process_index]
    groups = pack_side_by_side([sizes[k] for k in own], size)
    logprobs, tokens = dict[int, NDArray[np.float32]](), 0
    for group in progress(groups, "reference", len(groups), "batches"):
        members = [i for g in group for i in sessions[own[g]]]
        queries = [LogprobQuery((make_sequence(replies[i], prompts),)) for i in members]
        answers, read = logprobs_in_trees(model, queries, size, "reading the reference")
        for k, i in enumerate(members):
            if k not in answers:
                raise TooLargeError(f"turn {replies[i].turn_id}, under --reference,", "try --dtype bfloat16")
            logprobs[i] = answers[k].logprobs.numpy()
        tokens += read
    tokens = sum(gather_object([tokens]))
    logprobs = {i: values for share in gather_object([logprobs]) for i, values in share.items()}
    for i, reply in enumerate(replies):
        if not np.isfinite(logprobs[i][reply.sampled]).all():
            raise OpdkitError(f"--reference {config.reference} gives a token of turn {reply.turn_id} a log-prob that "
                              "is not finite: try --dtype float32, or pass another one")  # fmt: skip
    say(f"{config.reference}: read {counted(len(replies), 'reply')}, {counted(tokens, 'token')}, for the KL to it")
    return [replace(reply, reference_logprobs=logprobs[i]) for i, reply in enumerate(replies)]
