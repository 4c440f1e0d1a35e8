// SPDX-License-Identifier: Apache-2.0
// The names that MPIs define, for profiling tools in LD_PRELOAD that are not linked with an MPI. The dynamic loader loads
// such a tool into `awaken` too, and ends a program in which it misses one of them.
//
// A tool may call MPI in its initialiser: each function returns an error. All objects share memory that nobody uses.

    .text
#define AWAKEN_CALLED(name) .globl name ; .type name, %function ; name: ;
#define AWAKEN_OBJECT(name)
#include "mpi_names.inc"
#undef AWAKEN_CALLED
#undef AWAKEN_OBJECT
#if defined(__x86_64__)
    endbr64
    movl $1, %eax
    ret
#elif defined(__aarch64__)
    hint #34                            // bti c
    mov w0, #1
    ret
#endif

    .bss
    .balign 64
#define AWAKEN_CALLED(name)
#define AWAKEN_OBJECT(name) .globl name ; .type name, %object ; name: ;
#include "mpi_names.inc"
    .zero 4096

    .section .note.GNU-stack, "", %progbits
