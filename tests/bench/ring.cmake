# ring_bench: what a ring costs, beside a bare ring, a message queue, a pipe and memcpy in the same run.
add_executable(ring_bench ${CMAKE_CURRENT_LIST_DIR}/ring_bench.cc)
# Otherwise the place of its loops depends on what else is linked, which changed the figure for 1 MB by a fifth.
target_compile_options(ring_bench PRIVATE -falign-functions=64 -falign-loops=32)
target_link_libraries(ring_bench PRIVATE ringfeed::shm ringfeed::options fmt::fmt rt)
target_include_directories(ring_bench SYSTEM PRIVATE ${Boost_INCLUDE_DIRS})
