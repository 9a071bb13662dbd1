# Lanes of any number of stages in the test's own process, on real segments. Which stages there are the program says that
# links it: ringfeed::stages has all, ringfeed::no_stages none but the test's own.
ringfeed_library(
  lane_rig
  SOURCES
  ${CMAKE_SOURCE_DIR}/tests/support/rig/lane_rig.cc
  LINK
  ringfeed::io
  ringfeed::runtime)
worker_stages(no_stages)
target_link_libraries(ringfeed_lane_rig PRIVATE fmt::fmt)
if(ArrowParquet_FOUND)
  ringfeed_library(parquet_maker SOURCES ${CMAKE_SOURCE_DIR}/tests/support/makers/parquet_maker.cc)
  target_include_directories(ringfeed_parquet_maker PUBLIC ${CMAKE_SOURCE_DIR})
  target_link_libraries(ringfeed_parquet_maker PRIVATE ArrowParquet::ArrowParquet)
endif()
