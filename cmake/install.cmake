# What `cmake --install` puts where, the same below the package ringfeed of a wheel:
#
#   component  below the prefix
#   programs   bin/ringfeed, bin/ringfeed-worker
#              lib/ringfeed/libringfeed_arrow.so, and Arrow, for Parquet, Arrow and CSV files
#              bin/ringfeed-worker-python, lib/ringfeed/_worker.abi3.so: stages in Python
#              share/ringfeed/pipelines/*.textproto
#              share/ringfeed/prometheus/ringfeed.rules.yml
#              share/ringfeed/grafana/ringfeed.json
#              lib/systemd/{system,user}, lib/tmpfiles.d, lib/sysusers.d (a wheel: share/ringfeed/systemd)
#              share/ringfeed/proto/config.proto, what it imports, config.desc
#              share/man/man1/ringfeed*.1
#              share/bash-completion/completions/ringfeed, share/zsh/vendor-completions/_ringfeed,
#              share/fish/vendor_completions.d/ringfeed.fish; these and the manual pages of a wheel go
#              into the environment, where man and the shells find them, not below the package
#   client     lib/libringfeed.so.1, include/ringfeed.h, include/ringfeed.hpp
#              lib/cmake/ringfeed, lib/pkgconfig/ringfeed.pc
#   plugin     include/ringfeed/shm/*.h, include/ringfeed/worker/*.h: for stages
#              lib/libringfeed_worker.so.VERSION: what they are linked with
#   command    the command `ringfeed` of a Python environment (in a wheel alone)
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)

install(TARGETS ringfeed ringfeed-worker RUNTIME COMPONENT programs)
if(TARGET ringfeed_arrow_module)
  # Arrow goes with it, so that any pyarrow, or none, may be there. Of a wheel auditwheel brings it, under a name of its
  # own: a process may have loaded another one.
  if(SKBUILD)
    set_target_properties(ringfeed_arrow_module PROPERTIES INSTALL_RPATH "$ORIGIN;${CMAKE_LIBRARY_OUTPUT_DIRECTORY}")
  else()
    set_target_properties(ringfeed_arrow_module PROPERTIES INSTALL_RPATH "$ORIGIN")
    install(
      FILES ${ArrowParquet_LIBRARIES}
      DESTINATION lib/ringfeed
      COMPONENT programs)
  endif()
  install(TARGETS ringfeed_arrow_module LIBRARY DESTINATION lib/ringfeed COMPONENT programs)
  install(
    FILES ${ArrowParquet_LICENSES}
    DESTINATION ${CMAKE_INSTALL_DATADIR}/ringfeed/licenses/arrow
    COMPONENT programs)
endif()
if(TARGET ringfeed_interpreter)
  install(TARGETS ringfeed-worker-python RUNTIME COMPONENT programs)
  install(TARGETS ringfeed_interpreter LIBRARY DESTINATION lib/ringfeed COMPONENT programs)
  if(TARGET ringfeed_interpreter_t)
    install(TARGETS ringfeed_interpreter_t LIBRARY DESTINATION lib/ringfeed COMPONENT programs)
  endif()
endif()
file(GLOB pipelines CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/workers/pipelines/*.textproto)
install(
  FILES ${pipelines}
  DESTINATION ${CMAKE_INSTALL_DATADIR}/ringfeed/pipelines
  COMPONENT programs)
foreach(stem IN LISTS RINGFEED_CONFIG_PROTOS)
  get_filename_component(folder proto/${stem} DIRECTORY)
  install(
    FILES ${PROJECT_SOURCE_DIR}/proto/${stem}.proto
    DESTINATION ${CMAKE_INSTALL_DATADIR}/ringfeed/${folder}
    COMPONENT programs)
endforeach()
install(
  FILES ${PROJECT_SOURCE_DIR}/share/prometheus/ringfeed.rules.yml
  DESTINATION ${CMAKE_INSTALL_DATADIR}/ringfeed/prometheus
  COMPONENT programs)
# A wheel has them to be copied; else they are where systemd looks below /usr.
if(SKBUILD)
  set(units ${CMAKE_INSTALL_DATADIR}/ringfeed/systemd)
  set(confs ${units})
else()
  set(units lib/systemd)
  set(confs lib)
endif()
install(
  FILES ${PROJECT_SOURCE_DIR}/share/systemd/ringfeed@.service ${PROJECT_SOURCE_DIR}/share/systemd/ringfeed-web.service
  DESTINATION ${units}/system
  COMPONENT programs)
install(
  FILES ${PROJECT_SOURCE_DIR}/share/systemd/user/ringfeed@.service
  DESTINATION ${units}/user
  COMPONENT programs)
foreach(kind tmpfiles sysusers)
  install(
    FILES ${PROJECT_SOURCE_DIR}/share/${kind}.d/ringfeed.conf
    DESTINATION ${confs}/${kind}.d
    COMPONENT programs)
endforeach()
install(
  FILES ${PROJECT_SOURCE_DIR}/share/grafana/ringfeed.json
  DESTINATION ${CMAKE_INSTALL_DATADIR}/ringfeed/grafana
  COMPONENT programs)
# Of what verbs print with --json.
file(GLOB schemas CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/docs/reference/schemas/*.schema.json)
install(
  FILES ${schemas}
  DESTINATION ${CMAKE_INSTALL_DATADIR}/ringfeed/schemas
  COMPONENT programs)
install(
  FILES ${PROJECT_BINARY_DIR}/generated/proto/config.desc
  DESTINATION ${CMAKE_INSTALL_DATADIR}/ringfeed/proto
  COMPONENT programs)

# Written by the program itself, which knows its verbs. A sanitized one is not installed.
if(NOT RINGFEED_SANITIZE)
  set(words_dir ${PROJECT_BINARY_DIR}/generated/words)
  add_custom_command(
    OUTPUT ${words_dir}/stamp
    COMMAND ${CMAKE_COMMAND} -E rm -rf ${words_dir}
    COMMAND ringfeed manual --directory ${words_dir}/man1 2> ${words_dir}.log
    COMMAND ringfeed completion bash > ${words_dir}/ringfeed
    COMMAND ringfeed completion zsh > ${words_dir}/_ringfeed
    COMMAND ringfeed completion fish > ${words_dir}/ringfeed.fish
    COMMAND ${CMAKE_COMMAND} -E touch ${words_dir}/stamp
    DEPENDS ringfeed
    COMMENT "Writing manual pages and completion")
  add_custom_target(ringfeed_words ALL DEPENDS ${words_dir}/stamp)
  set(share ${CMAKE_INSTALL_DATADIR})
  if(SKBUILD)
    set(share ${SKBUILD_DATA_DIR}/share)
  endif()
  install(
    DIRECTORY ${words_dir}/man1
    DESTINATION ${share}/man
    COMPONENT programs)
  foreach(place IN ITEMS bash-completion/completions/ringfeed zsh/vendor-completions/_ringfeed
                         fish/vendor_completions.d/ringfeed.fish)
    get_filename_component(file ${place} NAME)
    get_filename_component(folder ${place} DIRECTORY)
    install(
      FILES ${words_dir}/${file}
      DESTINATION ${share}/${folder}
      COMPONENT programs)
  endforeach()
endif()

# A wheel holds no links. Whoever links names the file itself, in CMake and by pkg-config (-l:libringfeed.so.1).
set(namelink "")
if(SKBUILD)
  set(namelink NAMELINK_SKIP)
endif()
install(
  TARGETS ringfeed_client
  EXPORT ringfeed
  LIBRARY COMPONENT client ${namelink}
  FILE_SET HEADERS COMPONENT client)
if(TARGET ringfeed_worker)
  # Of a wheel it is linked with libraries that auditwheel puts beside the package.
  install(TARGETS ringfeed_worker EXPORT ringfeed_worker LIBRARY COMPONENT plugin ${namelink})
endif()
set(RINGFEED_DATA_DIR ${CMAKE_INSTALL_DATADIR}/ringfeed)
set(package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/ringfeed)
install(
  EXPORT ringfeed
  NAMESPACE ringfeed::
  FILE ringfeedTargets.cmake
  DESTINATION ${package_dir}
  COMPONENT client)
if(TARGET ringfeed_worker)
  install(
    EXPORT ringfeed_worker
    NAMESPACE ringfeed::
    FILE ringfeedWorkerTargets.cmake
    DESTINATION ${package_dir}
    COMPONENT plugin)
endif()
configure_package_config_file(${CMAKE_CURRENT_LIST_DIR}/ringfeedConfig.cmake.in
                              ${PROJECT_BINARY_DIR}/generated/ringfeedConfig.cmake INSTALL_DESTINATION ${package_dir}
                              PATH_VARS CMAKE_INSTALL_BINDIR RINGFEED_DATA_DIR)
write_basic_package_version_file(${PROJECT_BINARY_DIR}/generated/ringfeedConfigVersion.cmake COMPATIBILITY SameMajorVersion)
install(
  FILES ${PROJECT_BINARY_DIR}/generated/ringfeedConfig.cmake ${PROJECT_BINARY_DIR}/generated/ringfeedConfigVersion.cmake
  DESTINATION ${package_dir}
  COMPONENT client)
file(RELATIVE_PATH pc_prefix ${CMAKE_INSTALL_FULL_LIBDIR}/pkgconfig ${CMAKE_INSTALL_PREFIX})
string(REGEX REPLACE "/$" "" pc_prefix "${pc_prefix}")
configure_file(${CMAKE_CURRENT_LIST_DIR}/ringfeed.pc.in ${PROJECT_BINARY_DIR}/generated/ringfeed.pc @ONLY)
install(
  FILES ${PROJECT_BINARY_DIR}/generated/ringfeed.pc
  DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig
  COMPONENT client)

install(
  DIRECTORY ${PROJECT_SOURCE_DIR}/shm/include/ ${PROJECT_SOURCE_DIR}/workers/include/
  DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}
  COMPONENT plugin
  FILES_MATCHING
  PATTERN "*.h")

if(SKBUILD)
  install(TARGETS ringfeed_command RUNTIME DESTINATION ${SKBUILD_SCRIPTS_DIR} COMPONENT command)
endif()
