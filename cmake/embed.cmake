# cmake -DFROM=file -DTO=file.cc -DHEADER=... -DFUNCTION=name -P embed.cmake: the bytes of a file as a function that returns
# them. A string literal, because a compiler reads that fastest.
file(READ ${FROM} bytes HEX)
string(REGEX REPLACE "(..)" "\\\\x\\1" bytes "${bytes}")
# Pieces, so that no line is endless.
string(REGEX REPLACE "(................................................................................................................................)" "\\1\"\n    \"" bytes "${bytes}")
file(SIZE ${FROM} size)
file(
  WRITE ${TO}
  "#include \"${HEADER}\"\n\nnamespace ringfeed {\n\nstd::string_view ${FUNCTION}() {\n  static constexpr char kBytes[] =\n    \"${bytes}\";\n  return {kBytes, ${size}};\n}\n\n}  // namespace ringfeed\n")
