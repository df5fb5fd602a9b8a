# Completion of faststream-run, faststream-convert, faststream-serve and faststream-bench for Fish: offers what that for Bash
# does, which is installed beside the programs, with what their help says.

function __faststream_offer
    set -l words (commandline -opc)
    set -l typed (commandline -ct)
    set -l program (realpath -- (command -s $words[1]; or echo $words[1]))
    set -l script (string replace -r '/bin/([^/]*)$' '/share/bash-completion/completions/$1' -- $program)
    for line in (bash $script $program $words[2..-1] $typed 2>/dev/null)
        if test "$line" != "(files)"
            echo $line
            continue
        end
        set -l option (string match -r -- '^--[^=]*=' $typed)
        string replace -r -- '^' "$option" (__fish_complete_path (string replace -r -- '^--[^=]*=' '' $typed))
    end
end

complete -c faststream-run -c faststream-convert -c faststream-serve -c faststream-bench -f -a '(__faststream_offer)'
