# SPDX-License-Identifier: Apache-2.0
# What every target of the project shares: language level, warnings, sanitizers, where things are built and installed.
#
# The layout below the build directory is the layout below the installation prefix, so that build/<preset>/bin/awaken
# finds its library without being installed:
#   bin/awaken   lib/awaken/libawaken.so   lib/awaken/emulator/...   include/awaken/*.h
# "lib" is not GNUInstallDirs' lib64 or lib/<triplet>: bin/awaken looks in ../lib/awaken, on every distribution.
include_guard(GLOBAL)

set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_C_STANDARD 11)
set(CMAKE_C_STANDARD_REQUIRED ON)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
set(CMAKE_C_VISIBILITY_PRESET hidden)
set(CMAKE_CXX_VISIBILITY_PRESET hidden)
set(CMAKE_VISIBILITY_INLINES_HIDDEN ON)

if(NOT CMAKE_BUILD_TYPE AND NOT CMAKE_CONFIGURATION_TYPES)
    set(CMAKE_BUILD_TYPE Release CACHE STRING "Build type" FORCE)
endif()

set(AWAKEN_INSTALL_BINDIR "bin")
set(AWAKEN_INSTALL_LIBDIR "lib/awaken")
set(AWAKEN_INSTALL_INCLUDEDIR "include")
set(AWAKEN_INSTALL_CMAKEDIR "lib/cmake/awaken")
set(AWAKEN_INSTALL_PKGCONFIGDIR "lib/pkgconfig")
if(NOT DEFINED CMAKE_RUNTIME_OUTPUT_DIRECTORY)
    set(CMAKE_RUNTIME_OUTPUT_DIRECTORY "${PROJECT_BINARY_DIR}/${AWAKEN_INSTALL_BINDIR}")
endif()
if(NOT DEFINED CMAKE_LIBRARY_OUTPUT_DIRECTORY)
    set(CMAKE_LIBRARY_OUTPUT_DIRECTORY "${PROJECT_BINARY_DIR}/${AWAKEN_INSTALL_LIBDIR}")
endif()
if(NOT DEFINED CMAKE_ARCHIVE_OUTPUT_DIRECTORY)
    set(CMAKE_ARCHIVE_OUTPUT_DIRECTORY "${PROJECT_BINARY_DIR}/archive")
endif()

find_package(Threads REQUIRED)

# Most of the time of a build goes into headers, and into functions of theirs that many files need: with AWAKEN_UNITY,
# up to twelve files of a target are compiled as one, which takes a third of the time. A change of one file then compiles
# its group again; the preset debug leaves it off.
# Files of one target may not define the same name in unnamed namespaces; those that cannot help it are named with
# awaken_compile_alone(FILE...).
set(CMAKE_UNITY_BUILD ${AWAKEN_UNITY})
set(CMAKE_UNITY_BUILD_BATCH_SIZE 12)
function(awaken_compile_alone)
    set_source_files_properties(${ARGV} PROPERTIES SKIP_UNITY_BUILD_INCLUSION ON)
endfunction()
if(AWAKEN_UNITY AND CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    # GCC takes the unnamed namespace of a file that another one includes for that of a header.
    add_compile_options($<$<COMPILE_LANGUAGE:CXX>:-Wno-subobject-linkage>)
endif()

# awaken_share_headers(NAME name LIBRARIES library... HEADERS header... TARGETS target...): reads the headers once for all
# these targets. For many small programs, where there is nothing to compile as one. Programs (not libraries and objects)
# are named as PROGRAMS. GCC uses what it has read only where the same macros are defined and the same options given, so
# a target of its own reads them, which has no macros.
function(awaken_share_headers)
    cmake_parse_arguments(PARSE_ARGV 0 shared "" "NAME" "LIBRARIES;HEADERS;TARGETS;PROGRAMS")
    set(source "${CMAKE_CURRENT_BINARY_DIR}/${shared_NAME}.cpp")
    file(CONFIGURE OUTPUT "${source}" CONTENT "// Generated: reads headers for others.\n")
    add_library(${shared_NAME} OBJECT "${source}")
    target_link_libraries(${shared_NAME} PRIVATE ${shared_LIBRARIES})
    target_precompile_headers(${shared_NAME} PRIVATE ${shared_HEADERS})
    if(shared_PROGRAMS)
        set_target_properties(${shared_NAME} PROPERTIES POSITION_INDEPENDENT_CODE OFF)
        target_compile_options(${shared_NAME} PRIVATE -fPIE)
    endif()
    foreach(target IN LISTS shared_TARGETS shared_PROGRAMS)
        target_precompile_headers(${target} REUSE_FROM ${shared_NAME})
    endforeach()
endfunction()

# awaken_optimise_less(TARGET...): for code whose speed nobody measures, since it is run once, or waits for others. With
# AWAKEN_QUICK it is compiled in two thirds of the time; what is shipped has -O2 throughout (docs/decisions/0048).
function(awaken_optimise_less)
    if(AWAKEN_QUICK)
        foreach(target IN LISTS ARGV)
            target_compile_options(${target} PRIVATE $<$<CONFIG:Release>:-O1>)
        endforeach()
    endif()
endfunction()

# -O3 made nothing faster that was measured, and everything larger and longer to compile.
string(REPLACE "-O3" "-O2" CMAKE_CXX_FLAGS_RELEASE "${CMAKE_CXX_FLAGS_RELEASE}")
string(REPLACE "-O3" "-O2" CMAKE_C_FLAGS_RELEASE "${CMAKE_C_FLAGS_RELEASE}")

# awaken_defaults: warnings and sanitizers. Every target of ours links it PRIVATE.
add_library(awaken_defaults INTERFACE)
target_compile_options(awaken_defaults INTERFACE
    -Wall -Wextra -Wpedantic -Wshadow
    $<$<COMPILE_LANGUAGE:CXX>:-Wnon-virtual-dtor -Woverloaded-virtual>
    # GCC 12 sees copies that overlap or leave their object in its own std::string, where there are none.
    $<$<AND:$<COMPILE_LANGUAGE:CXX>,$<CXX_COMPILER_ID:GNU>>:-Wno-restrict>
    $<$<AND:$<COMPILE_LANGUAGE:CXX>,$<CXX_COMPILER_ID:GNU>,$<VERSION_LESS:$<CXX_COMPILER_VERSION>,13>>:-Wno-array-bounds>)
if(AWAKEN_STEP_PROBE)
    target_compile_definitions(awaken_defaults INTERFACE AWAKEN_STEP_PROBE)
endif()
if(AWAKEN_SANITIZE STREQUAL "address")
    set(_awaken_sanitizers -fsanitize=address,undefined -fno-sanitize-recover=undefined)
elseif(AWAKEN_SANITIZE STREQUAL "thread")
    set(_awaken_sanitizers -fsanitize=thread)
elseif(AWAKEN_SANITIZE)
    message(FATAL_ERROR "AWAKEN_SANITIZE=${AWAKEN_SANITIZE} is not a sanitizer: use address or thread, or leave it empty.")
endif()
if(AWAKEN_SANITIZE)
    # On all code, not only ours through awaken_defaults: C++ containers must agree on their instrumentation.
    add_compile_options(${_awaken_sanitizers} -fno-omit-frame-pointer)
    add_link_options(${_awaken_sanitizers})
endif()

# awaken_static_runtime: what is loaded into other people's processes must not bring its own idea of libstdc++ along, so
# the C++ runtime is linked in and its symbols stay hidden. The sanitizers' interceptors need the shared one.
add_library(awaken_static_runtime INTERFACE)
# Zig's linker does not know --exclude-libs; its libc++ hides most of itself.
include(CheckLinkerFlag)
check_linker_flag(CXX "-Wl,--exclude-libs,ALL" AWAKEN_LINKER_HIDES_ARCHIVES)
if(NOT AWAKEN_SANITIZE)
    target_link_options(awaken_static_runtime INTERFACE -static-libstdc++ -static-libgcc
        $<$<BOOL:${AWAKEN_LINKER_HIDES_ARCHIVES}>:-Wl,--exclude-libs,ALL>)
endif()
