# SPDX-License-Identifier: Apache-2.0
# nlohmann-json for the benchmarks: the system's package, else its sources by FetchContent. Sets AWAKEN_HAVE_JSON; without
# it the benchmarks are left out with a message, and everything else still builds.
include_guard(GLOBAL)
include("${CMAKE_CURRENT_LIST_DIR}/Download.cmake")

set(AWAKEN_HAVE_JSON OFF)
find_package(nlohmann_json QUIET)
if(TARGET nlohmann_json::nlohmann_json)
    set(AWAKEN_HAVE_JSON ON)
    message(STATUS "nlohmann-json: ${nlohmann_json_DIR}")
    if(CMAKE_CROSSCOMPILING)
        # Its folder is that of this machine's C library too, which must not be found before the target's.
        get_target_property(_awaken_json_folders nlohmann_json::nlohmann_json INTERFACE_INCLUDE_DIRECTORIES)
        foreach(_awaken_json_folder IN LISTS _awaken_json_folders)
            if(EXISTS "${_awaken_json_folder}/nlohmann/json.hpp")
                file(COPY "${_awaken_json_folder}/nlohmann" DESTINATION "${PROJECT_BINARY_DIR}/json")
                break()
            endif()
        endforeach()
        set_target_properties(nlohmann_json::nlohmann_json PROPERTIES
                              INTERFACE_INCLUDE_DIRECTORIES "${PROJECT_BINARY_DIR}/json")
    endif()
else()
    set(_awaken_json_url "https://github.com/nlohmann/json/releases/download/v3.11.3/json.tar.xz")
    set(_awaken_json_sha256 d6c65aca6b1ed68e7a182f4757257b107ae403032760ed6ef121c9d55e81757d)
    set(_awaken_json_archive "${PROJECT_BINARY_DIR}/nlohmann-json.tar.xz")
    message(STATUS "nlohmann-json: no package installed, downloading ${_awaken_json_url}")
    awaken_download("${_awaken_json_url}" ${_awaken_json_sha256} "${_awaken_json_archive}" _awaken_json_error)
    if(EXISTS "${_awaken_json_archive}")
        include(FetchContent)
        set(JSON_BuildTests OFF CACHE INTERNAL "")
        set(JSON_Install OFF CACHE INTERNAL "")
        FetchContent_Declare(nlohmann_json URL "${_awaken_json_archive}" DOWNLOAD_EXTRACT_TIMESTAMP ON)
        FetchContent_MakeAvailable(nlohmann_json)
        set(AWAKEN_HAVE_JSON ON)
    else()
        message(WARNING "The benchmarks (awaken bench) are left out, because nlohmann-json is missing "
                        "(${_awaken_json_error}): install nlohmann-json3-dev (apt-get install nlohmann-json3-dev) and "
                        "configure again.")
    endif()
endif()
# The tests of the benchmarks skip themselves in a build that has none.
set(AWAKEN_BENCH_BUILT "${AWAKEN_HAVE_JSON}" CACHE INTERNAL "Whether nlohmann-json was found, which the benchmarks need")
