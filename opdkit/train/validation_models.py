"""Models and prompts of the on-policy validation: which models score the replies, with which prompts, if they fit."""

import contextlib
import math
from collections.abc import Sequence
from dataclasses import replace

import torch
from accelerate import Accelerator
from accelerate.utils import gather_object
from transformers import PreTrainedModel

from opdkit.chat.hint_placement import with_hint
from opdkit.chat.template import Chat, ChatError
from opdkit.config.fields import JSON
from opdkit.config.teacher_models import parse_teachers
from opdkit.config.train import FEWEST, TrainConfig
from opdkit.console import say
from opdkit.errors import OpdkitError
from opdkit.model.load import context_length, load_model, load_skeleton, load_template, resolve_device, resolve_dtype
from opdkit.model.memory import TooLargeError
from opdkit.model.sampling import choose_reply_room
from opdkit.store.plans import checkpoints_dir, manifest, read_hint_text
from opdkit.store.template_args import choose_template_args
from opdkit.train.policy import Policy
from opdkit.train.targets import Reply, list_prompt_messages, pair_with_sessions
from opdkit.train.validation import Validation, ValidationPrompt
from opdkit.train.validation_turns import estimate_validation_cost

ROOM = 1.2  # a teacher of at most this many times the student's parameters is loaded beside the student
LONGEST = 512  # most tokens of a sampled reply


def open_validation(
    turns: Sequence[Reply],
    chat: Chat,
    config: TrainConfig,
    accelerator: Accelerator,
    *,
    hints: Sequence[str],
    rows: Sequence[JSON] = (),
    sharded: Policy | None = None,
) -> Validation:
    """Render the prompts of `turns`, and load the student before training and the teacher in addition to the student.

    `hints` from the log are tried on changed replies to prompts without a hint; `rows` are the measurements of a
    training that resumes; `sharded` is the student if its weights are sharded. Prompts that leave no room for a reply,
    or that a template cannot render, are left out. Raises TooLargeError if the untrained student does not fit.
    """
    try:
        base = load_model(config.model, device=config.device, dtype=config.dtype, load_in_4bit=config.load_in_4bit)
    except TooLargeError:
        what = "the student before training, a second copy that validation needs,"
        raise TooLargeError(what, "try --lora-rank, --dtype bfloat16 or --validate 0") from None
    scored = manifest(config.run, "teacher")["plan"]["config"]
    processes = accelerator.num_processes if sharded else 1  # that share one training's memory
    teacher, teacher_chat = load_teacher(config, scored, base, chat, processes)
    # Within --max-tokens of the teacher stage, validation needs no more memory than scoring did.
    context = min(context_length(base), context_length(teacher), scored.get("max_tokens") or math.inf)
    hint_text = read_hint_text(config.run)
    prompts: list[ValidationPrompt] = []
    for session, turn in pair_with_sessions(config.run, turns):
        messages = list_prompt_messages(session, turn)
        with contextlib.suppress(ChatError):
            prompt_ids = chat.prompt_ids(messages, session["tools"])
            hinted = turn.hint is not None
            compared = [] if hinted else [prompt_ids]
            for hint in hints if turn.hint is None else [turn.hint]:
                with contextlib.suppress(ChatError):  # such as a prompt without a place for another turn's hint
                    prompt = with_hint(messages, hint, scored["hint_placement"], hint_text)
                    compared.append(teacher_chat.prompt_ids(prompt, session["tools"]))
            if compared:
                prompts.append(ValidationPrompt(turn.turn_id, prompt_ids, compared[0], compared[1:], hinted))
    longest_reply = choose_reply_room(max(len(turn.response_ids) for turn in turns), LONGEST)
    prompts, max_new_tokens = fit_prompts(prompts, context, longest_reply)
    cost, folder = sum(map(estimate_validation_cost, turns)), checkpoints_dir(config.run)
    return Validation(prompts, cost, max_new_tokens, chat, config, accelerator, base, teacher, folder, sharded, [*rows])


def fit_prompts(
    prompts: Sequence[ValidationPrompt], context: float, longest_reply: int
) -> tuple[list[ValidationPrompt], int]:
    """Return the prompts that leave room for a reply within `context`, and how many tokens a reply may have.

    A reply may have `longest_reply` tokens, or fewer if less than FEWEST prompts of a kind had room for that.
    """
    rooms = [context - max(len(prompt.prompt_ids), len(prompt.compared_ids)) for prompt in prompts]
    room = longest_reply
    for hinted in (True, False):
        of_kind = sorted((r for r, p in zip(rooms, prompts, strict=True) if p.hinted == hinted and r > 0), reverse=True)
        room = int(min([room, *of_kind[:FEWEST]]))
    fitting = [
        replace(prompt, other_hint_ids=[ids for ids in prompt.other_hint_ids if len(ids) + room <= context])
        for prompt, own in zip(prompts, rooms, strict=True)
        if own >= room
    ]
    return fitting, room


def load_teacher(
    config: TrainConfig, scored: JSON, base: PreTrainedModel, chat: Chat, processes: int = 1
) -> tuple[PreTrainedModel, Chat]:
    """Return the model that read the hints in the teacher stage, and its template.

    `scored`: the options of the teacher stage. `processes`: see `has_room`. If there were several teachers, or the
    teacher is too large, cannot be loaded or has a smaller vocabulary, the student before training reads the hints.
    """
    paths = set(parse_teachers(scored["teacher"]).values())
    if paths <= {config.model}:
        return base, chat
    teacher, teacher_chat, fits = None, None, False
    with contextlib.suppress(OpdkitError, ValueError):  # ValueError: there are several paths
        (path,) = paths
        teacher_chat = load_template(path, choose_template_args(config.run, "teacher", config.template_arg), chat)
        skeleton = load_skeleton(path)
        size, base_size = (model.num_parameters() for model in (skeleton, base))
        vocabulary, needed = (model.get_input_embeddings().weight.shape[0] for model in (skeleton, base))
        fits = size <= ROOM * base_size and vocabulary >= needed and has_room(base, size, config, processes)
    # All processes must use the same teacher.
    if all(gather_object([fits])):
        with contextlib.suppress(OpdkitError):  # not enough memory
            teacher = load_model(path, device=config.device, dtype=config.dtype, load_in_4bit=config.load_in_4bit)
        if all(gather_object([teacher is not None])) and teacher and teacher_chat:
            return teacher, teacher_chat
    say(f"validation reads hints with the student before training, not with {', '.join(sorted(paths))}")
    return base, chat


def has_room_for_base(config: TrainConfig, accelerator: Accelerator) -> bool:
    """Return True if every process has room for the whole student before training. All processes must call it."""
    skeleton = load_skeleton(config.model)
    return all(gather_object([has_room(skeleton, skeleton.num_parameters(), config, accelerator.num_processes)]))


def has_room(base: PreTrainedModel, size: int, config: TrainConfig, processes: int = 1) -> bool:
    """Return True if the device is not a GPU, or has room for a model of `size` parameters beside the training.

    The training still needs gradients and AdamW's state, 12 bytes per parameter, shared by `processes`. With adapters
    it needs little for these; about the size of the weights of `base` is kept free for activations.
    """
    place = resolve_device(config.device)
    if place.type != "cuda":
        return True
    torch.cuda.empty_cache()  # memory in torch's cache would count as taken
    parameters, bytes_each = base.num_parameters(), resolve_dtype(config.dtype, place).itemsize
    if config.load_in_4bit:
        bytes_each = sum(weights.numel() * weights.element_size() for weights in base.parameters()) / parameters
    training = parameters * bytes_each if config.lora_rank else 12 * parameters / processes
    return bool(torch.cuda.mem_get_info(place)[0] > size * bytes_each + training)
