"""Numbers that cross the border to the native core: operations, and the reasons of answers.

Operations are `enum hs_operation` of native/peer/halfstep.h. Reasons are those of docs/wire-protocol.md, section 9, and from 80
on the client's own (native/wire/records.h). tests/unit/test_numbers.py reads those headers.

Plain ints, because every call passes some: a member of an enum takes a second conversion at the border.
"""

OP_MATCH = 1
OP_GET = 2
OP_PUT = 3
OP_DELETE = 4
OP_RELEASE = 5
OP_LIST = 6
OP_STAT = 7
OP_NAMESPACE_CREATE = 8
OP_NAMESPACE_DELETE = 9
OP_TOUCH = 10
OP_HOLD = 11
OP_RENEW = 12
OP_EXPIRE = 13
OP_CLEAR = 14
OP_NAMESPACE_LIMIT = 15
OP_EXPLAIN = 16
OP_PREFETCH = 17

# ok
REASON_STORED = 1
REASON_PRESENT = 2
# miss
REASON_ABSENT = 16
REASON_CORRUPT = 17
REASON_COLLISION = 18
REASON_LENGTH = 19
REASON_SKIPPED = 20
REASON_EXPIRED = 21
# throttled
REASON_PENDING = 32
REASON_LOAD = 33
REASON_BUDGET = 34
REASON_FULL = 35
# rejected
REASON_CHECKSUM = 48
REASON_TOO_LARGE = 49
REASON_POLICY = 50
REASON_UNSUPPORTED = 51
REASON_WRONG_SHARD = 52
REASON_MALFORMED = 53
REASON_UNKNOWN_LAYOUT = 54
REASON_UNKNOWN_NAMESPACE = 55
REASON_VERSION = 56
REASON_LIMIT = 57
REASON_NOT_AUTHENTICATED = 58
REASON_FORBIDDEN = 59
# unavailable, said by the daemon
REASON_STOPPING = 64
REASON_MEDIA = 65
REASON_UPSTREAM = 66
# unavailable, said by the client's own core
REASON_NO_CONNECTION = 80
REASON_OUTCOME_UNKNOWN = 81
REASON_QUEUE_FULL = 82
REASON_FORKED = 83
REASON_CLOSED = 84
REASON_DEADLINE = 85
REASON_PROTOCOL_ERROR = 86
REASON_UNRESPONSIVE = 87
REASON_NO_DESCRIPTORS = 88
REASON_COPY = 89
