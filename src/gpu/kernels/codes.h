// SPDX-License-Identifier: Apache-2.0
// The element types and operations of the kernels of combine.h, and the number that names a pair of them. Host code
// that launches the kernels and the kernels themselves read this same text.
#pragma once

// NVRTC takes no function that is not marked for the device, even where only the compiler calls it.
#ifdef __CUDACC_RTC__
#define AWAKEN_CONSTANT __device__ constexpr
#else
#define AWAKEN_CONSTANT constexpr
#endif

namespace awaken::kernels {

/// The types of elements. Floating-point types are those of IEEE 754; bfloat16 is the upper half of a float32.
enum class ElementType : unsigned {
    int8,
    uint8,
    int16,
    uint16,
    int32,
    uint32,
    int64,
    uint64,
    float16,
    bfloat16,
    float32,
    float64,
    complex_float32,       ///< real part, imaginary part
    complex_float64,       ///< the same
    boolean,               ///< 1 byte; every value but 0 is true
    pair_int32_int32,      ///< a value and an index, as in all pairs
    pair_float32_int32,    ///< the same
    pair_float32_float32,  ///< the same; indices are compared as numbers
    pair_float64_float64,  ///< the same
    bytes1,                ///< without a meaning: can be copied only
    bytes2,                ///< the same
    bytes4,                ///< the same
    bytes8,                ///< the same
    bytes16                ///< the same
};
inline constexpr unsigned kElementTypes = 24;

enum class ReductionOperation : unsigned {
    copy,  ///< the first source as it is
    sum,   ///< integers wrap around, as in `product`
    product,
    minimum,
    maximum,
    logical_and,  ///< results of logical operations are 1 and 0
    logical_or,
    logical_xor,
    bitwise_and,
    bitwise_or,
    bitwise_xor,
    minimum_location,  ///< the pair with the smaller value; of equal values, the smaller index
    maximum_location   ///< the pair with the larger value; of equal values, the smaller index
};
inline constexpr unsigned kReductionOperations = 13;

/// Names the pair to awaken_combine. AWAKEN_ONLY_CODE may be defined as this number.
AWAKEN_CONSTANT unsigned code_of(ElementType type, ReductionOperation operation) {
    return (unsigned)type * 16 + (unsigned)operation;
}
AWAKEN_CONSTANT ElementType type_of(unsigned code) {
    return (ElementType)(code / 16);
}
AWAKEN_CONSTANT ReductionOperation operation_of(unsigned code) {
    return (ReductionOperation)(code % 16);
}

/// The address of an element must be a multiple of this: the bytes of its parts, where it has several.
AWAKEN_CONSTANT unsigned element_alignment(ElementType type) {
    switch (type) {
        case ElementType::int8:
        case ElementType::uint8:
        case ElementType::boolean:
        case ElementType::bytes1:
            return 1;
        case ElementType::int16:
        case ElementType::uint16:
        case ElementType::float16:
        case ElementType::bfloat16:
        case ElementType::bytes2:
            return 2;
        case ElementType::int32:
        case ElementType::uint32:
        case ElementType::float32:
        case ElementType::complex_float32:
        case ElementType::pair_int32_int32:
        case ElementType::pair_float32_int32:
        case ElementType::pair_float32_float32:
        case ElementType::bytes4:
            return 4;
        default:
            return 8;
    }
}

/// The bytes of one element.
AWAKEN_CONSTANT unsigned element_bytes(ElementType type) {
    switch (type) {
        case ElementType::complex_float32:
        case ElementType::complex_float64:
        case ElementType::pair_int32_int32:
        case ElementType::pair_float32_int32:
        case ElementType::pair_float32_float32:
        case ElementType::pair_float64_float64:
        case ElementType::bytes16:
            return 2 * element_alignment(type);
        default:
            return element_alignment(type);
    }
}

/// Whether MPI has the operation for the type. Every type can be copied.
AWAKEN_CONSTANT bool is_defined(ElementType type, ReductionOperation operation) {
    const bool integer = type <= ElementType::uint64;
    const bool real = integer || (type >= ElementType::float16 && type <= ElementType::float64);
    const bool complex = type == ElementType::complex_float32 || type == ElementType::complex_float64;
    switch (operation) {
        case ReductionOperation::copy:
            return true;
        case ReductionOperation::sum:
        case ReductionOperation::product:
            return real || complex;
        case ReductionOperation::minimum:
        case ReductionOperation::maximum:
            return real;
        case ReductionOperation::logical_and:
        case ReductionOperation::logical_or:
        case ReductionOperation::logical_xor:
            return integer || type == ElementType::boolean;
        case ReductionOperation::bitwise_and:
        case ReductionOperation::bitwise_or:
        case ReductionOperation::bitwise_xor:
            return integer;
        case ReductionOperation::minimum_location:
        case ReductionOperation::maximum_location:
            return type >= ElementType::pair_int32_int32 && type <= ElementType::pair_float64_float64;
    }
    return false;
}

/// The code whose kernel does the same, so that one is compiled for all of them: it is unsigned numbers that are added,
/// multiplied and combined bit by bit, true and false are bytes, and a copy knows no types but lengths.
AWAKEN_CONSTANT unsigned same_kernel(unsigned code) {
    const ElementType type = type_of(code);
    const ReductionOperation operation = operation_of(code);
    if (type == ElementType::boolean && operation != ReductionOperation::copy) {
        return code_of(ElementType::uint8, operation);
    }
    switch (operation) {
        case ReductionOperation::copy:
            if (element_bytes(type) != element_alignment(type)) {
                return code;
            }
            switch (element_bytes(type)) {
                case 1:
                    return code_of(ElementType::bytes1, operation);
                case 2:
                    return code_of(ElementType::bytes2, operation);
                case 4:
                    return code_of(ElementType::bytes4, operation);
                default:
                    return code_of(ElementType::bytes8, operation);
            }
        case ReductionOperation::minimum:
        case ReductionOperation::maximum:
            return code;
        default:
            // A signed type stands before its unsigned one.
            return code_of(type < ElementType::uint64 ? (ElementType)((unsigned)type | 1) : type, operation);
    }
}

/// The most sources, or targets, of one launch of awaken_combine, and the most moves of one launch of awaken_move.
inline constexpr unsigned kMostPlaces = 32;
inline constexpr unsigned kMostMoves = 64;
/// Words that a kernel waits for at its end.
inline constexpr unsigned kMostAwaited = 8;

}  // namespace awaken::kernels
