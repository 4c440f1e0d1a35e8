# SPDX-License-Identifier: Apache-2.0
# Unit tests of bench/engine: no MPI, no GPU. Included by the CMakeLists.txt of this folder, after the benchmarks, which are
# left out of a build without nlohmann-json.
if(TARGET awaken_bench_engine)
    find_package(Threads REQUIRED)
    add_executable(bench_test
        ${CMAKE_CURRENT_LIST_DIR}/bench_catalogue_test.cpp
        ${CMAKE_CURRENT_LIST_DIR}/bench_comparison_test.cpp
        ${CMAKE_CURRENT_LIST_DIR}/bench_device_facts_test.cpp
        ${CMAKE_CURRENT_LIST_DIR}/bench_json_test.cpp
        ${CMAKE_CURRENT_LIST_DIR}/bench_options_test.cpp
        ${CMAKE_CURRENT_LIST_DIR}/bench_osu_printer_test.cpp
        ${CMAKE_CURRENT_LIST_DIR}/bench_pattern_test.cpp
        ${CMAKE_CURRENT_LIST_DIR}/bench_statistics_test.cpp
        ${CMAKE_CURRENT_LIST_DIR}/bench_turns_test.cpp)
    target_link_libraries(bench_test PRIVATE
        awaken_defaults awaken_bench_engine GTest::gtest GTest::gtest_main Threads::Threads)
    target_compile_definitions(bench_test PRIVATE
        AWAKEN_BENCHMARKS_PAGE="${CMAKE_CURRENT_LIST_DIR}/../../docs/benchmarks.md")

    add_library(bench_fake_nvml MODULE ${CMAKE_CURRENT_LIST_DIR}/bench_fake_nvml.c)
    set_target_properties(bench_fake_nvml PROPERTIES
        PREFIX "" OUTPUT_NAME libnvidia-ml SUFFIX .so.1 C_VISIBILITY_PRESET hidden
        LIBRARY_OUTPUT_DIRECTORY ${CMAKE_CURRENT_BINARY_DIR}/fake_nvml)
    # The loader knows a library that is loaded by its own name.
    target_link_options(bench_fake_nvml PRIVATE -Wl,-soname,libnvidia-ml.so.1)
    add_dependencies(bench_test bench_fake_nvml)
    target_compile_definitions(bench_test PRIVATE AWAKEN_FAKE_NVML="${CMAKE_CURRENT_BINARY_DIR}/fake_nvml")
endif()
