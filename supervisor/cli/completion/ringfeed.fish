# Completion for ringfeed in fish, as `ringfeed completion fish` prints it. What can be typed, the
# program itself says.
function __ringfeed_complete
    set -l words (commandline -opc)
    set -l current (commandline -ct)
    set -l program (string replace -r '^~' $HOME -- $words[1])
    set -e words[1]
    set -l lines ($program __complete fish $words "$current" 2>/dev/null)
    set -l prefix (string match -r -- '^--[^=]+=' "$current")
    for line in $lines[2..]
        printf '%s%s\n' "$prefix" $line
    end
    # Without its quotes, as files are called; a quote that is still open stands in front.
    set -l rest (string replace -- "$prefix" '' "$current")
    set -l path (string unescape -- "$rest"; or string trim -l -c '"\'' -- "$rest")
    set -l paths
    switch "$lines[1]"
        case files configs
            set paths (__fish_complete_path "$path")
        case directories
            set paths (__fish_complete_directories "$path")
    end
    if test "$lines[1]" = configs
        set -l configs (string match -r -- '.*(?:/|\.(?:textproto|pbtxt|txtpb|prototxt|json|binpb|pb))(?:\t.*)?$' $paths)
        set -q configs[1]; and set paths $configs
    end
    for path in $paths
        printf '%s%s\n' "$prefix" $path
    end
end
complete -c ringfeed -f -a '(__ringfeed_complete)'
