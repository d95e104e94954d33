"""Check our numbers against the golden cases; `make goldens [KINDS=...]` runs this.

usage: python tests/run_goldens.py [KIND ...]     (DRAFTWING_GOLDENS: another folder of cases)
"""

import sys
from pathlib import Path

from draftwing.testing.goldens.run import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], Path(__file__).resolve().parent / "goldens"))
