"""Let the tests of the frontend use each other's helpers."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
