"""Let the tests of the checker use what runs kernels under it."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
