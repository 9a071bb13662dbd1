# Run by cpack on the files of the package, before they are packed.
set(usr ${CPACK_TEMPORARY_DIRECTORY}/usr)

# Arrow, which Debian does not have, comes as its wheel has it: with symbols, and with libraries in it.
file(GLOB arrow ${usr}/lib/ringfeed/libarrow.so.* ${usr}/lib/ringfeed/libparquet.so.*)
if(arrow)
  execute_process(COMMAND strip --strip-unneeded ${arrow} COMMAND_ERROR_IS_FATAL ANY)
  file(WRITE ${usr}/share/lintian/overrides/ringfeed
       "# Apache Arrow is in no package of Debian's, and its build brings these.\nringfeed: embedded-library * [usr/lib/ringfeed/libarrow.so.*]\n")
endif()

# What Debian's policy asks for (12.1, 12.5, 12.7, 9.1).
set(doc ${usr}/share/doc/ringfeed)
file(MAKE_DIRECTORY ${doc} ${CPACK_TEMPORARY_DIRECTORY}/etc/ringfeed)
file(COPY_FILE ${CPACK_RINGFEED_DEBIAN}/copyright ${doc}/copyright)
string(TIMESTAMP date "%a, %d %b %Y %H:%M:%S +0000" UTC)
file(WRITE ${doc}/changelog
     "ringfeed (${CPACK_PACKAGE_VERSION}) stable; urgency=medium

  * Built from the sources of this version.

 -- ${CPACK_DEBIAN_PACKAGE_MAINTAINER}  ${date}
")
file(GLOB pages ${usr}/share/man/man1/*.1)
execute_process(COMMAND gzip -9n ${doc}/changelog ${pages} COMMAND_ERROR_IS_FATAL ANY)

# Whatever the umask of whoever builds it.
execute_process(COMMAND chmod -R u=rwX,go=rX ${CPACK_TEMPORARY_DIRECTORY} COMMAND_ERROR_IS_FATAL ANY)
