# SPDX-License-Identifier: Apache-2.0
# Unit tests of the parts of collectives that know no MPI (src/coll/device).
set(unit_tests ${CMAKE_CURRENT_LIST_DIR})
add_executable(coll_test
    ${unit_tests}/coll_plan_test.cpp
    ${unit_tests}/coll_selection_test.cpp)
target_link_libraries(coll_test PRIVATE
    awaken_defaults awaken_coll_device awaken_ccl awaken_transfer awaken_node awaken_base awaken_gpu GTest::gtest GTest::gtest_main
    Threads::Threads ${CMAKE_DL_LIBS})
