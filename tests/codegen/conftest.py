"""Let the tests of the CUDA backend use the kernels that `lowered.py` builds."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
