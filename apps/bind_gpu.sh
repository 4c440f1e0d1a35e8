#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Gives each rank of a host a GPU of its own, and the cores near it:
#
#   mpiexec -n 4 apps/bind_gpu.sh ./program ARGUMENTS      mpiexec -n 4 apps/bind_gpu.sh awaken exec ./program
#
# The rank's number on its host comes from the launcher: Open MPI, MPICH and its family, PALS, PMI, Slurm, Flux. GPU number
# "rank modulo GPUs" becomes the only one that the program sees. Where CUDA_VISIBLE_DEVICES, ROCR_VISIBLE_DEVICES or
# HIP_VISIBLE_DEVICES is set, the choice is among those. The cores are left as they are where the launcher has bound the
# rank already.
#
# On AMD the choice is made by ROCR_VISIBLE_DEVICES alone: HIP would take any other list, CUDA's included, as numbers
# among the GPUs that this one leaves. Elsewhere it is made by CUDA_VISIBLE_DEVICES, which HIP understands as well.
#
# CUDA numbers GPUs as CUDA_DEVICE_ORDER says, if that is set, else by their addresses as nvidia-smi does: in the order
# FASTEST_FIRST nothing tells which number has which cores.
#
# With emulated GPUs (AWAKEN_EMULATE, or `awaken exec --emulate` in the command) the choice is among those, and cores are
# left as they are.
#
# BIND_GPU_COUNT sets the number of GPUs where it cannot be found out, BIND_GPU_SYS another root of sysfs (for tests).

fail() {
    echo "bind_gpu.sh: $1" >&2
    exit 2
}

case $1 in
    -h | --help)
        # The comment at the head of this file.
        sed -n '3,/^$/s/^# \{0,1\}//p' "$0"
        exit 0
        ;;
esac
[ $# -gt 0 ] || fail "usage: mpiexec -n RANKS $0 PROGRAM [ARGUMENT...]"

# The MPI's own launcher first: srun or Flux may have started that, and then number something else.
for variable in OMPI_COMM_WORLD_LOCAL_RANK MPI_LOCALRANKID MV2_COMM_WORLD_LOCAL_RANK MVP_COMM_WORLD_LOCAL_RANK \
    PALS_LOCAL_RANKID PMI_LOCAL_RANK SLURM_LOCALID FLUX_TASK_LOCAL_ID; do
    eval "local_rank=\${$variable:-}"
    [ -z "$local_rank" ] || break
done
case $local_rank in
    "") fail "no variable gives the rank on this host: start it by mpiexec or srun, or set SLURM_LOCALID" ;;
    *[!0-9]*) fail "$variable=$local_rank is not a number" ;;
esac

sys=${BIND_GPU_SYS:-/sys}
# One PCI address a line, in the order of the driver's numbers.
addresses_of_nvidia() {
    nvidia-smi --query-gpu=pci.bus_id --format=csv,noheader 2>/dev/null | grep :
}
addresses_of_amd() {
    for node in "$sys"/class/kfd/kfd/topology/nodes/*/properties; do
        # CPUs are nodes too, without SIMD units. location_id is bus << 8 | device << 3 | function.
        [ -r "$node" ] && awk -v path="$node" '
            { value[$1] = $2 }
            END {
                n = split(path, part, "/")
                if (value["simd_count"] > 0)
                    printf "%d %04x:%02x:%02x.%x\n", part[n - 1], value["domain"], int(value["location_id"] / 256) % 256,
                           int(value["location_id"] / 8) % 32, value["location_id"] % 8
            }' "$node"
    done | sort -n | cut -d ' ' -f 2
}
# The value of --emulate, where the command begins with `awaken exec`; else that of AWAKEN_EMULATE.
emulated_by() {
    case ${1##*/}:$2 in
        awaken:exec) shift 2 ;;
        *) set -- ;;
    esac
    while [ $# -gt 0 ]; do
        case $1 in
            --) break ;;
            --emulate) echo "$2" && return ;;
            --emulate=*) echo "${1#*=}" && return ;;
        esac
        shift
    done
    echo "$AWAKEN_EMULATE"
}
vendor=nvidia
emulated=$(emulated_by "$@")
case $emulated in
    "") all_addresses=$(addresses_of_nvidia) ;;
    *:*) BIND_GPU_COUNT=${BIND_GPU_COUNT:-${emulated#*:}} all_addresses= ;;
    *) BIND_GPU_COUNT=${BIND_GPU_COUNT:-2} all_addresses= ;;
esac
case $emulated in hip*) vendor=amd ;; esac
if [ -z "$all_addresses$emulated" ]; then
    all_addresses=$(addresses_of_amd)
    [ -z "$all_addresses$ROCR_VISIBLE_DEVICES$HIP_VISIBLE_DEVICES" ] || vendor=amd
fi

# The entries of the comma-separated list $1 at the places that the list $2 names.
among() {
    for place in $(echo "$2" | tr ',' ' '); do
        case $place in
            *[!0-9]*) ;;
            *) echo "$1," | cut -d ',' -f $((place + 1)) ;;
        esac
    done | grep . | paste -s -d ',' -
}
# The list without the empty entries of "0,,1" or "0,1,".
entries() {
    echo "$1" | tr ',' '\n' | grep . | paste -s -d ',' -
}
if [ $vendor = nvidia ]; then
    visible=$(entries "$CUDA_VISIBLE_DEVICES")
    # For CUDA that is no GPU, not any.
    [ -n "$visible" ] || [ -z "${CUDA_VISIBLE_DEVICES+set}" ] || fail "CUDA_VISIBLE_DEVICES is empty, which hides all GPUs: unset it"
else
    visible=$(entries "$ROCR_VISIBLE_DEVICES")
    within=$(entries "${HIP_VISIBLE_DEVICES:-$CUDA_VISIBLE_DEVICES}")
    if [ -z "$visible" ]; then
        visible=$within
    elif [ -n "$within" ] && [ "$within" != "$visible" ]; then
        # Slurm may set all variables alike, and then means the same GPUs.
        visible=$(among "$visible" "$within")
        [ -n "$visible" ] || fail "ROCR_VISIBLE_DEVICES leaves no GPU with the numbers $within: unset one of the variables"
    fi
fi
if [ -n "$visible" ]; then
    count=$(echo "$visible" | tr ',' '\n' | grep -c .)
else
    count=${BIND_GPU_COUNT:-$(echo "$all_addresses" | grep -c :)}
fi
case $count in
    *[!0-9]*) fail "BIND_GPU_COUNT=$count is not a number" ;;
    *[1-9]*) ;;
    *) fail "there is no GPU on this host, or none that nvidia-smi or /sys reports: set BIND_GPU_COUNT" ;;
esac

gpu=$((local_rank % count))
[ -z "$visible" ] || gpu=$(echo "$visible" | cut -d ',' -f $((gpu + 1)))
unset CUDA_VISIBLE_DEVICES ROCR_VISIBLE_DEVICES HIP_VISIBLE_DEVICES GPU_DEVICE_ORDINAL
if [ $vendor = amd ]; then
    export ROCR_VISIBLE_DEVICES="$gpu"
else
    # By default CUDA's first GPU is the fastest; nvidia-smi counts by address.
    export CUDA_VISIBLE_DEVICES="$gpu" CUDA_DEVICE_ORDER="${CUDA_DEVICE_ORDER:-PCI_BUS_ID}"
fi

# The address of the GPU whose UUID begins with $1, as CUDA takes it; nothing where that is not one GPU.
address_of_uuid() {
    nvidia-smi --query-gpu=uuid,pci.bus_id --format=csv,noheader 2>/dev/null |
        awk -F ', *' -v uuid="$1" 'index($1, uuid) == 1 { address = $2; ++found } END { if (found == 1) print address }'
}
address=
case $vendor:$gpu in
    nvidia:GPU-*) address=$(address_of_uuid "$gpu") ;;
    *:*[!0-9]*) ;;
    *)
        if [ $vendor = amd ] || [ "$CUDA_DEVICE_ORDER" = PCI_BUS_ID ]; then
            address=$(echo "$all_addresses" | sed -n "$((gpu + 1))p")
        fi
        ;;
esac
# nvidia-smi writes 00000000:1B:00.0 where /sys has 0000:1b:00.0.
address=$(echo "$address" | tr 'A-F' 'a-f' | sed 's/^0000\(....:\)/\1/')
cores=$(cat "$sys/bus/pci/devices/$address/local_cpulist" 2>/dev/null)
# nproc would count OpenMP's threads where these are set.
allowed=$(env -u OMP_NUM_THREADS -u OMP_THREAD_LIMIT nproc)
if [ -n "$address" ] && [ -n "$cores" ] && command -v taskset >/dev/null && [ "$allowed" = "$(nproc --all)" ]; then
    exec taskset -c "$cores" "$@"
fi
exec "$@"
