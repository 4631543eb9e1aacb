"""Skip reasons: values of the column `skip_reason` of the table turns, why a reply is not trainable."""

SIDE = "side"
EMPTY = "empty"
TRUNCATED = "truncated"
NO_USER = "no user message"
NO_NEXT = "no next state"
DUPLICATE = "duplicate"
RETRY = "retry"
ABORTED = "aborted"
FORGOTTEN = "forgotten"  # a reason for dropped rows, not for replies: `opdkit forget` removed them
READ_BEFORE = "read before"  # in a growing log: an earlier night has the turn, unchanged
COPIES = DUPLICATE, READ_BEFORE  # nothing is lost: the turn was taken elsewhere, such as in an earlier branch
