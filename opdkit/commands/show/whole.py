"""One turn with everything: the conversation, the votes with their reasons, the hints, and the tokens."""

from collections.abc import Iterator

from rich.console import Console
from rich.text import Text

from opdkit.commands.show.tokens import in_colour, legend, logprob_table, reply_text, signed
from opdkit.config.fields import JSON
from opdkit.console import counted, printable, with_sign

# Characters that are shown of a message, of a judge's answer, and of one that is no vote; --json has all.
_MESSAGE, _ANSWER, _FAILED = 4000, 600, 300


def print_whole(view: JSON, console: Console, *, logprobs: bool) -> None:
    """A turn as `turn_view` gives it. What the log and the judge wrote is shown, never interpreted."""
    for line in (*_head(view), *_conversation(view), *_verdict(view)):
        console.print(line, soft_wrap=True)
    for target in view["targets"]:
        colour = in_colour(console)
        console.print(_target_head(target), soft_wrap=True)
        if _is_outdated(target, view["review"]):
            console.print(Text("  older than the decision: `opdkit teacher`, run again as before, scores it anew"),
                          soft_wrap=True)  # fmt: skip
        console.print(reply_text(target["tokens"], colour=colour), soft_wrap=True)
        if any(token["teacher"] is not None for token in target["tokens"]):
            console.print(legend(colour=colour), soft_wrap=True)
        if logprobs:
            table = logprob_table(target["tokens"], console)
            print(table) if isinstance(table, str) else console.print(table)
    console.print()


def _head(view: JSON) -> Iterator[Text]:
    yield Text(printable(f"turn {view['turn_id']}"), style="bold")
    facts = [f"{view['source']}, line {view['line']}", view["format"]]
    facts += [f"model {view['model']}"] if view["model"] else []
    facts += [f"finished: {view['finish_reason']}"] if view["finish_reason"] else []
    facts += [f"not trainable: {view['skip_reason']}"] if view["skip_reason"] else []
    yield Text(_line(", ".join(facts)), style="dim")


def _conversation(view: JSON) -> Iterator[Text]:
    for n, message in enumerate(view["messages"]):
        is_reply = n == view["message_index"]
        name = f" ({message['name']})" if message["name"] else ""
        yield _title(f"{message['role']}{name}" + (", the reply" if is_reply else ""))
        if message["reasoning"]:
            yield Text(_cut(f"(thinking) {message['reasoning']}", _MESSAGE), style="dim")
        if message["content"]:
            yield Text(_cut(message["content"], _MESSAGE), style="bold" if is_reply else "")
        for call in message["tool_calls"]:
            yield Text(_cut(f"calls {call['name']}({call['arguments']})", _MESSAGE))
        if not (message["content"] or message["reasoning"] or message["tool_calls"]):
            yield Text("  (empty)", style="dim")


def _verdict(view: JSON) -> Iterator[Text]:
    verdict, review = view["verdict"], view["review"]
    if verdict is None:
        yield _title("not judged")
        return
    agreement = verdict["reward_agreement"]
    says = "none" if verdict["reward"] is None else signed(verdict["reward"])
    share = "" if agreement is None else f", agreement {agreement:.2f}"
    yield _title(f"reward {says} ({verdict['reward_status']}{share})")
    for vote in verdict["reward_votes"]:
        yield _vote("failed" if vote["score"] is None else signed(vote["score"]), vote)
    yield _title(f"hint ({verdict['hint_status']})")
    yield Text("  none" if verdict["hint"] is None else _cut(verdict["hint"], _MESSAGE), style="bold")
    for vote in verdict["hint_votes"]:
        yield _vote({1: "hint", -1: "no hint"}.get(vote["decision"], "failed"), vote)
    for candidate in verdict["candidates"]:
        yield Text(f"  - {_line(candidate['hint'])}: {candidate['status']}")
    if review is not None:
        yield _title(f"reviewed by {_line(review['reviewer'])}, {review['time']}")
        voted = verdict["voted"]
        reward = "none" if voted["reward"] is None else signed(voted["reward"])
        yield Text(
            f"the votes said: reward {reward} ({voted['reward_status']}), hint: {_line(voted['hint'] or 'none')}"
        )
        if review["note"]:
            yield Text(_cut(review["note"], _MESSAGE))


def _vote(says: str, vote: JSON) -> Text:
    """A vote with its reason; one that failed with why, and below what the judge wrote instead of a vote."""
    if not vote["error"]:
        return Text(f"  {says}: {_cut(_line(vote['raw']), _ANSWER).strip()}")
    wrote = _cut(_line(vote["raw"]), _FAILED).strip()
    return Text(f"  {says}: {_line(vote['error'])}" + (f"\n    the judge wrote: {wrote}" if wrote else ""))


def _target_head(target: JSON) -> Text:
    advantages = [
        token["advantage"] for token in target["tokens"] if token["trained"] and token["advantage"] is not None
    ]
    what = "the logged reply" if target["written"] is None else f"reply {target['written']} that the teacher wrote"
    facts = [f"{counted(len(target['tokens']), 'token')} after a prompt of {target['prompt_tokens']:,}"]
    facts += [f"{counted(target['cut_messages'], 'message')} cut"] if target["cut_messages"] else []
    facts += [f"overlap {target['overlap']:.2f}"] if target["overlap"] is not None else []
    if advantages:
        total = sum(advantages)
        facts.append(f"advantages: sum {with_sign(total, 3)}, mean {with_sign(total / len(advantages), 4)} nats")
    else:
        facts.append("no hint, so no advantages")
    return _title(f"target, {what}: {'; '.join(facts)}")


def _is_outdated(target: JSON, review: JSON | None) -> bool:
    """Whether a target does not show what was decided about its turn."""
    fields = ("hint",) if target["written"] is not None else ("hint", "reward")
    return review is not None and any(name in review and review[name] != target[name] for name in fields)


def _title(text: str) -> Text:
    return Text(f"\n-- {_line(text)}", style="bold cyan")


def _line(text: str) -> str:
    return printable(" ".join(text.split()))


def _cut(text: str, most: int) -> str:
    """The beginning and the end, and in between how much is not shown; set in, so that no log writes our headings."""
    if len(text) > most:
        left = f"\n(... {counted(len(text) - most, 'character')} more; --json has them ...)\n"
        text = text[: most // 2] + left + text[-most // 2 :]
    return "  " + printable(text).replace("\n", "\n  ")
