# ring_bench: what a ring costs, beside a bare ring, a message queue, a pipe and memcpy in the same run.
add_executable(ring_bench ${CMAKE_CURRENT_LIST_DIR}/ring_bench.cc)
target_link_libraries(ring_bench PRIVATE ringfeed::shm ringfeed::options fmt::fmt rt)
target_include_directories(ring_bench SYSTEM PRIVATE ${Boost_INCLUDE_DIRS})
