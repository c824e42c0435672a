"""Let the tests of passes use each other's helpers, and the programs that `tests/ir` builds."""

import sys
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[1] / "ir")]
