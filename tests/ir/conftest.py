"""Let the tests of the IR use the programs that `programs.py` builds by hand."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
