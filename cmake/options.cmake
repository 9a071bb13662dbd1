# ringfeed_options (alias ringfeed::options): the flags of all code we write; generated code does not use it.
add_library(ringfeed_options INTERFACE)
add_library(ringfeed::options ALIAS ringfeed_options)
target_compile_options(
  ringfeed_options
  INTERFACE -Wall
            -Wextra
            -Wpedantic
            -Wshadow
            -Wconversion
            $<$<COMPILE_LANGUAGE:CXX>:-Wnon-virtual-dtor>
            # To GCC it is no part of -Wconversion in C++, and the house goes by GCC.
            $<$<CXX_COMPILER_ID:Clang>:-Wno-sign-conversion>
            # A table of crc32c.cc takes more steps than Clang allows by itself.
            $<$<COMPILE_LANG_AND_ID:CXX,Clang>:-fconstexpr-steps=16777216>
            $<$<BOOL:${RINGFEED_WERROR}>:-Werror>)
# Where several sources are compiled as one, none of them is the main file, and what is in an unnamed namespace looks to
# GCC as if it were in a header.
if(CMAKE_UNITY_BUILD OR RINGFEED_UNITY)
  target_compile_options(ringfeed_options INTERFACE $<$<COMPILE_LANG_AND_ID:CXX,GNU>:-Wno-subobject-linkage>)
endif()
if(RINGFEED_FAILPOINTS)
  target_compile_definitions(ringfeed_options INTERFACE RINGFEED_FAILPOINTS=1)
endif()

# GCC collects garbage whenever its heap has doubled, however much memory there is. With these limits it collects less
# often: less time, a third more memory (figures in decision 29).
if(CMAKE_CXX_COMPILER_ID STREQUAL GNU)
  cmake_host_system_information(RESULT memory_mib QUERY TOTAL_PHYSICAL_MEMORY)
  cmake_host_system_information(RESULT processors QUERY NUMBER_OF_LOGICAL_CORES)
  math(EXPR mib_per_compiler "${memory_mib} / ${processors}")
  if(mib_per_compiler GREATER 4000)
    add_compile_options("SHELL:--param ggc-min-expand=200" "SHELL:--param ggc-min-heapsize=600000")
  endif()
endif()

# Sanitizers apply to everything that is compiled here.
foreach(sanitizer IN LISTS RINGFEED_SANITIZE)
  add_compile_options(-fsanitize=${sanitizer})
  add_link_options(-fsanitize=${sanitizer})
endforeach()
if(RINGFEED_SANITIZE)
  add_compile_options(-fno-omit-frame-pointer)
  if("undefined" IN_LIST RINGFEED_SANITIZE)
    add_compile_options(-fno-sanitize-recover=undefined)
    # Its check of an object's type opens a pipe to look at memory. Where tests leave a process no descriptor that fails, and
    # every object that is new to it passes for one of another type.
    add_compile_options(-fno-sanitize=vptr)
  endif()
endif()
# What a fuzz target reaches tells it where to look next. Its own main() comes when it is linked.
if(RINGFEED_FUZZ)
  if(NOT CMAKE_CXX_COMPILER_ID STREQUAL Clang)
    message(FATAL_ERROR "RINGFEED_FUZZ needs Clang: cmake --preset fuzz")
  endif()
  add_compile_options(-fsanitize=fuzzer-no-link)
endif()

# ringfeed_off_the_path(): no batch passes through what this folder compiles, except through the sources that are compiled
# ALONE. RINGFEED_QUICK_BUILD does not optimise it (decision 29).
function(ringfeed_off_the_path)
  if(RINGFEED_QUICK_BUILD)
    add_compile_options(-O0)
  endif()
endfunction()
