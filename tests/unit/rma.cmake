# SPDX-License-Identifier: Apache-2.0
# What the members of a window share, and host mirrors of their device memory (src/rma/device): processes, but no MPI and
# no GPU but the emulated one.
set(unit_tests ${CMAKE_CURRENT_LIST_DIR})
add_executable(rma_exposure_test ${unit_tests}/rma_exposure_test.cpp)
target_link_libraries(rma_exposure_test PRIVATE
    awaken_defaults awaken_rma_device awaken_node awaken_transfer awaken_gpu awaken_base GTest::gtest GTest::gtest_main
    Threads::Threads)
if(COMMAND emulator_test)
    emulator_test(rma_host_mirror_test cuda:1 ${unit_tests}/rma_host_mirror_test.cpp)
    target_link_libraries(rma_host_mirror_test PRIVATE
        awaken_rma_device awaken_node awaken_transfer awaken_gpu awaken_base Threads::Threads)
endif()
