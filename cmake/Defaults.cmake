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

# awaken_several_files_at_once(TARGET...): with AWAKEN_UNITY, several files of these targets are compiled as one. That
# halves the time of a build from nothing, which spends most of it on headers, and doubles that of a small change.
function(awaken_several_files_at_once)
    if(AWAKEN_UNITY)
        set_target_properties(${ARGV} PROPERTIES UNITY_BUILD ON)
    endif()
endfunction()

# awaken_defaults: warnings and sanitizers. Every target of ours links it PRIVATE.
add_library(awaken_defaults INTERFACE)
target_compile_options(awaken_defaults INTERFACE
    -Wall -Wextra -Wpedantic -Wshadow
    $<$<COMPILE_LANGUAGE:CXX>:-Wnon-virtual-dtor -Woverloaded-virtual>
    # GCC 12 sees overlapping copies in its own std::string where there are none.
    $<$<AND:$<COMPILE_LANGUAGE:CXX>,$<CXX_COMPILER_ID:GNU>>:-Wno-restrict>)
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
if(NOT AWAKEN_SANITIZE)
    target_link_options(awaken_static_runtime INTERFACE -static-libstdc++ -static-libgcc -Wl,--exclude-libs,ALL)
endif()
