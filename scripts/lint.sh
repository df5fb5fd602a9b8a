#!/usr/bin/env bash
# clang-format on all of our files; that every CUDA kernel waits for those before it; and clang-tidy
# on all files but the benchmarks, whose library's macros do not pass. A file that was clean is not
# checked by clang-tidy again until it, a header or a .clang-tidy changes; build/lint remembers.
#
#   scripts/lint.sh [BUILD]      BUILD: a configured build folder (build/release-sm90)
set -euo pipefail
cd "$(dirname "$0")/.."
build=${1:-build/release-sm90}

mapfile -t sources < <(find main.cpp src models kernels convert tests \
  -name '*.h' -o -name '*.cpp' -o -name '*.cu')
echo "==> clang-format: ${#sources[@]} files"
formatted=1
clang-format --dry-run -Werror "${sources[@]}" || formatted=0

# Kernels start while the one before them ends; one that does not wait reads too early (queue.h).
waiting=1
for file in kernels/cuda/*.cu kernels/cuda/*/*.cu; do
  kernels=$(grep -c '__global__' "$file" || true)
  waits=$(grep -cE '(begin_kernel|wait_for_inputs)\(\);' "$file" || true)
  if ((kernels != waits)); then
    echo "$file has $kernels kernels, but calls begin_kernel() or wait_for_inputs() $waits times." >&2
    waiting=0
  fi
done

if [[ ! -f $build/compile_commands.json ]]; then
  echo "Lint failed: $build has no compile_commands.json; configure it with CMake first." >&2
  exit 1
fi
mapfile -t units < <(sed -n 's/^ *"file": "\(.*\.cpp\)",*$/\1/p' "$build/compile_commands.json" |
  grep -F "$PWD/" | grep -v -e "^$PWD/build/" -e "^$PWD/tests/bench/" | sort -u)
headers=$(printf '%s\n' "${sources[@]}" | grep '\.h$' | sort | xargs cat .clang-tidy tests/.clang-tidy | sha256sum)
mkdir -p build/lint

check_unit() {  # file
  local key log
  key=$(cat "$1" <(echo "$headers $1") | sha256sum | cut -d' ' -f1)
  [[ -e build/lint/$key ]] && return
  log=$(mktemp build/lint/log.XXXXXX)
  # The path-sensitive analysis looks at a third of the states that it would by default, which in
  # large functions take half of the time.
  if clang-tidy -p "$build" --quiet --extra-arg=-Wno-unknown-warning-option \
    --extra-arg=-Xclang --extra-arg=-analyzer-config --extra-arg=-Xclang --extra-arg=max-nodes=75000 \
    "$1" >"$log" 2>&1; then
    touch "build/lint/$key"
    rm -f "$log"
  else
    cat "$log"
    rm -f "$log"
    return 1
  fi
}
export -f check_unit
export headers build

echo "==> clang-tidy: ${#units[@]} files"
# shellcheck disable=SC2016  # the inner shell expands $1
if ! printf '%s\0' "${units[@]}" | xargs -0 -n 1 -P "$(nproc)" bash -c 'check_unit "$1"' check; then
  echo "Lint failed: clang-tidy has findings, listed above." >&2
  exit 1
fi
if ((formatted == 0)); then
  echo "Lint failed: clang-format would change files, listed above; run clang-format -i on them." >&2
  exit 1
fi
if ((waiting == 0)); then
  echo "Lint failed: a CUDA kernel does not wait for those before it, see above." >&2
  exit 1
fi
echo "Lint passed."
