"""Who scores: the student and its teachers, loaded from what the options name."""

from dataclasses import dataclass
from typing import Any

from transformers import PreTrainedModel

from opdkit.chat.template import Chat, ChatError
from opdkit.config.fields import parse_pairs
from opdkit.config.teacher import TeacherConfig
from opdkit.config.teachers import parse_shares, parse_teachers, routed_name
from opdkit.errors import ConfigError
from opdkit.model.folder import refuse_no_model, weights_digest
from opdkit.model.load import context_length, load_model, load_tokenizer, same_tokenizer
from opdkit.model.scoring import Mixture
from opdkit.store import model_identity
from opdkit.teacher.behavior import student_names

JSON = dict[str, Any]


@dataclass(frozen=True)
class Policy:
    """A model and the chat template that it reads conversations through."""

    model: PreTrainedModel
    chat: Chat


@dataclass(frozen=True)
class Teacher:
    """One policy, or several whose probabilities are averaged."""

    policies: tuple[Policy, ...]
    weights: tuple[float, ...] = (1.0,)

    @property
    def mixture(self) -> Mixture:
        return Mixture(tuple(p.model for p in self.policies), self.weights)


@dataclass(frozen=True)
class Scorer:
    """Who scores, and how much fits: prompt and reply together within `max_tokens`, ids below `vocabulary`.

    `teachers` by name where `route` is the metadata field that names a session's; else the one under "". `names` is
    what a log may call the student.
    """

    student: Policy
    teachers: dict[str, Teacher]
    route: str | None
    max_tokens: int
    vocabulary: int
    names: frozenset[str]

    def teacher_of(self, session: JSON) -> Teacher:
        """The teacher of a session. Raises ChatError where its metadata names none."""
        if self.route is None:
            return self.teachers[""]
        name = routed_name(session["metadata"], self.route)
        if name is None:
            raise ChatError("session names no teacher")
        if name not in self.teachers:
            raise ChatError("session names an unknown teacher")
        return self.teachers[name]


def identities(config: TeacherConfig) -> JSON:
    """What pins the models of the stage in its plan. Raises OpdkitError for what is no model."""
    for path in (config.model, *parse_teachers(config.teacher).values()):
        refuse_no_model(path)
    teachers = {name: model_identity(path) for name, path in parse_teachers(config.teacher).items()}
    return {"model": model_identity(config.model)} | ({"teachers": teachers} if teachers else {})


def load_scorer(config: TeacherConfig) -> Scorer:
    """Student and teachers; where two are the same weights, the model is loaded once.

    Raises ConfigError when student and teacher do not share one tokenizer, or an option is more than a model can do.
    """
    args = parse_pairs(config.template_arg, "--template-arg")
    tokenizer = load_tokenizer(config.model)
    model = load_model(
        config.model,
        device=config.device,
        dtype=config.dtype,
        device_map=config.device_map,
        tensor_parallel=config.tensor_parallel,
    )
    student = Policy(model, Chat(tokenizer, args, model.generation_config.eos_token_id))
    loaded = {_weights(config.model): model}
    paths = parse_teachers(config.teacher)
    policies = {name: _load_teacher(config, path, student, loaded, args) for name, path in paths.items()}
    every = [student, *policies.values()]
    longest = config.max_tokens or min(context_length(p.model) for p in every)
    vocabulary = min(p.model.get_input_embeddings().weight.shape[0] for p in every)
    _refuse_what_no_model_can(config, [p.model for p in every], longest, vocabulary)
    if config.teacher_route:
        teachers = {name: Teacher((policy,)) for name, policy in policies.items()}
    else:
        weights = parse_shares(config.teacher_share, list(paths))
        average = Teacher(tuple(policies.values()), tuple(weights.values())) if paths else Teacher((student,))
        teachers = {"": average}
    names = student_names(config.model, model_identity(config.model).get("files", {}))
    return Scorer(student, teachers, config.teacher_route, longest, vocabulary, names)


def _load_teacher(
    config: TeacherConfig, path: str, student: Policy, loaded: dict[str, PreTrainedModel], template_args: JSON
) -> Policy:
    """A teacher reads its prompt through its own template; one without a template, through the student's.

    `loaded` holds the models that are there already, by their weights, and gets this one.
    """
    if path == config.model:
        return student
    tokenizer = load_tokenizer(path)
    same_tokenizer(student.chat.tokenizer, tokenizer)
    weights = _weights(path)
    if weights not in loaded:
        loaded[weights] = load_model(
            path,
            device=config.device,
            dtype=config.dtype,
            device_map=config.device_map,
            tensor_parallel=config.tensor_parallel,
        )
    return Policy(loaded[weights], Chat(tokenizer, template_args) if tokenizer.chat_template else student.chat)


def _weights(name: str) -> str:
    """A digest of what decides a model folder's log-probs; the name of a model on the hub."""
    return weights_digest(model_identity(name).get("files", {})) or name


def _refuse_what_no_model_can(
    config: TeacherConfig, models: list[PreTrainedModel], max_tokens: int, vocabulary: int
) -> None:
    for model in models:
        built_for = getattr(model.config.get_text_config(), "max_position_embeddings", None)
        if built_for is not None and max_tokens > built_for:
            raise ConfigError(f"--max-tokens is {max_tokens}; {model.name_or_path} was built for at most {built_for}")
    if config.top_k > vocabulary:
        raise ConfigError(f"--top-k is {config.top_k}; the models have {vocabulary} tokens")
