#!/usr/bin/env bash
# Builds the wheel, installs it into a fresh virtual environment and runs the tests and the documentation's examples there.
#   wheel_test.sh LIBTESSERA_C SOURCE_DIR
# PYTHON names the interpreter (python3). If it has torch, the environment sees its packages, and what needs torch and transformers
# is tested, too; else that is skipped, and said. Without numpy from PyPI or from the interpreter all is skipped (77).
set -euo pipefail
library=$1
source=$2
python=${PYTHON:-python3}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

"$python" "$source/python/build_wheel.py" --library "$library" --out "$work"
wheel=$(echo "$work"/tessera-*-py3-none-manylinux_*.whl)
[[ -f $wheel ]]

site=()
if "$python" -c "import torch" 2>/dev/null; then site=(--system-site-packages); fi
"$python" -m venv "${site[@]}" "$work/venv"
install=("$work/venv/bin/python" -m pip --disable-pip-version-check install --quiet)
if ! "${install[@]}" "$wheel"; then
  "$python" -c "import numpy" || { echo "SKIPPED: numpy can't be had from PyPI, and $python has none"; exit 77; }
  echo "numpy can't be had from PyPI; taking $python's"
  "$python" -m venv --clear --system-site-packages "$work/venv"
  "${install[@]}" --no-index "$wheel"
fi

# Nothing of this checkout but the tests; the environment's own package.
cd "$work"
export TESSERA_SOURCE_DIR=$source
unset PYTHONPATH TESSERA_C_LIBRARY
"$work/venv/bin/python" -m unittest discover -s "$source/tests/python" -p '*_test.py' -t "$source/tests/python" 2>&1 | tee "$work/log"
if grep -q "skipped=" "$work/log"; then
  echo "SKIPPED in part: $(grep -oE 'skipped=[0-9]+' "$work/log") tests need torch or transformers, which $python lacks"
fi
