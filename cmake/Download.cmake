# SPDX-License-Identifier: Apache-2.0
# Downloads sources of which the system has no package.
include_guard(GLOBAL)

# Downloads `url` to `archive`, unless that is there already. Where there is none afterwards, `problem` says why in the
# caller. A failure inside FetchContent would end the whole configuration.
function(awaken_download url sha256 archive problem)
    if(EXISTS "${archive}")
        return()
    endif()
    # It has another name until it is whole.
    file(DOWNLOAD "${url}" "${archive}.part" STATUS status INACTIVITY_TIMEOUT 20 TIMEOUT 120)
    list(GET status 0 code)
    list(GET status 1 error)
    if(code EQUAL 0)
        file(SHA256 "${archive}.part" actual_sha256)
        if(actual_sha256 STREQUAL sha256)
            file(RENAME "${archive}.part" "${archive}")
        else()
            set(error "the downloaded archive has a wrong SHA-256")
        endif()
    endif()
    file(REMOVE "${archive}.part")
    set(${problem} "${error}" PARENT_SCOPE)
endfunction()
