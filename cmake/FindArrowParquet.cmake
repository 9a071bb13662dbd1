# ArrowParquet: Apache Arrow with its reader of Parquet files, for the one program that reads them.
#
# An installed Arrow (ArrowConfig.cmake, ParquetConfig.cmake) is preferred. Otherwise the Python package pyarrow
# brings headers and libraries: of $RINGFEED_VENV, of .venv, or of whatever python3 is. Its libraries are linked by
# their full names, so nothing is written into it.
#
#   ArrowParquet_FOUND
#   ArrowParquet_VERSION
#   ArrowParquet_LIBRARY_DIR     where the libraries of pyarrow are; empty for an installed Arrow
#   ArrowParquet::ArrowParquet   to link
find_package(Arrow CONFIG QUIET)
if(Arrow_FOUND)
  find_package(Parquet CONFIG QUIET HINTS ${Arrow_DIR}/.. ${Arrow_DIR}/../Parquet)
endif()
if(TARGET Parquet::parquet_shared)
  set(ArrowParquet_VERSION ${Arrow_VERSION})
  set(ArrowParquet_LIBRARY_DIR "")
  if(NOT TARGET ArrowParquet::ArrowParquet)
    add_library(ArrowParquet::ArrowParquet INTERFACE IMPORTED)
    target_link_libraries(ArrowParquet::ArrowParquet INTERFACE Parquet::parquet_shared Arrow::arrow_shared)
  endif()
else()
  set(ask
      "import glob, pyarrow as p"
      "d = [d for d in p.get_library_dirs() if glob.glob(d + '/libparquet.so.*')][0]"
      "v = p.cpp_build_info.so_version"
      "print(p.get_include(), d, d + '/libarrow.so.' + v, d + '/libparquet.so.' + v, p.cpp_build_info.version, sep='|', end='')")
  list(JOIN ask "\n" ask)
  foreach(python "$ENV{RINGFEED_VENV}/bin/python" "${CMAKE_SOURCE_DIR}/.venv/bin/python" python3)
    # Isolated from PYTHONPATH, by which pip hides what is installed from what it builds.
    execute_process(
      COMMAND ${python} -I -c "${ask}"
      OUTPUT_VARIABLE answer
      RESULT_VARIABLE failed
      ERROR_QUIET)
    if(NOT failed)
      string(REPLACE "|" ";" answer "${answer}")
      list(GET answer 0 ArrowParquet_INCLUDE_DIR)
      list(GET answer 1 ArrowParquet_LIBRARY_DIR)
      list(GET answer 2 arrow_library)
      list(GET answer 3 parquet_library)
      list(GET answer 4 ArrowParquet_VERSION)
      break()
    endif()
  endforeach()
  if(EXISTS "${parquet_library}"
     AND EXISTS "${arrow_library}"
     AND EXISTS "${ArrowParquet_INCLUDE_DIR}/parquet/file_reader.h"
     AND NOT TARGET ArrowParquet::ArrowParquet)
    # Imported libraries are system libraries: no warnings of theirs.
    foreach(part arrow parquet)
      add_library(ArrowParquet::${part} SHARED IMPORTED)
      set_target_properties(
        ArrowParquet::${part} PROPERTIES IMPORTED_LOCATION ${${part}_library} INTERFACE_INCLUDE_DIRECTORIES
                                                                               ${ArrowParquet_INCLUDE_DIR})
    endforeach()
    add_library(ArrowParquet::ArrowParquet INTERFACE IMPORTED)
    target_link_libraries(ArrowParquet::ArrowParquet INTERFACE ArrowParquet::parquet ArrowParquet::arrow)
  endif()
endif()
if(TARGET ArrowParquet::ArrowParquet)
  set(ArrowParquet_FOUND TRUE)
  if(ArrowParquet_LIBRARY_DIR)
    message(STATUS "Arrow ${ArrowParquet_VERSION} of pyarrow: ${ArrowParquet_LIBRARY_DIR}")
  else()
    message(STATUS "Arrow ${ArrowParquet_VERSION}, installed")
  endif()
else()
  set(ArrowParquet_FOUND FALSE)
endif()
