# SPDX-License-Identifier: Apache-2.0
# Unit tests of the parts of point-to-point that know no MPI (src/ipc): slots and the background thread without a GPU,
# whole transfers between processes on the emulated driver.
set(unit_tests ${CMAKE_CURRENT_LIST_DIR})
add_executable(ipc_test
    ${unit_tests}/ipc_background_test.cpp
    ${unit_tests}/protocol_polling_order_test.cpp
    ${unit_tests}/ipc_mapping_account_test.cpp
    ${unit_tests}/ipc_offers_test.cpp
    ${unit_tests}/ipc_readiness_test.cpp
    ${unit_tests}/protocol_send_path_test.cpp)
target_link_libraries(ipc_test PRIVATE
    awaken_defaults awaken_ipc awaken_transfer awaken_node awaken_base awaken_gpu GTest::gtest GTest::gtest_main
    Threads::Threads ${CMAKE_DL_LIBS})

# The vendor is an argument of what this program runs in processes of their own.
if(COMMAND emulator_test)
    emulator_test(ipc_link_test cuda:2
        ${unit_tests}/ipc_link_faults_test.cpp
        ${unit_tests}/ipc_link_test.cpp)
    target_link_libraries(ipc_link_test PRIVATE
        awaken_ipc awaken_transfer awaken_node awaken_base awaken_gpu Threads::Threads)
    target_compile_definitions(ipc_link_test PRIVATE AWAKEN_FAKE_GDRAPI="$<TARGET_FILE:transfer_fake_gdrapi>")
    add_dependencies(ipc_link_test transfer_fake_gdrapi)
endif()
