# Lanes of any number of stages in the test's own process, on real segments. A program that
# links it also links ringfeed::stages, which has the stages of every domain, or ringfeed::no_stages, which has none.
ringfeed_library(
  lane_rig
  SOURCES
  ${CMAKE_SOURCE_DIR}/tests/support/rig/lane_rig.cc
  LINK
  ringfeed::io
  ringfeed::runtime)
target_link_libraries(ringfeed_lane_rig PRIVATE fmt::fmt)
worker_stages(no_stages)
if(ArrowParquet_FOUND)
  ringfeed_library(parquet_maker SOURCES ${CMAKE_SOURCE_DIR}/tests/support/makers/parquet_maker.cc)
  target_include_directories(ringfeed_parquet_maker PUBLIC ${CMAKE_SOURCE_DIR})
  target_link_libraries(ringfeed_parquet_maker PRIVATE ArrowParquet::ArrowParquet)
endif()
