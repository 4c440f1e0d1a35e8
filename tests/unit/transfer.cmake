# Unit tests of src/transfer and src/report: no MPI, no GPU. Included by the CMakeLists.txt of this folder, after
# GoogleTest was found and the object libraries were defined.
set(unit_tests ${CMAKE_CURRENT_LIST_DIR})
add_executable(transfer_test
    ${unit_tests}/transfer_copier_test.cpp
    ${unit_tests}/transfer_device_copies_test.cpp
    ${unit_tests}/transfer_flat_type_test.cpp
    ${unit_tests}/transfer_bounce_buffer_test.cpp
    ${unit_tests}/transfer_layout_test.cpp
    ${unit_tests}/transfer_mappings_test.cpp
    ${unit_tests}/transfer_pinned_pool_test.cpp
    ${unit_tests}/transfer_process_memory_test.cpp
    ${unit_tests}/transfer_tuning_test.cpp)
target_link_libraries(transfer_test PRIVATE
    awaken_defaults awaken_transfer awaken_base awaken_gpu GTest::gtest GTest::gtest_main Threads::Threads)
add_executable(report_test ${unit_tests}/report_test.cpp)
target_link_libraries(report_test PRIVATE awaken_defaults awaken_report awaken_base GTest::gtest GTest::gtest_main Threads::Threads)


# Copies on the emulated driver, whose streams run by themselves and whose kernels are ours.
if(COMMAND emulator_test)
    foreach(vendor IN ITEMS cuda hip)
        emulator_test(transfer_device_copies_${vendor}_test ${vendor}:2
            ${unit_tests}/transfer_device_copies_emulated_test.cpp)
        emulator_test(transfer_packer_${vendor}_test ${vendor}:2 ${unit_tests}/transfer_packer_test.cpp)
        foreach(test IN ITEMS transfer_device_copies_${vendor}_test transfer_packer_${vendor}_test)
            target_link_libraries(${test} PRIVATE awaken_transfer awaken_base awaken_gpu Threads::Threads)
        endforeach()
    endforeach()
    foreach(test IN ITEMS transfer_device_copies transfer_packer)
        target_compile_definitions(${test}_cuda_test PRIVATE AWAKEN_TEST_HIP=0)
        target_compile_definitions(${test}_hip_test PRIVATE AWAKEN_TEST_HIP=1)
    endforeach()

    # The vendor is an argument of what this program runs in processes of their own.
    emulator_test(transfer_ring_test cuda:2 ${unit_tests}/transfer_ring_test.cpp)
    target_link_libraries(transfer_ring_test PRIVATE awaken_transfer awaken_base awaken_gpu Threads::Threads)
endif()

# Device memory that the CPU reaches, with a stand-in for GDRCopy's library; the program loads it before the code under
# test does, which then finds it by its own name.
add_library(transfer_fake_gdrapi MODULE ${unit_tests}/fake_gdrapi.c)
set_target_properties(transfer_fake_gdrapi PROPERTIES
    PREFIX "" OUTPUT_NAME libgdrapi SUFFIX .so.2 C_VISIBILITY_PRESET hidden
    LIBRARY_OUTPUT_DIRECTORY ${CMAKE_CURRENT_BINARY_DIR}/fake_gdrapi)
target_link_options(transfer_fake_gdrapi PRIVATE -Wl,-soname,libgdrapi.so.2)
target_link_libraries(transfer_fake_gdrapi PRIVATE awaken_defaults Threads::Threads ${CMAKE_DL_LIBS})
add_executable(transfer_exports_test ${unit_tests}/transfer_exports_test.cpp)
add_executable(transfer_cpu_window_test ${unit_tests}/transfer_cpu_window_test.cpp)
add_dependencies(transfer_cpu_window_test transfer_fake_gdrapi)
target_compile_definitions(transfer_cpu_window_test PRIVATE AWAKEN_FAKE_GDRAPI="$<TARGET_FILE:transfer_fake_gdrapi>")
foreach(test IN ITEMS transfer_exports_test transfer_cpu_window_test)
    target_link_libraries(${test} PRIVATE
        awaken_defaults awaken_transfer awaken_base awaken_gpu GTest::gtest GTest::gtest_main Threads::Threads
        ${CMAKE_DL_LIBS})
    if(AWAKEN_BUILD_EMULATOR AND TARGET emulator)
        target_compile_definitions(${test} PRIVATE AWAKEN_EMULATOR_DIRECTORY="$<TARGET_FILE_DIR:emulator_core>")
        add_dependencies(${test} emulator)
    endif()
endforeach()
