# SPDX-License-Identifier: Apache-2.0
# Unit tests of src/transfer and src/report: no MPI, no GPU. Included by the CMakeLists.txt of this folder, after
# GoogleTest was found and the object libraries were defined.
set(unit_tests ${CMAKE_CURRENT_LIST_DIR})
add_executable(transfer_test
    ${unit_tests}/transfer_flat_type_test.cpp
    ${unit_tests}/transfer_bounce_buffer_test.cpp
    ${unit_tests}/transfer_layout_test.cpp
    ${unit_tests}/transfer_mappings_test.cpp
    ${unit_tests}/transfer_process_memory_test.cpp
    ${unit_tests}/transfer_tuning_test.cpp)
target_link_libraries(transfer_test PRIVATE
    awaken_defaults awaken_transfer awaken_base awaken_gpu GTest::gtest GTest::gtest_main Threads::Threads)
add_executable(report_test ${unit_tests}/report_test.cpp)
target_link_libraries(report_test PRIVATE awaken_defaults awaken_report awaken_base GTest::gtest GTest::gtest_main Threads::Threads)

# Device memory that the CPU reaches, with a stand-in for GDRCopy's library; the program loads it before the code under
# test does, which then finds it by its own name.
add_library(transfer_fake_gdrapi MODULE ${unit_tests}/fake_gdrapi.c)
set_target_properties(transfer_fake_gdrapi PROPERTIES
    PREFIX "" OUTPUT_NAME libgdrapi SUFFIX .so.2 C_VISIBILITY_PRESET hidden
    LIBRARY_OUTPUT_DIRECTORY ${CMAKE_CURRENT_BINARY_DIR}/fake_gdrapi)
target_link_options(transfer_fake_gdrapi PRIVATE -Wl,-soname,libgdrapi.so.2)
target_link_libraries(transfer_fake_gdrapi PRIVATE awaken_defaults Threads::Threads ${CMAKE_DL_LIBS})

# On the emulated driver, whose streams run by themselves and whose kernels are ours.
if(COMMAND emulator_test)
    foreach(vendor IN ITEMS cuda hip)
        foreach(test IN ITEMS device_copies packer)
            emulator_test(transfer_${test}_${vendor}_test ${vendor}:2 ${unit_tests}/transfer_${test}_test.cpp)
            target_link_libraries(transfer_${test}_${vendor}_test PRIVATE
                awaken_transfer awaken_base awaken_gpu Threads::Threads)
        endforeach()
    endforeach()
    foreach(test IN ITEMS transfer_device_copies transfer_packer)
        target_compile_definitions(${test}_cuda_test PRIVATE AWAKEN_TEST_HIP=0)
        target_compile_definitions(${test}_hip_test PRIVATE AWAKEN_TEST_HIP=1)
    endforeach()

    # Some of these run the other vendor too, in processes of their own.
    emulator_test(transfer_copier_test cuda:2
        ${unit_tests}/transfer_copier_test.cpp
        ${unit_tests}/transfer_pinned_pool_test.cpp)
    emulator_test(transfer_cpu_window_test cuda:2 ${unit_tests}/transfer_cpu_window_test.cpp)
    emulator_test(transfer_exports_test cuda:2 ${unit_tests}/transfer_exports_test.cpp)
    emulator_test(transfer_ring_test cuda:2 ${unit_tests}/transfer_ring_test.cpp)
    foreach(test IN ITEMS copier cpu_window exports ring)
        target_link_libraries(transfer_${test}_test PRIVATE awaken_transfer awaken_base awaken_gpu Threads::Threads)
    endforeach()
    add_dependencies(transfer_cpu_window_test transfer_fake_gdrapi)
    target_compile_definitions(transfer_cpu_window_test PRIVATE
        AWAKEN_FAKE_GDRAPI="$<TARGET_FILE:transfer_fake_gdrapi>")
endif()
