#compdef ringfeed
# Completion for ringfeed in zsh, as `ringfeed completion zsh` prints it. What can be typed, the
# program itself says.
_ringfeed() {
  local program=${${(Q)words[1]}/#\~/$HOME} line word
  local -a lines described
  lines=("${(@f)$("$program" __complete zsh "${(@Q)words[2,CURRENT-1]}" "${(Q)PREFIX}" 2>/dev/null)}")
  [[ $PREFIX == --*=* ]] && compset -P "${PREFIX%%\=*}="
  for line in "${(@)lines[2,-1]}"; do
    word=${line%%$'\t'*}
    described+=("${word//:/\\:}:${line#*$'\t'}")
  done
  local result=1
  (( $#described )) && _describe -t words 'ringfeed' described && result=0
  case $lines[1] in
    files) _files && result=0 ;;
    configs) _files -g '*.(textproto|pbtxt|txtpb|prototxt|json|binpb|pb)(-.)' && result=0 ;;
    directories) _files -/ && result=0 ;;
  esac
  return result
}
# Loaded by its name it is called for the first time; else it has been read by `source`.
if [[ $funcstack[1] == _ringfeed ]]; then
  _ringfeed "$@"
elif (( $+functions[compdef] )); then
  compdef _ringfeed ringfeed
fi
