#!/usr/bin/env bash
# Makes the virtual environment that holds verl, for tests/differential. Does nothing if it is there.
#
#   TQ_VERL_VENV   the folder; .venv-verl in the repository root by default
#   PYTHON         the interpreter to make it with (3.10 to 3.12); python3 by default
set -euo pipefail

here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
venv="${TQ_VERL_VENV:-$here/../../.venv-verl}"
stamp="$venv/.ready"

if cmp --silent "$here/verl-requirements.txt" "$stamp"; then
    exit 0
fi
"${PYTHON:-python3}" -m venv --clear "$venv"
"$venv/bin/python" -m pip install --quiet --requirement "$here/verl-requirements.txt"
"$venv/bin/python" -m pip install --quiet --no-deps verl==0.9.1
"$venv/bin/python" -c 'import verl.protocol'
cp "$here/verl-requirements.txt" "$stamp"
