# Unit tests of the parts of point-to-point that know no MPI (src/ipc): slots and the background thread without a GPU,
# whole transfers between processes on the emulated driver.
set(unit_tests ${CMAKE_CURRENT_LIST_DIR})
add_executable(p2p_test
    ${unit_tests}/p2p_background_test.cpp
    ${unit_tests}/p2p_lane_test.cpp
    ${unit_tests}/p2p_looks_test.cpp
    ${unit_tests}/p2p_offers_test.cpp
    ${unit_tests}/p2p_settling_test.cpp
    ${unit_tests}/p2p_whereabouts_test.cpp)
target_link_libraries(p2p_test PRIVATE
    awaken_defaults awaken_ipc awaken_transfer awaken_node awaken_base awaken_gpu GTest::gtest GTest::gtest_main
    Threads::Threads ${CMAKE_DL_LIBS})

# The vendor is an argument of what this program runs in processes of their own.
if(COMMAND emulator_test)
    emulator_test(p2p_link_test cuda:2
        ${unit_tests}/p2p_link_faults_test.cpp
        ${unit_tests}/p2p_link_test.cpp)
    target_link_libraries(p2p_link_test PRIVATE
        awaken_ipc awaken_transfer awaken_node awaken_base awaken_gpu Threads::Threads)
    target_compile_definitions(p2p_link_test PRIVATE AWAKEN_FAKE_GDRAPI="$<TARGET_FILE:transfer_fake_gdrapi>")
    add_dependencies(p2p_link_test transfer_fake_gdrapi)
endif()
