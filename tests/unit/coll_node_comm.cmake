# SPDX-License-Identifier: Apache-2.0
# Collectives between processes (src/coll/device/node_comm), on the emulated driver.
set(unit_tests ${CMAKE_CURRENT_LIST_DIR})
if(COMMAND emulator_test)
    emulator_test(coll_node_comm_test cuda:2 ${unit_tests}/coll_node_comm_test.cpp)
    target_link_libraries(coll_node_comm_test PRIVATE
        awaken_coll_device awaken_ccl awaken_ipc awaken_transfer awaken_node awaken_base awaken_gpu Threads::Threads)
endif()
