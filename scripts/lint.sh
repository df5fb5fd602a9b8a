#!/usr/bin/env bash
# clang-format on all of our files; that every CUDA kernel waits for those before it; and clang-tidy
# on all files but the benchmarks, whose library's macros do not pass.
#
# clang-tidy takes most of its time for what the files include, so it gets several files of a folder
# as one. Where they do not compile as one (two use the same name for a helper), it gets each alone.
# Files that were clean are not checked again until one of them, a header or a .clang-tidy changes;
# build/lint remembers.
set -euo pipefail
cd "$(dirname "$0")/.."

mapfile -t sources < <(find main.cpp src models kernels convert tests \
  -name '*.h' -o -name '*.cpp' -o -name '*.cu' -o -name '*.cuh' | sort)
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

mkdir -p build/lint
shared=$(printf '%s\n' "${sources[@]}" | grep '\.h$' |
  xargs cat .clang-tidy tests/.clang-tidy scripts/lint.sh | sha256sum)

# The path-sensitive analysis looks at a third of the states that it would by default, which in
# large functions take half of the time. It takes files that a "UnifiedSource" includes for code,
# not for headers.
tidy() {  # file to check, then the files in it
  local config=.clang-tidy target=()
  [[ $2 == tests/* ]] && config=tests/.clang-tidy
  [[ $2 == kernels/cpu/kernels_* ]] && target=(-march=sapphirerapids)  # for every instruction set
  clang-tidy --quiet --config-file=$config "$1" -- -std=c++20 -pthread -DNDEBUG "${target[@]}" \
    -DFASTSTREAM_VERSION='"0"' -I"$PWD" -I"$PWD/src" -I"$PWD/tests" \
    -Xclang -analyzer-config -Xclang max-nodes=75000
}

check() {  # files of one folder
  local name key one log file
  name=$(tr / - <<<"$1")
  key=$(cat "$@" <(echo "$shared $*") | sha256sum | cut -d' ' -f1)
  [[ -e build/lint/$key ]] && return
  one=build/lint/UnifiedSource-$name
  log=build/lint/$name.log
  printf "#include \"$PWD/%s\"  // NOLINT(bugprone-suspicious-include)\n" "$@" >"$one"
  if ! tidy "$one" "$@" >"$log" 2>&1; then
    if (($# == 1)) || ! grep -q 'clang-diagnostic-error' "$log"; then
      cat "$log"
      return 1
    fi
    for file in "$@"; do check "$file" || return; done
  fi
  touch "build/lint/$key"
}

export -f check tidy
export shared

# At most so many files of a folder at a time; fuzzers all define the same function.
mapfile -t groups < <(printf '%s\n' "${sources[@]}" | grep '\.cpp$' | grep -v '^tests/bench/' |
  awk '{
    folder = $0; sub("[^/]*$", "", folder)
    kind = $0 ~ "kernels/cpu/kernels_" || $0 ~ "tests/fuzz/" ? $0 : folder
    if (kind != last || n == 12) { if (group) print group; group = ""; n = 0 }
    group = group (n ? " " : "") $0; n++; last = kind
  } END { print group }')
echo "==> clang-tidy: ${#groups[@]} groups of files"
# shellcheck disable=SC2016  # the inner shell expands $1
if ! printf '%s\0' "${groups[@]}" |
  xargs -0 -n 1 -P "$(nproc)" bash -c 'check $1' check; then
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
