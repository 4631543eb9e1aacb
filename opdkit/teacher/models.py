"""Student and teachers: the models that score, loaded as the options name them."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from transformers import PreTrainedModel

from opdkit.chat.template import Chat, ChatError
from opdkit.config.fields import JSON
from opdkit.config.teacher import TeacherConfig
from opdkit.config.teacher_models import parse_shares, parse_teachers, read_routed_name
from opdkit.config.wording import DEFAULTS, make_wording_inputs, read_wording
from opdkit.console import say
from opdkit.errors import ConfigError
from opdkit.model.behavior_policy import list_student_names
from opdkit.model.folder import digest_weights, pin_model
from opdkit.model.load import context_length, load_model, load_skeleton, load_template, resolve_device
from opdkit.model.sampling.sampler import Sampler
from opdkit.model.scoring import Mixture
from opdkit.store.plans import identify_model, read_hint_text


@dataclass(frozen=True)
class ChatModel:
    """Model and the chat template that renders its conversations."""

    model: PreTrainedModel
    chat: Chat


@dataclass(frozen=True)
class Teacher:
    """Single model, or several whose probabilities are averaged, and the chat template of each."""

    mixture: Mixture
    chats: tuple[Chat, ...]


@dataclass(frozen=True)
class Scorer:
    """Student, teachers, and limits: prompt and reply within `max_tokens`, token ids below `vocabulary`.

    `route` is the metadata field of a session that names its teacher, a key of `teachers`. Without a route, `teachers`
    has the single key "". `names` are the names that a log may give the student. `hint_text` contains {hint}.
    """

    student: ChatModel
    teachers: dict[str, Teacher]
    route: str | None
    max_tokens: float
    vocabulary: int
    names: frozenset[str]
    hint_text: str
    sampler: Sampler

    def choose_teacher(self, session: JSON) -> Teacher:
        """Return the teacher of a session. Raises ChatError if its metadata names none."""
        if self.route is None:
            return self.teachers[""]
        name = read_routed_name(session["metadata"], self.route)
        if name is None:
            raise ChatError("session names no teacher")
        if name not in self.teachers:
            raise ChatError("session names an unknown teacher")
        return self.teachers[name]


def pin_models(config: TeacherConfig) -> JSON:
    """Return the models and any custom wording, as inputs of the plan.

    Raises OpdkitError for a path that is not a model.
    """
    models: JSON = {"model": pin_model(config.model)}
    if teachers := {name: pin_model(path) for name, path in parse_teachers(config.teacher).items()}:
        models["teachers"] = teachers
    if config.judge_model and not config.judge_url:
        models["judge"] = pin_model(config.judge_model)
    texts = read_wording(config.wording)["criterion"]
    if config.check_hints and texts != DEFAULTS["criterion"]:
        models["criterion"] = texts
    return models | make_wording_inputs({"teacher": {"hint": choose_hint_text(config)}})


def choose_hint_text(config: TeacherConfig) -> str:
    """Return the words around a hint: those of `--wording`, else those that a rollout recorded, else the defaults."""
    recorded = {"teacher": {"hint": read_hint_text(config.run, "extract")}}
    return read_wording(config.wording, DEFAULTS | recorded)["teacher"]["hint"]


def load_scorer(config: TeacherConfig) -> Scorer:
    """Load student and teachers. Paths with equal weights share one loaded model.

    A teacher's prompt is rendered with its own template, or with the student's if it has none. Raises ConfigError
    when student and teacher have different tokenizers, or an option exceeds the limits of a model. With `--dry-run` the
    models have no weights.
    """
    options: dict[str, Any] = {"device": config.device, "dtype": config.dtype, "load_in_4bit": config.load_in_4bit}
    options |= {"device_map": config.device_map, "tensor_parallel": config.tensor_parallel, "compiled": config.compile}
    load: Callable[[str], PreTrainedModel] = load_skeleton if config.dry_run else partial(load_model, **options)
    resolve_device(config.device)  # a wrong device is an error in a dry run, too
    files = identify_model(config.model).get("files", {})
    chat, model = load_template(config.model, config.template_arg), load(config.model)
    student = ChatModel(model, chat)
    loaded = {digest_weights(files) or config.model: model}  # by digest of the weights, or by name if on the hub
    paths = parse_teachers(config.teacher)
    named: dict[str, ChatModel] = {}  # teachers, by the names that the options give them
    for name, path in paths.items():
        if path == config.model:
            named[name] = student
            continue
        chat = load_template(path, config.template_arg, student.chat)
        weights = digest_weights(identify_model(path).get("files", {})) or path
        if weights not in loaded:
            loaded[weights] = load(path)
        named[name] = ChatModel(loaded[weights], chat)
    models = [student.model, *(teacher.model for teacher in named.values())]
    vocabulary = min(model.get_input_embeddings().weight.shape[0] for model in models)
    if config.teacher_route:
        teachers = {name: Teacher(Mixture((one.model,)), (one.chat,)) for name, one in named.items()}
    elif paths:
        shares = parse_shares(config.teacher_share, list(paths))
        mixture = Mixture(tuple(models[1:]), tuple(shares.values()))
        teachers = {"": Teacher(mixture, tuple(teacher.chat for teacher in named.values()))}
    else:
        teachers = {"": Teacher(Mixture((student.model,)), (student.chat,))}
    max_tokens = config.max_tokens or min(map(context_length, models))
    if max_tokens == math.inf:
        say(f"the configuration of {config.model} names no context length: no prompt is too long for it, but memory "
            "may not suffice; --max-tokens sets a limit")  # fmt: skip
    for model in models:
        if max_tokens > (context := context_length(model)):
            raise ConfigError(f"--max-tokens is {max_tokens}; {model.name_or_path} was built for at most {context}")
    if config.top_k > vocabulary:
        raise ConfigError(f"--top-k is {config.top_k}; the models have {vocabulary} tokens")
    names = list_student_names(config.model, files, config.served_as)
    return Scorer(student, teachers, config.teacher_route, max_tokens, vocabulary, names, choose_hint_text(config),
                  Sampler(config))  # fmt: skip
