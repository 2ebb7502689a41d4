#!/usr/bin/env bash
# install.sh PYTHON VENV: make the virtual environment and install Gradwire into it, editable, with what CI pins.
set -euo pipefail
python=$1 venv=$2
here=$(cd "$(dirname "$0")" && pwd)

"$python" - <<'PY'
import sys
if sys.version_info < (3, 11):
    sys.exit(f"Gradwire needs Python 3.11 or newer; {sys.executable} is {sys.version.split()[0]}")
PY
PYTHON=$python bash "$here/system.sh" build
[ -x "$venv/bin/pip" ] || "$python" -m venv "$venv"

# A torch that is already there and new enough stays: on a GPU machine it is the build that fits the driver, and it
# brought the Triton that fits the build.
pins=$(mktemp)
trap 'rm -f "$pins"' EXIT
if "$venv/bin/python" "$here/has_torch.py"; then
  grep -vE '^(torch|triton)==' "$here/dev.txt" >"$pins"
else
  cp "$here/dev.txt" "$pins"
fi
"$venv/bin/pip" install --quiet --disable-pip-version-check -r "$pins"
"$venv/bin/pip" install --quiet --disable-pip-version-check --editable "$here/..[dev]"
