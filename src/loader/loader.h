// SPDX-License-Identifier: Apache-2.0
// Finds the program's MPI and points the entry points at the right core.
//
// The library is loaded before the program's MPI is known. The MPI may be opened with RTLD_LOCAL, where RTLD_NEXT does
// not find it. So the loader resolves nothing before the first MPI call. Then it searches the objects of the process
// for the one that defines MPI, recognises its ABI by symbols and version string, and fills all slots.
#pragma once

#include <atomic>
#include <cstdint>
#include <string>

#include "loader/abi.h"

namespace awaken::loader {

/// The exported functions of all ABIs together, numbered as in functions.inc.
enum class Function : std::uint16_t {
#define AWAKEN_FUNCTION(index, name) name = index,
#include "functions.inc"
#undef AWAKEN_FUNCTION
#define AWAKEN_EXTENSION(index, name) name = AWAKEN_FUNCTION_COUNT + index,
#include "extensions.inc"
#undef AWAKEN_EXTENSION
};
inline constexpr int kFunctions = AWAKEN_FUNCTION_COUNT;
#define AWAKEN_EXTENSION(index, name) +1
inline constexpr int kExtensions = 0
#include "extensions.inc"
    ;
#undef AWAKEN_EXTENSION

/// Such as "MPI_Send". Extensions keep their own prefix.
[[nodiscard]] const char* name_of(Function function) noexcept;

/// The MPI library that the program uses.
struct Binding {
    Abi abi = Abi::mpich;
    std::string path;          ///< path of the library's file
    std::string version;       ///< first line of MPI_Get_library_version
    bool was_chosen = false;   ///< the loader chose it, since the program had loaded none
    std::string passed_over;   ///< the value of AWAKEN_MPI, if the program had loaded another library itself
    void* handle = nullptr;    ///< from dlopen; never closed
    std::uintptr_t begin = 0;  ///< address range of the library's mapped segments
    std::uintptr_t end = 0;

    /// Address of a symbol that the library or one of its dependencies defines; null if there is none.
    [[nodiscard]] void* symbol(const char* name) const noexcept;
    /// The MPI_<name> of the next tool below this library in the program's search order, or null. A tool is an object
    /// that defines the function but is not the MPI itself.
    [[nodiscard]] void* tool_symbol(const char* name) const noexcept;
};

/// The program's MPI; null until its first MPI call.
[[nodiscard]] const Binding* binding_in_use() noexcept;
/// Path of an MPI library that the process has loaded; empty if it has loaded none.
[[nodiscard]] std::string loaded_library();

/// Address of a data object of the program's MPI. A program that is not position-independent has its own copy, which
/// the MPI uses too. This function finds that copy first.
[[nodiscard]] void* data_symbol(const char* name) noexcept;

/// Points MPI_<function> and PMPI_<function> to these addresses. Extensions have one slot.
void set_slot(Function function, void* mpi, void* pmpi) noexcept;

/// Where MPI_<function> points.
[[nodiscard]] void* slot_of(Function function) noexcept;

/// What a core offers for one function; `entry` fills both the MPI_ and the PMPI_ slot.
struct Service {
    Function function;
    void* entry;
};

/// Points every slot at the MPI itself: in a job without a GPU each call costs one jump.
void pass_everything_through(const Binding& binding) noexcept;

/// Makes functions that the program's MPI lacks look absent to code that tests them before a call (`if (MPI_Send_c)`
/// with a weak symbol, as mpi4py does). Where the weak reference of an object is bound to our exported symbol, the
/// loader sets it back to null. It does so for all objects loaded at that time: at the first MPI call, and after the
/// initialisation of MPI.
void withdraw_absent_functions(const Binding& binding) noexcept;

/// Whether the program, or a library that it has loaded, is linked to this symbol. The MPI's own libraries do not
/// count.
[[nodiscard]] bool is_program_linked_to(const char* symbol) noexcept;

/// True when a call that returns to `return_address` comes from inside the MPI (the library or one of its plug-ins),
/// not from the program. Such calls pass host buffers of the MPI and must reach the MPI directly.
[[nodiscard]] bool from_inside_mpi(const Binding& binding, const void* return_address) noexcept;
/// True when the caller is an object that defines MPI functions itself: a profiling tool. Also true when the caller
/// seems to be this library because a tool left by a tail call. Used for nested calls only.
[[nodiscard]] bool from_tool(const void* return_address) noexcept;

/// Prints "awaken: CAUSE: REMEDY" on stderr and ends the process with status 2. For misconfigurations found before MPI
/// is up, when no error handler exists yet.
[[noreturn]] void die(const std::string& message) noexcept;

}  // namespace awaken::loader
