# SPDX-License-Identifier: Apache-2.0
# GoogleTest for the unit tests: the system's package, else its sources: those of the package where the build is for
# another processor, else by FetchContent. Sets AWAKEN_HAVE_GTEST; without it the unit tests are left out with a message,
# and everything else still builds.
include_guard(GLOBAL)
include("${CMAKE_CURRENT_LIST_DIR}/Download.cmake")

set(AWAKEN_HAVE_GTEST OFF)
find_package(GTest QUIET)
if(TARGET GTest::gtest_main)
    set(AWAKEN_HAVE_GTEST ON)
    message(STATUS "GoogleTest: ${GTest_DIR}")
elseif(CMAKE_CROSSCOMPILING AND EXISTS /usr/src/googletest/CMakeLists.txt)
    message(STATUS "GoogleTest: /usr/src/googletest")
    set(INSTALL_GTEST OFF CACHE BOOL "" FORCE)
    add_subdirectory(/usr/src/googletest "${PROJECT_BINARY_DIR}/googletest" EXCLUDE_FROM_ALL SYSTEM)
    set(AWAKEN_HAVE_GTEST ON)
else()
    set(_awaken_gtest_url "https://github.com/google/googletest/archive/refs/tags/v1.15.2.tar.gz")
    set(_awaken_gtest_sha256 7b42b4d6ed48810c5362c265a17faebe90dc2373c885e5216439d37927f02926)
    set(_awaken_gtest_archive "${PROJECT_BINARY_DIR}/googletest.tar.gz")
    message(STATUS "GoogleTest: no package installed, downloading ${_awaken_gtest_url}")
    awaken_download("${_awaken_gtest_url}" ${_awaken_gtest_sha256} "${_awaken_gtest_archive}" _awaken_gtest_error)
    if(EXISTS "${_awaken_gtest_archive}")
        include(FetchContent)
        set(INSTALL_GTEST OFF CACHE BOOL "" FORCE)
        FetchContent_Declare(googletest URL "${_awaken_gtest_archive}" DOWNLOAD_EXTRACT_TIMESTAMP ON)
        FetchContent_MakeAvailable(googletest)
        set(AWAKEN_HAVE_GTEST ON)
    else()
        message(WARNING "The unit tests are left out, because GoogleTest is missing (${_awaken_gtest_error}): install "
                        "libgtest-dev (apt-get install libgtest-dev) and configure again.")
    endif()
endif()
