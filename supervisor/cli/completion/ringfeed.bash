# Completion for ringfeed in bash, as `ringfeed completion bash` prints it. What can be typed, the
# program itself says.
_ringfeed() {
  local program=${COMP_WORDS[0]/#\~/$HOME} current=$2 prefix= line word
  local -a words=("${COMP_WORDS[@]:1:COMP_CWORD-1}") lines
  # bash takes --option=value apart, as it does with colons.
  [[ ${COMP_WORDS[COMP_CWORD]} == [=:] ]] && words+=("${COMP_WORDS[COMP_CWORD]}")
  mapfile -t lines < <("$program" __complete bash "${words[@]}" "$current" 2>/dev/null)
  [[ $current == --*=* ]] && prefix=${current%%=*}=
  COMPREPLY=()
  for line in "${lines[@]:1}"; do
    word=$prefix${line%%$'\t'*}
    [[ $word == "$current"* ]] && COMPREPLY+=("$word")
  done
  case ${lines[0]-} in
    directories) compopt -o plusdirs ;;
    files | configs)
      local -a files=()
      # What is quoted on the line, readline completes by itself.
      if [[ $current != *[\'\"\\~]* ]]; then
        while IFS= read -r word; do
          if [[ ${lines[0]} == files || -d $word || $word == *.@(textproto|pbtxt|txtpb|prototxt|json|binpb|pb) ]]; then
            files+=("$word")
          fi
        done < <(compgen -f -- "$current")
      fi
      if ((${#files[@]} + ${#COMPREPLY[@]} == 0)); then
        compopt -o default
      else
        ((${#files[@]})) && compopt -o filenames
        COMPREPLY+=("${files[@]}")
      fi
      ;;
  esac
}
complete -F _ringfeed ringfeed
