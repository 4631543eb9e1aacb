"""Log-probs of the replies under a frozen reference model (`--reference`), which the KL term is taken to.

The reference reads every reply once, before the student is loaded: no two models are in memory together, and nothing
that is trained can change it. A resumed training reads the same files again; their digests are in its plan.
"""

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
from opdkit.model.memory import TooLargeError, budget_of
from opdkit.model.scoring import LogprobQuery, Mixture, PromptResponse, logprobs_of
from opdkit.model.tree_reading import read_trees
from opdkit.train.forwards import plan_forwards
from opdkit.train.targets import Prompts, Turn


def check_reference(config: TrainConfig, chat: Chat) -> JSON:
    """Return the input of the plan that pins `--reference`; {} without one.

    Raises ConfigError unless it has the student's tokenizer, OpdkitError for a path that is not a model.
    """
    if config.reference is None:
        return {}
    identity = pin_model(config.reference)
    check_same_tokenizer(chat.tokenizer, load_tokenizer(config.reference))
    return {"reference": identity}


def with_reference(turns: list[Turn], prompts: Prompts, config: TrainConfig, accelerator: Accelerator) -> list[Turn]:
    """Return the turns with their log-probs under `--reference`; as they are without one.

    Each process reads its share of the sessions, and a common prefix once. Raises ConfigError for a turn that is longer
    than the reference can read, OpdkitError for a log-prob that is not finite and for a turn that does not fit into
    memory.
    """
    if config.reference is None:
        return turns
    model = load_model(config.reference, device=config.device, dtype=config.dtype, load_in_4bit=config.load_in_4bit)
    sequences = [PromptResponse(prompts[turn.turn_id].tolist(), turn.response_ids.tolist()) for turn in turns]
    if (longest := max(map(len, sequences))) > (context := context_length(model)):
        raise ConfigError(f"--reference was built for at most {context} tokens; a turn has {longest}")
    sessions, size = [turn.session_id for turn in turns], config.micro_batch_tokens
    rank, ranks = accelerator.process_index, accelerator.num_processes
    forwards, tokens = plan_forwards(sequences, sessions, size, rank, ranks, packed=True)
    budget, logprobs = budget_of(model, "reading the reference"), dict[int, NDArray[np.float32]]()
    for trees in progress(forwards, "reference", len(forwards), "batches"):
        members = [i for tree in trees for i in tree.turns]
        for attempt in budget.halves([len(sequences[i]) for i in members]):
            batch = [members[k] for k in attempt.items]
            with attempt:
                read = read_trees([(model, [sequences[i] for i in batch])], size)
                queries = [LogprobQuery((sequences[i],)) for i in batch]
                answers = logprobs_of(Mixture((model,)), queries, batch_tokens=size, read=read.batch)
                logprobs |= {i: answer.logprobs.numpy() for i, answer in zip(batch, answers, strict=True)}
            if attempt.too_large:
                raise TooLargeError(f"turn {turns[batch[0]].turn_id}, under --reference,", "try --dtype bfloat16")
    logprobs = {i: values for share in gather_object([logprobs]) for i, values in share.items()}
    for i, turn in enumerate(turns):
        if not np.isfinite(logprobs[i][turn.sampled]).all():
            raise OpdkitError(f"--reference {config.reference} gives a token of turn {turn.turn_id} no finite log-prob")
    say(f"{config.reference}: read {counted(len(turns), 'reply')}, {counted(tokens, 'token')}, for the KL to it")
    return [replace(turn, reference_logprobs=logprobs[i]) for i, turn in enumerate(turns)]
