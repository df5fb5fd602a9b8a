#!/usr/bin/env bash
# Builds and tests everything: all tests in an optimized build, which is the users' where there is a
# GPU, and under the address and undefined-behaviour sanitizers, those of threads under
# ThreadSanitizer, the fuzzers on the same inputs each time (scripts/fuzz.sh has others), lint, and the
# Debian package with a program that uses its library. The last lines say how long each part took and
# count results.
set -euo pipefail
cd "$(dirname "$0")/.."
# shellcheck source=scripts/packages.sh
source scripts/packages.sh

LC_NUMERIC=C  # times and awk write and read a point
export CCACHE_DEPEND=1  # the compiler tells what a file includes; ccache need not find out first
preset=quick
if nvidia-smi -L &>/dev/null; then preset=release-sm90; fi
passed=0 failed=0 skipped=0
failures=()
took=()

minutes() { printf '%d:%02d' $(($1 / 60)) $(($1 % 60)); }

# Sets `used`: seconds of processor time of all programs that ran and ended so far.
measure() {
  times >build/times
  used=$(awk 'NR == 2 { gsub("[ms]", " "); print int($1 * 60 + $2 + $3 * 60 + $4) }' build/times)
}

# timed TITLE COMMAND...: what it takes is told at the end.
timed() {
  local code=0 began=$SECONDS before
  printf '\n==> %s (%s)\n' "$1" "$(minutes "$began")"
  measure
  before=$used
  "${@:2}" || code=$?
  measure
  took+=("$(printf '%7s %9s  %s' "$(minutes $((SECONDS - began)))" "$(minutes $((used - before)))" "$1")")
  return $code
}

# result CODE TITLE: counts one result.
result() {
  if (($1 == 0)); then
    passed=$((passed + 1))
  else
    failed=$((failed + 1))
    failures+=("$2")
  fi
}

# check TITLE COMMAND...: one result.
check() {
  local code=0
  timed "$@" || code=$?
  result "$code" "$1"
  return "$code"
}

build() {  # preset, then targets
  local targets=("${@:2}")
  cmake --preset "$1" >/dev/null && cmake --build --preset "$1" ${targets:+--target "${targets[@]}"}
}

# All tests of a build folder, which run in a few processes, each test one result.
run_tests() {  # preset
  local reports=build/$1/tests/results report missing
  rm -rf "$reports"
  # Two more than there are processors: many tests of programs wait.
  ctest --test-dir "build/$1" --output-on-failure -j "$(($(nproc) + 2))" || true
  missing=$(ctest --test-dir "build/$1" -N | sed -n 's/^Total Tests: //p')
  for report in "$reports"/*.xml; do
    [[ -e $report ]] || continue
    missing=$((missing - 1))
    count "$1" "$(grep -c '<testcase ' "$report")" \
      "$(sed -n 's/.*<testsuites .*failures="\([0-9]*\)".*/\1/p' "$report")" \
      "$(grep -cE 'result="(skipped|suppressed)"' "$report")"
  done
  if ((missing > 0)); then
    failed=$((failed + missing))
    failures+=("Tests, $1: $missing processes died, see above")
  fi
}

count() {  # preset, tests, those that failed, those that were left out
  passed=$((passed + $2 - $3 - $4))
  failed=$((failed + $3))
  skipped=$((skipped + $4))
  if (($3 > 0)); then failures+=("Tests, $1: $3 of $2 in one process, see above"); fi
}

# All fuzzers, each one result.
run_fuzzers() {  # names
  local name code
  scripts/fuzz.sh fixed "$@" | tee build/fuzzers.log || true
  for name in "$@"; do
    code=0
    grep -q "^$name: .* no finding$" build/fuzzers.log || code=1
    result "$code" "Fuzzer $name"
  done
}

package() {
  local made
  made=$(scripts/package.sh $preset) && tests/install/check_package.sh "$made"
}

# One result; left out where the system's Python lacks what it takes.
run_python_tests() {
  local code=0
  scripts/test_python.sh build/$preset || code=$?
  if ((code == 77)); then
    skipped=$((skipped + 1))
  else
    result $code "Tests of the Python package"
  fi
}

# Beside tests, which wait a fifth of their time: with what they leave of the processors.
begin_lint() {
  nice -n 19 scripts/lint.sh >build/lint.log 2>&1 &
  lint=$!
}

end_lint() {
  local code=0
  wait "$lint" || code=$?
  cat build/lint.log
  return "$code"
}

mapfile -t fuzzers < <(basename -s _fuzz.cpp -a tests/fuzz/*_fuzz.cpp)
mkdir -p build

install_missing "${build_packages[@]}" "${package_packages[@]}" "${test_packages[@]}"
install_missing "libclang-rt-$(clang++ -dumpversion | cut -d. -f1)-dev"  # Clang's sanitizers

if check "Build, $preset" build $preset; then
  timed "Tests, $preset" run_tests $preset
  check "Package" package || true
  timed "Python" run_python_tests
else
  skipped=$((skipped + 3))
fi

check "Corpus of the bundled model" python3 -B demo/test_corpus.py || true

asan_built=true
check "Build, asan" build asan || asan_built=false
begin_lint
if $asan_built; then
  timed "Tests, asan" run_tests asan
  timed "Fuzzers" run_fuzzers "${fuzzers[@]}"
else
  skipped=$((skipped + 1 + ${#fuzzers[@]}))
fi
check "Lint" end_lint || true

# A server that TSan says something of ends, and its test fails. The converter that makes its models
# is the first build's.
if check "Build, tsan" build tsan unit-tests cli-tests; then
  ln -sf "../$preset/faststream-convert" build/tsan
  check "Tests of threads, tsan" build/tsan/tests/unit-tests --gtest_brief=1 || true
  check "Tests of the server, tsan" env TSAN_OPTIONS=halt_on_error=1 FASTSTREAM_BIN=build/tsan \
    FASTSTREAM_TEST_DATA=tests build/tsan/tests/cli-tests --gtest_brief=1 || true
else
  skipped=$((skipped + 2))
fi

measure
printf '\n%7s %9s\n' "time" "processor"
printf '%s\n' "${took[@]}"
printf '%7s %9s  all\n\n' "$(minutes $SECONDS)" "$(minutes "$used")"
for failure in "${failures[@]}"; do echo "failed: $failure"; done
echo "$passed passed, $failed failed, $skipped skipped"
((failed == 0))
