#!/usr/bin/env bash
# Tests the Python package, built in a build folder that is configured, without pip, which would fetch
# what builds it:
#
#   scripts/test_python.sh BUILD_FOLDER
#
# The system's Python (or PYTHON) needs nanobind, numpy and pytest; exits with 77 where it lacks one.
set -euo pipefail
cd "$(dirname "$0")/.."
python=${PYTHON:-python3}
if ! "$python" -c 'import nanobind, numpy, pytest' 2>/dev/null; then
  echo "The tests of the Python package are left out: they need nanobind, numpy and pytest for $python."
  exit 77
fi

build=$PWD/$1
package=$build/python-package
cmake -S . -B "$build" -DFASTSTREAM_PYTHON=ON -DPython_EXECUTABLE="$(command -v "$python")" >/dev/null
cmake --build "$build" --target _native faststream-convert faststream-run
rm -rf "$package"
cmake --install "$build" --component python --prefix "$package" >/dev/null
cp python/faststream/* "$package/faststream"
FASTSTREAM_BIN=$build PYTHONPATH=$package "$python" -B -m pytest -q -p no:cacheprovider python/tests
