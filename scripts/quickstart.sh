#!/usr/bin/env bash
# From a bare Debian 12 to generated text: installs what is missing, builds, converts the small
# checkpoint beside the project and prints a story. Run it as often as you like.
#
#   FASTSTREAM_PRESET=release-sm90 scripts/quickstart.sh     another CMake preset than release
set -euo pipefail
cd "$(dirname "$0")/.."
# shellcheck source=scripts/packages.sh
source scripts/packages.sh

preset=${FASTSTREAM_PRESET:-release}
programs=build/$preset
checkpoint=../shared/models/stories260K
model=build/quickstart/stories260K.bin
prompt="Once upon a time"

install_missing "${build_packages[@]}"

echo "==> Building (preset $preset)"
if ! cmake --preset "$preset" -DFASTSTREAM_TESTS=OFF >/dev/null; then
  echo "Quickstart failed: CMake could not configure the preset $preset." >&2
  exit 1
fi
if ! cmake --build --preset "$preset" --target faststream-run faststream-convert; then
  echo "Quickstart failed: the build did." >&2
  exit 1
fi

if [[ ! -f $checkpoint/stories260K.bin || ! -f $checkpoint/tok512.bin ]]; then
  echo "Quickstart stopped: FastStream is built in $programs, but there is no checkpoint to run:" \
    "put stories260K.bin and tok512.bin (karpathy/tinyllamas) into $(realpath -m $checkpoint)." >&2
  exit 1
fi

echo "==> Converting stories260K"
mkdir -p "$(dirname $model)"
"$programs/faststream-convert" $checkpoint/stories260K.bin --tokenizer $checkpoint/tok512.bin \
  -o $model --force

echo "==> Running it"
"$programs/faststream-run" -m $model -p "$prompt" -n 120 --temp 0 --echo
echo
echo "Quickstart done: $programs/faststream-run -m $model -p \"$prompt\" prints another story."
