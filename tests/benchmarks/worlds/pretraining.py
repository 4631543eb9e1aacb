"""Pretraining of a world's model: to chat by habit, to answer corrections, and to follow hints.

A lesson is a conversation with the replies to learn. In about half of the lessons users have random wishes; in the
others the last reply follows a hint for a random style. A hint has the words of the rules judge or of a user, and is
where opdkit places it or in a list of rules in the system prompt; or it is an edit: the exact reply that a user wrote.
Held-out items occur only in topics that must be known by heart, and one of four wordings never occurs.
"""

import json
import random
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from unittest.mock import patch

import torch
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

from opdkit.chat.hint_placement import with_hint
from opdkit.chat.messages import message
from opdkit.chat.openai_messages import Message, openai_message
from opdkit.config.wording import DEFAULTS

from .small_talk import small_talk_of
from .users import Ask, Talk, answer_by_habit, converse, hint_of, reply_message, taught_wordings
from .world import Topic, World

SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
MARKUP = ["<tool_call>", "</tool_call>", "<think>", "</think>"]
TEMPLATE = """
{%- set ns = namespace(query=-1) %}
{%- for message in messages %}{%- if message.role == 'user' %}{%- set ns.query = loop.index0 %}{%- endif %}{%- endfor %}
{%- if tools and messages[0].role != 'system' %}
{{- '<|im_start|>system\nTools: ' + (tools | map(attribute='function.name') | join(', ')) + '<|im_end|>\n' }}
{%- endif %}
{%- for message in messages %}
{{- '<|im_start|>' + message.role + '\\n' }}
{%- if message.reasoning_content and loop.index0 > ns.query %}
{{- '<think>\\n' + message.reasoning_content + '\\n</think>\\n\\n' }}
{%- endif %}
{{- message.content or '' }}
{%- if tools and loop.first and message.role == 'system' %}
{{- '\n\nTools: ' + (tools | map(attribute='function.name') | join(', ')) }}
{%- endif %}
{%- for call in message.tool_calls or [] %}
{{- ('\\n' if message.content or not loop.first else '') + '<tool_call>\\n{"name": "' + call.function.name }}
{{- '", "arguments": ' + (call.function.arguments | tojson) + '}\\n</tool_call>' }}
{%- endfor %}
{{- '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}
""".strip()
# size -> hidden and intermediate size, layers, heads, dimensions of a head
SIZES = {"small": (72, 240, 4, 4, 20), "medium": (128, 384, 4, 4, 32), "large": (192, 544, 5, 6, 32)}
# Many small steps: how well a model learns to copy depends on the steps, not on the tokens.
STEPS = {"small": 1200, "medium": 800, "large": 600}
VOCABULARY = 1024
BATCH = 10
MUON_RATE, ADAM_RATE = 0.02, 4e-3
HINTED, RAW, RULES = 0.55, 0.15, 0.2  # shares: of hinted lessons; of hints in a user's words; as rules
EDITED = 0.15  # share of hints that are a reply written by a user


@dataclass(frozen=True)
class Lesson:
    """Conversation that ends with a reply; `only_last`: the other replies are not learned."""

    messages: list[Message]
    only_last: bool
    tools: list[Message] | None = None


# -- lessons --------------------------------------------------------------------------------------------------------


def lessons(world: World, rng: random.Random) -> Iterator[Lesson]:
    """Yield lessons for ever."""
    tools = list(world.tools)
    while True:
        wishes = {topic.name: rng.choice(topic.styles).name for topic in world.topics}
        hinted = rng.random() < HINTED
        turns = rng.choice((1, 1, 1, 2, 3)) if hinted else rng.choice(world.turns)
        system = rng.choice(world.systems)
        talk = converse(Talk(world.topics, wishes, turns, 0.1, True, system, small_talk_of(world)), rng)
        ask = next(talk)
        try:
            for _ in range(turns - 1):
                ask = talk.send(answer_by_habit(ask, rng))
            if hinted:
                yield Lesson(_hinted(ask, world.topics, rng), True, tools)
                continue
            messages = [*ask.messages, reply_message(answer_by_habit(ask, rng), len(ask.messages))]
            yield Lesson(messages, any(m.get("reasoning") for m in messages), tools)  # only the last thinking is shown
        finally:
            talk.close()


def _hinted(ask: Ask, topics: tuple[Topic, ...], rng: random.Random) -> list[Message]:
    """Return the conversation with a hint and the reply that follows it. Replies to small talk ignore the hint."""
    asked = ask.topic if ask.topic in topics else rng.choice(topics)
    style = rng.choice(asked.styles)
    given = style if ask.topic is asked else ask.topic.styles[0]
    reply = reply_message(given.reply(ask.item), len(ask.messages))
    if reply["content"] and rng.random() < EDITED:
        return [*with_hint(ask.messages, edited_hint(reply["content"]), "last-user"), reply]
    wording = rng.choice(taught_wordings(asked, style))
    hint = wording if rng.random() < RAW else _hint(asked, wording)
    if rng.random() < RULES:
        return [*_with_rules(ask.messages, hint, asked, topics, rng), reply]
    placement = rng.choices(("last-user", "tail", "system"), (0.8, 0.1, 0.1))[0]
    return [*with_hint(ask.messages, hint, placement), reply]


def _with_rules(
    messages: list[Message], hint: str, topic: Topic, topics: tuple[Topic, ...], rng: random.Random
) -> list[Message]:
    """Return the conversation with hints for several topics as rules in the system prompt."""
    others = [t for t in topics if t is not topic]
    rules = [hint] + [
        _hint(t, rng.choice(taught_wordings(t, rng.choice(t.styles)))) for t in rng.sample(others, len(others))
    ]
    rng.shuffle(rules)
    text = "\n".join(f"- {rule}" for rule in rules)
    if messages[0]["role"] == "system":
        return [message("system", f"{messages[0]['content']}\n\n{text}"), *messages[1:]]
    return [message("system", text), *messages]


def edited_hint(reply: str) -> str:
    """Return the hint that opdkit makes from a reply that a user wrote."""
    return DEFAULTS["judge"]["edited"].replace("{reply}", reply)


def _hint(topic: Topic, wording: str) -> str:
    return hint_of(wording, "tool" if topic.corrected_by_tool else "user") or wording


# -- the model ------------------------------------------------------------------------------------------------------


def make_tokenizer(lessons: Iterable[Lesson]) -> PreTrainedTokenizerFast:
    """Return a byte-level BPE tokenizer, trained on lessons, with TEMPLATE."""
    bpe = Tokenizer(models.BPE())
    digits = pre_tokenizers.Digits(individual_digits=True)
    # "sortUsers" is split into two words: a single token would share no part with other items.
    camel = pre_tokenizers.Split(Regex("(?<=[a-z])[A-Z]"), "merged_with_next")
    bpe.pre_tokenizer = pre_tokenizers.Sequence([digits, camel, pre_tokenizers.ByteLevel(add_prefix_space=False)])
    bpe.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY - len(MARKUP), special_tokens=SPECIAL, initial_alphabet=alphabet, show_progress=False
    )
    special = re.compile("|".join(map(re.escape, (*SPECIAL, *MARKUP))))
    blank = PreTrainedTokenizerFast(tokenizer_object=bpe, chat_template=TEMPLATE)
    texts = (text for lesson in lessons for text in special.split(render(blank, lesson)))
    bpe.train_from_iterator(texts, trainer)
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=bpe, eos_token="<|im_end|>", pad_token="<|endoftext|>", chat_template=TEMPLATE,
        model_max_length=2048, clean_up_tokenization_spaces=False,
    )  # fmt: skip
    tokenizer.add_tokens(MARKUP, special_tokens=False)
    return tokenizer


Row = tuple[list[int], list[bool]]  # token ids, and which of them are learned


def render(tokenizer: PreTrainedTokenizerFast, lesson: Lesson) -> str:
    messages = [openai_message(m) for m in lesson.messages]
    return str(tokenizer.apply_chat_template(messages, lesson.tools or None, tokenize=False))


def encode(tokenizer: PreTrainedTokenizerFast, lesson: Lesson) -> Row:
    """Return the tokens of a lesson, and which of them are learned: replies, with the token that ends each."""
    text = tokenizer.apply_chat_template(
        [openai_message(m) for m in lesson.messages], lesson.tools or None, tokenize=False
    )
    ids = tokenizer(text, add_special_tokens=False)["input_ids"][:-1]  # not the line break after the last reply
    start, end = tokenizer.convert_tokens_to_ids(["<|im_start|>", "<|im_end|>"])
    header = tokenizer("<|im_start|>assistant\n", add_special_tokens=False)["input_ids"]
    learned = [False] * len(ids)
    begins = [k + len(header) for k, token in enumerate(ids) if token == start and ids[k : k + len(header)] == header]
    for begin in begins[-1:] if lesson.only_last else begins:
        for k in range(begin, ids.index(end, begin) + 1):
            learned[k] = True
    return ids, learned


def pretrain(folder: Path, world: World, size: str, seed: int, steps: int | None = None) -> None:
    """Write a pretrained model with its tokenizer."""
    source = lessons(world, random.Random(f"tokenizer:{world.name}:{seed}"))
    tokenizer = make_tokenizer(islice(source, 3000))
    hidden, intermediate, layers, heads, head = SIZES[size]
    config = Qwen3Config(
        vocab_size=len(tokenizer), hidden_size=hidden, intermediate_size=intermediate, num_hidden_layers=layers,
        num_attention_heads=heads, num_key_value_heads=heads // 2, head_dim=head, max_position_embeddings=2048,
        tie_word_embeddings=True, initializer_range=0.1,  # 0.02 would learn much later here
        eos_token_id=tokenizer.eos_token_id, pad_token_id=tokenizer.pad_token_id, bos_token_id=None,
    )  # fmt: skip
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = Qwen3ForCausalLM(config)
    rows = (encode(tokenizer, lesson) for lesson in lessons(world, random.Random(f"lessons:{world.name}:{seed}")))
    with patch("torch.optim._muon._zeropower_via_newtonschulz", _orthogonal):
        _train(model, rows, random.Random(seed), steps or round(world.pretraining * STEPS[size]))
    model.generation_config.eos_token_id = tokenizer.eos_token_id
    model.generation_config.pad_token_id = tokenizer.pad_token_id
    model.save_pretrained(folder)
    config_file = folder / "config.json"  # holds the model's name as the log has it
    named = {"_name_or_path": world.name} | json.loads(config_file.read_text(encoding="utf-8"))
    config_file.write_text(json.dumps(named, indent=2) + "\n", encoding="utf-8")
    tokenizer.save_pretrained(folder)


def _train(model: Qwen3ForCausalLM, rows: Iterator[Row], rng: random.Random, steps: int) -> None:
    """Train at a constant rate for half of the steps, then at a rate that falls to almost 0.

    Muon (Jordan et al. 2024) trains the layers' matrices: it learns to copy words from the prompt in a third of the
    steps that AdamW needs. AdamW trains the other weights.
    """
    matrices = [p for name, p in model.named_parameters() if p.ndim == 2 and "embed" not in name]
    others = [p for p in model.parameters() if not any(p is matrix for matrix in matrices)]
    optimizers: list[torch.optim.Optimizer] = [
        torch.optim.Muon(matrices, lr=MUON_RATE, momentum=0.95, weight_decay=0.01, adjust_lr_fn="original"),
        torch.optim.AdamW(others, lr=ADAM_RATE, betas=(0.9, 0.98), weight_decay=0.0),
    ]
    schedules = [
        torch.optim.lr_scheduler.LambdaLR(o, lambda s: min(1, (s + 1) / 20, max(0.02, 2 * (steps - s) / steps)))
        for o in optimizers
    ]
    for step, batch in enumerate(islice(_batches(rows, rng), steps)):
        loss = _loss(model, batch)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(others, 1.0)
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
        for schedule in schedules:
            schedule.step()
        if step % 100 == 0 or step == steps - 1:
            print(f"step {step} loss {loss.item():.4f}", flush=True)


def _orthogonal(matrix: torch.Tensor, factors: tuple[float, float, float], steps: int, eps: float) -> torch.Tensor:
    """Return Muon's approximation of the nearest orthogonal matrix, in single precision.

    torch computes it in bfloat16, which takes ten times as long on a CPU without bfloat16 instructions.
    """
    a, b, c = factors
    x = matrix.T if len(matrix) > len(matrix.T) else matrix
    x = x / x.norm().clamp(min=eps)
    for _ in range(steps):
        gram = x @ x.T
        x = a * x + (b * gram + c * gram @ gram) @ x
    return x.T if len(matrix) > len(matrix.T) else x


def _batches(rows: Iterator[Row], rng: random.Random) -> Iterator[list[Row]]:
    """Yield batches of lessons of similar lengths."""
    while True:
        pool = sorted(islice(rows, 16 * BATCH), key=lambda row: len(row[0]))
        batches = [pool[k : k + BATCH] for k in range(0, len(pool), BATCH)]
        rng.shuffle(batches)
        yield from batches


def _loss(model: Qwen3ForCausalLM, rows: list[Row]) -> torch.Tensor:
    """Return the mean cross-entropy of the learned tokens. A causal model never attends to padding on the right."""
    width = max(len(ids) for ids, _ in rows)
    ids = torch.zeros(len(rows), width, dtype=torch.long)
    before = torch.zeros_like(ids, dtype=torch.bool)  # positions whose next token is learned
    for row, (tokens, learned) in enumerate(rows):
        ids[row, : len(tokens)] = torch.tensor(tokens)
        before[row, : len(tokens) - 1] = torch.tensor(learned[1:])
    hidden = model.model(input_ids=ids, use_cache=False).last_hidden_state
    return torch.nn.functional.cross_entropy(model.lm_head(hidden[before]), ids[before.roll(1, 1)])
