# SPDX-License-Identifier: Apache-2.0
# Unit tests of what processes of a node share (src/node): no MPI, no GPU.
set(unit_tests ${CMAKE_CURRENT_LIST_DIR})
add_executable(node_test ${unit_tests}/node_test.cpp)
target_link_libraries(node_test PRIVATE
    awaken_defaults awaken_node GTest::gtest GTest::gtest_main Threads::Threads)
