#!/usr/bin/env bash
# clang-format on all of our files; that every CUDA kernel waits for those before it; that no name is
# of two types in files that are linked; and clang-tidy on all files but the benchmarks, whose library's
# macros do not pass.
#
# clang-tidy takes much of its time for what the files include, so it gets a whole room of them as
# one. Rooms that were clean are not checked again until one of their files, a header or a .clang-tidy
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

# Whether types of two files have one name: no compiler sees both, and a program takes either for the
# other. Of named namespaces, as clang-format writes them.
# shellcheck disable=SC2016  # awk expands $0
same_definitions() {
  printf '%s\n' "${sources[@]}" | grep -v '^tests/' | xargs awk '
    FNR == 1 { depth = 0 }
    { sub(/; *\/\/.*/, ";") }
    /^(inline )?namespace .*\{$/ { spaces[++depth] = $2 }
    /^\}  \/\/ namespace/ { --depth }
    /^(struct|class|union|enum|enum class) [A-Za-z_]/ && (/\{/ || !/;$/) {
      name = $0
      sub(/^enum class /, "enum ", name)
      sub(/^[a-z]+ (alignas\([^)]*\) |__align__\([^)]*\) )?/, "", name)
      if (match(name, /^[A-Za-z_0-9:]+/) == 0) next
      if (substr(name, RLENGTH + 1, 1) == "<") next  # a specialization
      name = substr(name, 1, RLENGTH)
      for (i = depth; i > 0; --i) {
        if (spaces[i] == "{") next  # nobody else sees it
        name = spaces[i] "::" name
      }
      if (name in at && at[name] != FILENAME) {
        printf "%s:%d: %s has another definition in %s\n", FILENAME, FNR, name, at[name]
        twice = 1
      }
      at[name] = FILENAME
    }
    END { exit twice }' >&2
}

# With every instruction set that kernels are written for. The path-sensitive analysis leaves a
# function after a fourteenth of the states that it would look at by default: it takes first what it
# has not seen yet, and the rest is what takes most of the time.
flags() {
  printf '%s\n' -std=c++20 -pthread -DNDEBUG -DFASTSTREAM_VERSION='"0"' \
    -DBOOST_ASIO_NO_DEPRECATED -DBOOST_ASIO_SEPARATE_COMPILATION \
    -I"$PWD" -I"$PWD/src" -I"$PWD/tests" -march=sapphirerapids \
    -Xclang -analyzer-config -Xclang max-nodes=16000
}

# One source that includes the files, each with an entry point of its own. What a "UnifiedSource"
# includes clang-tidy takes for code, not for headers.
unify() {  # files
  local i=0 file
  for file in "$@"; do
    i=$((i + 1))
    printf '#define main main_%d\n' $i
    printf '#include "%s/%s"  // NOLINT(bugprone-suspicious-include)\n' "$PWD" "$file"
    printf '#undef main\n'
  done
}

check() {  # files
  local key one log config=.clang-tidy compile apart together
  key=$(cat "$@" <(echo "$shared $*") | sha256sum | cut -d' ' -f1)
  [[ -e build/lint/$key ]] && return
  one=build/lint/UnifiedSource-$(tr / - <<<"$1")
  log=build/lint/$key.log
  unify "$@" >"$one"
  mapfile -t compile < <(flags)
  if [[ $1 == tests/* ]]; then config=tests/.clang-tidy; fi
  if clang-tidy --quiet --config-file=$config "$one" -- "${compile[@]}" >"$log" 2>&1; then
    touch "build/lint/$key"
    return
  fi
  # Files that use the same names for their helpers are checked apart.
  mapfile -t apart < <(sed -n "s|^$PWD/\([^:]*\.cpp\):.*\[clang-diagnostic-error.*|\1|p" "$log" | sort -u)
  mapfile -t together < <(printf '%s\n' "$@" "${apart[@]}" | sort | uniq -u)
  if ((${#apart[@]} == 0 || $# == 1)); then
    cat "$log"
    return 1
  fi
  if ((${#together[@]} == 0)); then together=("$1") apart=("${@:2}"); fi
  check "${together[@]}" && check "${apart[@]}"
}

export -f check flags unify
export shared

echo "==> one definition of each name"
if ! same_definitions; then
  echo "Lint failed: a name has two definitions, see above." >&2
  exit 1
fi

# Files whose includes have much in common go together, and what specializes templates comes first.
mapfile -t groups < <(printf '%s\n' "${sources[@]}" | grep '\.cpp$' | grep -v '^tests/bench/' |
  awk '{
    if (/^tests\/unit/) room = "unit"
    else if (/^tests/) room = "tests"
    else if (/^convert/) room = "convert"
    else if (/^kernels/) room = "kernels"
    else if (/^src\/(support|text)/) room = "text"
    else if (/^src\/(api|server)/) room = "server"
    else if (/^(main|src\/bench|src\/cli|src\/program)/) room = "programs"
    else room = "engine"
    files[room] = files[room] " " $0
  } END { for (room in files) print substr(files[room], 2) }')
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
