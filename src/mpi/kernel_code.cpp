// SPDX-License-Identifier: Apache-2.0
#include "mpi/kernel_code.h"

#include <cstring>
#include <mutex>
#include <optional>
#include <shared_mutex>
#include <type_traits>
#include <unordered_map>

#include "gpu/kernels/codes.h"

namespace awaken::AWAKEN_ABI {

namespace {

using kernels::ElementType;
using kernels::ReductionOperation;

ElementType integer_of(const std::size_t bytes, const bool is_signed) {
    switch (bytes) {
        case 1:
            return is_signed ? ElementType::int8 : ElementType::uint8;
        case 2:
            return is_signed ? ElementType::int16 : ElementType::uint16;
        case 4:
            return is_signed ? ElementType::int32 : ElementType::uint32;
        default:
            return is_signed ? ElementType::int64 : ElementType::uint64;
    }
}

/// The element types of the kernels for the predefined datatypes.
class ElementTypes {
  public:
    ElementTypes() {
        // By the standard, no type for additions. But MPICH and Open MPI add it, and the OSU benchmarks use that.
        add_integer<char>(MPI_CHAR);
        add_integer<signed char>(MPI_SIGNED_CHAR);
        add_integer<unsigned char>(MPI_UNSIGNED_CHAR);
        add_integer<unsigned char>(MPI_BYTE);
        add_integer<short>(MPI_SHORT);
        add_integer<unsigned short>(MPI_UNSIGNED_SHORT);
        add_integer<int>(MPI_INT);
        add_integer<unsigned>(MPI_UNSIGNED);
        add_integer<long>(MPI_LONG);
        add_integer<unsigned long>(MPI_UNSIGNED_LONG);
        add_integer<long long>(MPI_LONG_LONG);
        add_integer<unsigned long long>(MPI_UNSIGNED_LONG_LONG);
        add_integer<std::int8_t>(MPI_INT8_T);
        add_integer<std::int16_t>(MPI_INT16_T);
        add_integer<std::int32_t>(MPI_INT32_T);
        add_integer<std::int64_t>(MPI_INT64_T);
        add_integer<std::uint8_t>(MPI_UINT8_T);
        add_integer<std::uint16_t>(MPI_UINT16_T);
        add_integer<std::uint32_t>(MPI_UINT32_T);
        add_integer<std::uint64_t>(MPI_UINT64_T);
        add_integer<MPI_Aint>(MPI_AINT);
        // MPI_OFFSET is left out: Open MPI compares it as unsigned, and results must not depend on the path.
        add_integer<MPI_Count>(MPI_COUNT);
        add(MPI_FLOAT, ElementType::float32);
        add(MPI_DOUBLE, ElementType::float64);
        add(MPI_C_BOOL, ElementType::boolean);
        add(MPI_C_FLOAT_COMPLEX, ElementType::complex_float32);
        add(MPI_C_DOUBLE_COMPLEX, ElementType::complex_float64);
        add(MPI_2INT, ElementType::pair_int32_int32);
        add(MPI_FLOAT_INT, ElementType::pair_float32_int32);
    }

    [[nodiscard]] std::optional<ElementType> find(const Native& native, const MPI_Datatype type) {
        {
            const std::shared_lock lock(_mutex);
            if (const auto known = _known.find(type); known != _known.end()) {
                return known->second;
            }
        }
        return find_by_name(native, type);
    }

  private:
    void add(const MPI_Datatype type, const ElementType what) {
        if (type != MPI_DATATYPE_NULL) {
            _known.emplace(type, what);
        }
    }
    template <class Integer>
    void add_integer(const MPI_Datatype type) {
        add(type, integer_of(sizeof(Integer), std::is_signed_v<Integer>));
    }

    /// Finds types that not every MPI has, or whose size Fortran decides. Handles of predefined types never change.
    std::optional<ElementType> find_by_name(const Native& native, const MPI_Datatype type) {
        int integers = 0, addresses = 0, types = 0, combiner = MPI_COMBINER_DUP;
        if (native.Type_get_envelope(type, &integers, &addresses, &types, &combiner) != MPI_SUCCESS ||
            combiner != MPI_COMBINER_NAMED) {
            return std::nullopt;
        }
        char name[MPI_MAX_OBJECT_NAME] = {};
        int length = 0, bytes = 0;
        if (native.Type_get_name(type, name, &length) != MPI_SUCCESS || native.Type_size(type, &bytes) != MPI_SUCCESS) {
            return std::nullopt;
        }
        struct Named {
            const char* name;
            int bytes;
            ElementType what;
        };
        static constexpr Named kNames[] = {
            {"MPI_INTEGER", 4, ElementType::int32},
            {"MPI_INTEGER", 8, ElementType::int64},
            {"MPI_INTEGER1", 1, ElementType::int8},
            {"MPI_INTEGER2", 2, ElementType::int16},
            {"MPI_INTEGER4", 4, ElementType::int32},
            {"MPI_INTEGER8", 8, ElementType::int64},
            {"MPI_REAL", 4, ElementType::float32},
            {"MPI_REAL", 8, ElementType::float64},
            {"MPI_REAL2", 2, ElementType::float16},
            {"MPI_REAL4", 4, ElementType::float32},
            {"MPI_REAL8", 8, ElementType::float64},
            {"MPI_DOUBLE_PRECISION", 8, ElementType::float64},
            {"MPI_COMPLEX", 8, ElementType::complex_float32},
            {"MPI_COMPLEX8", 8, ElementType::complex_float32},
            {"MPI_COMPLEX16", 16, ElementType::complex_float64},
            {"MPI_DOUBLE_COMPLEX", 16, ElementType::complex_float64},
            {"MPI_CXX_BOOL", 1, ElementType::boolean},
            {"MPI_CXX_FLOAT_COMPLEX", 8, ElementType::complex_float32},
            {"MPI_CXX_DOUBLE_COMPLEX", 16, ElementType::complex_float64},
            {"MPI_2INTEGER", 8, ElementType::pair_int32_int32},
            {"MPI_2REAL", 8, ElementType::pair_float32_float32},
            {"MPI_2DOUBLE_PRECISION", 16, ElementType::pair_float64_float64},
            {"MPIX_C_FLOAT16", 2, ElementType::float16},
            {"MPIX_C_BF16", 2, ElementType::bfloat16},
            {"MPIX_BFLOAT16", 2, ElementType::bfloat16},
            {"MPI_C_FLOAT16", 2, ElementType::float16},
            {"MPI_BFLOAT16", 2, ElementType::bfloat16},
            {"MPIX_SHORT_FLOAT", 2, ElementType::float16},
        };
        for (const Named& named : kNames) {
            if (bytes == named.bytes && std::strcmp(name, named.name) == 0) {
                const std::unique_lock lock(_mutex);
                _known.emplace(type, named.what);
                return named.what;
            }
        }
        return std::nullopt;
    }

    std::shared_mutex _mutex;
    std::unordered_map<MPI_Datatype, ElementType> _known;
};

std::optional<ReductionOperation> operation_of(const MPI_Op op) {
    static const std::unordered_map<MPI_Op, ReductionOperation> known{
        {MPI_SUM, ReductionOperation::sum},
        {MPI_PROD, ReductionOperation::product},
        {MPI_MIN, ReductionOperation::minimum},
        {MPI_MAX, ReductionOperation::maximum},
        {MPI_LAND, ReductionOperation::logical_and},
        {MPI_LOR, ReductionOperation::logical_or},
        {MPI_LXOR, ReductionOperation::logical_xor},
        {MPI_BAND, ReductionOperation::bitwise_and},
        {MPI_BOR, ReductionOperation::bitwise_or},
        {MPI_BXOR, ReductionOperation::bitwise_xor},
        {MPI_MINLOC, ReductionOperation::minimum_location},
        {MPI_MAXLOC, ReductionOperation::maximum_location},
    };
    const auto found = known.find(op);
    return found != known.end() ? std::optional(found->second) : std::nullopt;
}

}  // namespace

std::uint32_t kernel_code(const Native& native, const MPI_Op op, const MPI_Datatype type) {
    static ElementTypes types;
    const std::optional<ReductionOperation> operation = operation_of(op);
    if (!operation) {
        return 0;
    }
    const std::optional<ElementType> element = types.find(native, type);
    if (!element || !kernels::is_defined(*element, *operation)) {
        return 0;
    }
    const bool bitwise = *operation == ReductionOperation::bitwise_and ||
                         *operation == ReductionOperation::bitwise_or || *operation == ReductionOperation::bitwise_xor;
    return type != MPI_BYTE || bitwise ? kernels::code_of(*element, *operation) : 0;
}

}  // namespace awaken::AWAKEN_ABI
