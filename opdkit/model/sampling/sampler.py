"""Source of replies: this process, or a server that serves the same weights."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from opdkit.chat.template import Chat
from opdkit.config.shared import SamplingConfig
from opdkit.console import counted, say
from opdkit.model.sampling import Request, Sample, sample


class Sampler:
    """Sampler of replies from a stage's models: in this process or, with `--sample-url`, on servers."""

    def __init__(self, config: SamplingConfig) -> None:
        self.config = config
        self._served: dict[tuple[int, int], Any] = {}  # ids of a model and of its template -> its ServedModel

    def sample(
        self,
        model: Any,
        chat: Chat,
        requests: Sequence[Request],
        *,
        temperature: float,
        max_new_tokens: int,
        batch_tokens: int,
    ) -> list[list[Sample]]:
        """Return for each request one Sample per generator, in order. Temperature 0 is greedy.

        A server receives the generators' seeds; a sample that it does not give is drawn in this process. Raises
        OpdkitError if no server has the weights of the model.
        """
        options: dict[str, Any] = {"temperature": temperature, "max_new_tokens": max_new_tokens}
        here = options | {"stop_ids": chat.stop_ids, "batch_tokens": batch_tokens}
        if not (self.config.sample_url and requests):
            return sample(model, requests, **here)
        from opdkit.model.sampling.served import find_served  # imported here: it imports the OpenAI client

        if (key := (id(model), id(chat))) not in self._served:
            prompts = [request.prompt_ids for request in requests]
            self._served[key] = find_served(self.config, model, chat, prompts, max_new_tokens, batch_tokens)
        samples = self._served[key].sample(requests, **options)
        left = [[k for k, one in enumerate(group) if one is None] for group in samples]
        if lost := sum(map(len, left)):
            say(f"{counted(lost, 'reply')} of {sum(map(len, samples)):,} sampled in this process: the server refused "
                "them, as for a prompt that is too long, or they could not be read as tokens")  # fmt: skip
            asked = [(i, ks) for i, ks in enumerate(left) if ks]
            again = [replace(requests[i], generators=[requests[i].generators[k] for k in ks]) for i, ks in asked]
            for (i, ks), group in zip(asked, sample(model, again, **here), strict=True):
                for k, one in zip(ks, group, strict=True):
                    samples[i][k] = one
        return samples
