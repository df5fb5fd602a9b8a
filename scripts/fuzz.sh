#!/usr/bin/env bash
# Fuzzes what reads foreign bytes, under the address and undefined-behaviour sanitizers.
#
#   scripts/fuzz.sh fixed            as the tests do: from the seeds in tests/fuzz/corpus, as often as
#                                    tests/fuzz/runs.txt says, with the same inputs each time
#   scripts/fuzz.sh SECONDS          each fuzzer for so long, with other inputs each time; what they
#                                    learn is kept in build/asan/corpus, where the next time goes on
#   scripts/fuzz.sh SECONDS NAME...  these fuzzers alone
#
# An input with a finding stays in build/asan: build/asan/tests/NAME_fuzz FILE repeats it.
set -euo pipefail
cd "$(dirname "$0")/.."
if ! [[ ${1-} == fixed || ${1-} =~ ^[1-9][0-9]*$ ]]; then
  sed -n '2,11s/^# \{0,1\}//p' "$0" >&2
  exit 2
fi
how=$1
names=("${@:2}")
if ((${#names[@]} == 0)); then mapfile -t names < <(basename -s _fuzz.cpp -a tests/fuzz/*_fuzz.cpp); fi

# The same inputs for the same code: a seed of the random numbers, a number of runs, the corpus in one
# order, and addresses that do not change (where the system lets us), as they take part in what
# libFuzzer tries next.
run_fixed() {  # name
  local runs inputs=("tests/fuzz/corpus/$1"/*) at_same_addresses=(setarch -R)
  "${at_same_addresses[@]}" true 2>/dev/null || at_same_addresses=()
  runs=$(awk -v name="$1" '$1 == name { print $2 }' tests/fuzz/runs.txt)
  if [[ -z $runs ]]; then
    echo "tests/fuzz/runs.txt has no line for $1"
    return 1
  fi
  "${at_same_addresses[@]}" "build/asan/tests/${1}_fuzz" -seed=1 -runs="$runs" -timeout=60 "${common[@]}" \
    -seed_inputs="$(IFS=,; echo "${inputs[*]}")"
}

run_for_seconds() {  # name
  mkdir -p "build/asan/corpus/$1"
  "build/asan/tests/${1}_fuzz" -max_total_time="$how" -timeout=10 "${common[@]}" \
    "build/asan/corpus/$1" "tests/fuzz/corpus/$1"
}

start() {  # name
  if [[ $how == fixed ]]; then run_fixed "$1"; else run_for_seconds "$1"; fi
}

fuzz() {  # name
  local log=build/asan/fuzz-$1.log
  local common=(-rss_limit_mb=3000 -artifact_prefix="build/asan/fuzz-$1-" -print_final_stats=1)
  if start "$1" >"$log" 2>&1; then
    echo "$1: $(sed -n 's/^stat::number_of_executed_units: *//p' "$log") runs, no finding"
  else
    tail -n 60 "$log"
    echo "$1: a finding, see $log"
    return 1
  fi
}

cmake --preset asan >/dev/null
cmake --build --preset asan --target fuzzers

# As many at a time as there are processors.
failed=0
running=()
for name in "${names[@]}"; do
  if ((${#running[@]} >= $(nproc))); then
    wait "${running[0]}" || failed=1
    running=("${running[@]:1}")
  fi
  fuzz "$name" &
  running+=($!)
done
for job in "${running[@]}"; do wait "$job" || failed=1; done
exit $failed
