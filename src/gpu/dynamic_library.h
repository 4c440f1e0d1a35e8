// SPDX-License-Identifier: Apache-2.0
// Shared libraries found at run time: lists the loaded ones, opens one, and fills a table of its functions.
//
// A vendor's file declares its functions once, in a list. AWAKEN_DECLARE_FUNCTION expands the list into the members of
// a table, and AWAKEN_BIND_FUNCTION into the rows that bind() fills. Nothing else ever calls dlsym.
#pragma once

#include <span>
#include <string>
#include <vector>

namespace awaken::gpu {

/// One function of a table: the place for its address, and the name under which the library exports it.
struct FunctionSlot {
    const char* symbol;
    void** address;
    bool required;
};

// A list entry is X(member, symbol, required, result, parameters...).
#define AWAKEN_DECLARE_FUNCTION(member, symbol, required, result, ...) result (*member)(__VA_ARGS__) = nullptr;
#define AWAKEN_BIND_FUNCTION(member, symbol, required, result, ...) \
    ::awaken::gpu::FunctionSlot{symbol, reinterpret_cast<void**>(&table.member), required},

/// A function of a table that errors name.
template <class Signature>
struct NamedFunction;
template <class Result, class... Parameters>
struct NamedFunction<Result(Parameters...)> {
    const char* name;  ///< the symbol
    Result (*address)(Parameters...) = nullptr;

    Result operator()(Parameters... arguments) const { return address(arguments...); }
    [[nodiscard]] explicit operator bool() const noexcept { return address != nullptr; }
};
#define AWAKEN_DECLARE_NAMED_FUNCTION(member, symbol, required, result, ...) \
    ::awaken::gpu::NamedFunction<result(__VA_ARGS__)> member{symbol};
#define AWAKEN_BIND_NAMED_FUNCTION(member, symbol, required, result, ...) \
    ::awaken::gpu::FunctionSlot{symbol, reinterpret_cast<void**>(&table.member.address), required},

/// A handle of a loaded library. We never close it: driver libraries do not survive being unloaded while their threads
/// run. Everything bound from a library lives as long as the process.
class DynamicLibrary {
  public:
    DynamicLibrary() = default;

    /// Opens the first library in `paths` (absolute paths or sonames) that can be opened, loading it if need be.
    /// Symbols stay local to the handle. When none opens, the result is empty and `why_not` holds the loader's words
    /// for each.
    static DynamicLibrary open(std::span<const std::string> paths, std::string& why_not);
    /// A handle of `path` if that is loaded already, otherwise an empty one.
    static DynamicLibrary open_loaded(const std::string& path);

    [[nodiscard]] explicit operator bool() const noexcept { return _handle != nullptr; }
    /// The path that the loader reports.
    [[nodiscard]] const std::string& path() const noexcept { return _path; }
    /// Null when the library exports no such symbol.
    [[nodiscard]] void* find(const char* symbol) const noexcept;
    /// Fills the table. False when a required function is missing; `why_not` then names the library and each of them.
    [[nodiscard]] bool bind(std::span<const FunctionSlot> slots, std::string& why_not) const;

  private:
    void* _handle = nullptr;
    std::string _path;
};

/// The loader's count of objects that were ever added to this process. It changes whenever a library is loaded. ~15 ns.
[[nodiscard]] unsigned long long loaded_object_counter() noexcept;

/// Paths of all objects loaded now, in load order, without the unnamed main program.
[[nodiscard]] std::vector<std::string> loaded_object_paths();

/// Whether the file name of `path` is that of the shared library `stem` ("libcuda"), in any of the usual forms:
/// libcuda.so, libcuda.so.1, libcuda.so.580.65, libcuda-1a2b3c4d.so.1 (bundled in a Python wheel).
[[nodiscard]] bool is_library_named(const std::string& path, const std::string& stem);

}  // namespace awaken::gpu
