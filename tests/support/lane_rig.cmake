# Lanes of any number of stages in the test's own process, on real segments.
ringfeed_library(
  lane_rig
  SOURCES
  ${CMAKE_SOURCE_DIR}/tests/support/lane_rig.cc
  LINK
  ringfeed::stages)
target_link_libraries(ringfeed_lane_rig PRIVATE fmt::fmt)
