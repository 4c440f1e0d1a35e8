# Writes DIRECTORY/osu_NAME for every test that RUNNER lists, and removes those of tests that no longer exist.
execute_process(COMMAND "${RUNNER}" --list OUTPUT_VARIABLE list OUTPUT_STRIP_TRAILING_WHITESPACE
                COMMAND_ERROR_IS_FATAL ANY)
file(GLOB old_scripts "${DIRECTORY}/osu_*")
if(old_scripts)
    file(REMOVE ${old_scripts})
endif()
string(REPLACE ";" "," list "${list}")
string(REPLACE "\n" ";" lines "${list}")
foreach(line IN LISTS lines)
    string(REGEX MATCH "^[a-z_]+" name "${line}")
    if(NOT name)
        continue()
    endif()
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
