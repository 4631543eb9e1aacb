"""Detection of loops at the end of a reply, which a broken policy repeats until it is cut off."""

import numpy as np
from numpy.typing import NDArray


def ends_in_loop(ids: NDArray[np.int32]) -> bool:
    """Return True if a reply ends in a piece of at most 32 tokens, repeated 4 or more times over 32 or more tokens.

    Up to two tokens may follow the loop, such as white space and a stop token.
    """
    for after in range(min(3, len(ids))):
        for period in range(1, 33):
            length = max(4 * period, 32)
            tail = ids[: len(ids) - after][-length:]
            if len(tail) == length and bool((tail[period:] == tail[:-period]).all()):
                return True
    return False
