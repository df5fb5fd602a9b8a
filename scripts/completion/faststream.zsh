#compdef faststream-run faststream-convert faststream-serve faststream-bench
# Offers what the completion for Bash does, which is installed beside the programs, with what their help says.

local program=${commands[$words[1]]:-${~${(Q)words[1]}}} line word files=''
local -a options values begun # begun: more comes behind the equals sign
for line in "${(@f)$(bash ${program:A:h:h}/share/bash-completion/completions/${program:t} \
    $program "${(@Q)words[2,CURRENT]}" 2>/dev/null)}"; do
  word="${${line%%$'\t'*}//:/\\:}:${line#*$'\t'}"
  case $line in
    *'(files)') files=$line ;;
    *=$'\t') begun+=($word) ;;
    -*) options+=($word) ;;
    ?*) values+=($word) ;;
  esac
done
(( $#options )) && _describe -o option options
(( $#values )) && _describe value values
(( $#begun )) && _describe value begun -S ''
if [[ -n $files ]]; then
  compset -P "${(b)files%'(files)'}"
  _files
fi
