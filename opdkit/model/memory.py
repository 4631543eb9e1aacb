"""What to do when a batch does not fit into memory: half as much at once, from now on; and what is alone is set aside.

Nothing here knows what a batch is made of. `tried` says that work did not fit, and has let go of what it held; a
`Budget` remembers what did not; `in_batches` is the loop over items that most callers need.
"""

import gc
from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar
from weakref import WeakKeyDictionary

import torch
from torch import nn

from opdkit.console import warn
from opdkit.errors import OpdkitError

T = TypeVar("T")

TOO_LARGE = "does not fit into memory"  # the reason of what is set aside

# What allocators say where they raise a plain RuntimeError: torch's on a CPU, CUDA and cuBLAS below torch's own cache,
# oneDNN. The C++ library's bad_alloc is a MemoryError in some places and a RuntimeError in others.
_WORDS = ("DefaultCPUAllocator: can't allocate", "not enough memory", "CUDA error: out of memory", "std::bad_alloc",
          "CUBLAS_STATUS_ALLOC_FAILED", "could not create a memory")  # fmt: skip


class TooLargeError(OpdkitError, MemoryError):
    """One item does not fit into memory, alone. Out of memory for whoever can set it aside, else the end of the run."""

    def __init__(self, what: str, remedy: str) -> None:
        super().__init__(f"{what} {TOO_LARGE}, alone: {remedy}, or a machine with more memory")


class OutOfMemory:
    """In place of a result: there was not enough memory for it."""


_lockstep = False


def in_lockstep() -> None:
    """From now on memory that runs out is an error: this process must do what others do, and they may have had room."""
    global _lockstep
    _lockstep = True


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error says that memory ran out, on a GPU or on the CPU."""
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    return isinstance(error, RuntimeError) and any(words in str(error) for words in _WORDS)


def run_or_out_of_memory(work: Callable[[], T]) -> T | OutOfMemory:
    """What `work` returns; NoRoom where memory ran out, of which none is held any more. Other errors go through."""
    try:
        return work()
    except Exception as error:
        if not is_out_of_memory(error):
            raise
        if _lockstep:
            raise TooLargeError("a batch", "with --tensor-parallel it cannot be made smaller on the way; lower "
                                "--batch-tokens") from error  # fmt: skip
    # Here and not above: as long as the error is handled, its traceback keeps every tensor of the failed work.
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
    return OutOfMemory()


class Budget:
    """Tokens at once: as many as asked for, but no more than half of the fewest that did not fit."""

    def __init__(self, what: str) -> None:
        self.what, self.most = what, float("inf")

    def within(self, tokens: int) -> int:
        """`tokens`, or fewer where that would not fit."""
        return int(min(tokens, self.most))

    def halve(self, tokens: int) -> None:
        """So many tokens at once did not fit."""
        if tokens // 2 < self.most:
            self.most = max(1, tokens // 2)
            warn(f"{self.what}: {tokens:,} tokens at once do not fit into memory; going on with {self.most:,}")


_budgets: WeakKeyDictionary[nn.Module, dict[str, Budget]] = WeakKeyDictionary()


def budget_of(model: nn.Module, what: str) -> Budget:
    """What is known, in this process, of how much one kind of work with a model may take."""
    return _budgets.setdefault(model, {}).setdefault(what, Budget(what))


def in_batches(
    budget: Budget,
    lengths: Sequence[int],
    tokens: int,
    group: Callable[[Sequence[int], int], Sequence[list[int]]],
    work: Callable[[list[int]], T],
) -> Iterator[tuple[list[int], T | OutOfMemory]]:
    """Each batch of items, as their indices, with what `work` makes of it; NoRoom for one item that is too large alone.

    `group` makes batches of lengths within a number of tokens, of which the longest item times the items count.
    """
    waiting = list(range(len(lengths)))
    while waiting:
        done = set[int]()
        for some in group([lengths[i] for i in waiting], budget.within(tokens)):
            batch = [waiting[k] for k in some]
            found = run_or_out_of_memory(lambda: work(batch))  # noqa: B023  called at once
            if isinstance(found, OutOfMemory) and len(batch) > 1:
                budget.halve(len(batch) * max(lengths[i] for i in batch))
                break
            done.update(batch)
            yield batch, found
        waiting = [i for i in waiting if i not in done]
