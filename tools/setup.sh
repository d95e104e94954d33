#!/bin/sh
# Makes .venv with the tested versions and the packages of this clone, editable.
# usage: sh tools/setup.sh PYTHON STAMP     (from the Makefile; STAMP marks a finished environment)
set -eu
python=$1
stamp=$2
started=$(date +%s)

say() { echo "setup: $*" >&2; }
stop() { say "$*"; exit 3; }

command -v "$python" >/dev/null 2>&1 || stop "'$python' not found; install Python 3.11 or newer, or run: make setup PYTHON=/path/to/python3.11"
"$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' ||
    stop "'$python' is $("$python" -V 2>&1); Draftwing needs 3.11 or newer: make setup PYTHON=/path/to/python3.11"
"$python" -c 'import ensurepip, venv' 2>/dev/null ||
    stop "'$python' can't make environments; install its venv module (Debian, Ubuntu: python3-venv)"

say "1/2 environment .venv ($("$python" -V 2>&1))"
# One that was finished in this folder is brought up to date; any other is made anew.
[ -e "$stamp" ] && .venv/bin/python -m pip --version >/dev/null 2>&1 || "$python" -m venv --clear .venv

say "2/2 packages; downloads about 1 GB the first time"
.venv/bin/python -m pip install --disable-pip-version-check -c constraints.txt -e '.[serve,demo,dev]' ||
    stop "pip failed, see above; run make setup again to retry"

seconds=$(($(date +%s) - started))
echo "$seconds" >"$stamp"
say "done in ${seconds} s"
