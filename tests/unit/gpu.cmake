# SPDX-License-Identifier: Apache-2.0
# Unit tests of src/gpu and src/base: no MPI. Included by the CMakeLists.txt of this folder, after find_package(GTest) and
# the object libraries.
find_package(Threads REQUIRED)

add_executable(settings_test doctor_notes_test.cpp input_file_test.cpp output_file_test.cpp settings_test.cpp)
target_link_libraries(settings_test PRIVATE awaken_base GTest::gtest GTest::gtest_main)

# Loads the vendors' libraries, and so is kept apart from the tests of what happens when nothing is loaded.
add_executable(gpu_compiler_test gpu_compiler_test.cpp)
target_link_libraries(gpu_compiler_test PRIVATE awaken_gpu GTest::gtest GTest::gtest_main ${CMAKE_DL_LIBS})

add_executable(gpu_test
    gpu_dynamic_library_test.cpp
    gpu_find_test.cpp
    gpu_identity_table_test.cpp
    gpu_kernel_cache_test.cpp
    gpu_memory_kinds_test.cpp
    gpu_none_test.cpp
    gpu_precompiled_kernels_test.cpp
    gpu_shared_descriptors_test.cpp)
target_link_libraries(gpu_test PRIVATE awaken_gpu GTest::gtest GTest::gtest_main Threads::Threads ${CMAKE_DL_LIBS})
target_include_directories(gpu_test PRIVATE ${CMAKE_CURRENT_LIST_DIR})

# Drivers in the states that an emulated or a real one does not get into on demand. Each lies in a folder of its own under
# the real library's file name, by which find() knows it.
set(fake_drivers ${CMAKE_CURRENT_BINARY_DIR}/fake_drivers)
foreach(form IN ITEMS complete incomplete)
    add_library(gpu_fake_driver_${form} MODULE gpu_fake_driver.cpp)
    set_target_properties(gpu_fake_driver_${form} PROPERTIES
        PREFIX "" OUTPUT_NAME libcuda SUFFIX .so.1 LIBRARY_OUTPUT_DIRECTORY ${fake_drivers}/${form}
        CXX_VISIBILITY_PRESET hidden)
    add_dependencies(gpu_test gpu_fake_driver_${form})
endforeach()
target_compile_definitions(gpu_fake_driver_incomplete PRIVATE AWAKEN_FAKE_DRIVER_LACKS_IPC)
target_compile_definitions(gpu_test PRIVATE AWAKEN_FAKE_DRIVERS="${fake_drivers}")

# The numbers of the HIP interface against the real header, where there is one.
find_path(AWAKEN_HIP_INCLUDE hip/hip_runtime_api.h HINTS ENV ROCM_PATH PATHS /opt/rocm PATH_SUFFIXES include)
if(AWAKEN_HIP_INCLUDE)
    target_sources(gpu_test PRIVATE gpu_hip_abi_test.cpp)
    set_source_files_properties(gpu_hip_abi_test.cpp PROPERTIES
        COMPILE_DEFINITIONS __HIP_PLATFORM_AMD__ COMPILE_OPTIONS "-idirafter;${AWAKEN_HIP_INCLUDE}")
else()
    message(STATUS "No HIP headers: the numbers in src/gpu/hip_abi.h are not compared with them")
endif()

foreach(test IN ITEMS settings_test gpu_test gpu_compiler_test)
    target_link_libraries(${test} PRIVATE awaken_defaults)
endforeach()

# On the emulated driver: the whole interface in each of its forms, and what happens when calls fail.
if(AWAKEN_BUILD_EMULATOR AND TARGET emulator)
    if(NOT TARGET gpu_interface_check)
        add_subdirectory(${CMAKE_CURRENT_LIST_DIR}/../gpu_hardware ${CMAKE_CURRENT_BINARY_DIR}/gpu_hardware)
    endif()
    add_executable(gpu_emulated_test gpu_faults_test.cpp gpu_interface_test.cpp)
    target_link_libraries(gpu_emulated_test PRIVATE awaken_defaults awaken_gpu GTest::gtest GTest::gtest_main
                                                    ${CMAKE_DL_LIBS})
    target_compile_definitions(gpu_emulated_test PRIVATE
        AWAKEN_EMULATOR_DIRECTORY="$<TARGET_FILE_DIR:emulator_core>"
        AWAKEN_INTERFACE_CHECK="$<TARGET_FILE:gpu_interface_check>")
    add_dependencies(gpu_emulated_test emulator gpu_interface_check)

    # The kernels of collective operations, in both vendors' hands.
    foreach(vendor IN ITEMS cuda hip)
        emulator_test(gpu_combine_${vendor}_test ${vendor}:1 ${CMAKE_CURRENT_LIST_DIR}/gpu_combine_test.cpp)
        target_link_libraries(gpu_combine_${vendor}_test PRIVATE awaken_gpu awaken_host_fold)
    endforeach()
    target_compile_definitions(gpu_combine_cuda_test PRIVATE AWAKEN_TEST_HIP=0)
    target_compile_definitions(gpu_combine_hip_test PRIVATE AWAKEN_TEST_HIP=1)
endif()
