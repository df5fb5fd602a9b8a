#!/usr/bin/env bash
# From a bare Debian 12 or 13 to generated text: installs what is missing, builds, converts the
# bundled checkpoint to INT8 and prints a story. Run it as often as you like.
# The build is for this machine alone: for its GPU if there is one and nvcc, else for the CPU.
set -euo pipefail
cd "$(dirname "$0")/.."
# shellcheck source=scripts/packages.sh
source scripts/packages.sh

programs=build/quickstart
model=build/demo-int8.bin

install_missing "${build_packages[@]}"

if nvidia-smi -L >/dev/null 2>&1; then
  target=(-DFASTSTREAM_CUDA=AUTO -DCMAKE_CUDA_ARCHITECTURES=native)
  echo "==> Building for the CPU and, with nvcc, for the GPU: $(nvidia-smi -L | head -n 1)"
else
  target=(-DFASTSTREAM_CUDA=OFF)
  echo "==> Building for the CPU (there is no NVIDIA driver here)"
fi
if ! said=$(cmake --preset release -B $programs -DCMAKE_UNITY_BUILD=ON \
    "${target[@]}" 2>&1); then
  printf '%s\n' "$said" >&2
  echo "Quickstart failed: CMake could not configure the build in $programs, see above." >&2
  exit 1
fi
if ! cmake --build $programs --target faststream-run faststream-convert faststream-serve; then
  echo "Quickstart failed: the build did." >&2
  exit 1
fi

echo "==> Converting the bundled checkpoint, demo/"
"$programs/faststream-convert" demo -o $model --dtype int8 --force

echo "==> Asking for a story about a fox and a lantern"
"$programs/faststream-run" -m $model --temp 0.5 --seed 4 \
  -p $'User: Tell me a story about a fox and a lantern.\nAssistant:'
echo
echo "Quickstart done. Try next: $programs/faststream-run -m $model" \
  "-p \$'User: What is 128 plus 345?\\nAssistant:'" \
  "or $programs/faststream-serve -m $model and a browser"
