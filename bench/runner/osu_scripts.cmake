# SPDX-License-Identifier: Apache-2.0
# Writes BIN/osu_NAME for every test in CATALOGUE, the source of the list of tests, and TREE/FOLDER/osu_NAME, where OMB's
# installation has it; removes those of tests that no longer exist. The source and not the runner is read: a build for
# another machine cannot run it. Scripts and not links, which a wheel cannot hold.
file(READ "${CATALOGUE}" source)
string(REGEX MATCHALL "\n    (between_ranks|through_a_window|among_all|TestInfo)[({]\"[a-z_]+\"" tests "${source}")
if(NOT tests)
    message(FATAL_ERROR "${CATALOGUE} has no test that this script can read: "
                        "keep its entries in one form, or change the expression here")
endif()
set(folder_of_between_ranks pt2pt)
set(folder_of_through_a_window one-sided)
set(folder_of_among_all collective)
set(folder_of_TestInfo startup)

function(write_script script name to_bin)
    # ${self%/*} is the folder without starting another process; run as `sh osu_...` there is no folder in $0.
    file(WRITE "${script}" "#!/bin/sh
# `awaken bench ${name}` under the name that the OSU micro-benchmarks give it.
self=$0
if [ -L \"$self\" ]; then self=$(readlink -f -- \"$self\"); fi
case $self in
    */*) folder=\${self%/*} ;;
    *) folder=. ;;
esac
exec \"$folder/${to_bin}awaken\" bench ${name} \"$@\"
")
    file(CHMOD "${script}" PERMISSIONS OWNER_READ OWNER_WRITE OWNER_EXECUTE GROUP_READ GROUP_EXECUTE WORLD_READ
         WORLD_EXECUTE)
endfunction()

file(GLOB old_scripts "${BIN}/osu_*")
file(REMOVE_RECURSE "${TREE}" ${old_scripts})
foreach(test IN LISTS tests)
    string(REGEX REPLACE ".*\"(.*)\"" "\\1" name "${test}")
    string(REGEX REPLACE "^\n *([A-Za-z_]+).*" "\\1" maker "${test}")
    write_script("${BIN}/osu_${name}" "${name}" "")
    write_script("${TREE}/${folder_of_${maker}}/osu_${name}" "${name}" "../../../../bin/")
endforeach()
