#compdef faststream-run faststream-convert faststream-serve faststream-bench
# Offers what the completion for Bash does, which is installed beside the programs, with what their help says.

local program=${commands[$words[1]]:-${~words[1]}} line
local -a offered
local -i files=0
for line in "${(@f)$(bash ${program:A:h:h}/share/bash-completion/completions/${program:t} \
    $program "${(@Q)words[2,CURRENT]}" 2>/dev/null)}"; do
  if [[ $line == '(files)' ]]; then
    files=1
  elif [[ -n $line ]]; then
    offered+=("${${line%%$'\t'*}//:/\\:}:${line#*$'\t'}")
  fi
done
(( $#offered )) && _describe -o word offered
if (( files )); then
  [[ $PREFIX == --*=* ]] && compset -P '*='
  _files
fi
