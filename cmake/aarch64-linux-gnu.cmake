# SPDX-License-Identifier: Apache-2.0
# A toolchain file: builds for 64-bit Arm with Debian's cross compiler (g++-aarch64-linux-gnu).
#
#   cmake --preset aarch64 -DAWAKEN_MPICH_ROOT=<prefix> -DAWAKEN_OPENMPI_ROOT=<prefix>
#
# The prefixes hold MPIs for aarch64. CMake prepares the compiler several times with this file, so it only sets things.
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR aarch64)
set(CMAKE_LIBRARY_ARCHITECTURE aarch64-linux-gnu)
set(CMAKE_C_COMPILER aarch64-linux-gnu-gcc)
set(CMAKE_CXX_COMPILER aarch64-linux-gnu-g++)
set(CMAKE_ASM_COMPILER aarch64-linux-gnu-gcc)

# Programs are this machine's. Headers and libraries come from the target's folders alone: this machine's libraries are
# for another processor. Packages may come from both, as those of headers alone lie in /usr/share/cmake.
set(CMAKE_FIND_ROOT_PATH /usr/aarch64-linux-gnu)
set(CMAKE_FIND_ROOT_PATH_MODE_PROGRAM NEVER)
set(CMAKE_FIND_ROOT_PATH_MODE_LIBRARY ONLY)
set(CMAKE_FIND_ROOT_PATH_MODE_INCLUDE ONLY)
set(CMAKE_FIND_ROOT_PATH_MODE_PACKAGE BOTH)
