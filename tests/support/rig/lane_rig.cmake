# Lanes of any number of stages in the test's own process, on real segments.
ringfeed_library(
  lane_rig
  SOURCES
  ${CMAKE_SOURCE_DIR}/tests/support/rig/lane_rig.cc
  LINK
  ringfeed::stages)
target_link_libraries(ringfeed_lane_rig PRIVATE fmt::fmt)
if(ArrowParquet_FOUND)
  ringfeed_library(parquet_maker SOURCES ${CMAKE_SOURCE_DIR}/tests/support/makers/parquet_maker.cc)
  target_include_directories(ringfeed_parquet_maker PUBLIC ${CMAKE_SOURCE_DIR})
  target_link_libraries(ringfeed_parquet_maker PRIVATE ArrowParquet::ArrowParquet)
endif()
