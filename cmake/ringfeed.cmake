# ringfeed_library(NAME SOURCES a.cc b.cc LINK x y [ALONE a.cc]): the static library ringfeed_NAME, alias ringfeed::NAME.
# Its sources are compiled sixteen at a time (decision 28), but for those named in ALONE.
function(ringfeed_library name)
  cmake_parse_arguments(arg "" "" "SOURCES;LINK;ALONE" ${ARGN})
  add_library(ringfeed_${name} STATIC ${arg_SOURCES})
  if(RINGFEED_UNITY)
    set_target_properties(ringfeed_${name} PROPERTIES UNITY_BUILD ON UNITY_BUILD_BATCH_SIZE 16)
  endif()
  if(NOT CMAKE_UNITY_BUILD AND arg_ALONE)
    set_source_files_properties(${arg_ALONE} PROPERTIES SKIP_UNITY_BUILD_INCLUSION ON)
    if(RINGFEED_QUICK_BUILD)
      set_source_files_properties(${arg_ALONE} PROPERTIES COMPILE_OPTIONS -O2)
    endif()
  endif()
  add_library(ringfeed::${name} ALIAS ringfeed_${name})
  target_link_libraries(
    ringfeed_${name}
    PUBLIC ${arg_LINK}
    PRIVATE ringfeed::options)
endfunction()

# One precompiled header for all test programs: most of what they include, compiled once.
function(ringfeed_test_header)
  if(TARGET ringfeed_test_header)
    return()
  endif()
  file(WRITE ${CMAKE_BINARY_DIR}/generated/test_header.cc "int main() { return 0; }\n")
  add_executable(ringfeed_test_header ${CMAKE_BINARY_DIR}/generated/test_header.cc)
  target_link_libraries(ringfeed_test_header PRIVATE ringfeed::options fmt::fmt GTest::gmock)
  target_compile_options(ringfeed_test_header PRIVATE -O0)
  target_precompile_headers(ringfeed_test_header PRIVATE <fmt/format.h> <gmock/gmock.h> <gtest/gtest.h>)
endfunction()

# ringfeed_test(NAME SOURCES a_test.cc LINK x y [LABELS l] [FIXTURE f]): a GoogleTest program; every case is a ctest of its
# own, which FIXTURE, the name of a ctest fixture, comes before. Under a sanitizer, where a program takes long to start, a
# quarter of its cases is a ctest.
function(ringfeed_test name)
  cmake_parse_arguments(arg "" "TIMEOUT;FIXTURE" "SOURCES;LINK;LABELS" ${ARGN})
  # Ends what hangs: more than twice what the slowest took under a sanitizer, six tests at a time on two cores.
  if(NOT arg_TIMEOUT)
    set(arg_TIMEOUT 300)
  endif()
  if(NOT arg_LABELS)
    set(arg_LABELS unit)
  endif()
  set(fixture "")
  if(arg_FIXTURE)
    set(fixture FIXTURES_REQUIRED ${arg_FIXTURE})
  endif()
  add_executable(${name} ${arg_SOURCES})
  target_link_libraries(${name} PRIVATE ${arg_LINK} ringfeed::options fmt::fmt GTest::gmock GTest::gtest_main)
  target_include_directories(${name} PRIVATE ${CMAKE_SOURCE_DIR})
  target_compile_definitions(${name} PRIVATE RINGFEED_SOURCE_DIR="${CMAKE_SOURCE_DIR}"
                                             RINGFEED_BINARY_DIR="${CMAKE_BINARY_DIR}")
  # What tests wait for is the compiler: several files are compiled as one, and nothing of theirs is optimised.
  set_target_properties(${name} PROPERTIES UNITY_BUILD ON)
  target_compile_options(${name} PRIVATE -O0)
  ringfeed_test_header()
  target_precompile_headers(${name} REUSE_FROM ringfeed_test_header)
  if(RINGFEED_SANITIZE)
    set(shards 4)
    math(EXPR last "${shards} - 1")
    foreach(shard RANGE ${last})
      add_test(NAME ${name}.${shard} COMMAND ${name} --gtest_brief=1)
      set_tests_properties(
        ${name}.${shard}
        PROPERTIES TIMEOUT 900
                   LABELS "${arg_LABELS}"
                   ENVIRONMENT "GTEST_TOTAL_SHARDS=${shards};GTEST_SHARD_INDEX=${shard}"
                   ${fixture})
    endforeach()
    return()
  endif()
  gtest_discover_tests(
    ${name}
    DISCOVERY_TIMEOUT 60
    PROPERTIES TIMEOUT ${arg_TIMEOUT} LABELS "${arg_LABELS}" ${fixture})
endfunction()

# ringfeed_apart(SOURCE): a source below this build's directory, compiled by itself. Among sources that are compiled as one
# its path would be in what the compiler reads, and another build of this tree would find none of them in the compiler's
# cache.
function(ringfeed_apart source)
  set_source_files_properties(${source} PROPERTIES SKIP_UNITY_BUILD_INCLUSION ON)
endfunction()

# ringfeed_domain(NAME STAGES chunk_unpacker ... NEEDS files SOURCES lc0_record ... LINK x y): a folder of workers/ as the
# library ringfeed_NAME, alias ringfeed::NAME. The stage chunk_unpacker is in chunk_unpacker.cc, which defines
# StageType chunk_unpacker_type(); add_NAME() of the folder's domain.h, which is written here, registers them all.
# A source NAME_describers.cc defines add_NAME_describers(). NEEDS: domains whose records its stages take.
function(ringfeed_domain name)
  cmake_parse_arguments(arg "" "" "STAGES;NEEDS;SOURCES;LINK;ALONE" ${ARGN})
  set_property(GLOBAL PROPERTY ringfeed_needs_${name} ${arg_NEEDS})
  foreach(need IN LISTS arg_NEEDS)
    if(NOT TARGET ringfeed_${need})
      message(FATAL_ERROR "RINGFEED_DOMAINS: ${name} takes the records of ${need}: name ${need} before it")
    endif()
  endforeach()
  set_property(GLOBAL PROPERTY ringfeed_describes_${name} OFF)
  if(${name}_describers IN_LIST arg_SOURCES)
    set_property(GLOBAL PROPERTY ringfeed_describes_${name} ON)
    list(APPEND arg_LINK ringfeed::inspect)
  endif()
  set(types "")
  set(adds "")
  foreach(stage IN LISTS arg_STAGES)
    string(APPEND types "StageType ${stage}_type();\n")
    string(APPEND adds "  registry.add(${stage}_type());\n")
  endforeach()
  set(table ${CMAKE_BINARY_DIR}/generated/workers/${name}_stages.cc)
  file(
    CONFIGURE
    OUTPUT ${table}
    CONTENT
      "#include \"workers/${name}/domain.h\"\n#include \"workers/runtime/registry.h\"\n\nnamespace ringfeed {\n${types}\nvoid add_${name}(Registry& registry) {\n${adds}}\n}  // namespace ringfeed\n"
    @ONLY)
  ringfeed_apart(${table})
  list(TRANSFORM arg_STAGES APPEND .cc)
  list(TRANSFORM arg_SOURCES APPEND .cc)
  list(TRANSFORM arg_ALONE APPEND .cc)
  ringfeed_library(
    ${name}
    SOURCES ${arg_STAGES} ${arg_SOURCES} ${table}
    LINK ringfeed::kit ringfeed::io ${arg_LINK}
    ALONE ${arg_ALONE})
  target_link_libraries(ringfeed_${name} PUBLIC fmt::fmt)
endfunction()

# ringfeed_mirror(NAME SOURCES a_test ... LINK x y [LABELS l]): the test program NAME of all files *_test.cc in this folder,
# which is that of the sources below tests/unit. A new test is found by its name.
function(ringfeed_mirror name)
  cmake_parse_arguments(arg "" "TIMEOUT" "LEAVE_OUT;LINK;LABELS" ${ARGN})
  file(GLOB sources CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/*_test.cc)
  list(TRANSFORM arg_LEAVE_OUT PREPEND ${CMAKE_CURRENT_SOURCE_DIR}/)
  if(arg_LEAVE_OUT)
    list(REMOVE_ITEM sources ${arg_LEAVE_OUT})
  endif()
  ringfeed_test(${name} SOURCES ${sources} LINK ${arg_LINK} LABELS ${arg_LABELS})
endfunction()

# ringfeed_embed_pipeline(NAME PIPELINE SYMBOL): the text of workers/pipelines/PIPELINE.textproto in the library ringfeed_NAME, as
# extern const std::string_view ringfeed::pipelines::SYMBOL.
function(ringfeed_embed_pipeline name pipeline symbol)
  set(file ${PROJECT_SOURCE_DIR}/workers/pipelines/${pipeline}.textproto)
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${file})
  file(READ ${file} text)
  set(source ${CMAKE_BINARY_DIR}/generated/workers/pipelines/${pipeline}.cc)
  file(
    CONFIGURE
    OUTPUT ${source}
    CONTENT
      "#include <string_view>\n\nnamespace ringfeed::pipelines {\nextern const std::string_view ${symbol};\nconst std::string_view ${symbol} = R\"pipeline(${text})pipeline\";\n}  // namespace ringfeed::pipelines\n"
    @ONLY)
  ringfeed_apart(${source})
  target_sources(ringfeed_${name} PRIVATE ${source})
endfunction()
