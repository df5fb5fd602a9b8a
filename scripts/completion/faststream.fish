# Completion of faststream-run, faststream-convert, faststream-serve and faststream-bench for Fish: offers what that for Bash
# does, which is installed beside the programs, with what their help says.

function __faststream_offer
    set -l words (commandline -opc)
    set -l typed (commandline -ct)
    set -l named (command -s $words[1]; or string replace -r -- '^~/' "$HOME/" $words[1])
    set -l program (realpath -- $named 2>/dev/null)
    set -l script (string replace -rf '/[^/]*/([^/]*)$' '/share/bash-completion/completions/$1' -- "$program")
    test -f "$script"; or return
    for line in (bash $script $program $words[2..-1] $typed 2>/dev/null)
        if string match -q -- '*(files)' $line
            complete -C "'' $typed" # as Fish completes what it knows nothing of
        else
            echo $line
        end
    end
end

complete -c faststream-run -c faststream-convert -c faststream-serve -c faststream-bench -f -a '(__faststream_offer)'
