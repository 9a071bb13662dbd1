# formats_bench: what workers/formats costs, each loop beside a reference in the same run.
add_executable(formats_bench ${CMAKE_CURRENT_LIST_DIR}/formats_bench.cc
                             ${CMAKE_CURRENT_LIST_DIR}/bitext_bench.cc)
target_link_libraries(formats_bench PRIVATE ringfeed::bitext ringfeed::chess ringfeed::lc0 ringfeed::options ZLIB::ZLIB
                                            benchmark::benchmark)
target_include_directories(formats_bench PRIVATE ${CMAKE_SOURCE_DIR})
target_compile_definitions(formats_bench PRIVATE RINGFEED_SOURCE_DIR="${CMAKE_SOURCE_DIR}")
