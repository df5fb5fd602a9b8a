#!/usr/bin/env bash
# Checks a Debian package of FastStream without installing it: unpacks it into build/, runs the programs
# from there and builds a program with its library. Prints what differs; nothing outside build/ changes.
#
#   tests/install/check_package.sh build/release/faststream_0.1.0_amd64.deb
set -euo pipefail
(($# == 1)) || { sed -n '2,5s/^# \{0,1\}//p' "$0" >&2; exit 2; }
package=$(realpath "$1")
cd "$(dirname "$0")/../.."
at=$PWD/build/install-check
programs=(faststream-run faststream-convert faststream-serve faststream-bench)

fail() {
  echo "$package: $1" >&2
  exit 1
}

field() { dpkg-deb -f "$package" "$1"; }

check_contents() {
  local file files=(usr/lib/libfaststream.a usr/lib/cmake/faststream/faststream-config.cmake
    usr/include/faststream/engine/engine.h
    usr/lib/systemd/system/faststream-serve.service usr/share/zsh/vendor-completions/_faststream)
  for file in "${programs[@]}"; do
    files+=("usr/bin/$file" "usr/share/man/man1/$file.1"
      "usr/share/bash-completion/completions/$file" "usr/share/fish/vendor_completions.d/$file.fish")
  done
  for file in "${files[@]}"; do
    [[ -e $at/$file ]] || fail "has no $file"
  done
}

# The packages that hold the libraries which the programs ask for, as dpkg knows them, are the
# dependencies, and no others.
check_dependencies() {
  local needed depends
  depends=$(field Depends | sed 's/, /\n/g; s/ ([^)]*)//g' | sort -u)
  needed=$(for program in "${programs[@]}"; do libraries_of "$at/usr/bin/$program"; done |
    sort -u | xargs dpkg-query -S | sed 's/:.*//' | sort -u)
  [[ $depends == "$needed" ]] ||
    fail "depends on
$depends
but its programs need
$needed"
}

# The libraries that a program names itself, not those that they need in turn, as patterns of the files
# that packages list: */x86_64-linux-gnu/libm.so.6.
libraries_of() {  # program
  local name
  objdump -p "$1" | sed -n 's/^ *NEEDED *//p' | while read -r name; do
    ldd "$1" | awk -v name="$name" '$1 == name {
      n = split($3, part, "/"); print "*/" part[n - 1] "/" part[n] }'
  done
}

check_version() {
  local version program
  version=$(field Version)
  for program in "${programs[@]}"; do
    [[ $("$at/usr/bin/$program" --version) == "faststream $version" ]] ||
      fail "has version $version, but $program --version says something else"
  done
  [[ $(sed -n 's/^## \([^ ]*\).*/\1/p' CHANGELOG.md | head -n 1) == "$version" ]] ||
    fail "has version $version, which is not the first of CHANGELOG.md"
}

# Programs find libraries by the system's rules alone, not where they were built.
check_search_paths() {
  local program
  for program in "${programs[@]}"; do
    if objdump -p "$at/usr/bin/$program" | grep -E 'RPATH|RUNPATH'; then
      fail "$program has a search path for libraries"
    fi
  done
}

# Of an inline function that several files have the linker keeps one copy, for all: none may come from
# a file that is compiled for newer processors than any x86-64.
check_instruction_sets() {
  local inline
  inline=$(nm -A "$at/usr/lib/libfaststream.a" 2>/dev/null | grep -E ':kernels_a[^:]*:.* [WVu] ' || true)
  [[ -z $inline ]] || fail "has functions for new processors alone that old ones may run: $inline"
}

# The same answer by each instruction set that this processor has.
use_instruction_sets() {
  local isa
  for isa in portable avx2 avx_vnni avx512 avx512_vnni avx512_bf16 amx; do
    FASTSTREAM_MAX_CPU_ISA=$isa "$at/usr/bin/faststream-run" -m "$at/model.bin" --device cpu --temp 0 \
      -n 8 -p the >"$at/answer-$isa"
    cmp "$at/answer-portable" "$at/answer-$isa" || fail "answers something else with $isa"
  done
}

use_library() {
  cmake -S tests/install -B "$at/build" -G Ninja -DCMAKE_PREFIX_PATH="$at/usr" \
    -DCMAKE_BUILD_TYPE=Release -DCMAKE_COMPILE_WARNING_AS_ERROR=ON >/dev/null
  cmake --build "$at/build"
  "$at/usr/bin/faststream-convert" tests/golden/gqa -o "$at/model.bin" --quiet
  "$at/build/consumer" "$at/model.bin" "the" | grep .
}

rm -rf "$at"
dpkg-deb -x "$package" "$at"
check_contents
check_dependencies
check_version
check_search_paths
check_instruction_sets
use_library
use_instruction_sets
