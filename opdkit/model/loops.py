"""Loops at the end of a reply: what a broken policy writes until it is cut off."""

import numpy as np
from numpy.typing import NDArray


def ends_in_loop(ids: NDArray[np.int32]) -> bool:
    """Return True if a reply ends in a repeated piece of at most 32 tokens: 4 or more times, 32 or more tokens.

    At most two tokens may follow the loop: white space and a stop token.
    """
    for after in range(min(3, len(ids))):
        for period in range(1, 33):
            length = max(4 * period, 32)
            tail = ids[: len(ids) - after][-length:]
            if len(tail) == length and bool((tail[period:] == tail[:-period]).all()):
                return True
    return False
