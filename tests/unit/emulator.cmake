# SPDX-License-Identifier: Apache-2.0
# Unit tests of the emulated GPU driver. Each program opens the libraries as programs do, and runs itself again for what
# needs a process or an environment of its own.

get_target_property(emulator_directory emulator_core LIBRARY_OUTPUT_DIRECTORY)
get_filename_component(emulator_kernels "${CMAKE_CURRENT_LIST_DIR}/../../src/gpu/kernels" ABSOLUTE)

get_filename_component(emulator_apps "${CMAKE_CURRENT_LIST_DIR}/../../apps" ABSOLUTE)

function(emulator_test name emulate)
    add_executable(${name} ${ARGN} ${CMAKE_CURRENT_FUNCTION_LIST_DIR}/emulator_support.cpp)
    target_include_directories(${name} PRIVATE ${CMAKE_CURRENT_FUNCTION_LIST_DIR})
    target_compile_definitions(${name} PRIVATE
        AWAKEN_EMULATOR_DIRECTORY="${emulator_directory}"
        AWAKEN_KERNEL_DIRECTORY="${emulator_kernels}"
        AWAKEN_APPS_DIRECTORY="${emulator_apps}"
        AWAKEN_TEST_EMULATE="${emulate}")
    target_link_libraries(${name} PRIVATE awaken_defaults GTest::gtest ${CMAKE_DL_LIBS})
    add_dependencies(${name} emulator)
endfunction()

emulator_test(emulator_cuda_test cuda:2 ${CMAKE_CURRENT_LIST_DIR}/emulator_cuda_test.cpp)
foreach(generation IN ITEMS 5 6 7)
    emulator_test(emulator_hip${generation}_test hip:2 ${CMAKE_CURRENT_LIST_DIR}/emulator_hip_test.cpp)
    target_compile_definitions(emulator_hip${generation}_test PRIVATE AWAKEN_HIP_GENERATION=${generation})
endforeach()
emulator_test(emulator_core_test cuda:2 ${CMAKE_CURRENT_LIST_DIR}/emulator_core_test.cpp)
target_link_libraries(emulator_core_test PRIVATE emulator_core)
target_compile_definitions(emulator_core_test PRIVATE
    AWAKEN_NM="${CMAKE_NM}"
    AWAKEN_EMULATOR_TABLE="${CMAKE_CURRENT_LIST_DIR}/../../docs/emulator.md")

# The emulated collective communication libraries, by way of src/ccl.
foreach(vendor IN ITEMS cuda hip)
    emulator_test(emulator_ccl_${vendor}_test ${vendor}:2 ${CMAKE_CURRENT_LIST_DIR}/emulator_ccl_test.cpp)
    target_link_libraries(emulator_ccl_${vendor}_test PRIVATE awaken_ccl awaken_gpu emulator_ccl)
endforeach()
target_compile_definitions(emulator_ccl_cuda_test PRIVATE AWAKEN_CCL_HIP=0)
target_compile_definitions(emulator_ccl_hip_test PRIVATE AWAKEN_CCL_HIP=1)

# The emulated BLAS libraries, each version of them.
foreach(file IN ITEMS libcublas.so.12 libcublas.so.13 libhipblas.so.1 libhipblas.so.2 libhipblas.so.3)
    string(REGEX MATCH "(cu|hip)blas" library "${file}")
    string(REGEX MATCH "[0-9]+$" version "${file}")
    set(vendor cuda)
    set(is_hip 0)
    if(library STREQUAL "hipblas")
        set(vendor hip)
        set(is_hip 1)
    endif()
    emulator_test(emulator_${library}_${version}_test ${vendor}:2 ${CMAKE_CURRENT_LIST_DIR}/emulator_blas_test.cpp)
    target_compile_definitions(emulator_${library}_${version}_test PRIVATE
        AWAKEN_BLAS_FILE="${file}" AWAKEN_BLAS_HIP=${is_hip})
endforeach()

# A program against the real headers, where there are any.
find_path(AWAKEN_HIP_INCLUDE hip/hip_runtime_api.h HINTS ENV ROCM_PATH PATHS /opt/rocm PATH_SUFFIXES include)
if(AWAKEN_HIP_INCLUDE AND EXISTS "${AWAKEN_HIP_INCLUDE}/hip/hip_version.h")
    file(STRINGS "${AWAKEN_HIP_INCLUDE}/hip/hip_version.h" hip_version REGEX "define HIP_VERSION_MAJOR")
    string(REGEX REPLACE "[^0-9]" "" hip_version "${hip_version}")
    if(TARGET emulator_hip_${hip_version})
        emulator_test(emulator_hip_headers_test hip:2 ${CMAKE_CURRENT_LIST_DIR}/emulator_hip_headers_test.cpp)
        target_link_libraries(emulator_hip_headers_test PRIVATE emulator_hip_${hip_version})
        set_source_files_properties(${CMAKE_CURRENT_LIST_DIR}/emulator_hip_headers_test.cpp PROPERTIES
            COMPILE_DEFINITIONS __HIP_PLATFORM_AMD__ COMPILE_OPTIONS "-w;-idirafter;${AWAKEN_HIP_INCLUDE}")
    endif()
else()
    message(STATUS "No HIP headers: the emulated HIP runtime is not compared with them")
endif()
