// Finding the program's MPI and pointing the entry points at the right core.
//
// The library is loaded before the program's MPI is known, and the MPI may be opened with RTLD_LOCAL, out of reach of
// RTLD_NEXT. So nothing is resolved until the first MPI call arrives; then the objects in the process are searched for
// the one that defines MPI, its ABI is recognised by its symbols and version string, and all slots are filled.
#pragma once

#include <atomic>
#include <cstdint>
#include <string>

namespace awaken::loader {

enum class Abi : std::uint8_t { mpich, openmpi, mpi5 };
[[nodiscard]] const char* to_string(Abi abi) noexcept;

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

/// "MPI_Send"; extensions keep their own prefix.
[[nodiscard]] const char* name_of(Function function) noexcept;

/// The MPI library that the program uses.
struct Binding {
    Abi abi = Abi::mpich;
    std::string path;          ///< of the library's file
    std::string version;       ///< first line of MPI_Get_library_version
    bool was_chosen = false;   ///< by us, since the program had loaded none
    std::string passed_over;   ///< AWAKEN_MPI, where the program had loaded another library by itself
    void* handle = nullptr;    ///< from dlopen; kept for the life of the process
    std::uintptr_t begin = 0;  ///< address range of the library's mapped segments
    std::uintptr_t end = 0;

    /// Address of a symbol defined by the library (or by what it depends on); null when it has none.
    [[nodiscard]] void* symbol(const char* name) const noexcept;
    /// The next tool's MPI_<name> below us in the program's search order, or null. Tools are objects that define the
    /// function but are not the MPI itself.
    [[nodiscard]] void* tool_symbol(const char* name) const noexcept;
};

/// The program's MPI; null until its first MPI call.
[[nodiscard]] const Binding* binding_in_use() noexcept;
/// Path of an MPI library that the process has loaded; empty: none.
[[nodiscard]] std::string loaded_library();

/// Address of a data object of the program's MPI. A program that is not position-independent has a copy of its own,
/// which the MPI uses too: that one is found first.
[[nodiscard]] void* data_symbol(const char* name) noexcept;

/// Points MPI_<function> and PMPI_<function> somewhere. Extensions have one slot.
void set_slot(Function function, void* mpi, void* pmpi) noexcept;

/// What a core offers for one function; `entry` takes both the MPI_ and the PMPI_ slot.
struct Service {
    Function function;
    void* entry;
};

/// Points every slot at the MPI itself: a job without a GPU pays one jump.
void pass_everything_through(const Binding& binding) noexcept;

/// Makes the functions that the program's MPI lacks look absent to code that asks before it calls (`if (MPI_Send_c)`
/// with a weak symbol, as mpi4py does): where an object's weak reference was bound to our exported symbol, it becomes
/// null again. Reaches the objects that are loaded when it is called: at the first MPI call, and when MPI has been
/// initialised.
void withdraw_absent_functions(const Binding& binding) noexcept;

/// Whether a call from `return_address` comes from inside the MPI (the library or one of its plug-ins) rather than from
/// the program. Such calls see their own host buffers and must reach the MPI directly.
[[nodiscard]] bool from_inside_mpi(const Binding& binding, const void* return_address) noexcept;
/// Whether the caller is an object that defines MPI functions itself, i.e. a profiling tool, or seems to be ourselves
/// because a tool left by a tail call. Only asked for nested calls.
[[nodiscard]] bool from_tool(const void* return_address) noexcept;

/// Prints "awaken: CAUSE: REMEDY" on stderr and ends the process with status 2. For misconfigurations found before MPI
/// is up, where no error handler exists yet.
[[noreturn]] void die(const std::string& message) noexcept;

}  // namespace awaken::loader
