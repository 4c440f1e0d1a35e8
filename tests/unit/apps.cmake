# SPDX-License-Identifier: Apache-2.0
# Unit tests of the parts of apps/ that need neither MPI nor a GPU.

add_executable(apps_xtx_test
    ${CMAKE_CURRENT_LIST_DIR}/apps_xtx_test.cpp
    ${CMAKE_CURRENT_LIST_DIR}/../../apps/xtx/host_blas.cpp
    ${CMAKE_CURRENT_LIST_DIR}/../../apps/xtx/host_memory.cpp)
target_include_directories(apps_xtx_test PRIVATE
    ${CMAKE_CURRENT_LIST_DIR}/../../apps/xtx ${CMAKE_CURRENT_LIST_DIR}/../../apps/include)
target_link_libraries(apps_xtx_test PRIVATE awaken_defaults GTest::gtest GTest::gtest_main ${CMAKE_DL_LIBS})
