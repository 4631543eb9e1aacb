"""Generation of replies to held-out prompts, with the same random streams for both models."""

from collections.abc import Sequence
from typing import Any

from opdkit.chat.markup import split_calls
from opdkit.chat.template import Chat, ChatError
from opdkit.config.evaluate import EvalConfig
from opdkit.console import counted, say, verb
from opdkit.errors import ConfigError, OpdkitError
from opdkit.evaluate.checks import HeldOutPrompt
from opdkit.evaluate.probes import find_hollow_kind
from opdkit.evaluate.replies import Reply
from opdkit.model.memory import TooLargeError
from opdkit.model.random_streams import make_random_stream
from opdkit.model.sampling import Request
from opdkit.model.sampling.sampler import Sampler
from opdkit.model.scoring import PromptResponse

EncodedPrompt = tuple[HeldOutPrompt, list[int]]  # a prompt and its token ids


def prompt_ids(chat: Chat, prompt: HeldOutPrompt, max_new_tokens: int, longest: float) -> list[int]:
    """Return the prompt's token ids.

    Raises OpdkitError when it cannot be rendered, ConfigError when prompt plus reply may exceed `longest` tokens.
    """
    try:
        ids = chat.prompt_ids(prompt.messages, prompt.tools)
    except ChatError as error:
        raise OpdkitError(f"held-out prompt {prompt.id}: {error.reason}") from error
    if len(ids) + max_new_tokens > longest:
        raise ConfigError(f"held-out prompt {prompt.id} has {len(ids)} tokens: with --max-new-tokens {max_new_tokens} "
                          f"that exceeds the model's context of {longest}")  # fmt: skip
    return ids


def generate(
    label: str, model: Any, chat: Chat, prompts: Sequence[EncodedPrompt], config: EvalConfig, greedy: bool = True
) -> list[Reply]:
    """Return the greedy reply and `--samples` sampled replies to each of `prompts`.

    Without `greedy`, return only the sampled ones. Sample k of a prompt is drawn from the random stream (seed, prompt
    id, k), which is the same for both models, so that only the models differ.
    """
    kinds = ["1 greedy"] * greedy + [f"{config.samples:,} sampled"] * (config.samples > 0)
    say(f"{label}: {' and '.join(kinds)} {verb(greedy + config.samples, 'reply', 'replies')} to each of "
        f"{counted(len(prompts), 'prompt')}")  # fmt: skip
    sampler, replies = Sampler(config), []
    for numbers, temperature in ((range(int(greedy)), 0.0), (range(1, config.samples + 1), config.temperature)):
        if not numbers:
            continue
        streams = [[make_random_stream(config.seed, "eval", prompt.id, k) for k in numbers] for prompt, _ in prompts]
        requests = [Request(ids, generators) for (_, ids), generators in zip(prompts, streams, strict=True)]
        drawn = sampler.sample(model, chat, requests, temperature=temperature, max_new_tokens=config.max_new_tokens,
                               batch_tokens=config.batch_tokens)  # fmt: skip
        for (prompt, ids), samples in zip(prompts, drawn, strict=True):
            for k, reply in zip(numbers, samples, strict=True):
                if reply.finish_reason == "memory":
                    raise TooLargeError(f"held-out prompt {prompt.id} with its reply", "try a lower --max-new-tokens")
                text = chat.text(reply.text_ids)
                seen = chat.visible_text(text, ids)
                calls = bool(split_calls(seen)[1])
                hollow = None if calls else find_hollow_kind(seen, prompt.messages[-1]["content"] or "")
                called = calls if prompt.tools and chat.tags_calls else None
                replies.append(Reply(prompt, label, k, text, seen, PromptResponse(ids, reply.ids), reply.finish_reason,
                                     hollow=hollow, called=called))  # fmt: skip
    return replies
