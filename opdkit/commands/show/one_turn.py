"""Printing of one turn with everything: the conversation, the votes with their reasons, the hints, and the tokens."""

from collections.abc import Iterator

from rich.console import Console
from rich.text import Text

from opdkit.commands.show.tokens import legend, one_line, print_likely, print_logprobs, reply_text
from opdkit.commands.turns.line import call_text, signed
from opdkit.config.fields import JSON
from opdkit.console import add_sign, counted, printable
from opdkit.store.tables import EDIT

# Characters that are shown of a message, of a judge's answer, and of the answer of a failed vote; --json has all.
_MESSAGE, _ANSWER, _FAILED = 4000, 600, 300


def print_whole(view: JSON, console: Console, *, logprobs: bool) -> None:
    """Print a view of `read_turn_view`. Text of the log and of the judge is shown literally, never as markup."""
    for text in (*_show_conversation(view), *_show_verdict(view)):
        console.print(text, soft_wrap=True)
    colour = console.is_terminal and not console.no_color and console.color_system is not None
    review = view["review"] or {}
    for target in view["targets"]:
        console.print(_show_target_head(target), soft_wrap=True)
        decided = ("hint",) if target["written"] is not None else ("hint", "reward")
        if any(name in review and review[name] != target[name] for name in decided):
            console.print(Text("  scored before the decision: to update it, run `opdkit teacher` again as before"),
                          soft_wrap=True)  # fmt: skip
        console.print(reply_text(target["tokens"], colour=colour), soft_wrap=True)
        if any(token["teacher"] is not None for token in target["tokens"]):
            console.print(legend(colour=colour), soft_wrap=True)
            print_likely(target["tokens"], console)
        if logprobs:
            print_logprobs(target["tokens"], console, colour=colour)
    console.print()


def _show_conversation(view: JSON) -> Iterator[Text]:
    """Yield the name and origin of a turn, and its messages."""
    yield Text(printable(f"turn {view['turn_id']}"), style="bold")
    facts = [f"{view['source']}, line {view['line']}", view["format"]]
    facts += [f"model {view['model']}"] if view["model"] else []
    facts += [f"finished: {view['finish_reason']}"] if view["finish_reason"] else []
    facts += [f"not trainable: {view['skip_reason']}"] if view["skip_reason"] else []
    yield Text(one_line(", ".join(facts)), style="dim")
    for n, message in enumerate(view["messages"]):
        is_reply = n == view["message_index"]
        name = f" ({message['name']})" if message["name"] else ""
        yield _make_title(f"{message['role']}{name}" + (", the reply" if is_reply else ""))
        if message["reasoning"]:
            yield Text(_cut(f"(thinking) {message['reasoning']}", _MESSAGE), style="dim")
        if message["content"]:
            yield Text(_cut(message["content"], _MESSAGE), style="bold" if is_reply else "")
        for call in message["tool_calls"]:
            yield Text(_cut(f"calls {call_text(call)}", _MESSAGE))
        if not (message["content"] or message["reasoning"] or message["tool_calls"]):
            yield Text("  (empty)", style="dim")
    for name, text in view["decision"]:
        yield _make_title(f"decided in the log: {name}")
        yield Text(_cut(text, _MESSAGE))


def _show_verdict(view: JSON) -> Iterator[Text]:
    """Yield the verdict with its votes, and the review."""
    verdict, review = view["verdict"], view["review"]
    if verdict is None:
        yield _make_title("not judged")
        return
    agreement = verdict["reward_agreement"]
    share = "" if agreement is None else f", agreement {agreement:.2f}"
    yield _make_title(f"reward {signed(verdict['reward'])} ({verdict['reward_status']}{share})")
    for vote in verdict["reward_votes"]:
        yield _show_vote("failed" if vote["score"] is None else signed(vote["score"]), vote)
    yield _make_title(f"hint ({verdict['hint_status']})")
    yield Text("  none" if verdict["hint"] is None else _cut(verdict["hint"], _MESSAGE), style="bold")
    for vote in verdict["hint_votes"]:
        yield _show_vote({1: "hint", -1: "no hint"}.get(vote["decision"], "failed"), vote)
    for candidate in verdict["candidates"]:
        yield Text(f"  - {one_line(candidate['hint'])}: {candidate['status']}")
    if review is not None:
        voted = verdict["voted"]
        yield _make_title(f"reviewed by {one_line(review['reviewer'])}, {review['time']}")
        yield Text(f"the votes said: reward {signed(voted['reward'])} ({voted['reward_status']}), "
                   f"hint: {one_line(voted['hint'] or 'none')}")  # fmt: skip
        if review["note"]:
            yield Text(_cut(review["note"], _MESSAGE))


def _show_vote(says: str, vote: JSON) -> Text:
    """Return a vote with its reason; a failed vote with its error, and below it the judge's answer."""
    if not vote["error"]:
        says += "" if vote["confidence"] is None else f" ({vote['confidence']:.2f})"
        return Text(f"  {says}: {_cut(one_line(vote['raw']), _ANSWER).strip()}")
    wrote = _cut(one_line(vote["raw"]), _FAILED).strip()
    return Text(f"  {says}: {one_line(vote['error'])}" + (f"\n    the judge wrote: {wrote}" if wrote else ""))


def _show_target_head(target: JSON) -> Text:
    values = [token["advantage"] for token in target["tokens"] if token["trained"] and token["advantage"] is not None]
    other = {None: "the logged reply", EDIT: "the reply as a person edited it"}
    reply = other.get(target["written"], f"reply {target['written']} that the teacher wrote")
    facts = [f"{counted(len(target['tokens']), 'token')} after a prompt of {target['prompt_tokens']:,}"]
    facts += [f"{counted(target['cut_messages'], 'message')} cut"] if target["cut_messages"] else []
    facts += [f"overlap {target['overlap']:.2f}"] if target["overlap"] is not None else []
    total, mean = sum(values), sum(values) / max(1, len(values))
    signal = f"advantages: sum {add_sign(total, 3)}, mean {add_sign(mean, 4)} nats"
    facts.append(signal if values else "no hint, so no advantages")
    return _make_title(f"target, {reply}: {'; '.join(facts)}")


def _make_title(text: str) -> Text:
    return Text(f"\n-- {one_line(text)}", style="bold cyan")


def _cut(text: str, most: int) -> str:
    """Return a text, indented. If it exceeds `most` characters, keep its beginning and end, and say how much is cut.

    The text is indented so that text of a log cannot imitate our headings.
    """
    if len(text) > most:
        left_out = f"\n(... {counted(len(text) - most, 'character')} more; --json has them ...)\n"
        text = text[: most // 2] + left_out + text[-most // 2 :]
    return "  " + printable(text).replace("\n", "\n  ")
