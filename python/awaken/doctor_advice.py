# SPDX-License-Identifier: Apache-2.0
"""What would improve what the doctor found: each piece of advice with its reason and the exact words to type."""

from __future__ import annotations

import shlex
from typing import Any

from awaken.jobs import RANKS

Report = dict[str, Any]


def advise(report: Report) -> list[dict[str, str]]:
    """Pieces of advice: {"what", "why", "command"}; the command may be empty."""
    if not report["gpu"]["found"]:
        return [no_gpu(report)]
    return [
        *native_advice(report),
        *ucx_advice(report),
        *ipc_advice(report),
        *library_advice(report),
        *network_advice(report),
        *placement_advice(report),
        *sharing_advice(report),
    ]


def piece(what: str, why: str, command: str = "") -> dict[str, str]:
    return {"what": what, "why": why, "command": command}


def no_gpu(report: Report) -> dict[str, str]:
    return piece(
        "make a GPU visible",
        report["gpu"].get("why_not", "no GPU is found"),
        "awaken doctor --emulate cuda:2    # to see how this works without one",
    )


def launch(report: Report, ranks: int = 0) -> str:
    """The words before a program; without `ranks` as many as the map has, or as there are GPUs where it has none."""
    ranks = ranks or len(report["placement"]["ranks"]) or gpus_of_all_nodes(report)
    words = report["launcher"]["words"]
    if any(RANKS in word for word in words):
        return shlex.join(word.replace(RANKS, str(ranks)) for word in words)
    return f"{shlex.join(words)} -n {ranks}"


def gpus_of_all_nodes(report: Report) -> int:
    """At least 1. Nodes are taken to be alike."""
    return max(1, int(report["gpu"].get("visible_devices") or 1) * int(report["allocation"]["nodes"]))


def native_advice(report: Report) -> list[dict[str, str]]:
    native, awaken, mpi = report["native"], report["awaken"], report["mpi"]
    found = []
    if native["gpu_aware"] is False and awaken["gpu_aware"]:
        device = [cell for cell in native["attempts"] if cell["kind"] == "device"]
        in_some = any(cell["status"] == "works" for cell in device)
        takes = "takes device memory in some calls only" if in_some else "cannot take device memory"
        found.append(
            piece(
                "run programs with Awaken",
                f"{mpi['name']} alone {takes}, and with Awaken it {'does in all' if in_some else 'can'}",
                f"{launch(report)} awaken exec ./app",
            )
        )
    says = any(mpi["says_gpu_aware"].values())
    if native["gpu_aware"] is False and "cray" in mpi["library_version"].lower():
        found.append(
            piece(
                "switch the support of Cray MPICH on",
                "it is off unless it is asked for, and needs the program linked with the GTL library",
                "export MPICH_GPU_SUPPORT_ENABLED=1",
            )
        )
    elif native["gpu_aware"] is False and "intel" in mpi["library_version"].lower():
        found.append(piece("switch the support of Intel MPI on", "it is off by default", "export I_MPI_OFFLOAD=1"))
    elif native["gpu_aware"] is False and says:
        found.append(
            piece(
                "do not believe what the MPI says",
                f"{mpi['name']} claims support for GPU memory, and calls on device memory fail all the same",
            )
        )
    asked = "MPIX_CUDA_AWARE_SUPPORT" if report["gpu"]["vendor"] == "cuda" else "MPIX_ROCM_AWARE_SUPPORT"
    if awaken["gpu_aware"] and mpi["headers_say"].get(asked) is False:
        found.append(
            piece(
                "give programs another answer when they are compiled",
                f"{asked} is 0 in the MPI's headers, so programs that ask there leave device memory out",
                "mpicc $(pkg-config --cflags awaken-gpu-aware) -c app.c",
            )
        )
    if native["gpu_aware"] and (native["transport"] == "staged" or slow(native, report)):
        how = "they pass through the host" if native["transport"] == "staged" else "they are slow"
        command = f"{launch(report)} awaken exec ./app"
        if mpi["abi"] == "openmpi":
            vendor = "cuda" if report["gpu"]["vendor"] == "cuda" else "rocm"
            # By variables, which every launcher passes on, and not by options of Open MPI's own.
            command = (
                f"export OMPI_MCA_pml=ucx UCX_TLS=sm,self,{vendor}_copy,{vendor}_ipc"
                f"    # needs UCX with {'CUDA' if vendor == 'cuda' else 'ROCm'} built in: see ompi_info | grep ucx"
            )
        found.append(piece("let messages go directly from GPU to GPU", f"{how}: {native['why']}", command))
    return found


UCX_WHEEL = "$(python3 -c 'import libucx; print(libucx.__path__[0])')"


def ucx_advice(report: Report) -> list[dict[str, str]]:
    """Where the MPI carries messages by a UCX that knows no GPUs, another UCX may take its place."""
    ucx = (report.get("build") or {}).get("ucx")
    if not ucx or ucx["gpus"] or report["native"]["gpu_aware"] or report["emulated"]:
        return []
    cuda = report["gpu"]["vendor"] == "cuda"
    command = f"{launch(report)} awaken exec --ucx {UCX_WHEEL if cuda else '/opt/ucx-with-rocm'} ./app"
    first = "pip install libucx-cu12, or libucx-cu13 for CUDA 13" if cuda else "build UCX with --with-rocm"
    return [
        piece(
            "try a UCX that knows GPUs in the place of the MPI's",
            f"{ucx['library']} was built without support for GPUs; `awaken doctor --ucx FOLDER` shows whether the MPI "
            f"then takes device memory, which Awaken passes on between nodes ({first})",
            command,
        )
    ]


def slow(side: Report, report: Report) -> bool:
    """Whether messages have less than half the bandwidth of a raw copy between the same GPUs."""
    ipc = report["hardware"]["ipc"]
    raw = [record["copy_GBps"] for record in ipc if record["works"] and not record.get("same_gpu")]
    own = side.get("bandwidth_GBps")
    return side["transport"] == "unknown" and bool(raw) and own is not None and own < 0.5 * max(raw)


def out_of_reach(record: dict[str, Any], peers: list[dict[str, Any]]) -> bool:
    """Whether IPC fails since the GPUs have no path between them, which is no matter of containers. CUDA says so; HIP
    says "invalid device pointer", as it does where a container is in the way, so that the GPUs themselves are asked."""
    reason = record.get("why_not", "")
    if "peer access" in reason:
        return True
    none_can = bool(peers) and not any(peer["can"] for peer in peers)
    return "invalid device pointer" in reason and not record.get("same_gpu") and none_can


def ipc_advice(report: Report) -> list[dict[str, str]]:
    refused = [
        record
        for record in report["hardware"]["ipc"]
        if record.get("applies") and not record["works"] and not out_of_reach(record, report["hardware"]["peer"])
    ]
    if not refused:
        return []
    return [
        piece(
            "let processes map each other's GPU memory",
            f"IPC does not work ({refused[0].get('why_not', 'no reason given')}), so messages go through a ring in "
            "shared host memory",
            "docker run --ipc=host --pid=host ...    # containers; all ranks in one container works as well",
        )
    ]


def library_advice(report: Report) -> list[dict[str, str]]:
    found = []
    libraries = report["libraries"]
    cuda = report["gpu"]["vendor"] == "cuda"
    if not libraries.get("ccl", {}).get("title"):
        found.append(
            piece(
                f"install {'NCCL' if cuda else 'RCCL'}",
                "large collectives would use it: " + libraries.get("ccl", {}).get("why_not", "it is not found"),
                "pip install nvidia-nccl-cu12" if cuda else "apt-get install rccl    # from the ROCm repository",
            )
        )
    gdrcopy = libraries.get("gdrcopy", {})
    if cuda and not gdrcopy.get("opens") and not report["emulated"]:
        why = (
            "its library is found, and its driver /dev/gdrdrv is not"
            if gdrcopy.get("library") and not gdrcopy.get("device_node")
            else "its driver is there, and its library is not"
            if gdrcopy.get("device_node")
            else "neither its library nor its driver is found"
        )
        found.append(
            piece(
                "install GDRCopy",
                f"small messages could be copied by the processor: {why}",
                "modprobe gdrdrv    # after installing the packages gdrdrv-dkms and libgdrapi",
            )
        )
    return found


def network_advice(report: Report) -> list[dict[str, str]]:
    rdma = report["rdma"]
    if report["gpu"]["vendor"] != "cuda" or not rdma["network_cards"] or report["emulated"]:
        return []
    if rdma["peer_memory_modules"] or rdma["open_nvidia_driver"]:
        return []
    return [
        piece(
            "let the network cards reach GPU memory",
            "neither nvidia_peermem is loaded, nor the open kernel modules, which offer dma-buf",
            "modprobe nvidia_peermem",
        )
    ]


SLOW_SMALL_MESSAGE_US = 60.0
"""More than a small message takes between processes that a GPU serves at the same time (17 us on one H100), and less
than where the driver gives them the whole GPU in turns (150 us)."""


def sharing_advice(report: Report) -> list[dict[str, str]]:
    latency = report["awaken"].get("latency_us") or 0.0
    shared = any(warning["kind"] == "shared GPU" for warning in report["placement"]["warnings"])
    if report["gpu"]["vendor"] != "cuda" or report["emulated"] or not shared or latency < SLOW_SMALL_MESSAGE_US:
        return []
    return [
        piece(
            "let the GPU serve the ranks that share it at the same time",
            f"8 bytes take {latency:.0f} us, since the driver gives each process the whole GPU in turns; NVIDIA's "
            "Multi-Process Service ends that",
            "nvidia-cuda-mps-control -d    # on each node, before the ranks start; "
            "echo quit | nvidia-cuda-mps-control ends it",
        )
    ]


def placement_advice(report: Report) -> list[dict[str, str]]:
    kinds = {warning["kind"]: warning for warning in report["placement"]["warnings"]}
    found = []
    # The doctor itself starts two ranks where there is one GPU.
    if "shared GPU" in kinds and gpus_of_all_nodes(report) > 1:
        command = f"{launch(report, gpus_of_all_nodes(report))} awaken exec ./app"
        found.append(piece("use as many ranks as GPUs", kinds["shared GPU"]["text"], command))
    if "far NUMA node" in kinds or "not bound" in kinds:
        command = {
            "slurm": "srun --gpu-bind=closest --cpu-bind=cores ...",
            "mpich": f"{launch(report)} -bind-to numa awaken exec ./app",
            "openmpi": f"{launch(report)} --map-by numa --bind-to numa awaken exec ./app",
        }.get(report["launcher"]["family"], "numactl --cpunodebind=NODE ./app")
        warning = kinds.get("far NUMA node") or kinds["not bound"]
        found.append(piece("bind ranks to processors near their GPU", warning["text"], command))
    return found
