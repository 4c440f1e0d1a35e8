# SPDX-License-Identifier: Apache-2.0
# What shells, readers and linking programs need after installation: completion of command lines, manual pages, headers, a
# CMake package (awaken::awaken) and a pkg-config file; the same for programs that ask at compile time what their MPI
# takes (awaken::gpu_aware). The library and the programs are installed by the folders that build them.
include_guard(GLOBAL)
include(CMakePackageConfigHelpers)

install(DIRECTORY "${PROJECT_SOURCE_DIR}/include/awaken" DESTINATION "${AWAKEN_INSTALL_INCLUDEDIR}"
        FILES_MATCHING PATTERN "*.h" PATTERN "mpix_stream_f08.*")

# The manual pages lie in the tree: a build for another machine cannot run the programs that know the options.
install(FILES "${PROJECT_SOURCE_DIR}/packages/completion/awaken.bash" DESTINATION share/bash-completion/completions
        RENAME awaken)
install(FILES "${PROJECT_SOURCE_DIR}/packages/completion/_awaken" DESTINATION share/zsh/site-functions)
install(FILES "${PROJECT_SOURCE_DIR}/packages/completion/awaken.fish" DESTINATION share/fish/vendor_completions.d)
install(DIRECTORY "${PROJECT_SOURCE_DIR}/docs/man/" DESTINATION share/man/man1 FILES_MATCHING PATTERN "*.1")

if(TARGET awaken)
    set_target_properties(awaken PROPERTIES EXPORT_NAME awaken)
    # The library defines all that a program takes from its MPI, so a linker that keeps only what is needed (the default
    # of Ubuntu and others) leaves out the MPI behind it, and which one is used were left to chance.
    target_link_options(awaken INTERFACE "$<INSTALL_INTERFACE:LINKER:--no-as-needed>")
    install(TARGETS awaken EXPORT awaken-targets
            LIBRARY DESTINATION "${AWAKEN_INSTALL_LIBDIR}"
            INCLUDES DESTINATION "${AWAKEN_INSTALL_INCLUDEDIR}")
    add_library(awaken_gpu_aware INTERFACE)
    set_target_properties(awaken_gpu_aware PROPERTIES EXPORT_NAME gpu_aware)
    target_compile_options(awaken_gpu_aware INTERFACE
                           "$<$<COMPILE_LANGUAGE:C,CXX,CUDA,HIP>:SHELL:-include awaken/gpu_aware.h>")
    install(TARGETS awaken_gpu_aware EXPORT awaken-targets INCLUDES DESTINATION "${AWAKEN_INSTALL_INCLUDEDIR}")
    install(EXPORT awaken-targets NAMESPACE awaken:: DESTINATION "${AWAKEN_INSTALL_CMAKEDIR}")
    if(NOT SKBUILD)
        # For a plain -lawaken with -L<prefix>/lib. A wheel cannot hold a link.
        install(CODE "file(CREATE_LINK awaken/libawaken.so
                           \"\$ENV{DESTDIR}\${CMAKE_INSTALL_PREFIX}/lib/libawaken.so\" SYMBOLIC)
                      list(APPEND CMAKE_INSTALL_MANIFEST_FILES \"\${CMAKE_INSTALL_PREFIX}/lib/libawaken.so\")")
    endif()

    configure_package_config_file("${PROJECT_SOURCE_DIR}/cmake/awaken-config.cmake.in"
                                  "${PROJECT_BINARY_DIR}/awaken-config.cmake"
                                  INSTALL_DESTINATION "${AWAKEN_INSTALL_CMAKEDIR}"
                                  PATH_VARS AWAKEN_INSTALL_INCLUDEDIR)
    write_basic_package_version_file("${PROJECT_BINARY_DIR}/awaken-config-version.cmake"
                                     COMPATIBILITY SameMinorVersion)
    install(FILES "${PROJECT_BINARY_DIR}/awaken-config.cmake" "${PROJECT_BINARY_DIR}/awaken-config-version.cmake"
            DESTINATION "${AWAKEN_INSTALL_CMAKEDIR}")

    foreach(file IN ITEMS awaken.pc awaken-gpu-aware.pc)
        configure_file("${PROJECT_SOURCE_DIR}/cmake/${file}.in" "${PROJECT_BINARY_DIR}/${file}" @ONLY)
        install(FILES "${PROJECT_BINARY_DIR}/${file}" DESTINATION "${AWAKEN_INSTALL_PKGCONFIGDIR}")
    endforeach()
endif()
