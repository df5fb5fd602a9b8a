#!/usr/bin/env bash
# clang-format on all of our files; that every CUDA kernel waits for those before it; and clang-tidy
# on all files but the benchmarks, whose library's macros do not pass.
#
# clang-tidy takes most of its time for what the files include, so it gets the files of a folder as
# one. Files that were clean are not checked again until one of them, a header or a .clang-tidy
# changes; build/lint remembers.
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

# The flags that a file of ours is compiled with, for Clang.
flags() {  # file
  printf '%s\n' -std=c++20 -pthread -DNDEBUG -DFASTSTREAM_VERSION='"0"' \
    -I"$PWD" -I"$PWD/src" -I"$PWD/tests"
  if [[ $1 == kernels/cpu/kernels_* ]]; then echo -march=sapphirerapids; fi  # every instruction set
}

# The path-sensitive analysis looks at a third of the states that it would by default, which in
# large functions take half of the time. What a "UnifiedSource" includes it takes for code, not for
# headers.
check() {  # files of a folder
  local key one log config=.clang-tidy compile apart together
  key=$(cat "$@" <(echo "$shared $*") | sha256sum | cut -d' ' -f1)
  [[ -e build/lint/$key ]] && return
  one=build/lint/UnifiedSource-$(tr / - <<<"$1")
  log=build/lint/$key.log
  printf "#include \"$PWD/%s\"  // NOLINT(bugprone-suspicious-include)\n" "$@" >"$one"
  mapfile -t compile < <(flags "$1")

  if [[ $1 == tests/* ]]; then
    config=tests/.clang-tidy
    if (($# > 1)); then  # tests that use the same names for their helpers are checked apart
      mapfile -t apart < <(clang++ -fsyntax-only -ferror-limit=0 "${compile[@]}" "$one" 2>&1 |
        sed -n "s|^$PWD/\(tests/[^:]*\.cpp\):.* error: .*|\1|p" | sort -u)
      if ((${#apart[@]} > 0)); then
        mapfile -t together < <(printf '%s\n' "$@" "${apart[@]}" | sort | uniq -u)
        if ((${#together[@]} == 0)); then together=("$1") apart=("${@:2}"); fi
        check "${together[@]}" && check "${apart[@]}"
        return
      fi
    fi
  fi

  if ! clang-tidy --quiet --config-file=$config "$one" -- "${compile[@]}" \
    -Xclang -analyzer-config -Xclang max-nodes=75000 >"$log" 2>&1; then
    cat "$log"
    return 1
  fi
  touch "build/lint/$key"
}

export -f check flags
export shared

# Kernels of an instruction set, and fuzzers, which all define the same function, go one by one.
mapfile -t groups < <(printf '%s\n' "${sources[@]}" | grep '\.cpp$' | grep -v '^tests/bench/' |
  awk '{
    group = $0
    if (!/kernels_|_fuzz/) sub("/[^/]*$", "", group)
    if (group == last && n < 24) { line = line " " $0; n++ }
    else { if (line) print line; line = $0; n = 1 }
    last = group
  } END { print line }')
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
