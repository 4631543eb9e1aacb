"""Reactions to memory that runs out: fewer tokens at once from then on; an item that does not fit alone is set aside.

budget = budget_of(model, "scoring")
for attempt in budget.batches(lengths, batch_tokens, batches_by_length):
    with attempt:
        results |= zip(attempt.items, score(attempt.items))
    if attempt.too_large:
        ...  # one item that does not fit by itself
"""

import gc
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any

import torch
from torch import nn

from opdkit.console import warn
from opdkit.errors import OpdkitError

TOO_LARGE = "does not fit into memory"  # the reason under which an item that is set aside is counted

# Messages of allocators that raise a plain RuntimeError: torch's on a CPU, CUDA and cuBLAS below torch's own cache,
# oneDNN. The C++ library's bad_alloc is a MemoryError in some places and a RuntimeError in others.
_MESSAGES = (
    "DefaultCPUAllocator: can't allocate",
    "not enough memory",
    "CUDA error: out of memory",
    "std::bad_alloc",
    "CUBLAS_STATUS_ALLOC_FAILED",
    "could not create a memory",
)


class TooLargeError(OpdkitError, MemoryError):
    """Error for an item that does not fit into memory by itself; a MemoryError, so that callers can set it aside."""

    def __init__(self, what: str, remedy: str) -> None:
        super().__init__(f"{what} {TOO_LARGE}, alone: {remedy}, or a machine with more memory")


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether an error says that memory ran out, on a GPU or on the CPU."""
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    return isinstance(error, RuntimeError) and any(message in str(error) for message in _MESSAGES)


class Attempt:
    """Work that may run out of memory, as the body of a `with` statement. Other errors pass through.

    Afterwards `failed` says whether memory ran out; then the body ended early and nothing of its work is held any more.
    In `lockstep`, where other processes run the same forwards and may have had room, it raises TooLargeError instead.
    """

    def __init__(self, items: Sequence[int] = (), *, lockstep: bool = False) -> None:
        self.items, self.lockstep, self.failed = list(items), lockstep, False

    @property
    def too_large(self) -> bool:
        """True when a single item did not fit."""
        return self.failed and len(self.items) == 1

    def __enter__(self) -> "Attempt":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, position: TracebackType | None
    ) -> bool:
        """Free what the failed work held, its frames' local variables first: they would keep every tensor alive."""
        if error is None or not is_out_of_memory(error):
            return False
        if self.lockstep:
            remedy = "with --tensor-parallel it cannot be made smaller on the way; lower --batch-tokens"
            raise TooLargeError("a batch", remedy) from error
        self.failed = True
        cause: BaseException | None = error
        while cause is not None:
            traceback.clear_frames(cause.__traceback__)
            cause = cause.__context__
        gc.collect()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
        return True


class Budget:
    """Limit of tokens at once: as many as the caller asks for, at most half of the fewest that did not fit."""

    def __init__(self, work: str, *, lockstep: bool = False) -> None:
        self.work, self.lockstep, self.most = work, lockstep, float("inf")

    def within(self, tokens: int) -> int:
        """Return `tokens`, or fewer where that many would not fit."""
        return int(min(tokens, self.most))

    def halve(self, tokens: int) -> None:
        """Allow at most half of `tokens` from now on, since that many did not fit."""
        if tokens // 2 < self.most:
            self.most = max(1, tokens // 2)
            warn(f"{self.work}: {tokens:,} tokens at once do not fit into memory; going on with {self.most:,}")

    def batches(
        self, lengths: Sequence[int], tokens: int, group: Callable[[Sequence[int], int], Sequence[list[int]]]
    ) -> Iterator[Attempt]:
        """Yield batches of items, as indices into `lengths` (tokens), until each is done or too large by itself.

        `group(lengths, tokens)` makes the batches; the longest item times the number of items is a batch's size. Where
        a batch fails, what is left is grouped again, within half of its size.
        """
        waiting = list(range(len(lengths)))
        while waiting:
            done = set[int]()
            for members in group([lengths[i] for i in waiting], self.within(tokens)):
                attempt = Attempt([waiting[k] for k in members], lockstep=self.lockstep)
                yield attempt
                if attempt.failed and not attempt.too_large:
                    self.halve(len(attempt.items) * max(lengths[i] for i in attempt.items))
                    break
                done.update(attempt.items)
            waiting = [i for i in waiting if i not in done]

    def halves(self, lengths: Sequence[int]) -> Iterator[Attempt]:
        """Yield all items as one batch of indices into `lengths` (tokens), then the halves of each batch that fails."""
        waiting = [list(range(len(lengths)))] if lengths else []
        while waiting:
            attempt = Attempt(waiting.pop(0), lockstep=self.lockstep)
            yield attempt
            if attempt.failed and not attempt.too_large:
                self.halve(sum(lengths[i] for i in attempt.items))
                middle = len(attempt.items) // 2
                waiting = [attempt.items[:middle], attempt.items[middle:], *waiting]


@dataclass
class ModelState:
    """Facts that this process has found out about a loaded model. `state_of` keeps them on the model."""

    lockstep: bool = False  # several processes share the layers and run the same forwards
    reads_trees: bool | None = None  # the answer of `check_tree_reading`; None before it was asked
    tree_compared: bool = False  # log-probs of a real tree were compared with those of plain reading
    budgets: dict[str, Budget] = field(default_factory=dict)  # kind of work -> its budget


def state_of(model: nn.Module) -> ModelState:
    """Return the state of a model, which lives as long as the model does."""
    attributes: dict[str, Any] = vars(model)
    state: ModelState = attributes.setdefault("_opdkit_state", ModelState())
    return state


def budget_of(model: nn.Module, work: str) -> Budget:
    """Return the budget for one kind of work with a model; whoever asks again gets the same one."""
    state = state_of(model)
    return state.budgets.setdefault(work, Budget(work, lockstep=state.lockstep))
