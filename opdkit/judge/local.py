"""A judge in this process: a chat model in Hugging Face format.

A turn is read once for both questions and all their votes (see `opdkit.model.sampling`): the questions come last
in their prompts, and what these have in common is found in their token ids.
"""

from collections.abc import Callable, Sequence
from typing import Any

from opdkit.chat.template import Chat, ChatError
from opdkit.config.fields import parse_pairs
from opdkit.config.judge import JudgeConfig
from opdkit.console import tally
from opdkit.judge.exchange import TOO_LONG, Answer, Ask, Message, Question
from opdkit.model.load import known_context, load_model, load_tokenizer, token_generator
from opdkit.model.memory import TOO_LARGE
from opdkit.model.sampling import Request, Sample, sample

_QUESTIONS_AT_ONCE = 256  # sorted by length, each taking the place of one that has its votes


def open_judge(config: JudgeConfig) -> Ask:
    """Load the model. The votes depend on (seed, turn_id, question, vote) and on the model alone."""
    judge = open_model(config)

    def ask(questions: Sequence[Question]) -> list[list[Answer]]:
        answers: list[list[Answer]] = []
        with tally("judging", len(questions) * config.votes, "votes") as voted:
            for start in range(0, len(questions), _QUESTIONS_AT_ONCE):
                answers += judge.answers(questions[start : start + _QUESTIONS_AT_ONCE], voted)
        return answers

    return ask


def open_model(config: JudgeConfig) -> "LocalJudge":
    """The model of `--model`, loaded, with its chat template."""
    assert config.judge_model is not None  # JudgeConfig sees to it
    tokenizer = load_tokenizer(config.judge_model)
    model = load_model(config.judge_model, device=config.device, dtype=config.dtype)
    template_args = parse_pairs(config.template_arg, "--template-arg")
    return LocalJudge(config, model, Chat(tokenizer, template_args, model.generation_config.eos_token_id))


class LocalJudge:
    """A loaded chat model that is asked for votes."""

    def __init__(self, config: JudgeConfig, model: Any, chat: Chat) -> None:
        self.config, self.model, self.chat = config, model, chat
        self.context = known_context(model)
        self.has_system_role = _takes_system(chat)

    def answers(
        self, questions: Sequence[Question], voted: Callable[[int], None] = lambda count: None
    ) -> list[list[Answer]]:
        """m answers to each question; `voted` is told as they come.

        A question that cannot be put gets m answers that say why.
        """
        prompts = [self._prompt(q.messages) for q in questions]
        drawn = self._draw(questions, prompts, voted)
        return [
            [Answer("", error=prompt)] * self.config.votes if isinstance(prompt, str) else self._read(prompt, drawn[i])
            for i, prompt in enumerate(prompts)
        ]

    def _prompt(self, messages: list[Message]) -> list[int] | str:
        """Token ids, or why there are none."""
        if not self.has_system_role:
            messages = [{"role": "user", "content": "\n\n".join(m["content"] for m in messages)}]
        try:
            ids = self.chat.prompt_ids(messages)
        except ChatError as error:
            return f"the prompt cannot be built: {error}"
        if len(ids) >= self.context:
            return f"{TOO_LONG}: {len(ids):,} tokens, of {self.context:,} it was built for; lower --max-section-chars"
        return ids

    def _draw(
        self, questions: Sequence[Question], prompts: Sequence[list[int] | str], voted: Callable[[int], None]
    ) -> dict[int, list[Sample]]:
        """Samples by question. Prompts that leave less than --max-new-tokens of the context are drawn one by one."""
        longest = self.config.max_new_tokens
        fits = {i: p for i, p in enumerate(prompts) if not isinstance(p, str)}
        roomy = [i for i, p in fits.items() if len(p) + longest <= self.context]
        lots = [(roomy, longest)] if roomy else []
        lots += [([i], int(self.context) - len(p)) for i, p in fits.items() if len(p) + longest > self.context]
        drawn: dict[int, list[Sample]] = {}
        for indices, new_tokens in lots:
            requests = [Request(fits[i], self._generators(questions[i])) for i in indices]
            samples = sample(
                self.model,
                requests,
                temperature=self.config.temperature,
                max_new_tokens=new_tokens,
                stop_ids=self.chat.stop_ids,
                batch_tokens=self.config.batch_tokens,
                on_end=voted,
            )
            drawn.update(zip(indices, samples, strict=True))
        return drawn

    def _generators(self, question: Question) -> list[Any]:
        seed = self.config.seed
        return [token_generator(seed, question.turn_id, question.name, vote) for vote in range(self.config.votes)]

    def _read(self, prompt_ids: list[int], samples: Sequence[Sample]) -> list[Answer]:
        thinking = self.chat.opens_thinking(prompt_ids)
        too_large = f"the prompt {TOO_LARGE}: {len(prompt_ids):,} tokens, and its answer; lower --max-section-chars"
        return [
            Answer("", error=too_large)
            if s.finish_reason == "memory"
            else Answer(self._text(s), s.finish_reason, thinking)
            for s in samples
        ]

    def _text(self, drawn: Sample) -> str:
        ids = drawn.ids[:-1] if drawn.finish_reason == "stop" else drawn.ids
        return self.chat.text(ids)


def _takes_system(chat: Chat) -> bool:
    """Some templates refuse a system message; then its text goes before the user's."""
    try:
        chat.prompt_ids([{"role": "system", "content": "?"}, {"role": "user", "content": "?"}])
    except ChatError:
        return False
    return True
