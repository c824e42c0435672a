"""Let the tests of this folder use what helps them: runs under the checker."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
