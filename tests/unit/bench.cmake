# Unit tests of bench/engine: no MPI, no GPU. Included by the CMakeLists.txt of this folder, after the benchmarks, which are
# left out of a build without nlohmann-json.
if(TARGET awaken_bench_engine)
    find_package(Threads REQUIRED)
    add_executable(bench_test
        ${CMAKE_CURRENT_LIST_DIR}/bench_catalogue_test.cpp
        ${CMAKE_CURRENT_LIST_DIR}/bench_comparison_test.cpp
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

    include(GoogleTest)
    gtest_discover_tests(bench_test PROPERTIES LABELS unit TIMEOUT 120)
endif()
