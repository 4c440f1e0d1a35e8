// SPDX-License-Identifier: Apache-2.0
// Run-time compilers (NVRTC, HIPRTC) have the same calls under different names. This is their common part, and the
// cache of the code that they produced.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace awaken::gpu {

/// The functions of a run-time compiler. Results are the vendor's numbers; 0 is success.
struct CompilerFunctions {
    using Program = void*;
    int (*version)(int* major, int* minor) = nullptr;
    const char* (*error_string)(int result) = nullptr;
    int (*create)(Program* program, const char* source, const char* name, int headers, const char* const* header_texts,
                  const char* const* header_names) = nullptr;
    int (*destroy)(Program* program) = nullptr;
    int (*compile)(Program program, int options, const char* const* option_texts) = nullptr;
    int (*log_size)(Program program, std::size_t* bytes) = nullptr;
    int (*log)(Program program, char* text) = nullptr;
    int (*code_size)(Program program, std::size_t* bytes) = nullptr;  ///< of machine code
    int (*code)(Program program, char* bytes) = nullptr;
    int (*portable_size)(Program program,
                         std::size_t* bytes) = nullptr;  ///< of portable code (PTX); null: there is none
    int (*portable)(Program program, char* bytes) = nullptr;
};

class RuntimeCompiler {
  public:
    /// `title`, such as "NVRTC", is for messages. `path` is that of the library.
    RuntimeCompiler(const char* title, std::string path, const CompilerFunctions& functions);

    enum class Output : std::uint8_t { machine_code, portable_code };

    struct [[nodiscard]] Result {
        int code = 0;                       ///< the vendor's number; 0 is success
        const char* description = nullptr;  ///< the vendor's words, static
        [[nodiscard]] bool ok() const noexcept { return code == 0; }
    };

    /// Compiles `source` (`name` appears in messages). `log` receives the compiler's messages, also on success. One
    /// thread at a time enters the compiler: not all versions are thread-safe.
    Result compile(const char* name, const char* source, std::span<const std::string> options, Output output,
                   std::string& code, std::string& log) const;

    [[nodiscard]] const std::string& path() const noexcept { return _path; }
    /// "NVRTC 12.9 /usr/lib/libnvrtc.so.12": names the compiler in messages and in the keys of the cache.
    [[nodiscard]] const std::string& identity() const noexcept { return _identity; }

  private:
    CompilerFunctions _functions;
    std::string _path;
    std::string _identity;
};

/// Compiled kernels on disk, so that only the first run on a machine waits for the compiler.
///
/// The directory is $XDG_CACHE_HOME/awaken/kernels or ~/.cache/awaken/kernels with mode 0700. The cache uses it only
/// when it belongs to the user and nobody else can write to it; the same holds for each file. The cache writes a file
/// under another name and renames it, so readers see all or nothing. A file that is damaged all the same counts as
/// absent. Without a usable directory the cache keeps nothing, and nothing fails.
class KernelCache {
  public:
    /// The user's cache.
    KernelCache();
    /// A cache in `directory`. Creates it and its parents if need be.
    explicit KernelCache(std::string directory);

    /// The key of the code that `parts` (source, options, architecture, compiler) produce: 32 hexadecimal digits.
    [[nodiscard]] static std::string key(std::span<const std::string_view> parts);

    /// True, with the cached code in `code`, when the cache holds `key`.
    [[nodiscard]] bool load(const std::string& key, std::string& code) const;
    /// A failure (disk full, read-only home) is silent: the next run compiles again.
    void store(const std::string& key, std::string_view code) const;

    /// Empty when there is none.
    [[nodiscard]] const std::string& directory() const noexcept { return _directory; }

  private:
    /// File descriptor of the directory, or -1 when it cannot be trusted.
    [[nodiscard]] int open_directory(bool create) const;

    std::string _directory;
};

}  // namespace awaken::gpu
