# shellcheck shell=bash
# Completion of faststream-run, faststream-convert, faststream-serve and faststream-bench for Bash 4 and later, and what
# faststream.fish and faststream.zsh ask: bash faststream.bash PROGRAM WORD... prints what the last word could be.
# tests/cli/documentation_test.cpp compares the words here with those that the programs know.

# _faststream_words WORDS TYPED: offers those of WORDS that begin with TYPED.
_faststream_words() {
  mapfile -t COMPREPLY < <(compgen -W "$1" -- "$2")
}

# _faststream_files: leaves the word to Readline's completion of file names.
_faststream_files() {
  compopt -o default
}

# _faststream_takes_named_file PROGRAM OPTION: whether NAME=FILE can be its value.
_faststream_takes_named_file() {
  case ${1##*/}:$2 in
    *:--adapter | *:--speculate | faststream-serve:-m | faststream-serve:--model) ;;
    *) return 1 ;;
  esac
}

# _faststream_options PROGRAM: prints its options.
_faststream_options() {
  case $1 in
    faststream-run)
      echo "-h --help --version -m --model
        -p --prompt -f --file --parse-special --tokenize
        --perplexity --against --list-devices --json
        -n --tokens --min-tokens --temp --top-k --top-p --min-p --repetition-penalty
        --presence-penalty --frequency-penalty --no-repeat-ngram --logit-bias --stop --seed
        --ignore-eos --json-schema --regex --grammar
        --beams --length-penalty --early-stopping --beam-groups --diversity-penalty
        --source-lang --target-lang
        --device --gpus --replicas --pipeline --exact-sums -t --threads -c --context --slots --kv-tokens --kv --chunk
        --speculate --adapter
        --echo --special --stats
        --batch -o --output --resume --part --unordered --strict --logprobs
        --embed --rank --format
        --chat --system --session --messages --tools --documents --template-arg --show-prompt
        --chat-template"
      ;;
    faststream-convert)
      echo "-h --help --version -o --output --dtype --keep --keep-output --lora --adapter-for --task --no-mtp --eagle --activation-bits
        --calibrate --imatrix --tokenizer --pooling --normalize --device
        --force -q --quiet -t --threads --check --show --verify"
      ;;
    faststream-serve)
      echo "-h --help --version -m --model
        --host --port --unix-socket --tls-cert --tls-key --api-key-file --cors --http-threads --log
        --max-queue --request-timeout --grace --max-connections --max-body
        --device --gpus --replicas --pipeline --exact-sums -t --threads -c --context --slots --kv-tokens --kv --chunk --memory
        --speculate --adapter
        --chat-template"
      ;;
    faststream-bench)
      echo "-h --help --version --shape -m --model --dtype --kv --device --pipeline -t --threads
        --prompt
        --sequences --depth --alike --generate --repeat --profile --json
        --requests --rate --slots --chunk
        --quality --recipe --against -c --context"
      ;;
  esac
}

# _faststream_value OPTION TYPED: offers values of OPTION; fails if it has none.
_faststream_value() {
  case $1 in
    --device) _faststream_words "auto cpu cuda" "$2" ;;
    --kv) _faststream_words "int8 fp8" "$2" ;;
    --speculate)
      _faststream_words "auto off lookup mtp draft=" "$2"
      [[ ${COMPREPLY[*]-} != draft= ]] || compopt -o nospace
      ;;
    --log) _faststream_words "text json none" "$2" ;;
    --early-stopping) _faststream_words "true false never" "$2" ;;
    --format) _faststream_words "json npy" "$2" ;;
    --pooling)
      _faststream_words "mean cls max lasttoken weightedmean mean_sqrt_len_tokens" "$2"
      ;;
    --dtype)
      _faststream_words "f32 f16 bf16 int8 int4 fp8 mxfp4 nf4 int4-g32 int4-g64 int4-g128" "$2"
      ;;
    --shape)
      _faststream_words "llama-2-7b llama-2-13b llama-3-8b llama-3-70b llama-3.2-1b llama-3.2-3b
        llama-1.1b qwen3-30b-a3b qwen3.5-9b qwen3.5-35b-a3b lfm2-2.6b gpt-oss-20b gemma-4-26b-a4b
        gemma-4-e4b deepseek-v2-lite llama-tiny" "$2"
      ;;
    --chat-template) # a name, or a file where no name begins like that
      _faststream_words "plain llama-2 llama-3 llama-3.1 chatml qwen-2 qwen-2.5 mistral mistral-v3
        mistral-tekken gemma phi-3 zephyr" "$2"
      _faststream_files
      ;;
    -m | --model | -f | --file | --perplexity | --against | --batch | -o | --output | --session | \
      --messages | --tools | --documents | --json-schema | --grammar | --tokenizer | --lora | --eagle | --adapter-for | \
      --calibrate | --imatrix | --check | --show | --verify | --quality | --unix-socket | --tls-cert | --tls-key | --api-key-file)
      _faststream_files
      ;;
    -p | --prompt | -n | --tokens | --min-tokens | --temp | --top-k | --top-p | --min-p | \
      --repetition-penalty | --presence-penalty | --frequency-penalty | --no-repeat-ngram | \
      --logit-bias | --stop | --regex | --seed | --beams | --length-penalty | --beam-groups | \
      --diversity-penalty | --gpus | --replicas | --pipeline | -t | --threads | -c | --context | --slots | --kv-tokens | --chunk | \
      --logprobs | --rank | --system | --template-arg | --part | --sequences | --depth | --recipe | --keep | --task | \
      --activation-bits | --source-lang | --target-lang | \
      --generate | --repeat | --requests | --rate | --host | --port | --cors | --http-threads | \
      --max-queue | --request-timeout | --grace | --max-connections | --max-body | --memory | --adapter) ;; # a number or a text
    *) return 1 ;;
  esac
}

# Bash calls it with the program's name and sets COMP_WORDS and COMP_CWORD.
_faststream() {
  local program=${1##*/} word=${COMP_WORDS[COMP_CWORD]} before=${COMP_WORDS[COMP_CWORD - 1]}
  COMPREPLY=()
  # Bash splits words at "=" and ":", so --device=cuda:1 is five words.
  if [[ $before == : || $word == : ]]; then return; fi
  local -i at=COMP_CWORD
  if [[ $word == = ]]; then # nothing is behind it yet
    word=''
    at+=1
  fi
  if [[ ${COMP_WORDS[at - 1]} == = ]]; then
    if _faststream_value "${COMP_WORDS[at - 2]}" "$word"; then return; fi
    [[ ${COMP_WORDS[at - 3]} == = ]] && at+=-1
    _faststream_takes_named_file "$program" "${COMP_WORDS[at - 3]}" && _faststream_files
    return
  fi
  if _faststream_value "$before" "$word"; then return; fi
  if [[ $word == -* || $program != faststream-convert ]]; then
    _faststream_words "$(_faststream_options "$program")" "$word"
  else
    _faststream_files # the checkpoint
  fi
}

# _faststream_help PROGRAM: fills `help`, which the caller has, with what its --help says of options: behind two spaces, or in
# the next line, or, behind a long heading, with it.
_faststream_help() {
  local line names='' name is_heading=''
  while IFS= read -r line; do
    if [[ $line =~ ^\ \ (-[^ ]+)(.*) ]]; then
      names=${BASH_REMATCH[1]}
      line=${BASH_REMATCH[2]}
      [[ $line == *"  "* ]] && is_heading='' || is_heading=1
      line=${line#*"  "}
      for name in ${names//,/ }; do help[$name]=''; done
    elif [[ $line != "    "* ]]; then
      names=''
    elif [[ -n $is_heading ]]; then
      is_heading=''
      for name in ${names//,/ }; do help[$name]=''; done
    fi
    line=${line#"${line%%[! ]*}"}
    for name in ${names//,/ }; do help[$name]+=${help[$name]:+ }$line; done
  done < <("$1" --help 2>/dev/null)
}

# _faststream_print PROGRAM WORD...: prints what the last word could be, a line each: the word, a tab and what the program's
# help says of it; "(files)" stands for names of files, behind what is typed before them. For other shells.
_faststream_print() {
  local last=${*: -1} option=${*: -2:1} prefix='' word
  local -A help=()
  compopt() { [[ $2 != default ]] || echo "$prefix(files)"; }
  COMPREPLY=()
  if [[ $last == --*=* ]]; then
    option=${last%%=*}
    prefix=$option=
    last=${last#*=}
  fi
  if [[ $last == *=* ]] && _faststream_takes_named_file "$1" "$option"; then
    prefix+=${last%%=*}=
    _faststream_files
  elif [[ -n $prefix ]]; then
    _faststream_value "$option" "$last"
  else
    COMP_WORDS=("$@")
    COMP_CWORD=$(($# - 1))
    _faststream "$1"
    [[ ${COMPREPLY[0]-} != -* ]] || _faststream_help "$1"
  fi
  for word in "${COMPREPLY[@]}"; do printf '%s%s\t%s\n' "$prefix" "$word" "${help[$word]-}"; done
}

if [[ ${BASH_SOURCE[0]} == "$0" ]]; then
  _faststream_print "$@"
else
  complete -F _faststream faststream-run faststream-convert faststream-serve faststream-bench
fi
