#!/usr/bin/env bash
# Builds and tests everything: all tests in release and under the address and undefined-behaviour
# sanitizers, those of threads under ThreadSanitizer, the fuzzers for half a minute each, lint, and a
# program that uses the installed library. The last line counts results.
#
#   FASTSTREAM_FUZZ_SECONDS=600 scripts/test.sh     longer fuzzing
set -euo pipefail
cd "$(dirname "$0")/.."
# shellcheck source=scripts/packages.sh
source scripts/packages.sh

preset=release-sm90
fuzz_seconds=${FASTSTREAM_FUZZ_SECONDS:-30}
passed=0 failed=0 skipped=0
failures=()

title() { printf '\n==> %s (%d:%02d)\n' "$1" $((SECONDS / 60)) $((SECONDS % 60)); }

# check TITLE COMMAND...: one result.
check() {
  title "$1"
  if "${@:2}"; then
    passed=$((passed + 1))
  else
    failed=$((failed + 1))
    failures+=("$1")
    return 1
  fi
}

build() {  # preset, then options of cmake
  cmake --preset "$@" >/dev/null && cmake --build --preset "$1"
}

# All tests of a build folder, each one result.
run_tests() {  # preset
  local report=$PWD/build/$1/tests.xml suite total bad left_out
  rm -f "$report"
  title "Tests, $1"
  ctest --test-dir "build/$1" --output-on-failure -j "$(nproc)" --output-junit "$report" || true
  suite=$(grep -m 1 -A 6 '<testsuite' "$report" 2>/dev/null | tr '\n\t' '  ' || true)
  count() { sed -n "s/.* $1=\"\([0-9]*\)\".*/\1/p" <<<"$suite"; }
  total=$(count tests) bad=$(count failures)
  left_out=$(($(count skipped) + $(count disabled)))
  if ((${total:-0} == 0)); then
    failed=$((failed + 1))
    failures+=("Tests, $1: none ran")
    return
  fi
  passed=$((passed + total - bad - left_out))
  failed=$((failed + bad))
  skipped=$((skipped + left_out))
  if ((bad > 0)); then failures+=("Tests, $1: $bad of $total"); fi
}

# One fuzzer on its seeds; what it learns is kept in build/.
fuzz() {  # name
  local learned=build/fuzz/corpus/$1 seeds=tests/fuzz/corpus/$1 log=build/fuzz/$1.log
  local folders=("$learned")
  mkdir -p "$learned"
  if [[ -d $seeds ]]; then folders+=("$seeds"); fi
  if "build/fuzz/tests/${1}_fuzz" -max_total_time="$fuzz_seconds" -timeout=10 -rss_limit_mb=3000 \
    -artifact_prefix="build/fuzz/$1-" -print_final_stats=1 "${folders[@]}" >"$log" 2>&1; then
    echo "$1: $(sed -n 's/^stat::number_of_executed_units: *//p' "$log") runs, no finding"
  else
    tail -n 60 "$log"
    echo "$1: a finding, see $log"
    return 1
  fi
}

use_installed() {
  local at=$PWD/build/install-check
  rm -rf "$at"
  cmake --install build/$preset --prefix "$at/prefix" >/dev/null &&
    cmake -S tests/install -B "$at/build" -G Ninja -DCMAKE_PREFIX_PATH="$at/prefix" \
      -DCMAKE_BUILD_TYPE=Release -DCMAKE_COMPILE_WARNING_AS_ERROR=ON >/dev/null &&
    cmake --build "$at/build" &&
    "$at/prefix/bin/faststream-convert" tests/golden/gqa -o "$at/model.bin" --quiet &&
    "$at/build/consumer" "$at/model.bin" "the" | grep .
}

install_missing "${build_packages[@]}" "${test_packages[@]}"
install_missing "libclang-rt-$(clang++ -dumpversion | cut -d. -f1)-dev"  # Clang's sanitizers

if check "Build, $preset" build $preset -DFASTSTREAM_TESTS=ON; then
  run_tests $preset
  check "Lint" scripts/lint.sh build/$preset || true
  check "Installed library" use_installed || true
else
  skipped=$((skipped + 3))
fi

check "Corpus of the bundled model" python3 -B demo/test_corpus.py || true

if check "Build, asan" build asan; then
  run_tests asan
else
  skipped=$((skipped + 1))
fi

build_threads() {
  cmake --preset tsan >/dev/null && cmake --build --preset tsan --target unit-tests
}
if check "Build, tsan" build_threads; then
  check "Tests of threads, tsan" build/tsan/tests/unit-tests --gtest_brief=1 || true
else
  skipped=$((skipped + 1))
fi

mapfile -t fuzzers < <(find tests/fuzz -name '*_fuzz.cpp' -printf '%f\n' 2>/dev/null |
  sed 's/_fuzz\.cpp$//' | sort)
if ((${#fuzzers[@]} > 0)); then
  build_fuzzers() {
    cmake --preset fuzz >/dev/null && cmake --build --preset fuzz --target "${fuzzers[@]/%/_fuzz}"
  }
  if check "Build, fuzz" build_fuzzers; then
    title "Fuzzers, $fuzz_seconds seconds each: ${fuzzers[*]}"
    for ((i = 0; i < ${#fuzzers[@]}; i += 2)); do  # two at a time
      jobs=()
      for name in "${fuzzers[@]:i:2}"; do
        fuzz "$name" &
        jobs+=("$name:$!")
      done
      for job in "${jobs[@]}"; do
        if wait "${job#*:}"; then
          passed=$((passed + 1))
        else
          failed=$((failed + 1))
          failures+=("Fuzzer ${job%:*}")
        fi
      done
    done
  else
    skipped=$((skipped + ${#fuzzers[@]}))
  fi
fi

printf '\n'
for failure in "${failures[@]}"; do echo "failed: $failure"; done
echo "$passed passed, $failed failed, $skipped skipped"
((failed == 0))
