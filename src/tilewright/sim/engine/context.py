"""Where the state of a CTA lies in memory: the context, its paths and frames.

May import nothing. All fields are 64-bit words; native code and Python share the layout.
"""

from __future__ import annotations

# Addresses of shared memory as a kernel sees them start here: the chip reserves the first KiB.
SHARED_START = 1024
# Generic addresses of shared memory; host addresses lie far below.
SHARED_WINDOW = 1 << 56
LANES = 32
WARPS = 32
PATHS = 32
BARRIERS = 16

# The functions of which a chip's results are tabulated, and the fields that say where.
TABLES = {name: f"table.{name}" for name in ("exp2", "log2", "rcp", "rsqrt", "sqrt")}

_FIELDS = (
    "shared",  # host address of the CTA's shared memory
    "shared_size",
    "parameters",  # host address of the arguments, one word each
    "regions",  # host address of (low, high, writable) per global allocation
    "region_count",
    "hints",  # host address of one region number per site
    "stop",  # host address of a word that is not zero when the launch must end
    "steps",  # back-edges until the next look at `stop`
    "turns",  # back-edges left after those, before the step limit
    "error",  # number of the fault's message, 0 for none
    "error_site",
    "error_lane",
    "error_warp",
    "error_address",
    "acting",  # 1 + the lane that code runs for, 0 where code runs for several lanes
    "progress",  # counts what other paths could notice
    "schedule",
    "random",
    "elections",  # what the seed makes of elections, the same for each that is of the same lanes
    "give_up",  # the next wait that may give up does so
    "generous",  # each path may give up one wait in its turn
    "queue",  # host address of the asynchronous operations in flight
    "queue_head",
    "queue_tail",
    "print_buffer",
    "print_used",
    "print_size",
    "drain",  # host function that empties the print buffer
    "paths",
    "frames",
    "dummy",  # host address of bytes that inactive lanes may touch
    "warp",  # the warp that runs
    "live_warps",
    "exited_warps",
    "idle_rounds",
    "passed_over",  # rounds without progress in which chance passed over a path
    "together",  # set when CTAs may see one another: a stuck CTA is not yet a deadlock
    "clock",
    "landed",
    "tmem",  # host address of Tensor Memory, column after column of 128 cells
    "tmem_columns",  # bit i: columns 32·i to 32·i + 31 are allocated
    "tmem_starts",  # bit i: an allocation begins at column 32·i
    "tmem_permit",  # 1 once the permit to allocate has been given up
    "scratch",  # host address of memory for the operands of a product
    "flight",  # host address of the arenas of instructions whose registers are touched late
    "groups",  # host address of how many groups of each kind each thread has made, 32 bits each
    "rows",  # host address of the operands that operations have per lane, a block per record
    "staging",  # host address of what operations have read and not yet written
    "staging_size",
    "staging_used",
    "staged",  # how many operations have
    "tally",  # host address of (expected, come) bytes per mbarrier, 32 bits each, for reports
    "check",  # host address of the checker's clocks, and of its shadow of
    "check_shadow",  # shared memory,
    "check_written",  # which of its bytes were ever written,
    "check_hidden",  # what stands behind atomic accesses to it,
    "check_lines",  # what is known of whole lines of it,
    "check_slots",  # the numbers of its mbarriers,
    "check_cells",  # Tensor Memory, and what it has touched of
    "check_log",  # global memory,
    "check_moments",  # what warps knew then, and
    "check_signals",  # what they have told other CTAs
    "trace",  # host address of the events of a timeline
    "cluster",  # host address of what the CTAs of the cluster share
    "path_words",  # words of a path's record
    "levels",  # words in it for the lanes that meet at the end of constructs
    "frame_bytes",  # bytes of a warp's frame
    *TABLES.values(),  # host addresses
    *(f"{name}.{axis}" for name in ("ctaid", "nctaid", "ntid") for axis in "xyz"),
    *(f"{name}.{axis}" for name in ("clusterid", "nclusterid") for axis in "xyz"),
    *(f"{name}.{axis}" for name in ("cluster_ctaid", "cluster_nctaid") for axis in "xyz"),
)
FIELD = {name: index for index, name in enumerate(_FIELDS)}
_AFTER = len(_FIELDS)

BARRIER_FIELDS = ("arrived", "expected", "counted", "generation", "reducing", "reduced")
BARRIER_START = _AFTER
# One word for each warp: lanes that returned, lanes that exist, path slots in use, and the
# state that instructions know of.
WARP_FIELDS = ("exited", "lanes", "used", "cluster_arrived", "cluster_parity")
WARP_START = BARRIER_START + BARRIERS * len(BARRIER_FIELDS)
EXITED_START, LANES_START, USED_START = (WARP_START + WARPS * field for field in range(3))
CONTEXT_WORDS = WARP_START + len(WARP_FIELDS) * WARPS

CLUSTER_FIELDS = ("generation", "arrived", "expected", "threads", "exited")
CLUSTER = {name: index for index, name in enumerate(CLUSTER_FIELDS)}

TMEM_LANES = 128
TMEM_COLUMNS = 512
SCRATCH_BYTES = 1 << 16

SCHEDULES = {"late": 0, "eager": 1, "random": 2}

# A path's record: these words, then one word per join level, then its scalars.
PATH_FIELDS = ("state", "lanes", "resume", "wait", "key", "need", "site", "detail")
PATH = {name: index for index, name in enumerate(PATH_FIELDS)}
PATH_HEAD = len(PATH_FIELDS)

READY, BLOCKED, POLLING, JOINING, GATHERING = range(1, 6)
WAITS = ("none", "mbarrier", "barrier", "group", "columns", "warp", "time", "cluster")

# A queued operation: these words, then its operands. `group` is the kind, counted from 1, or 0;
# `taken` the host address of what it has read, or 0, and `run` where that lay and how long it is.
# `agent` is the function that lands it, 0 once it has, `reader` the one that says what it reads.
RECORD_FIELDS = (
    *("agent", "reader", "barrier", "site", "flags"),
    *("group", "warp", "lanes", "number", "taken", "run"),
)
RECORD = {name: index for index, name in enumerate(RECORD_FIELDS)}
RECORD_HEAD = len(RECORD_FIELDS)
RECORD_WORDS = 24
QUEUE_RECORDS = 256
ROW_BYTES = 256  # of an operand of 32 lanes
ROWS = 4  # operands of 32 lanes that an operation may have

FINISHED, SUSPENDED, STOPPED = range(3)  # what a path's code returns
DONE, FAULTED, STUCK = range(3)  # what running a CTA returns

DUMMY_BYTES = 4096
STEP_QUANTUM = 1 << 16
IDLE_LIMIT = 10_000
PATIENCE = 40
