#!/usr/bin/env bash
# From a bare Debian 12 to generated text: installs what is missing, builds, converts the small
# checkpoint beside the project and prints a story. Run it as often as you like.
# The build is for this machine alone: for its GPU if there is one and nvcc, else for the CPU.
set -euo pipefail
cd "$(dirname "$0")/.."
# shellcheck source=scripts/packages.sh
source scripts/packages.sh

programs=build/quickstart
checkpoint=../shared/models/stories260K
model=build/stories260K.bin
prompt="Once upon a time"

install_missing "${build_packages[@]}"

if nvidia-smi -L >/dev/null 2>&1; then
  target=(-DFASTSTREAM_CUDA=AUTO -DCMAKE_CUDA_ARCHITECTURES=native)
  echo "==> Building for the CPU and, with nvcc, for the GPU: $(nvidia-smi -L | head -n 1)"
else
  target=(-DFASTSTREAM_CUDA=OFF)
  echo "==> Building for the CPU (there is no NVIDIA driver here)"
fi
if ! cmake --preset release -B $programs -DFASTSTREAM_TESTS=OFF "${target[@]}" >/dev/null; then
  echo "Quickstart failed: CMake could not configure the build in $programs." >&2
  exit 1
fi
if ! cmake --build $programs --target faststream-run faststream-convert; then
  echo "Quickstart failed: the build did." >&2
  exit 1
fi

if [[ ! -f $checkpoint/stories260K.bin || ! -f $checkpoint/tok512.bin ]]; then
  echo "Quickstart stopped: FastStream is built in $programs, but there is no checkpoint to run:" \
    "put stories260K.bin and tok512.bin (karpathy/tinyllamas) into $(realpath -m $checkpoint)." >&2
  exit 1
fi

echo "==> Converting stories260K"
"$programs/faststream-convert" $checkpoint/stories260K.bin --tokenizer $checkpoint/tok512.bin \
  -o $model --force

echo "==> Running it"
"$programs/faststream-run" -m $model -p "$prompt" -n 120 --temp 0 --echo
echo
echo "Quickstart done: $programs/faststream-run -m $model -p \"$prompt\" prints another story."
