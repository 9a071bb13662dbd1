# ArrowParquet: Apache Arrow with its reader of Parquet files, for the one library that needs it.
#
# An installed Arrow (ArrowConfig.cmake, ParquetConfig.cmake) is preferred. Otherwise the Python package pyarrow
# brings headers and libraries: of $RINGFEED_VENV, of .venv, or of whatever python3 is. The build keeps copies of the
# libraries, so another pyarrow may be installed later.
#
#   ArrowParquet_FOUND
#   ArrowParquet_VERSION
#   ArrowParquet_LIBRARIES       the copies; empty for an installed Arrow
#   ArrowParquet_LICENSES        what goes with them
#   ArrowParquet::ArrowParquet   to link
find_package(Arrow CONFIG QUIET)
if(Arrow_FOUND)
  find_package(Parquet CONFIG QUIET HINTS ${Arrow_DIR}/.. ${Arrow_DIR}/../Parquet)
endif()
if(TARGET Parquet::parquet_shared)
  set(ArrowParquet_VERSION ${Arrow_VERSION})
  set(ArrowParquet_LIBRARIES "")
  if(NOT TARGET ArrowParquet::ArrowParquet)
    add_library(ArrowParquet::ArrowParquet INTERFACE IMPORTED)
    target_link_libraries(ArrowParquet::ArrowParquet INTERFACE Parquet::parquet_shared Arrow::arrow_shared)
  endif()
else()
  set(ask
      "import glob, pyarrow as p"
      "d = [d for d in p.get_library_dirs() if glob.glob(d + '/libparquet.so.*')][0]"
      "v = p.cpp_build_info.so_version"
      "l = glob.glob(d + '-*.dist-info/licenses/*') + glob.glob(d + '-*.dist-info/*.txt')"
      "l = [f for f in l if f.endswith('.txt') and ('LICENSE' in f or 'NOTICE' in f)]"
      "print(p.get_include(), d + '/libarrow.so.' + v, d + '/libparquet.so.' + v, p.cpp_build_info.version, *l, sep='|', end='')")
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
      list(GET answer 1 arrow_library)
      list(GET answer 2 parquet_library)
      list(GET answer 3 ArrowParquet_VERSION)
      list(SUBLIST answer 4 -1 ArrowParquet_LICENSES)
      break()
    endif()
  endforeach()
  if(EXISTS "${parquet_library}"
     AND EXISTS "${arrow_library}"
     AND EXISTS "${ArrowParquet_INCLUDE_DIR}/parquet/file_reader.h"
     AND NOT TARGET ArrowParquet::ArrowParquet)
    # Imported libraries are system libraries: no warnings of theirs.
    set(ArrowParquet_LIBRARIES "")
    file(MAKE_DIRECTORY ${CMAKE_LIBRARY_OUTPUT_DIRECTORY})
    foreach(part arrow parquet)
      get_filename_component(name ${${part}_library} NAME)
      set(copy ${CMAKE_LIBRARY_OUTPUT_DIRECTORY}/${name})
      file(CREATE_LINK ${${part}_library} ${copy} COPY_ON_ERROR)
      list(APPEND ArrowParquet_LIBRARIES ${copy})
      add_library(ArrowParquet::${part} SHARED IMPORTED)
      set_target_properties(ArrowParquet::${part} PROPERTIES IMPORTED_LOCATION ${copy} INTERFACE_INCLUDE_DIRECTORIES
                                                                                       ${ArrowParquet_INCLUDE_DIR})
    endforeach()
    add_library(ArrowParquet::ArrowParquet INTERFACE IMPORTED)
    target_link_libraries(ArrowParquet::ArrowParquet INTERFACE ArrowParquet::parquet ArrowParquet::arrow)
  endif()
endif()
if(TARGET ArrowParquet::ArrowParquet)
  set(ArrowParquet_FOUND TRUE)
  if(ArrowParquet_LIBRARIES)
    message(STATUS "Arrow ${ArrowParquet_VERSION} of pyarrow: ${arrow_library}")
  else()
    message(STATUS "Arrow ${ArrowParquet_VERSION}, installed")
  endif()
else()
  set(ArrowParquet_FOUND FALSE)
endif()
