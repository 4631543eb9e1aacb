"""Skip reasons: why a reply is not trainable, as the column `skip_reason` of the table turns holds them."""

SIDE = "side"
EMPTY = "empty"
TRUNCATED = "truncated"
NO_USER = "no user message"
NO_NEXT = "no next state"
DUPLICATE = "duplicate"
RETRY = "retry"
ABORTED = "aborted"
FORGOTTEN = "forgotten"  # of rows: `opdkit forget` took them out
READ_BEFORE = "read before"  # in a log that grew: an earlier night has the turn, unchanged
