# Writes DIRECTORY/osu_NAME for every test in CATALOGUE, the source of the list of tests, and removes those of tests that
# no longer exist. The source and not the runner is read: a build for another machine cannot run it.
file(READ "${CATALOGUE}" source)
string(REGEX MATCHALL "\n    (between_ranks|through_a_window|among_all|TestInfo[{])[(]?\"[a-z_]+\"" tests "${source}")
if(NOT tests)
    message(FATAL_ERROR "${CATALOGUE} has no test that this script can read: "
                        "keep its entries in one form, or change the expression here")
endif()
file(GLOB old_scripts "${DIRECTORY}/osu_*")
if(old_scripts)
    file(REMOVE ${old_scripts})
endif()
foreach(test IN LISTS tests)
    string(REGEX REPLACE ".*\"(.*)\"" "\\1" name "${test}")
    set(script "${DIRECTORY}/osu_${name}")
    # ${self%/*} is the folder without starting another process; run as `sh osu_...` there is no folder in $0.
    file(WRITE "${script}" "#!/bin/sh
# `awaken bench ${name}` under the name that the OSU micro-benchmarks give it.
self=$0
if [ -L \"$self\" ]; then self=$(readlink -f -- \"$self\"); fi
case $self in
    */*) folder=\${self%/*} ;;
    *) folder=. ;;
esac
exec \"$folder/awaken\" bench ${name} \"$@\"
")
    file(CHMOD "${script}" PERMISSIONS OWNER_READ OWNER_WRITE OWNER_EXECUTE GROUP_READ GROUP_EXECUTE WORLD_READ
         WORLD_EXECUTE)
endforeach()
