# Unit tests of src/transfer and src/report: no MPI, no GPU. Included by the CMakeLists.txt of this folder, after
# GoogleTest was found and the object libraries were defined.
set(unit_tests ${CMAKE_CURRENT_LIST_DIR})
add_executable(transfer_test
    ${unit_tests}/transfer_copier_test.cpp
    ${unit_tests}/transfer_layout_test.cpp
    ${unit_tests}/transfer_mappings_test.cpp
    ${unit_tests}/transfer_pinned_pool_test.cpp
    ${unit_tests}/transfer_process_memory_test.cpp)
target_link_libraries(transfer_test PRIVATE
    awaken_defaults awaken_transfer awaken_gpu GTest::gtest GTest::gtest_main Threads::Threads)
add_executable(report_test ${unit_tests}/report_test.cpp)
target_link_libraries(report_test PRIVATE awaken_defaults awaken_report GTest::gtest GTest::gtest_main Threads::Threads)

include(GoogleTest)
foreach(test IN ITEMS transfer_test report_test)
    gtest_discover_tests(${test} PROPERTIES LABELS unit TIMEOUT 120)
endforeach()
