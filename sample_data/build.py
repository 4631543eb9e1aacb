"""Make everything in sample_data/: a tiny chat model, logs sampled from it, held-out prompts, and the right verdicts.

    python sample_data/build.py            # about twenty minutes on two cores; the same files for the same --seed

The model (Qwen3 architecture, its own byte-level BPE) learns two jobs: to answer the requests of world.py, by habit or
as a hint asks, and to be the judge, from the same prompts that `opdkit judge` sends.
"""

import argparse
import json
import math
import random
import re
import tempfile
from collections.abc import Generator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed
import torch.multiprocessing
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

from opdkit.chat.hint_placement import with_hint
from opdkit.chat.template import Chat
from opdkit.judge.prompts import judge_messages, write_turn
from opdkit.judge.reply_in_context import ReplyInContext
from opdkit.model.load import load_tokenizer
from opdkit.model.random_streams import make_random_stream
from opdkit.model.sampling import Request, sample

from world import TOPICS, TRACK_TOOL, Message, Reaction, Style, Topic, order_answer, react, request, track_order

HERE = Path(__file__).parent
MODEL_NAME = "opdkit-sample"
TOOLS = json.dumps([TRACK_TOOL])
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
MARKUP = ["<tool_call>", "</tool_call>"]
TEMPLATE = """
{%- set first = messages[0].content if messages and messages[0].role == 'system' else '' %}
{%- if first or tools %}
{{- '<|im_start|>system\n' + first }}
{%- if tools %}{{- ('\n\n' if first else '') + 'Tools: ' + (tools | tojson) }}{%- endif %}
{{- '<|im_end|>\n' }}
{%- endif %}
{%- for message in messages %}
{%- if not (loop.first and message.role == 'system') %}
{{- '<|im_start|>' + message.role + '\n' + (message.content or '') }}
{%- for call in message.tool_calls or [] %}
{{- ('\n' if message.content or not loop.first else '') + '<tool_call>\n{"name": "' + call.function.name }}
{{- '", "arguments": ' + (call.function.arguments | tojson) + '}\n</tool_call>' }}
{%- endfor %}
{{- '<|im_end|>\n' }}
{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\n' }}{%- endif %}
""".strip()

# Share of replies in the habitual style before `opdkit train`; the rest is spread over the topic's other styles.
HABIT = 0.84
SLIPS = 0.2  # share of the calls in lessons that name a random order, not the user's
CALL = re.compile(r"^<tool_call>\n(\{.*\})\n</tool_call>$", re.DOTALL)


# -- conversations --------------------------------------------------------------------------------------------------


@dataclass
class Ask:
    """Request for the assistant's next reply: the conversation so far, and what the world knows about it."""

    messages: list[Message]
    topic: Topic
    item: str
    wanted: Style | None = None  # the user has just asked for this style
    answer: str | None = None  # the only right answer, if there is only one


Labels = dict[int, Reaction]
Conversation = Generator[Ask, str, Labels]


def message(role: str, content: str | None, calls: list[Message] | None = None) -> Message:
    return {"role": role, "content": content, "reasoning": None, "name": "track_order" if role == "tool" else None,
            "tool_call_id": None, "tool_calls": calls or []}  # fmt: skip


def assistant(reply: str, number: int) -> Message:
    """Return a reply as a log stores it: calls apart from text."""
    if not (found := CALL.match(reply)):
        return message("assistant", reply)
    try:
        call = json.loads(found[1])
        arguments = json.dumps(call["arguments"])
    except (ValueError, KeyError):
        return message("assistant", reply)  # a call that is not valid JSON stays text
    return message("assistant", None, [{"id": f"call_{number}", "name": str(call["name"]), "arguments": arguments}])


def converse(rng: random.Random, turns: int, wishes: dict[str, str | None], *, held_out: bool) -> Conversation:
    """Play a user with `wishes` (topic -> style) for about `turns` replies. Return the perfect judge's verdicts."""
    messages: list[Message] = []
    labels: Labels = {}
    opening = ""
    while turns > 0:
        topic = rng.choice(TOPICS)
        item = rng.choice([i for i in topic.items if held_out or i not in topic.held_out])
        messages.append(message("user", (opening + " " + request(topic, item, rng)).strip()))
        used = len(labels)
        content = yield from (_order if topic.uses_tool else _topic)(Ask(messages, topic, item), labels, wishes, rng)
        turns -= len(labels) - used
        if turns <= 0 or not content:
            break
        last = labels.pop(-1)
        opening = last.text if rng.random() < 0.7 else ""  # otherwise they just move on
    if -1 in labels and rng.random() < 0.85:  # the log ends with the user's reaction; otherwise with the reply
        messages.append(message("user", labels.pop(-1).text))
    elif labels.pop(-1, None):
        labels.pop(len(messages) - 1)
    return labels


def _topic(ask: Ask, labels: Labels, wishes: dict[str, str | None], rng: random.Random) -> Generator[Ask, str, bool]:
    """Play replies and corrections until the user is content or gives up. A reaction not yet said is at labels[-1]."""
    for _ in range(3):
        reply = yield ask
        ask.messages.append(message("assistant", reply))
        reaction = react(ask.topic, reply, wishes[ask.topic.name], rng)
        labels[len(ask.messages) - 1] = labels[-1] = reaction
        if reaction.reward != -1:
            return reaction.reward == 1
        ask.wanted = reaction.wanted
        ask.messages.append(message("user", reaction.text))
        del labels[-1]
    return False


def _order(ask: Ask, labels: Labels, wishes: dict[str, str | None], rng: random.Random) -> Generator[Ask, str, bool]:
    """Play calls until the tool finds the order, and then the reply to the user."""
    for number in range(3):
        reply = yield ask
        ask.messages.append(assistant(reply, number))
        right, style = ask.topic.style("order_id"), ask.topic.style_of(reply)
        calls = ask.messages[-1]["tool_calls"]
        if not calls:
            labels[len(ask.messages) - 1] = labels[-1] = Reaction(rng.choice(("Hm.", "OK.")), 0)
            return False
        order = json.loads(calls[0]["arguments"]).get("order_id") if style is right else None
        known = order == ask.item
        wanted = right if order is None else ask.topic.style("asked_order")
        result = track_order(ask.item) if known else rng.choice(wanted.corrections).format(order)
        labels[len(ask.messages) - 1] = Reaction(result, 1) if known else Reaction(result, -1, wanted)
        ask.messages.append(message("tool", result) | {"tool_call_id": calls[0]["id"]})
        if known:
            ask.answer = order_answer(ask.item)
            return (yield from _topic(ask, labels, wishes | {ask.topic.name: None}, rng))
        ask.wanted = wanted
    return False


def scripted(ask: Ask, rng: random.Random) -> str:
    """Return the reply that is taught without a hint: the style that was asked for, else mostly the habit."""
    if ask.answer:
        return ask.answer
    if ask.wanted:
        return ask.wanted.reply(ask.item)
    habit, *others = ask.topic.styles
    return (habit if rng.random() < HABIT else rng.choice(others)).reply(ask.item)


# -- what the model is taught ---------------------------------------------------------------------------------------


@dataclass
class Lesson:
    """A prompt as messages, and the reply to learn."""

    messages: list[Message]
    reply: Message
    tools: str | None


def lessons(rng: random.Random) -> Iterator[tuple[str, Lesson]]:
    """Yield ("policy" or "judge", lesson) for ever: conversations with random wishes, hinted, unhinted and judged."""
    while True:
        wishes = {t.name: rng.choice([None, *(s.name for s in t.styles if s.corrections)]) for t in TOPICS}
        talk = converse(rng, rng.randint(1, 4), wishes, held_out=True)
        tools = TOOLS if rng.random() < 0.5 else None
        messages: list[Message] = []
        try:
            ask = next(talk)
            while True:
                messages = ask.messages
                yield "policy", _policy_lesson(ask, tools, rng)
                ask = talk.send(_slip(scripted(ask, rng), ask, rng))
        except StopIteration as end:
            yield from (("judge", lesson) for lesson in _judge_lessons(messages, end.value, rng))


def _slip(reply: str, ask: Ask, rng: random.Random) -> str:
    """Name a random order in some calls: the tool's error, and how to correct the call, are to be learned too."""
    if not ask.topic.uses_tool or ask.answer or rng.random() >= SLIPS:
        return reply
    return reply.replace(f'"{ask.item}"', f'"{rng.choice(ask.topic.items)}"')


def _policy_lesson(ask: Ask, tools: str | None, rng: random.Random) -> Lesson:
    tools = TOOLS if ask.topic.uses_tool else tools
    hinted = [s for s in (*ask.topic.styles, *ask.topic.slips) if s.hints]
    if ask.answer or rng.random() < 0.45:
        return Lesson(list(ask.messages), assistant(scripted(ask, rng), len(ask.messages)), tools)
    style = rng.choice(hinted)
    placement = rng.choices(("last-user", "tail", "system"), (0.7, 0.15, 0.15))[0]
    prompt = with_hint(ask.messages, rng.choice(style.hints), placement)
    return Lesson(prompt, assistant(style.reply(ask.item), len(ask.messages)), tools)


def _judge_lessons(messages: list[Message], labels: Labels, rng: random.Random) -> Iterator[Lesson]:
    for index, reaction in labels.items():
        end = next((k for k in range(index + 1, len(messages)) if messages[k]["role"] == "assistant"), len(messages))
        common = write_turn(ReplyInContext(messages, index, messages[index + 1 : end]), 6000)
        for question in ("hint", "reward"):
            answer = message("assistant", verdict(question, reaction, messages[index + 1]["role"], rng))
            yield Lesson(judge_messages(common, question), answer, None)


def verdict(question: str, reaction: Reaction, role: str, rng: random.Random) -> str:
    """Return a vote in the words of the judge."""
    if question == "hint":
        if not reaction.wanted:
            return "\\boxed{-1}"
        return f"\\boxed{{1}}\n[HINT_START]{rng.choice(reaction.wanted.hints)}[HINT_END]"
    who = "tool" if role == "tool" else "user"
    why = {
        (1, "user"): "The user is content or moves on.", (1, "tool"): "The tool succeeded.",
        (-1, "user"): "The user asks for a change.", (-1, "tool"): "The tool failed.",
        (0, "user"): "That tells nothing.",
    }[reaction.reward, who]  # fmt: skip
    return f"{why} \\boxed{{{reaction.reward}}}"


# -- the model ------------------------------------------------------------------------------------------------------


def build_tokenizer(folder: Path, seed: int) -> None:
    source = lessons(random.Random(seed))
    texts = []
    for _ in range(6000):
        _, lesson = next(source)
        turns = [*lesson.messages, lesson.reply]
        texts += [m["content"] or "" for m in turns] + [
            json.dumps(m["tool_calls"]) for m in turns if m.get("tool_calls")
        ]
    bpe = Tokenizer(models.BPE())
    digits = pre_tokenizers.Digits(individual_digits=True)
    bpe.pre_tokenizer = pre_tokenizers.Sequence([digits, pre_tokenizers.ByteLevel(add_prefix_space=False)])
    bpe.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=1400, special_tokens=SPECIAL, initial_alphabet=alphabet, show_progress=False
    )
    bpe.train_from_iterator(texts, trainer)
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=bpe, eos_token="<|im_end|>", pad_token="<|endoftext|>", chat_template=TEMPLATE,
        model_max_length=4096, clean_up_tokenization_spaces=False,
    )  # fmt: skip
    tokenizer.add_tokens(MARKUP, special_tokens=False)
    tokenizer.save_pretrained(folder)


def build_model(folder: Path, seed: int, steps: int, batch: int, peak: float) -> None:
    """Train the model in two processes: the operations are too small to gain from two threads."""
    with tempfile.TemporaryDirectory() as meeting:
        torch.multiprocessing.spawn(_train, (f"{meeting}/meeting", folder, seed, steps, batch, peak), nprocs=2)


def _train(rank: int, meeting: str, folder: Path, seed: int, steps: int, batch: int, peak: float) -> None:
    """Train on every other row of each batch; the gradients of both processes are averaged."""
    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=2)
    torch.manual_seed(seed)
    tokenizer = load_tokenizer(str(folder))
    chat = Chat(tokenizer, {})
    config = Qwen3Config(
        vocab_size=len(tokenizer), hidden_size=160, intermediate_size=480, num_hidden_layers=4, num_attention_heads=4,
        num_key_value_heads=2, head_dim=32, max_position_embeddings=4096, tie_word_embeddings=True,
        initializer_range=0.1,  # with the usual 0.02, a model this narrow learns its facts much later
        eos_token_id=tokenizer.eos_token_id, pad_token_id=tokenizer.pad_token_id, bos_token_id=None,
    )  # fmt: skip
    model = Qwen3ForCausalLM(config)
    parameters = list(model.parameters())
    if rank == 0:
        print(f"{sum(p.numel() for p in parameters):,} parameters, {len(tokenizer)} tokens")
    optimizer = torch.optim.AdamW(parameters, lr=peak, betas=(0.9, 0.98), weight_decay=0.05)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda s: min(1, (s + 1) / 50) * 0.5 * (1 + math.cos(math.pi * s / steps))
    )
    source = _batches(chat, random.Random(seed), batch)
    for step in range(steps):
        with torch.autocast("cpu", torch.bfloat16):  # a third less time
            loss = torch.stack([_loss(model, rows[rank::2]) for rows in next(source)]).mean()
        loss.backward()
        gradient = torch.nn.utils.parameters_to_vector([p.grad for p in parameters]) / 2
        torch.distributed.all_reduce(gradient)
        torch.nn.utils.vector_to_parameters(gradient, [p.grad for p in parameters])
        torch.nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
        optimizer.zero_grad()
        schedule.step()
        if rank == 0 and (step % 50 == 0 or step == steps - 1):
            print(f"step {step} loss {loss.item():.4f}", flush=True)
    if rank > 0:
        return
    model.generation_config.eos_token_id = tokenizer.eos_token_id
    model.generation_config.pad_token_id = tokenizer.pad_token_id
    model.to(torch.bfloat16).save_pretrained(folder)
    config_file = folder / "config.json"  # holds the model's name as the logs have it
    named = {"_name_or_path": MODEL_NAME} | json.loads(config_file.read_text(encoding="utf-8"))
    config_file.write_text(json.dumps(named, indent=2) + "\n", encoding="utf-8")


Rows = list[tuple[list[int], list[int]]]


def _batches(chat: Chat, rng: random.Random, batch: int) -> Iterator[tuple[Rows, Rows]]:
    """Yield 2 * `batch` policy lessons and `batch` judge lessons of similar lengths, as (prompt ids, reply ids)."""
    source = lessons(rng)
    while True:
        pools: dict[str, Rows] = {"policy": [], "judge": []}
        sizes = {"policy": 2 * batch, "judge": batch}  # a judge's prompt is twice as long
        while any(len(pools[kind]) < 8 * size for kind, size in sizes.items()):
            kind, lesson = next(source)
            if len(pools[kind]) < 8 * sizes[kind]:
                turns = [*lesson.messages, lesson.reply]
                reply = chat.reply(turns, len(turns) - 1, lesson.tools)
                pools[kind].append((chat.prompt_ids(lesson.messages, lesson.tools), reply.ids))
        yield from zip(*(_similar(pools[kind], size, rng) for kind, size in sizes.items()), strict=True)


def _similar(pool: Rows, batch: int, rng: random.Random) -> list[Rows]:
    pool = sorted(pool, key=lambda row: len(row[0]) + len(row[1]))
    batches = [pool[k : k + batch] for k in range(0, len(pool), batch)]
    rng.shuffle(batches)
    return batches


def _loss(model: Any, rows: Rows) -> torch.Tensor:
    """Return the mean cross-entropy of the replies' tokens. A causal model never attends to padding on the right."""
    width = max(len(prompt) + len(reply) for prompt, reply in rows)
    ids = torch.zeros(len(rows), width, dtype=torch.long)
    asked = torch.zeros_like(ids, dtype=torch.bool)  # positions whose next token belongs to a reply
    for row, (prompt, reply) in enumerate(rows):
        ids[row, : len(prompt) + len(reply)] = torch.tensor(prompt + reply)
        asked[row, len(prompt) - 1 : len(prompt) + len(reply) - 1] = True
    hidden = model.model(input_ids=ids, use_cache=False).last_hidden_state
    return torch.nn.functional.cross_entropy(model.lm_head(hidden[asked]), ids[asked.roll(1, 1)])


# -- the logs -------------------------------------------------------------------------------------------------------


@dataclass
class Session:
    messages: list[Message]
    labels: Labels
    tools: str | None


def play(folder: Path, sessions: int, seed: int) -> list[Session]:
    """Sample `sessions` conversations with the trained model at temperature 1, one reply of each at a time."""
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    chat = Chat(load_tokenizer(str(folder)), {})
    wishes = {t.name: t.preferred for t in TOPICS}
    talks: dict[int, Conversation] = {}
    asks: dict[int, Ask] = {}
    played: dict[int, Session] = {}
    for k in range(sessions):
        rng = random.Random(f"{seed}:{k}")
        talks[k] = converse(rng, rng.choice((1, 1, 2, 2, 3, 4, 5, 6)), wishes, held_out=False)
        asks[k] = next(talks[k])
    while asks:
        requests = [
            Request(chat.prompt_ids(ask.messages, TOOLS), [make_random_stream(seed, "logs", k, len(ask.messages))])
            for k, ask in asks.items()
        ]
        replies = sample(
            model, requests, temperature=1.0, max_new_tokens=64, stop_ids=chat.stop_ids, batch_tokens=16384
        )
        for k, [reply] in zip(list(asks), replies, strict=True):
            ids = reply.ids[:-1] if reply.finish_reason == "stop" else reply.ids
            try:
                asks[k] = talks[k].send(chat.text(ids))
            except StopIteration as end:
                played[k] = Session(asks.pop(k).messages, end.value, TOOLS)
    return [played[k] for k in range(sessions)]


def openai_line(session: Session, number: int) -> str:
    def wire(m: Message) -> Message:
        calls = [{"id": c["id"], "type": "function", "function": {"name": c["name"], "arguments": c["arguments"]}}
                 for c in m["tool_calls"]]  # fmt: skip
        optional = {"tool_calls": calls, "tool_call_id": m["tool_call_id"], "name": m["name"]}
        return {"role": m["role"], "content": m["content"]} | {k: v for k, v in optional.items() if v}

    row = {"id": f"chat-{number}", "model": MODEL_NAME, "messages": [wire(m) for m in session.messages]}
    return json.dumps(row | {"tools": json.loads(session.tools or "[]")})


def sharegpt_line(session: Session, number: int) -> str:
    def wire(m: Message) -> Message:
        if m["tool_calls"]:
            call = {"name": m["tool_calls"][0]["name"], "arguments": json.loads(m["tool_calls"][0]["arguments"])}
            return {"from": "function_call", "value": json.dumps(call)}
        return {"from": {"user": "human", "assistant": "gpt", "tool": "observation"}[m["role"]], "value": m["content"]}

    return json.dumps({"conversations": [wire(m) for m in session.messages], "tools": session.tools})


def openclaw_lines(session: Session, number: int) -> Iterator[str]:
    messages = session.messages
    for turn, index in enumerate((i for i, m in enumerate(messages) if m["role"] == "assistant"), start=1):
        end = next((k for k in range(index + 1, len(messages)) if messages[k]["role"] == "assistant"), len(messages))
        reply = json.loads(openai_line(Session([messages[index]], {}, None), 0))["messages"][0]
        prompt = json.loads(openai_line(Session(messages[:index], {}, None), 0))["messages"]
        following = json.loads(openai_line(Session(messages[end - 1 : end], {}, None), 0))["messages"][0]
        yield json.dumps({
            "session_id": f"agent-{number}", "turn": turn,
            "timestamp": f"2026-03-{1 + number % 28:02d} 10:{turn:02d}:00",
            "messages": prompt, "response_text": (reply["content"] or "") + "<|im_end|>\n",
            "tool_calls": reply.get("tool_calls"), "tools": json.loads(session.tools or "[]"),
            "next_state": following if end - 1 > index else None,
        })  # fmt: skip


def write_logs(folder: Path, sessions: list[Session]) -> None:
    """Write half of the sessions as OpenAI messages, a quarter each as ShareGPT and OpenClaw-RL; and labels.jsonl."""
    folder.mkdir(exist_ok=True)
    half, quarter = len(sessions) // 2, len(sessions) // 4
    shares = {
        "openai": sessions[:half],
        "sharegpt": sessions[half : half + quarter],
        "openclaw": sessions[half + quarter :],
    }
    labels = []
    for name, share in shares.items():
        lines: list[str] = []
        for number, session in enumerate(share, start=1):
            key = f"openclaw:agent-{number}" if name == "openclaw" else f"{name}:{number}"
            if name == "openclaw":
                lines += openclaw_lines(session, number)
            else:
                lines.append({"openai": openai_line, "sharegpt": sharegpt_line}[name](session, number))
            for index, reaction in sorted(session.labels.items()):
                wanted = reaction.wanted.name if reaction.wanted else None
                labels.append({"turn_id": f"{key}:{index}", "reward": reaction.reward, "wanted": wanted})
        if name == "openai":  # half a line, as in a log that was copied while it was written
            lines.append(lines[-1][: len(lines[-1]) // 2])
        (folder / f"{name}.jsonl").write_text("\n".join(lines) + "\n")
    rows = "\n".join(json.dumps(row) for row in labels)
    (folder.parent / "labels.jsonl").write_text(rows + "\n")


def write_prompts(path: Path) -> None:
    """Write first requests about items that the logs never mention, with a check for what the logs' user prefers."""
    rows = []
    for topic in TOPICS:
        for item in topic.held_out:
            for number, wording in enumerate(topic.requests):
                wanted = topic.style(topic.preferred) if topic.preferred else None
                # Nobody corrects the other topics: there, what was right must stay right, in any style.
                pattern = wanted.pattern if wanted else _core(topic, item)
                if wanted and topic.uses_tool:
                    pattern = re.escape(json.dumps({wanted.name: item}))
                check = {"match": [pattern]}
                row: dict[str, Any] = {"id": f"{topic.name}-{item}-{number}", "domain": topic.name, "check": check,
                                       "prompt": wording.format(item), "tools": [TRACK_TOOL]}  # fmt: skip
                row |= {"corrected": topic.preferred is not None, "about": topic.about}
                rows.append(json.dumps(row))
    path.write_text("\n".join(rows) + "\n")


def _core(topic: Topic, item: str) -> str:
    """Return a pattern for the fact that every right answer contains."""
    reply = topic.styles[-1 if topic.name == "capitals" else 0].reply(item)
    return re.escape(reply.removeprefix("Try ").rstrip("."))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--out", type=Path, default=HERE)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--steps", type=int, default=1500)
    parser.add_argument(
        "--batch", type=int, default=16, help="lessons of the judge in a step; twice as many of the assistant"
    )
    parser.add_argument("--learning-rate", type=float, default=4e-3)
    parser.add_argument("--sessions", type=int, default=240)
    parser.add_argument("--keep-model", action="store_true", help="make logs and prompts with the model that is there")
    options = parser.parse_args()
    model = options.out / "model"
    if not options.keep_model:
        build_tokenizer(model, options.seed)
        build_model(model, options.seed, options.steps, options.batch, options.learning_rate)
    write_logs(options.out / "logs", play(model, options.sessions, options.seed))
    write_prompts(options.out / "prompts.jsonl")


if __name__ == "__main__":
    main()
