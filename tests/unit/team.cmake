# Collectives between processes, on the emulated driver.
set(unit_tests ${CMAKE_CURRENT_LIST_DIR})
if(COMMAND emulator_test)
    emulator_test(coll_team_test cuda:2 ${unit_tests}/coll_team_test.cpp)
    target_link_libraries(coll_team_test PRIVATE
        awaken_coll_device awaken_ccl awaken_ipc awaken_transfer awaken_node awaken_base awaken_gpu Threads::Threads)
endif()
