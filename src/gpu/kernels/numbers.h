// SPDX-License-Identifier: Apache-2.0
// The number formats of the kernels of combine.h, and what is done with two numbers. Host code that folds values by the
// CPU (coll/device/host_fold.cpp) reads this same text, so that it computes the same bits.
#pragma once

#include "codes.h"
#include "integers.h"

// A kernel has got this from portable.h.
#ifndef AWAKEN_DEVICE
#define AWAKEN_DEVICE inline
#endif

namespace awaken::kernels {

/// The same bits as another type. This is a union, because __builtin_bit_cast came to NVRTC with CUDA 12. Every
/// compiler that reads this text defines a union so.
template <typename To, typename From>
AWAKEN_DEVICE To reinterpreted(From from) {
    static_assert(sizeof(To) == sizeof(From), "the same bits");
    union {
        From from;
        To to;
    } both;
    both.from = from;
    return both.to;
}

// A number format names three types. `Stored` is the type in memory. `Value` holds results until they are stored. Sums
// and products are computed in `Wide`, and `rounded` brings them back to a number of the format.

template <typename T, typename WideT = T>
struct Plain {
    using Stored = T;
    using Value = T;
    using Wide = WideT;
    static AWAKEN_DEVICE Value opened(Stored stored) { return stored; }
    static AWAKEN_DEVICE Value rounded(Wide wide) { return (Value)wide; }
    static AWAKEN_DEVICE Stored closed(Value value) { return value; }
};

/// IEEE 754's binary16: 5 bits of exponent, 10 of mantissa. A float holds all of its numbers; the subnormal ones are
/// normal there. A float also has enough bits that rounding a sum or product of two a second time does no harm.
struct Float16 {
    using Stored = u16;
    using Value = float;
    using Wide = float;
    static AWAKEN_DEVICE Value opened(Stored stored) {
        // Once exponent and mantissa are in their places in a float, only the difference of the exponents' biases is
        // missing (127 - 15). The multiplication adds it, and also normalises.
        const u32 magnitude = (u32)(stored & 0x7fff) << 13;
        u32 bits = reinterpreted<u32>(reinterpreted<float>(magnitude) * 0x1p112F);
        if (magnitude >= (u32)0x7c00 << 13) {
            bits |= 0x7f800000;  // an infinity or NaN
        }
        return reinterpreted<float>(bits | (u32)(stored & 0x8000) << 16);
    }
    static AWAKEN_DEVICE Value rounded(Wide wide) {
        const u32 bits = reinterpreted<u32>(wide);
        // In the binade of `spacer`, neighbouring floats are as far apart as this format's numbers are in the number's
        // own binade, 13 below, or in that of the smallest normal numbers, 2^-14. So the addition rounds. `wide` is a
        // sum or product of two such numbers, at most 2^32, an infinity or NaN. For the last two spacer is negative and
        // tiny.
        u32 exponent = bits & 0x7f800000;
        if (exponent < 113U << 23) {
            exponent = 113U << 23;
        }
        const float spacer = reinterpreted<float>(exponent + (13U << 23));
        float magnitude = reinterpreted<float>(bits & 0x7fffffff);
        magnitude = (magnitude + spacer) - spacer;
        if (magnitude >= 65536.0F) {
            magnitude = reinterpreted<float>(0x7f800000U);
        }
        return reinterpreted<float>(reinterpreted<u32>(magnitude) | (bits & 0x80000000));
    }
    static AWAKEN_DEVICE Stored closed(Value value) {
        // The reverse of opened(). The multiplication makes subnormal numbers subnormal again. It leaves infinities and
        // NaNs as they are; their exponents lose the upper bits.
        const u32 bits = reinterpreted<u32>(value);
        const float magnitude = reinterpreted<float>(bits & 0x7fffffff) * 0x1p-112F;
        return (Stored)(((reinterpreted<u32>(magnitude) >> 13) & 0x7fff) | ((bits >> 16) & 0x8000));
    }
};

/// The upper half of a float.
struct Bfloat16 {
    using Stored = u16;
    using Value = float;
    using Wide = float;
    static AWAKEN_DEVICE Value opened(Stored stored) { return reinterpreted<float>((u32)stored << 16); }
    static AWAKEN_DEVICE Value rounded(Wide wide) {
        const u32 bits = reinterpreted<u32>(wide);
        // Rounds to the nearest, ties to even. A value that is too large becomes infinity by itself. A NaN must stay
        // one.
        u32 upper = bits + 0x7fff + ((bits >> 16) & 1);
        if ((bits & 0x7fffffff) > 0x7f800000) {
            upper = bits | 0x00400000;
        }
        return reinterpreted<float>(upper & 0xffff0000);
    }
    static AWAKEN_DEVICE Stored closed(Value value) { return (Stored)(reinterpreted<u32>(value) >> 16); }
};

template <typename Part>
struct Complex {
    Part real;
    Part imaginary;
};

template <typename First, typename Second>
struct Pair {
    First value;
    Second index;
};

/// The number formats of a type. `Exact` keeps signs apart. `Modular` serves sums and products that wrap around.
/// Products of narrow integers must not be computed in int, where they overflow.
template <ElementType type>
struct Formats;
template <typename Signed, typename Unsigned, typename Wide>
struct IntegerFormats {
    using Exact = Plain<Signed>;
    using Modular = Plain<Unsigned, Wide>;
};
template <typename Format>
struct OneFormat {
    using Exact = Format;
    using Modular = Format;
};
template <>
struct Formats<ElementType::int8> : IntegerFormats<i8, u8, u32> {};
template <>
struct Formats<ElementType::uint8> : IntegerFormats<u8, u8, u32> {};
template <>
struct Formats<ElementType::int16> : IntegerFormats<i16, u16, u32> {};
template <>
struct Formats<ElementType::uint16> : IntegerFormats<u16, u16, u32> {};
template <>
struct Formats<ElementType::int32> : IntegerFormats<i32, u32, u32> {};
template <>
struct Formats<ElementType::uint32> : IntegerFormats<u32, u32, u32> {};
template <>
struct Formats<ElementType::int64> : IntegerFormats<i64, u64, u64> {};
template <>
struct Formats<ElementType::uint64> : IntegerFormats<u64, u64, u64> {};
template <>
struct Formats<ElementType::float16> : OneFormat<Float16> {};
template <>
struct Formats<ElementType::bfloat16> : OneFormat<Bfloat16> {};
template <>
struct Formats<ElementType::float32> : OneFormat<Plain<float>> {};
template <>
struct Formats<ElementType::float64> : OneFormat<Plain<double>> {};
template <>
struct Formats<ElementType::complex_float32> : OneFormat<Plain<Complex<float>>> {};
template <>
struct Formats<ElementType::complex_float64> : OneFormat<Plain<Complex<double>>> {};
template <>
struct Formats<ElementType::boolean> : OneFormat<Plain<u8>> {};
template <>
struct Formats<ElementType::pair_int32_int32> : OneFormat<Plain<Pair<i32, i32>>> {};
template <>
struct Formats<ElementType::pair_float32_int32> : OneFormat<Plain<Pair<float, i32>>> {};
template <>
struct Formats<ElementType::pair_float32_float32> : OneFormat<Plain<Pair<float, float>>> {};
template <>
struct Formats<ElementType::pair_float64_float64> : OneFormat<Plain<Pair<double, double>>> {};

// An operation combines two values of a number format. No operation has branches, because the threads of a warp would
// not all take the same one.

struct Sum {
    template <typename Numbers, typename Value>
    static AWAKEN_DEVICE Value combined(Value left, Value right) {
        using Wide = typename Numbers::Wide;
        return Numbers::rounded((Wide)left + (Wide)right);
    }
};

struct Product {
    template <typename Numbers, typename Value>
    static AWAKEN_DEVICE Value combined(Value left, Value right) {
        using Wide = typename Numbers::Wide;
        return Numbers::rounded((Wide)left * (Wide)right);
    }
};

struct ComplexProduct {
    template <typename Numbers, typename Value>
    static AWAKEN_DEVICE Value combined(Value left, Value right) {
        return {left.real * right.real - left.imaginary * right.imaginary,
                left.real * right.imaginary + left.imaginary * right.real};
    }
};

struct Minimum {
    template <typename Numbers, typename Value>
    static AWAKEN_DEVICE Value combined(Value left, Value right) {
        return right < left ? right : left;
    }
};

struct Maximum {
    template <typename Numbers, typename Value>
    static AWAKEN_DEVICE Value combined(Value left, Value right) {
        return left < right ? right : left;
    }
};

struct LogicalAnd {
    template <typename Numbers, typename Value>
    static AWAKEN_DEVICE Value combined(Value left, Value right) {
        return (Value)((left != 0) & (right != 0));
    }
};

struct LogicalOr {
    template <typename Numbers, typename Value>
    static AWAKEN_DEVICE Value combined(Value left, Value right) {
        return (Value)((left != 0) | (right != 0));
    }
};

struct LogicalXor {
    template <typename Numbers, typename Value>
    static AWAKEN_DEVICE Value combined(Value left, Value right) {
        return (Value)((left != 0) ^ (right != 0));
    }
};

struct BitwiseAnd {
    template <typename Numbers, typename Value>
    static AWAKEN_DEVICE Value combined(Value left, Value right) {
        return (Value)(left & right);
    }
};

struct BitwiseOr {
    template <typename Numbers, typename Value>
    static AWAKEN_DEVICE Value combined(Value left, Value right) {
        return (Value)(left | right);
    }
};

struct BitwiseXor {
    template <typename Numbers, typename Value>
    static AWAKEN_DEVICE Value combined(Value left, Value right) {
        return (Value)(left ^ right);
    }
};

struct MinimumLocation {
    template <typename Numbers, typename Value>
    static AWAKEN_DEVICE Value combined(Value left, Value right) {
        const bool other = (right.value < left.value) | ((right.value == left.value) & (right.index < left.index));
        return other ? right : left;
    }
};

struct MaximumLocation {
    template <typename Numbers, typename Value>
    static AWAKEN_DEVICE Value combined(Value left, Value right) {
        const bool other = (left.value < right.value) | ((right.value == left.value) & (right.index < left.index));
        return other ? right : left;
    }
};

/// An operation, the format of the elements, and the format of the numbers into which a vector is taken apart.
template <typename Class, typename ElementFormat, typename LaneFormat = ElementFormat>
struct Combination {
    using Operation = Class;
    using Element = ElementFormat;
    using Lane = LaneFormat;
};

/// How a type and an operation are computed.
template <ElementType type, ReductionOperation operation>
struct Reduction;
template <ElementType type>
struct Reduction<type, ReductionOperation::sum> : Combination<Sum, typename Formats<type>::Modular> {};
template <ElementType type>
struct Reduction<type, ReductionOperation::product> : Combination<Product, typename Formats<type>::Modular> {};
template <ElementType type>
struct Reduction<type, ReductionOperation::minimum> : Combination<Minimum, typename Formats<type>::Exact> {};
template <ElementType type>
struct Reduction<type, ReductionOperation::maximum> : Combination<Maximum, typename Formats<type>::Exact> {};
// These operations only ask whether a value is zero, so that signs do not matter.
template <ElementType type>
struct Reduction<type, ReductionOperation::logical_and> : Combination<LogicalAnd, typename Formats<type>::Modular> {};
template <ElementType type>
struct Reduction<type, ReductionOperation::logical_or> : Combination<LogicalOr, typename Formats<type>::Modular> {};
template <ElementType type>
struct Reduction<type, ReductionOperation::logical_xor> : Combination<LogicalXor, typename Formats<type>::Modular> {};
// Operations on bits do not depend on where elements end.
template <ElementType type>
struct Reduction<type, ReductionOperation::bitwise_and>
    : Combination<BitwiseAnd, typename Formats<type>::Modular, Plain<u64>> {};
template <ElementType type>
struct Reduction<type, ReductionOperation::bitwise_or>
    : Combination<BitwiseOr, typename Formats<type>::Modular, Plain<u64>> {};
template <ElementType type>
struct Reduction<type, ReductionOperation::bitwise_xor>
    : Combination<BitwiseXor, typename Formats<type>::Modular, Plain<u64>> {};
template <ElementType type>
struct Reduction<type, ReductionOperation::minimum_location>
    : Combination<MinimumLocation, typename Formats<type>::Exact> {};
template <ElementType type>
struct Reduction<type, ReductionOperation::maximum_location>
    : Combination<MaximumLocation, typename Formats<type>::Exact> {};
// The sum of complex numbers is the sum of twice as many parts.
template <>
struct Reduction<ElementType::complex_float32, ReductionOperation::sum> : Combination<Sum, Plain<float>> {};
template <>
struct Reduction<ElementType::complex_float64, ReductionOperation::sum> : Combination<Sum, Plain<double>> {};
template <>
struct Reduction<ElementType::complex_float32, ReductionOperation::product>
    : Combination<ComplexProduct, Plain<Complex<float>>> {};
template <>
struct Reduction<ElementType::complex_float64, ReductionOperation::product>
    : Combination<ComplexProduct, Plain<Complex<double>>> {};

}  // namespace awaken::kernels
