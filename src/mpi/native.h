// SPDX-License-Identifier: Apache-2.0
// The program's MPI as a table of functions, typed by the header of the ABI that this core is compiled for.
//
// A file that includes this one is compiled once per ABI, inside namespace awaken::AWAKEN_ABI (mpich, openmpi, mpi5).
#pragma once

#define MPICH_SKIP_MPICXX 1
#define OMPI_SKIP_MPICXX 1
#include <mpi.h>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>

#include "loader/loader.h"

#ifndef AWAKEN_ABI
#error "compile the core with -DAWAKEN_ABI=mpich, openmpi or mpi5"
#endif

#ifdef OMPI_PREDEFINED_GLOBAL
// Open MPI's predefined handles are addresses of objects inside its library. This library is not linked to it, so it
// looks each object up by name at the first use. The handles of the other ABIs are constants.
namespace awaken::AWAKEN_ABI {

template <std::size_t size>
struct ObjectName {
    // Not explicit, so that a string literal may be a template argument.
    constexpr ObjectName(const char (&literal)[size]) { std::copy_n(literal, size, text); }  // NOLINT
    char text[size] = {};
};

template <ObjectName name>
[[nodiscard]] void* predefined_object() noexcept {
    static std::atomic<void*> address{nullptr};
    void* known = address.load(std::memory_order_relaxed);
    if (known == nullptr) {
        known = loader::data_symbol(name.text);
        address.store(known, std::memory_order_relaxed);
    }
    return known;
}

}  // namespace awaken::AWAKEN_ABI
#undef OMPI_PREDEFINED_GLOBAL
#define OMPI_PREDEFINED_GLOBAL(type, object) (static_cast<type>(::awaken::AWAKEN_ABI::predefined_object<#object>()))
#endif

namespace awaken::AWAKEN_ABI {

using loader::Function;

/// Stands for a function that this ABI's header does not declare.
struct Absent {};

/// Pointers to MPI functions. A null pointer stands for a function that the library at hand does not have (an older
/// release).
struct Native {
#define AWAKEN_NATIVE(name) decltype(&::PMPI_##name) name = nullptr;
#define AWAKEN_ABSENT(name) Absent name;
#include AWAKEN_NATIVE_TABLE
#undef AWAKEN_NATIVE
#undef AWAKEN_ABSENT

    /// Fills the table with the library's PMPI_ functions, for calls of the layer.
    void load(const loader::Binding& binding);
    /// Fills the table with the functions that the program would reach without this library: a profiling tool's MPI_
    /// functions, or else the MPI's.
    void load_below(const loader::Binding& binding);
};

/// Asks whether a request is complete, without its outcome. MPICH's MPI_Request_get_status raises the error of a failed
/// request on MPI_COMM_SELF or MPI_COMM_WORLD, whatever communicator the request belongs to. MPICH has an extension
/// that only asks.
class CompletionQuery {
  public:
    void load(const loader::Binding& binding);
    /// False where the MPI lacks the extension.
    [[nodiscard]] bool available() const noexcept { return _is_complete != nullptr && _progress != nullptr; }
    [[nodiscard]] bool of(MPI_Request request) const;

  private:
    int (*_is_complete)(MPI_Request) = nullptr;
    int (*_progress)(int stream) = nullptr;
};

/// Compile-time access by number: NativeMember<Function::Send>::of(table) is table.Send.
template <Function function>
struct NativeMember {
    using Type = Absent;
    static constexpr Absent of(const Native&) { return {}; }
};
#define AWAKEN_NATIVE(member)                  \
    template <>                                \
    struct NativeMember<Function::member> {    \
        using Type = decltype(Native::member); \
        static Type of(const Native& native) { \
            return native.member;              \
        }                                      \
    };
#define AWAKEN_ABSENT(member)
#include AWAKEN_NATIVE_TABLE
#undef AWAKEN_NATIVE
#undef AWAKEN_ABSENT

}  // namespace awaken::AWAKEN_ABI
