// SPDX-License-Identifier: Apache-2.0
// The exported MPI_* and PMPI_* symbols.
//
// Each is one indirect jump through awaken_slots, so that one file serves every ABI, the called function sees the
// program's own return address, and a function that needs no service of ours costs a single jump. A slot first leads to a
// lazy stub, which has the loader find the program's MPI, fills all slots, and starts over.
//
// Slot 2*i is MPI_<function i>, slot 2*i+1 is PMPI_<function i>; functions.inc is generated from the MPI headers.

//
// dlopen() is here too, for modules that are opened with RTLD_DEEPBIND (deepbind.cpp). Every other call goes on by a jump:
// the dynamic loader searches as the object does to which the call returns.

#if defined(__x86_64__)

    .macro AWAKEN_SYMBOL symbol, slot
    .text
    .globl \symbol
    .type \symbol, @function
    .p2align 4
\symbol:
    endbr64
    jmp *(awaken_slots + 8 * (\slot))(%rip)
    .size \symbol, . - \symbol
    .section .text.awaken_lazy, "ax", @progbits
.Lazy\@:
    pushq $(\slot)
    jmp .Lresolve
    .data
    .quad .Lazy\@
    .endm

    .section .text.awaken_lazy, "ax", @progbits
    .p2align 4
.Lresolve:
    .cfi_startproc
    .cfi_def_cfa_offset 24              // return address, slot number (8), and the CFA itself
    // Integer and floating-point argument registers, rax (vector count of a variadic call).
    pushq %rax
    pushq %rdi
    pushq %rsi
    pushq %rdx
    pushq %rcx
    pushq %r8
    pushq %r9
    .cfi_adjust_cfa_offset 56
    subq $144, %rsp
    .cfi_adjust_cfa_offset 144
    movups %xmm0, 0(%rsp)
    movups %xmm1, 16(%rsp)
    movups %xmm2, 32(%rsp)
    movups %xmm3, 48(%rsp)
    movups %xmm4, 64(%rsp)
    movups %xmm5, 80(%rsp)
    movups %xmm6, 96(%rsp)
    movups %xmm7, 112(%rsp)
    movq 208(%rsp), %rdi                // the program's return address
    // At the program's call the stack was 16-byte aligned; since then: return address, slot, 7 registers, 144 = 216.
    subq $8, %rsp
    .cfi_adjust_cfa_offset 8
    call awaken_resolve
    addq $8, %rsp
    .cfi_adjust_cfa_offset -8
    movups 0(%rsp), %xmm0
    movups 16(%rsp), %xmm1
    movups 32(%rsp), %xmm2
    movups 48(%rsp), %xmm3
    movups 64(%rsp), %xmm4
    movups 80(%rsp), %xmm5
    movups 96(%rsp), %xmm6
    movups 112(%rsp), %xmm7
    addq $144, %rsp
    .cfi_adjust_cfa_offset -144
    popq %r9
    popq %r8
    popq %rcx
    popq %rdx
    popq %rsi
    popq %rdi
    popq %rax
    .cfi_adjust_cfa_offset -56
    popq %r11                           // slot number
    .cfi_adjust_cfa_offset -8
    leaq awaken_slots(%rip), %r10
    jmp *(%r10, %r11, 8)
    .cfi_endproc

    .text
    .globl dlopen
    .type dlopen, @function
    .p2align 4
dlopen:
    .cfi_startproc
    endbr64
    testl $8, %esi                      // RTLD_DEEPBIND
    jnz awaken_open_deepbind
.Lopen_next:
    movq awaken_next_dlopen(%rip), %rax
    testq %rax, %rax
    jz .Lfind_next
    jmp *%rax
.Lfind_next:
    pushq %rdi
    pushq %rsi
    .cfi_adjust_cfa_offset 16
    subq $8, %rsp
    .cfi_adjust_cfa_offset 8
    call awaken_find_next_dlopen
    addq $8, %rsp
    .cfi_adjust_cfa_offset -8
    popq %rsi
    popq %rdi
    .cfi_adjust_cfa_offset -16
    jmp .Lopen_next
    .cfi_endproc
    .size dlopen, . - dlopen

#elif defined(__aarch64__)

    .macro AWAKEN_SYMBOL symbol, slot
    .text
    .globl \symbol
    .type \symbol, %function
    .p2align 4
\symbol:
    hint #34                            // bti c
    adrp x16, awaken_slots
    add x16, x16, :lo12:awaken_slots
    mov x17, #(\slot)
    ldr x16, [x16, x17, lsl #3]
    br x16
    .size \symbol, . - \symbol
    .data
    .quad .Lresolve
    .endm

    // x17 still holds the slot number, x30 the program's return address.
    .section .text.awaken_lazy, "ax", %progbits
    .p2align 4
.Lresolve:
    .cfi_startproc
    hint #36                            // bti j
    stp x29, x30, [sp, #-224]!
    .cfi_def_cfa_offset 224
    .cfi_offset 29, -224
    .cfi_offset 30, -216
    stp x0, x1, [sp, #16]
    stp x2, x3, [sp, #32]
    stp x4, x5, [sp, #48]
    stp x6, x7, [sp, #64]
    stp x8, x17, [sp, #80]
    stp q0, q1, [sp, #96]
    stp q2, q3, [sp, #128]
    stp q4, q5, [sp, #160]
    stp q6, q7, [sp, #192]
    mov x0, x30
    bl awaken_resolve
    ldp q0, q1, [sp, #96]
    ldp q2, q3, [sp, #128]
    ldp q4, q5, [sp, #160]
    ldp q6, q7, [sp, #192]
    ldp x0, x1, [sp, #16]
    ldp x2, x3, [sp, #32]
    ldp x4, x5, [sp, #48]
    ldp x6, x7, [sp, #64]
    ldp x8, x17, [sp, #80]
    ldp x29, x30, [sp], #224
    .cfi_def_cfa_offset 0
    adrp x16, awaken_slots
    add x16, x16, :lo12:awaken_slots
    ldr x16, [x16, x17, lsl #3]
    br x16
    .cfi_endproc

    .text
    .globl dlopen
    .type dlopen, %function
dlopen:
    .cfi_startproc
    hint #34                            // bti c
    tbz w1, #3, .Lopen_next             // no RTLD_DEEPBIND
    b awaken_open_deepbind
.Lopen_next:
    adrp x16, awaken_next_dlopen
    ldr x16, [x16, :lo12:awaken_next_dlopen]
    cbz x16, .Lfind_next
    br x16
.Lfind_next:
    stp x29, x30, [sp, #-32]!
    .cfi_def_cfa_offset 32
    .cfi_offset 29, -32
    .cfi_offset 30, -24
    stp x0, x1, [sp, #16]
    bl awaken_find_next_dlopen
    ldp x0, x1, [sp, #16]
    ldp x29, x30, [sp], #32
    .cfi_def_cfa_offset 0
    b .Lopen_next
    .cfi_endproc
    .size dlopen, . - dlopen

#else
#error "Awaken's entry points are written for x86-64 and aarch64"
#endif

    .data
    .p2align 6
    .globl awaken_slots
    .hidden awaken_slots
    .type awaken_slots, %object
awaken_slots:

#define AWAKEN_FUNCTION(index, name) AWAKEN_SYMBOL MPI_##name, (2*index) ; AWAKEN_SYMBOL PMPI_##name, (2*index+1) ;
#include "functions.inc"
#undef AWAKEN_FUNCTION
    // Extensions that programs ask whether they may pass device pointers. They have no PMPI_ form everywhere.
#define AWAKEN_EXTENSION(index, name) AWAKEN_SYMBOL name, (2*AWAKEN_FUNCTION_COUNT+index) ;
#include "extensions.inc"
#undef AWAKEN_EXTENSION

    .data
    .size awaken_slots, . - awaken_slots
    .section .note.GNU-stack, "", %progbits
