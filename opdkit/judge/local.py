"""Judge in this process: a chat model that samples m votes per question.

Each vote has a random stream of its own, so the votes do not depend on the batch size (apart from rounding). All votes
on both questions about a turn share one copy of the turn in the KV cache (see `opdkit.model.sampling`). For this, the
question comes last in its prompt, and sampling detects the common prefix of prompts in their token ids.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from opdkit.chat.template import ChatError
from opdkit.config.fields import JSON
from opdkit.config.judge import JudgeConfig
from opdkit.console import tally
from opdkit.judge.costs import PROMPT, UNASKABLE, UNCACHED, VOTES, WRITTEN
from opdkit.judge.kept_answers import KeptAnswers
from opdkit.judge.parse import find_decision_span
from opdkit.judge.votes import REMEDY, TOO_LONG, Answer, Question, Usage, compute_confidence
from opdkit.judge.warnings import UNBUILT
from opdkit.model.load import context_length, load_model, load_skeleton, load_template, resolve_device
from opdkit.model.memory import TOO_LARGE
from opdkit.model.random_streams import make_random_stream
from opdkit.model.sampling import Request, Sample, count_prompt_tokens, sample

_QUESTIONS_AT_ONCE = 256  # per call of `sample`, in which the next question takes the place of a finished one


class LocalJudge:
    """Chat model of `--judge-model`, loaded unless it is passed; with `--dry-run` without its weights.

    A vote depends only on (seed, turn_id, question, vote), so no answers are stored in the stage's folder.
    """

    def __init__(self, config: JudgeConfig, _folder: Path | None = None, *, model: Any = None) -> None:
        assert config.judge_model is not None  # JudgeConfig checks this
        self.config = config
        self.chat = load_template(config.judge_model, config.template_arg)
        resolve_device(config.device)  # a wrong device is an error in a dry run, too
        if model is None and config.dry_run and not config.measure:
            model = load_skeleton(config.judge_model)
        elif model is None:
            options: JSON = {name: getattr(config, name) for name in ("device", "dtype", "load_in_4bit")}
            model = load_model(config.judge_model, **options)
        self.model = model
        self.context = context_length(self.model)
        self.count_read = partial(
            count_prompt_tokens, self.model, samples=config.votes, batch_tokens=config.batch_tokens
        )

    def ask(self, questions: Sequence[Question], kept: KeptAnswers | None = None) -> list[list[Answer]]:
        """Return `--votes` answers per question, with an error if it cannot be asked. `kept` is ignored."""
        answers: list[list[Answer]] = []
        with tally("judging", len(questions) * self.config.votes, "votes") as on_vote:
            for start in range(0, len(questions), _QUESTIONS_AT_ONCE):
                answers += self._answer(questions[start : start + _QUESTIONS_AT_ONCE], on_vote)
        return answers

    def count_work(self, questions: Sequence[Question], kept: KeptAnswers | None = None) -> Counter[str]:
        """Count votes and tokens. A prefix that questions share is read once, for all their votes (see `sample`)."""
        work = Counter[str]()
        for start in range(0, len(questions), _QUESTIONS_AT_ONCE):
            prompts = list(map(self._encode, questions[start : start + _QUESTIONS_AT_ONCE]))
            ids = {i: prompt for i, prompt in enumerate(prompts) if not isinstance(prompt, str)}
            work[VOTES] += self.config.votes * len(prompts)
            work[UNASKABLE] += len(prompts) - len(ids)
            for indices, new_tokens in self._plan_batches(ids):
                batch = [ids[i] for i in indices]
                work[PROMPT] += self.config.votes * sum(map(len, batch))
                work[UNCACHED] += self.count_read(batch, max_new_tokens=new_tokens)
                work[WRITTEN] += self.config.votes * len(batch) * new_tokens
        return work

    def _plan_batches(self, ids: dict[int, list[int]]) -> Iterator[tuple[list[int], int]]:
        """Yield the indices of prompts that are sampled together, and how many new tokens each of their votes may have.

        Prompts that leave less than --max-new-tokens of the context are sampled one by one.
        """
        longest = self.config.max_new_tokens
        if roomy := [i for i, prompt in ids.items() if len(prompt) + longest <= self.context]:
            yield roomy, longest
        for i, prompt in ids.items():
            if len(prompt) + longest > self.context:
                yield [i], int(self.context) - len(prompt)

    def _answer(self, questions: Sequence[Question], on_vote: Callable[[int], None]) -> list[list[Answer]]:
        """Return the answers to questions. Of answers sampled together, the first ones account for the tokens read."""
        prompts = [self._encode(question) for question in questions]
        ids = {i: prompt for i, prompt in enumerate(prompts) if not isinstance(prompt, str)}
        answers = [[Answer("", error=p)] * self.config.votes if isinstance(p, str) else [] for p in prompts]
        for indices, new_tokens in self._plan_batches(ids):
            requests, unread = [], self.count_read([ids[i] for i in indices], max_new_tokens=new_tokens)
            for i in indices:
                streams = [make_random_stream(self.config.seed, questions[i].turn_id, questions[i].name, vote)
                           for vote in range(self.config.votes)]  # fmt: skip
                requests.append(Request(ids[i], streams))
            drawn = sample(self.model, requests, temperature=self.config.temperature, max_new_tokens=new_tokens,
                           stop_ids=self.chat.stop_ids, batch_tokens=self.config.batch_tokens,
                           on_end=on_vote)  # fmt: skip
            for i, samples in zip(indices, drawn, strict=True):
                for sampled in samples:
                    cached = max(0, len(ids[i]) - unread)
                    unread -= len(ids[i]) - cached
                    usage = Usage(len(ids[i]), cached, len(sampled.ids))
                    answers[i].append(replace(self._read(ids[i], sampled, questions[i].name), usage=usage))
        return answers

    def _encode(self, question: Question) -> list[int] | str:
        """Return the token ids of a question, or an error text."""
        try:
            ids = self.chat.encode_question(question.messages)
        except ChatError as error:
            return f"{UNBUILT}: {error}"
        if len(ids) >= self.context:
            return f"{TOO_LONG}: {len(ids):,} tokens, of {self.context:,} it was built for; {REMEDY[question.name]}"
        return ids

    def _read(self, prompt_ids: list[int], drawn: Sample, question: str) -> Answer:
        """Return a sample, without the stop token, as an answer to the question named `question`."""
        if drawn.finish_reason == "memory":
            tokens = f"{len(prompt_ids):,} tokens, and its answer"
            return Answer("", error=f"the prompt {TOO_LARGE}: {tokens}; {REMEDY[question]}")
        answer = Answer(self.chat.text(drawn.text_ids), drawn.finish_reason, self.chat.opens_thinking(prompt_ids))
        room = self.context - len(prompt_ids)
        if drawn.finish_reason == "length" and room < self.config.max_new_tokens:  # more new tokens would not help
            tokens = f"{len(prompt_ids):,} tokens, which leave {room:,} of {self.context:,} to the answer"
            return replace(answer, error=f"{TOO_LONG}: {tokens}; {REMEDY[question]}")
        if span := find_decision_span(answer, question):
            decisive = self.chat.find_tokens_between(drawn.text_ids, *span)
            answer = replace(answer, confidence=compute_confidence([drawn.logprobs[i] for i in decisive]))
        return answer
