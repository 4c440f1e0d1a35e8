// SPDX-License-Identifier: Apache-2.0
// The findings of `awaken doctor` about MPIs: whether each takes device memory by itself.
//
// docs/doctor.md describes the file ("What is kept"); python/awaken/native_cache.py writes it. The file decides whether
// the layer hands device pointers to an MPI that may crash on them. So the layer believes it only where nobody but its
// owner can have written it, and only for the settings of the MPI under which the doctor found the answer.
#pragma once

#include <cstdint>
#include <string>

namespace awaken {

struct DoctorNote {
    enum class Answer : std::uint8_t { none, yes, no };
    Answer answer = Answer::none;
    /// The time of the finding, from the file. Where there is no answer, the reason why the file is not used, or an
    /// empty text when the file says nothing of this library.
    std::string text;
};

/// $XDG_CACHE_HOME/awaken/native-gpu, else $HOME/.cache/awaken/native-gpu; empty where neither is set.
[[nodiscard]] std::string doctor_notes_file(char** environment);

/// The GNU build id of the loaded library that holds `symbol`, in hexadecimal digits; empty when it has none.
[[nodiscard]] std::string build_id_of(const void* symbol);

/// The file's name for the library that holds `symbol`: "build-id:" and its GNU build id. Where it has none, "file:"
/// with size, modification time and path, links resolved. Empty when the file cannot be looked at.
[[nodiscard]] std::string library_key(const void* symbol, const std::string& path);

/// The variables that switch an MPI's own GPU support, as far as they are set: "with:NAME=VALUE,NAME=VALUE", or an
/// empty text. Bytes of values other than letters, digits and _.-~/:^ are written as %XX.
[[nodiscard]] std::string gpu_switches_of_mpis(char** environment);

/// @param vendor    "cuda" or "hip"; of emulated GPUs "cuda-emulated" or "hip-emulated".
/// @param switches  gpu_switches_of_mpis() of this process.
[[nodiscard]] DoctorNote find_doctor_note(const std::string& file, const std::string& key, const std::string& vendor,
                                          const std::string& switches);

}  // namespace awaken
