# What `cpack -G DEB` makes of the installed files: one package of programs, library, headers, manual pages and units.
# scripts/deb runs it. Set before include(CPack).
set(CPACK_GENERATOR DEB)
set(CPACK_PACKAGE_NAME ringfeed)
set(CPACK_PACKAGE_VERSION ${PROJECT_VERSION})
set(CPACK_PACKAGE_DIRECTORY ${PROJECT_BINARY_DIR}/deb)
set(CPACK_PACKAGING_INSTALL_PREFIX /usr)
set(CPACK_STRIP_FILES ON)
set(CPACK_VERBATIM_VARIABLES ON)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_MAINTAINER "ringfeed maintainers <maintainers@ringfeed.invalid>")
set(CPACK_DEBIAN_PACKAGE_SECTION science)
set(CPACK_DEBIAN_PACKAGE_PRIORITY optional)
set(CPACK_PACKAGE_DESCRIPTION_SUMMARY "training-data loader that runs beside the trainer")
set(CPACK_DEBIAN_PACKAGE_DESCRIPTION
    "A supervisor runs the stages of a pipeline as processes that pass records
through rings in shared memory. Trainers map the last ring and get batches
without a copy. A stage that crashes is replaced alone, and no batch is lost
or repeated.

This package has the programs, the C library with its headers, and units for
systemd. The Python package for trainers is ringfeed on PyPI.")
set(CPACK_DEBIAN_PACKAGE_SUGGESTS "systemd, python3-pip")
# Dependencies are those of the programs themselves. Arrow, which is in no package of Debian's, goes with them.
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS ON)
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS_PRIVATE_DIRS ${CMAKE_LIBRARY_OUTPUT_DIRECTORY})
set(CPACK_DEBIAN_PACKAGE_GENERATE_SHLIBS ON)
set(CPACK_DEBIAN_PACKAGE_CONTROL_STRICT_PERMISSION ON)
set(CPACK_DEBIAN_PACKAGE_CONTROL_EXTRA ${PROJECT_SOURCE_DIR}/cmake/debian/postinst
                                       ${PROJECT_SOURCE_DIR}/cmake/debian/prerm
                                       ${PROJECT_SOURCE_DIR}/cmake/debian/postrm
                                       ${PROJECT_SOURCE_DIR}/cmake/debian/triggers)
set(CPACK_PRE_BUILD_SCRIPTS ${PROJECT_SOURCE_DIR}/cmake/debian/finish.cmake)
set(CPACK_RINGFEED_DEBIAN ${PROJECT_SOURCE_DIR}/cmake/debian)
set(CPACK_RINGFEED_LICENSE ${PROJECT_SOURCE_DIR}/LICENSE)
include(CPack)
