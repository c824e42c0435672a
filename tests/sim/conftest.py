"""Let the tests of the simulator use the random kernels that a helper makes."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
