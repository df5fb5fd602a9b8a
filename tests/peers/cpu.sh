#!/bin/bash
# Speeds of faststream-bench on the CPU, by instruction set, beside those of other programs, by turns:
# prefill of 256 tokens, decode of one sequence and of 16, tokens/s, the best of RUNS.
#
#   tests/peers/cpu.sh build/release/faststream-bench=amx,avx_vnni OLDER/faststream-bench=amx \
#     LLAMA/bin/llama-bench=MODELS
#
# A program of ours is followed by values of FASTSTREAM_MAX_CPU_ISA. MODELS is a folder of q8_0.gguf,
# q4_0.gguf and bf16.gguf, which random_gguf.py writes, and q4_k_m.gguf, which llama-quantize makes of
# the last; those that are not there are passed over. llama.cpp is in the source package llama-cpp-python of
# PyPI (vendor/llama.cpp; cmake -DGGML_NATIVE=OFF and -DGGML_... for the instruction sets to compare
# with; the target llama-bench).
#
# Environment: RUNS (3), TYPES ("int8 int4 bf16"), THREADS (2). On a quiet machine only.
set -euo pipefail
runs=${RUNS:-3} threads=${THREADS:-2}

ours() {  # PROGRAM ISA TYPE
  FASTSTREAM_MAX_CPU_ISA=$2 "$1" --shape llama-1.1b --dtype "$3" --device cpu -t "$threads" \
    --prompt 256 --sequences 1,16 --generate 16 --repeat 2 2> /dev/null |
    awk '$1 == "prefill" { print "prefill", $4 } $1 == "decode" { print "decode " $5, $7 }'
}

models_beside() {  # TYPE
  case $1 in
    int8) echo q8_0 ;;
    int4) echo q4_0 q4_k_m ;;
    *) echo "$1" ;;
  esac
}

llama() {  # PROGRAM MODEL
  "$1" -m "$2" -t "$threads" -p 256 -n 16 -r 2 2> /dev/null |
    awk -F'|' '$7 ~ /pp256/ { print "prefill", $8 + 0 } $7 ~ /tg16/ { print "decode 1", $8 + 0 }'
}

measure() {
  for run in $(seq "$runs"); do
    for type in ${TYPES:-int8 int4 bf16}; do
      for argument in "$@"; do
        local program=${argument%%=*} what=${argument#*=}
        if [[ $program == *llama-bench ]]; then
          for model in $(models_beside "$type"); do
            [ -e "$what/$model.gguf" ] || continue
            llama "$program" "$what/$model.gguf" | sed "s|^|$type\t$program $model\t|"
          done
        else
          for isa in ${what//,/ }; do
            ours "$program" "$isa" "$type" | sed "s|^|$type\t$program $isa\t|"
          done
        fi
      done
    done
    echo "run $run of $runs done, load $(cut -d' ' -f1 /proc/loadavg)" >&2
  done
}

measure "$@" | awk -F'\t' '
  { value = $3; sub(/.* /, "", value); what = $3; sub(/ [^ ]*$/, "", what)
    key = $1 "\t" $2 "\t" what
    if (!(key in best)) order[++count] = key
    if (value + 0 > best[key]) best[key] = value + 0
    all[key] = all[key] " " value }
  END { for (i = 1; i <= count; ++i) print order[i] "\t" best[order[i]] "\t(" substr(all[order[i]], 2) ")" }'
