# cmake -DLIBRARY=libringfeed.so -P check_library.cmake: fails unless the library needs libc alone and exports the
# functions of ringfeed.h and nothing else.
execute_process(COMMAND readelf -d ${LIBRARY} OUTPUT_VARIABLE dynamic RESULT_VARIABLE status)
if(NOT status EQUAL 0)
  message(FATAL_ERROR "readelf cannot read ${LIBRARY}")
endif()
string(REGEX MATCHALL "NEEDED[^\n]*\\[[^]]*\\]" needed "${dynamic}")
list(LENGTH needed needed_count)
if(NOT needed_count EQUAL 1 OR NOT needed MATCHES "\\[libc\\.so\\.6\\]")
  message(FATAL_ERROR "${LIBRARY} needs: ${needed}; only libc.so.6 is allowed")
endif()
execute_process(COMMAND nm -D --defined-only ${LIBRARY} OUTPUT_VARIABLE symbols RESULT_VARIABLE status)
string(REGEX MATCHALL "[^ \n]+\n" names "${symbols}")
set(exported "")
foreach(name IN LISTS names)
  string(STRIP "${name}" name)
  list(APPEND exported ${name})
endforeach()
list(SORT exported)
set(expected
    rf_ask
    rf_attach
    rf_control
    rf_detach
    rf_last_error
    rf_leave
    rf_leave_failed
    rf_metrics
    rf_next
    rf_pass_over
    rf_payload
    rf_release
    rf_release_batch
    rf_schema
    rf_stats
    rf_verify
    rf_version)
if(NOT exported STREQUAL expected)
  message(FATAL_ERROR "${LIBRARY} exports: ${exported}; expected: ${expected}")
endif()
