"""Recovery when memory runs out: work is split into smaller batches, and an item too large by itself is set aside.

budget = find_budget(model, "scoring")
for attempt in budget.batches(lengths, batch_tokens):
    with attempt:
        results |= zip(attempt.items, score(attempt.items))
    if attempt.too_large:
        ...  # a single item that does not fit
"""

import gc
import sys
import traceback
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any

import torch
from torch import nn

from opdkit.console import warn
from opdkit.errors import OpdkitError

TOO_LARGE = "does not fit into memory"  # reason under which items that are set aside are counted

# Messages of allocators that raise a plain RuntimeError: torch's on a CPU and on MPS, CUDA and cuBLAS below torch's own
# cache, oneDNN. The C++ library's bad_alloc is a MemoryError in some places and a RuntimeError in others.
_MESSAGES = (
    "DefaultCPUAllocator: can't allocate",
    "not enough memory",
    "CUDA error: out of memory",
    "std::bad_alloc",
    "CUBLAS_STATUS_ALLOC_FAILED",
    "MPS backend out of memory",
    "could not create a memory",
)


class TooLargeError(OpdkitError, MemoryError):
    """Error for an item that does not fit into memory by itself; a MemoryError, so that callers can set it aside."""

    def __init__(self, what: str, remedy: str) -> None:
        super().__init__(f"{what} {TOO_LARGE}, even alone: {remedy}, or use a machine with more memory")


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether an error says that memory ran out, on a GPU or on the CPU."""
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    return isinstance(error, RuntimeError) and any(message in str(error) for message in _MESSAGES)


@dataclass
class Attempt(AbstractContextManager["Attempt", bool]):
    """Work that may run out of memory, as the body of a `with` statement. Other errors pass through.

    Afterwards, `failed` says whether memory ran out; if so, the body was interrupted and its memory freed. `too_large`
    says that the failed work was a single item. In `lockstep`, TooLargeError is raised instead, since other processes
    run the same forwards and may have had room.
    """

    items: list[int] = field(default_factory=list)  # indices of the items in this attempt
    lockstep: bool = False
    failed: bool = False
    too_large: bool = False

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, position: TracebackType | None
    ) -> bool:
        """Free the memory of the failed work, first the local variables of its frames: they keep every tensor alive."""
        if error is None or not is_out_of_memory(error):
            return False
        if self.lockstep:
            remedy = "processes that share a model cannot make it smaller; lower --batch-tokens or --micro-batch-tokens"
            raise TooLargeError("a batch", remedy) from error
        self.failed, self.too_large = True, len(self.items) == 1
        cause: BaseException | None = error
        while cause is not None:
            traceback.clear_frames(cause.__traceback__)
            cause = cause.__context__
        gc.collect()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
        elif torch.backends.mps.is_available():
            torch.mps.empty_cache()
        return True


@dataclass
class Budget:
    """Limit on the tokens that one kind of work processes at once. It only ever gets lower."""

    work: str  # named in the warning
    lockstep: bool = False
    max_tokens: int = sys.maxsize  # tokens; half of the smallest number that did not fit
    is_strict: bool = False  # more than `max_tokens` did not fit: only a single item may exceed the limit now

    def halve(self, tokens: int) -> None:
        """Allow at most half of `tokens` from now on, since that many did not fit."""
        self.is_strict |= tokens // 2 >= self.max_tokens
        if tokens // 2 < self.max_tokens:
            self.max_tokens = max(1, tokens // 2)
            warn(f"{self.work}: {tokens:,} tokens at once do not fit into memory; continuing with {self.max_tokens:,}")

    def batches(self, lengths: Sequence[int], tokens: int, most_items: int = sys.maxsize) -> Iterator[Attempt]:
        """Yield batches of items, given by their `lengths` (tokens), until each item is done or too large.

        Batches come from `batch_by_length`. After one fails, unfinished items are batched again with half its tokens.
        """
        waiting = list(range(len(lengths)))
        while waiting:
            done = set[int]()
            for members in batch_by_length([lengths[i] for i in waiting], min(tokens, self.max_tokens), most_items):
                attempt = Attempt([waiting[k] for k in members], self.lockstep)
                yield attempt
                if attempt.failed and not attempt.too_large:
                    self.halve(len(attempt.items) * max(lengths[i] for i in attempt.items))
                    break
                done.update(attempt.items)
            waiting = [i for i in waiting if i not in done]

    def halves(self, lengths: Sequence[int]) -> Iterator[Attempt]:
        """Yield all items, given by `lengths` (tokens), as one batch, then both halves of each batch that fails."""
        waiting = [list(range(len(lengths)))] if lengths else []
        while waiting:
            attempt = Attempt(waiting.pop(0), self.lockstep)
            yield attempt
            if attempt.failed and not attempt.too_large:
                self.halve(sum(lengths[i] for i in attempt.items))
                middle = len(attempt.items) // 2
                waiting = [attempt.items[:middle], attempt.items[middle:], *waiting]


def batch_by_length(lengths: Sequence[int], batch_tokens: int, most_items: int = sys.maxsize) -> list[list[int]]:
    """Return batches of indices, each of at most `most_items` items and `batch_tokens` padded tokens (items * longest).

    An item longer than `batch_tokens` gets a batch of its own. The longest items come first, so that running out of
    memory happens at the start.
    """
    batches: list[list[int]] = []
    for i in sorted(range(len(lengths)), key=lambda i: -lengths[i]):
        size = len(batches[-1]) + 1 if batches else 0
        if batches and size * lengths[batches[-1][0]] <= batch_tokens and size <= most_items:
            batches[-1].append(i)
        else:
            batches.append([i])
    return batches


@dataclass
class ModelState:
    """Facts that this process has learned about a loaded model. `find_state` stores them on the model."""

    lockstep: bool = False  # several processes share the layers and run the same forwards
    reads_trees: bool | None = None  # result of `check_tree_reading`; None before it ran
    shares_cache: bool | None = None  # result of `check_shared_cache`; None before it ran
    samples_batches: bool | None = None  # result of `check_batches`; None before it ran
    tree_compared: bool = False  # log-probs of a real tree were compared with those of padded batches
    budgets: dict[str, Budget] = field(default_factory=dict)  # kind of work -> its budget


def find_state(model: nn.Module) -> ModelState:
    """Return the state of a model, always the same object; a model with adapters shares that of its base model."""
    base: Any = model
    attributes: dict[str, Any] = vars(base.get_base_model() if hasattr(base, "get_base_model") else base)
    state: ModelState = attributes.setdefault("_opdkit_state", ModelState())
    return state


def without_gradients(*models: nn.Module) -> AbstractContextManager[None]:
    """Return a context for forwards of these models without gradients: inference mode, or `no_grad` in lockstep.

    In lockstep, shared weights are gathered into tensors that training writes to, which inference mode would forbid.
    """
    return torch.no_grad() if any(find_state(model).lockstep for model in models) else torch.inference_mode()


def find_budget(model: nn.Module, work: str) -> Budget:
    """Return the budget for one kind of work with a model, always the same object."""
    state = find_state(model)
    return state.budgets.setdefault(work, Budget(work, state.lockstep))
