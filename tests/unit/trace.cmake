# SPDX-License-Identifier: Apache-2.0
# Unit tests of the timeline (src/trace): no MPI, no GPU.
set(unit_tests ${CMAKE_CURRENT_LIST_DIR})
add_executable(trace_test
    ${unit_tests}/trace_clocks_test.cpp
    ${unit_tests}/trace_files_test.cpp
    ${unit_tests}/trace_recorder_test.cpp)
target_link_libraries(trace_test PRIVATE
    awaken_defaults awaken_trace awaken_report awaken_base GTest::gtest GTest::gtest_main Threads::Threads)

# Not a test: prints what an event costs, see docs/trace.md.
add_executable(trace_cost ${unit_tests}/trace_cost.cpp)
target_link_libraries(trace_cost PRIVATE awaken_defaults awaken_trace awaken_report awaken_base)
