"""Log-probs of sequences that begin alike, each token of their tree read once.

Shapes as in `opdkit.model.scoring`, and W the nodes of the tree from which a response token is predicted.
"""

from collections.abc import Callable
from collections.abc import Sequence as Items
from typing import Any
from weakref import WeakKeyDictionary, WeakSet

import torch
from torch import Tensor
from transformers import DynamicCache, PreTrainedModel
from transformers.cache_utils import DynamicLayer

from opdkit.console import progress, warn
from opdkit.errors import OpdkitError
from opdkit.model.load import input_device
from opdkit.model.memory import is_out_of_memory
from opdkit.model.output_layer import OutputLayer, is_apart
from opdkit.model.scoring import LogprobQuery, Mixture, PromptResponse, Reading, Rows, logprobs_of
from opdkit.model.tree import Pass, Plan, plan

# Tokens of branches that are read at once. Each of them is compared with all the others and with the trunk, most of
# it for nothing: many more would cost time, many fewer would leave a GPU idle.
PACK = 512

# Share of the tokens that a tree must save; else padded batches, which need no mask of their own, are as good.
_WORTH = 0.1

# Tokens of a trunk that are read at once where it is longer than the budget: what the layers make of them is thrown
# away before the next are read, so that only keys and values grow with the length of a session. In one piece it needs
# no mask and takes three quarters of the time (a trunk of 8,192 tokens on a CPU).
_CHUNK = 4096

# The largest difference in a log-prob between the two ways that is rounding, in nats. Half precision rounds a logit
# of 20 by 0.06, here and there by more: what is rounding there, a mean over many tokens tells.
_ROUNDING = {torch.float32: 1e-3, torch.float64: 1e-3}
_HALF_ROUNDING = 0.1

# Tokens of the first session that are read both ways; more where its shortest turn is longer.
_COMPARED = 4096

_checked: WeakKeyDictionary[PreTrainedModel, bool] = WeakKeyDictionary()
_compared: WeakSet[PreTrainedModel] = WeakSet()


class Trees:
    """What some models read of some sessions: their trees, and for what shares too little, plain batches.

    `tokens` are read once `read` is asked for all of it, `saved` are those that plain batches would read besides.
    With `whole` False all is read in plain batches. Raises OpdkitError where the first tree that a model reads gives
    other numbers than plain batches.
    """

    def __init__(
        self, asked: Items[tuple[PreTrainedModel, list[PromptResponse]]], batch_tokens: int, *, whole: bool = True
    ) -> None:
        self._readings: dict[int, _TreeReading] = {}
        self.tokens = self.saved = 0
        for model in {id(model): model for model, _ in asked}.values():
            sequences = [s for m, some in asked if m is model for s in some]
            if not whole:
                self.tokens += sum(map(len, sequences))
                continue
            tree = plan([s.prompt_ids + s.response_ids for s in sequences], min(PACK, batch_tokens))
            if tree.saved > _WORTH * (tree.tokens + tree.saved) and reads_trees(model):
                self._read(model, sequences, tree, max(_CHUNK, batch_tokens))
            else:
                self.tokens += tree.tokens + tree.saved

    def _read(self, model: PreTrainedModel, sequences: list[PromptResponse], tree: Plan, most: int) -> None:
        reading = _TreeReading(model, sequences, tree, most)
        if bool(reading.hidden_WH.isfinite().all()):
            _compare_once(reading)
            self._readings[id(model)] = reading
            self.tokens, self.saved = self.tokens + tree.tokens, self.saved + tree.saved
        else:
            # A masked NaN is still a NaN times 0: read apart, it stays with the turns that have it.
            self.tokens += 2 * tree.tokens + tree.saved

    def read(self, model: PreTrainedModel, sequences: Items[PromptResponse]) -> Rows:
        """Some of the sequences, as `opdkit.model.scoring.logprobs_of` asks for them."""
        reading = self._readings.get(id(model))
        return Reading(model, sequences, repeated=True) if reading is None else reading.of(sequences)


def reads_trees(model: PreTrainedModel) -> bool:
    """Whether the numbers of a tree are those of plain batches; says so once for a model where they are not.

    Decided by what the model is and by a few made-up sequences, the same ones every time: whatever the order of a
    run's sessions, they are all read in one way. `Trees` compares real ones, once, and stops where they differ.
    """
    if model not in _checked:
        reason = _why_not(model) or _difference(model)
        if reason:
            name = model.name_or_path or type(model).__name__
            warn(f"{name} reads each turn from its beginning, not the conversation once: {reason}")
        _checked[model] = reason is None
    return _checked[model]


def _why_not(model: PreTrainedModel) -> str | None:
    """What of a model's build rules out a tree: a token must see its ancestors, all of them, and them alone."""
    config = model.config.get_text_config(decoder=True)
    if config._attn_implementation not in ("sdpa", "eager"):
        return f"its attention ({config._attn_implementation}) takes no mask of our own"
    if any(type(layer) is not DynamicLayer for layer in DynamicCache(config=model.config).layers):
        return "not all of its layers see all that comes before a token"
    if {"dynamic", "longrope"} & _rope_types(getattr(config, "rope_parameters", None) or {}):
        return "its position embeddings depend on the length of what is read"
    if not is_apart(model):
        return "its output layer cannot be told from the layers below"
    return None


def _rope_types(parameters: dict[str, Any]) -> set[str]:
    """One set of parameters, or one a kind of layer."""
    every = [parameters, *(p for p in parameters.values() if isinstance(p, dict))]
    return {p["rope_type"] for p in every if "rope_type" in p}


def _difference(model: PreTrainedModel) -> str | None:
    """What is wrong with the numbers of a small tree: forks early, late, in branches; in one pass and in many."""
    draw = torch.Generator().manual_seed(0)
    size = min(model.get_input_embeddings().weight.shape[0], 1000)
    a, b, c, d = torch.randint(0, size, (4, 16), generator=draw).tolist()
    sequences = [
        PromptResponse(a + b + c, d),
        PromptResponse(a, b[:9] + d),
        PromptResponse(a + d + b, c),
        PromptResponse(a + d + c, c),
    ]
    questions = [LogprobQuery((s,)) for s in sequences]
    plain = torch.cat([x.logprobs for x in logprobs_of(Mixture((model,)), questions, batch_tokens=1)])
    ids = [s.prompt_ids + s.response_ids for s in sequences]
    apart = list[Tensor]()
    for pack, piece in ((1, 1000), (40, 20), (1000, 1000)):
        try:
            reading = _TreeReading(model, sequences, plan(ids, pack), piece)
            answers = logprobs_of(
                Mixture((model,)),
                questions,
                batch_tokens=1000,
                read=lambda _, some, reading=reading: reading.of(some),  # type: ignore[misc]
            )
        except Exception as error:  # what a model makes of an argument that it was not written for
            if is_out_of_memory(error):
                raise
            return f"it cannot be read with a mask and a cache ({type(error).__name__})"
        apart.append(torch.cat([x.logprobs for x in answers]) - plain)
    off, most = max(_apart(each, model.dtype) for each in apart)
    return None if off <= most else f"else its log-probs would differ by {off:.1g} nats"


def _apart(differences: Tensor, dtype: torch.dtype) -> tuple[float, float]:
    """How far log-probs are apart, and how far they may be: the largest in full precision, in half precision the mean.

    What is no number is infinitely far apart.
    """
    whole = _ROUNDING.get(dtype)
    off = float(differences.abs().mean() if whole is None else differences.abs().max())
    return (off if off == off else float("inf")), _HALF_ROUNDING if whole is None else whole


def _compare_once(reading: "_TreeReading") -> None:
    """Raise OpdkitError unless real sequences, of the first tree of a model, have the numbers of plain batches."""
    model = reading.model
    if model in _compared:
        return
    questions = [LogprobQuery((s,)) for s in _some(reading.sequences, _COMPARED)]
    in_tree, plain = (
        torch.cat([a.logprobs for a in logprobs_of(Mixture((model,)), questions, batch_tokens=_COMPARED, read=read)])
        for read in (lambda _, some: reading.of(some), None)
    )
    off, most = _apart(in_tree - plain, model.dtype)
    if off > most:
        raise OpdkitError(
            f"{model.name_or_path or type(model).__name__}: the log-probs of a conversation read once differ by "
            f"{off:.1g} nats from those of its turns read one by one, and more than {most:g} is no rounding. Nothing "
            "is written; pass --turn-by-turn, and report the model to opdkit"
        )
    _compared.add(model)


def _some(sequences: Items[PromptResponse], tokens: int) -> list[PromptResponse]:
    """The shortest sequence, and then the longest ones that fit into so many tokens with it."""
    shortest, *rest = sorted(sequences, key=len)
    found, room = [shortest], tokens - len(shortest)
    for each in reversed(rest):
        if len(each) <= room:
            found, room = [*found, each], room - len(each)
    return found


# -- one tree -------------------------------------------------------------------------------------------------------


class _TreeReading:
    """The last hidden states [W, H] of the nodes that predict a response token, read in the passes of a plan."""

    def __init__(self, model: PreTrainedModel, sequences: Items[PromptResponse], tree: Plan, most: int) -> None:
        self.model, self.sequences = model, list(sequences)  # kept alive: they are known by their identity
        nodes = [torch.tensor(tree.nodes(i, len(s.prompt_ids) - 1, len(s) - 1)) for i, s in enumerate(self.sequences)]
        wanted_W = torch.cat(nodes).unique()
        self._rows = {id(s): torch.searchsorted(wanted_W, n) for s, n in zip(self.sequences, nodes, strict=True)}
        with torch.inference_mode():
            self.output_layer, self.hidden_WH = _hidden_states(model, tree.passes, wanted_W, most)

    def of(self, sequences: Items[PromptResponse]) -> "_SomeRows":
        return _SomeRows(self, torch.cat([self._rows[id(s)] for s in sequences]))


class _SomeRows:
    """The response positions of some sequences of a tree, one sequence after the other."""

    def __init__(self, reading: _TreeReading, rows_N: Tensor) -> None:
        self._reading, self.device = reading, reading.hidden_WH.device
        self._rows_N = rows_N.to(self.device)

    def logits(self, some: slice) -> Tensor:
        """[n, V] in the model's own dtype."""
        return self._reading.output_layer(self._reading.hidden_WH[self._rows_N[some]])


def _hidden_states(
    model: PreTrainedModel, passes: Items[Pass], wanted_W: Tensor, most: int
) -> tuple[OutputLayer, Tensor]:
    """The hidden states [W, H] of the wanted nodes, and what makes logits of them."""
    cache, found, first = DynamicCache(config=model.config), list[Tensor](), 0
    body: Callable[..., Any] = model.get_decoder()
    pieces = [(each, piece) for each in passes for piece in _pieces(each, most)]
    for each, piece in progress(pieces, "reading", len(pieces), "passes"):
        if piece.start == 0 and each.kept == 0:
            cache = DynamicCache(config=model.config)
        elif piece.start == 0:
            cache.crop(each.kept - cache.get_seq_length())
        ids_1n = torch.tensor([each.ids[piece.start : piece.stop]], device=input_device(model))
        # In a row, positions and mask are what the model makes of a cache: the way that generates text.
        own = {} if each.is_chain else {"position_ids": torch.tensor([each.positions], device=input_device(model)),
                                        "attention_mask": _mask(each, model)}  # fmt: skip
        output = body(input_ids=ids_1n, past_key_values=cache, use_cache=True, **own)
        here = wanted_W[(wanted_W >= first) & (wanted_W < first + len(piece))] - first
        found.append(output.last_hidden_state[0, here.to(output.last_hidden_state.device)])
        first += len(piece)
    return OutputLayer(model, output), torch.cat(found)


def _pieces(each: Pass, most: int) -> list[range]:
    """The tokens of a pass that go through the layers together: all, or some of a trunk of more than `most`."""
    size = min(_CHUNK, most) if each.is_chain and len(each) > most else len(each)
    return [range(start, min(start + size, len(each))) for start in range(0, len(each), size)]


def _mask(each: Pass, model: PreTrainedModel) -> Tensor:
    """[1, 1, n, kept + n]: which tokens each one sees. True and False for sdpa; 0 and a very negative one for eager."""
    device = input_device(model)
    sees_n, ends_n = (torch.tensor(x, device=device) for x in (each.sees, each.ends))
    order_n = torch.arange(len(each), device=device)
    before_nk = torch.arange(each.kept, device=device) < sees_n[:, None]
    within_nn = (order_n <= order_n[:, None]) & (order_n[:, None] < ends_n)
    seen = torch.cat([before_nk, within_nn], -1)[None, None]
    if model.config.get_text_config(decoder=True)._attn_implementation == "sdpa":
        return seen
    hidden = torch.finfo(model.dtype).min
    return torch.zeros(seen.shape, dtype=model.dtype, device=device).masked_fill(~seen, hidden)
