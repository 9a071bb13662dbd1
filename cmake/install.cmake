# What `cmake --install` puts where, the same below the package ringfeed of a wheel:
#
#   component  below the prefix
#   programs   bin/ringfeed, bin/ringfeed-worker, bin/ringfeed-worker-parquet
#              bin/ringfeed-worker-python, lib/ringfeed/_worker.abi3.so: stages in Python
#              share/ringfeed/pipelines/*.textproto
#              share/ringfeed/prometheus/ringfeed.rules.yml
#              share/ringfeed/grafana/ringfeed.json
#              share/ringfeed/proto/config.proto, what it imports, config.desc
#   client     lib/libringfeed.so.1, include/ringfeed.h, include/ringfeed.hpp
#              lib/cmake/ringfeed, lib/pkgconfig/ringfeed.pc
#   plugin     include/ringfeed/shm/*.h, include/ringfeed/worker/*.h: for stages
#              lib/libringfeed_worker.so.VERSION: what they are linked with
#   command    the command `ringfeed` of a Python environment (in a wheel alone)
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)

install(TARGETS ringfeed ringfeed-worker RUNTIME COMPONENT programs)
if(TARGET ringfeed-worker-parquet)
  # Of a wheel: ringfeed/bin beside pyarrow. Else where Arrow was found.
  if(SKBUILD)
    set_target_properties(ringfeed-worker-parquet PROPERTIES INSTALL_RPATH "$ORIGIN/../../pyarrow")
  else()
    set_target_properties(ringfeed-worker-parquet PROPERTIES INSTALL_RPATH "${ArrowParquet_LIBRARY_DIR}")
  endif()
  install(TARGETS ringfeed-worker-parquet RUNTIME COMPONENT programs)
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
install(
  FILES ${PROJECT_SOURCE_DIR}/share/grafana/ringfeed.json
  DESTINATION ${CMAKE_INSTALL_DATADIR}/ringfeed/grafana
  COMPONENT programs)
install(
  FILES ${PROJECT_BINARY_DIR}/generated/proto/config.desc
  DESTINATION ${CMAKE_INSTALL_DATADIR}/ringfeed/proto
  COMPONENT programs)

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
