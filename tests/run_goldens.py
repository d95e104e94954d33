"""Check our numbers against the golden cases; `make goldens [KINDS=...]` runs this.

Exit code 0: all that ran passed; 1: a case failed; 2: usage.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from draftwing.errors import ConfigError
from draftwing.testing.goldens.run import FAIL, case_folders, goldens_folder, run_case, select, table

HERE = Path(__file__).resolve().parent


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="run_goldens.py", description="Run golden cases. DRAFTWING_GOLDENS names another folder of cases."
    )
    parser.add_argument("kinds", nargs="*", metavar="KIND", help="kinds or case names, patterns allowed; default: all")
    wanted = parser.parse_args(arguments).kinds
    try:
        folders = select(case_folders(goldens_folder(HERE / "goldens")), wanted)
    except ConfigError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    results = [run_case(folder) for folder in folders]
    print(table(results))
    return int(any(result.status == FAIL for result in results))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
