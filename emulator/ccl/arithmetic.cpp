// SPDX-License-Identifier: Apache-2.0
#include "ccl/arithmetic.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <type_traits>

namespace awaken::emulator::ccl {
namespace {

/// A type that computes in itself.
template <typename T>
struct Plain {
    using Stored = T;
    using Wide = T;
    static Wide load(Stored value) noexcept { return value; }
    static Stored store(Wide value) noexcept { return value; }
};

/// A floating-point type narrower than float: a sign, exponent bits, mantissa bits. Either the largest exponent stands
/// for infinities and NaNs, as IEEE 754 has it, or only all bits set is a NaN and there is no infinity.
template <typename Bits, int ExponentBits, int MantissaBits, bool HasInfinity>
struct Narrow {
    using Stored = Bits;
    using Wide = float;
    static constexpr int kBias = (1 << (ExponentBits - 1)) - 1;
    static constexpr int kLastField = (1 << ExponentBits) - 1;
    static constexpr int kOne = 1 << MantissaBits;
    static constexpr int kSign = 1 << (ExponentBits + MantissaBits);

    static float load(Bits bits) noexcept {
        const int field = (bits >> MantissaBits) & kLastField;
        const int mantissa = bits & (kOne - 1);
        const float sign = (bits & kSign) != 0 ? -1.0F : 1.0F;
        if (field == kLastField) {
            if (HasInfinity && mantissa == 0) {
                return sign * std::numeric_limits<float>::infinity();
            }
            if (HasInfinity || mantissa == kOne - 1) {
                return std::numeric_limits<float>::quiet_NaN();
            }
        }
        const float magnitude = field == 0
                                    ? std::ldexp(static_cast<float>(mantissa), 1 - kBias - MantissaBits)
                                    : std::ldexp(static_cast<float>(kOne + mantissa), field - kBias - MantissaBits);
        return sign * magnitude;
    }

    /// To the nearest value, ties to even. What is too large becomes infinity, or the largest number where there is
    /// none.
    static Bits store(float value) noexcept {
        constexpr int kNan = HasInfinity ? kLastField << MantissaBits | kOne >> 1 : kSign - 1;
        constexpr int kTooLarge = HasInfinity ? kLastField << MantissaBits : kSign - 2;
        const int sign = std::signbit(value) ? kSign : 0;
        if (std::isnan(value)) {
            return static_cast<Bits>(sign | kNan);
        }
        if (std::isinf(value)) {
            return static_cast<Bits>(sign | kTooLarge);
        }
        const float magnitude = std::fabs(value);
        if (magnitude == 0) {
            return static_cast<Bits>(sign);
        }
        int exponent = 0;
        static_cast<void>(std::frexp(magnitude, &exponent));
        exponent = std::max(exponent - 1, 1 - kBias);
        // In units of the last place: below kOne is a subnormal number, 2 * kOne the next power of two.
        const auto units = static_cast<int>(std::nearbyint(std::ldexp(magnitude, MantissaBits - exponent)));
        // The hidden bit adds one to the exponent's field, and so does a mantissa that was rounded up.
        const int bits = ((exponent + kBias - 1) << MantissaBits) + units;
        return static_cast<Bits>(sign | std::min(bits, kTooLarge));
    }
};

using Float16 = Narrow<std::uint16_t, 5, 10, true>;
using Bfloat16 = Narrow<std::uint16_t, 8, 7, true>;
using Float8E4M3 = Narrow<std::uint8_t, 4, 3, false>;
using Float8E5M2 = Narrow<std::uint8_t, 5, 2, true>;

/// Integers wrap around instead of overflowing.
template <typename T, typename Function>
T wrapping(T left, T right, const Function& function) noexcept {
    if constexpr (std::is_integral_v<T>) {
        // As wide as unsigned at least: narrower operands would be promoted to int and overflow there.
        using Unsigned = std::common_type_t<std::make_unsigned_t<T>, unsigned>;
        return static_cast<T>(function(static_cast<Unsigned>(left), static_cast<Unsigned>(right)));
    } else {
        return function(left, right);
    }
}

template <typename Codec>
void reduce_as(Operation operation, std::span<const std::byte* const> inputs, std::byte* output, std::size_t count) {
    using Stored = typename Codec::Stored;
    using Wide = typename Codec::Wide;
    const auto combine = [operation](Wide left, Wide right) -> Wide {
        switch (operation) {
            case Operation::product:
                return wrapping(left, right, [](auto a, auto b) { return a * b; });
            case Operation::maximum:
                return std::max(left, right);
            case Operation::minimum:
                return std::min(left, right);
            default:
                return wrapping(left, right, [](auto a, auto b) { return a + b; });
        }
    };
    const auto element = [&](std::size_t input, std::size_t position) {
        Stored stored{};
        std::memcpy(&stored, inputs[input] + position * sizeof stored, sizeof stored);
        return Codec::load(stored);
    };
    for (std::size_t position = 0; position < count; ++position) {
        Wide value = element(0, position);
        for (std::size_t input = 1; input < inputs.size(); ++input) {
            value = combine(value, element(input, position));
        }
        if (operation == Operation::average) {
            value = static_cast<Wide>(value / static_cast<Wide>(inputs.size()));
        }
        const Stored stored = Codec::store(value);
        std::memcpy(output + position * sizeof stored, &stored, sizeof stored);
    }
}

}  // namespace

std::size_t size_of(Type type) noexcept {
    switch (type) {
        case Type::int8:
        case Type::uint8:
        case Type::float8_e4m3:
        case Type::float8_e5m2:
            return 1;
        case Type::float16:
        case Type::bfloat16:
            return 2;
        case Type::int32:
        case Type::uint32:
        case Type::float32:
            return 4;
        default:
            return 8;
    }
}

void reduce(Type type, Operation operation, std::span<const std::byte* const> inputs, std::byte* output,
            std::size_t count) {
    switch (type) {
        case Type::int8:
            return reduce_as<Plain<std::int8_t>>(operation, inputs, output, count);
        case Type::uint8:
            return reduce_as<Plain<std::uint8_t>>(operation, inputs, output, count);
        case Type::int32:
            return reduce_as<Plain<std::int32_t>>(operation, inputs, output, count);
        case Type::uint32:
            return reduce_as<Plain<std::uint32_t>>(operation, inputs, output, count);
        case Type::int64:
            return reduce_as<Plain<std::int64_t>>(operation, inputs, output, count);
        case Type::uint64:
            return reduce_as<Plain<std::uint64_t>>(operation, inputs, output, count);
        case Type::float16:
            return reduce_as<Float16>(operation, inputs, output, count);
        case Type::float32:
            return reduce_as<Plain<float>>(operation, inputs, output, count);
        case Type::float64:
            return reduce_as<Plain<double>>(operation, inputs, output, count);
        case Type::bfloat16:
            return reduce_as<Bfloat16>(operation, inputs, output, count);
        case Type::float8_e4m3:
            return reduce_as<Float8E4M3>(operation, inputs, output, count);
        case Type::float8_e5m2:
            return reduce_as<Float8E5M2>(operation, inputs, output, count);
    }
}

}  // namespace awaken::emulator::ccl
