"""Limits that both ends enforce: the agent splits before them, the server answers 413 or 422 naming them."""

# One request body. A window is about 1 kB, so a batch of the largest number of records fits four times.
MAX_BODY_BYTES = 1024 * 1024

# Records in one batch: 200 seconds of one node's windows.
MAX_BATCH_RECORDS = 200

# Values of one user metric in one record.
MAX_POINTS_PER_RECORD = 1000

# Names are shown in tables and become labels; nobody reads more.
MAX_NAME_CHARACTERS = 200

# Words that people do not choose: kinds of events, codecs. They are stored in columns of this width.
MAX_WORD_CHARACTERS = 40

# Free text: reasons, messages of events, refusals.
MAX_TEXT_CHARACTERS = 2000

# Plain parameters of one codec, and name patterns that exempt tensors.
MAX_PLAN_PARAMETERS = 16
MAX_EXEMPT_PATTERNS = 64

# A plan travels to all ranks in one broadcast of this size.
MAX_PLAN_BYTES = 16 * 1024

# Ranks that one node may report in one window.
MAX_RANKS_PER_NODE = 256

# Entries of one list or mapping that an attempt or its machines tell of: GPUs, pairs of ranks, metrics.
MAX_ENTRIES = 1024

# Steps, tokens and bytes are stored as signed 64-bit integers.
MAX_INTEGER = 2**63 - 1

# The agent asks for directives with requests held this long, seconds.
LONG_POLL_SECONDS = 25.0

# The agent sends a batch this often, seconds: while somebody watches, and otherwise.
WATCHED_INTERVAL_SECONDS = 1.0
IDLE_INTERVAL_SECONDS = 10.0

# A node is silent after one missed idle interval with slack, and lost after three, seconds since the last receipt.
SILENT_AFTER_SECONDS = 15.0
LOST_AFTER_SECONDS = 35.0
