// What `awaken doctor` has found out about MPIs: whether each takes device memory by itself.
//
// The file is described in docs/doctor.md ("What is kept"); python/awaken/native_cache.py writes it. It decides whether
// device pointers are handed to an MPI that may crash on them, so it is believed only where nobody but its owner can
// have written it, and only for the settings of the MPI under which the answer was found.
#pragma once

#include <cstdint>
#include <string>

namespace awaken {

struct DoctorNote {
    enum class Answer : std::uint8_t { none, yes, no };
    Answer answer = Answer::none;
    /// When it was found, as the file tells; where there is no answer, why the file is not used, or nothing when it
    /// says nothing of this library.
    std::string text;
};

/// $XDG_CACHE_HOME/awaken/native-gpu, else $HOME/.cache/awaken/native-gpu; empty where neither is set.
[[nodiscard]] std::string doctor_notes_file(char** environment);

/// By what the file knows the library that holds `symbol`: "build-id:" and its GNU build id; where it has none, "file:"
/// with size, modification time and path, links resolved. Empty when the file cannot be looked at.
[[nodiscard]] std::string library_key(const void* symbol, const std::string& path);

/// The variables that switch an MPI's own GPU support, as far as they are set: "with:NAME=VALUE,NAME=VALUE", or
/// nothing. Bytes of values other than letters, digits and _.-~/:^ are written as %XX.
[[nodiscard]] std::string gpu_switches_of_mpis(char** environment);

/// @param vendor    "cuda" or "hip"; of emulated GPUs "cuda-emulated" or "hip-emulated".
/// @param switches  gpu_switches_of_mpis() of this process.
[[nodiscard]] DoctorNote find_doctor_note(const std::string& file, const std::string& key, const std::string& vendor,
                                          const std::string& switches);

}  // namespace awaken
