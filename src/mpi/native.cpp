// SPDX-License-Identifier: Apache-2.0
#include "mpi/native.h"

#include <string>

namespace awaken::AWAKEN_ABI {

void Native::load(const loader::Binding& binding) {
#define AWAKEN_NATIVE(name) name = reinterpret_cast<decltype(name)>(binding.symbol("PMPI_" #name));
#define AWAKEN_ABSENT(name)
#include AWAKEN_NATIVE_TABLE
#undef AWAKEN_NATIVE
#undef AWAKEN_ABSENT
}

#ifdef MPIX_STREAM_NULL
void CompletionQuery::load(const loader::Binding& binding) {
    _is_complete = reinterpret_cast<decltype(_is_complete)>(binding.symbol("PMPIX_Request_is_complete"));
    _progress = reinterpret_cast<decltype(_progress)>(binding.symbol("PMPIX_Stream_progress"));
}

bool CompletionQuery::of(const MPI_Request request) const {
    if (_is_complete(request) != 0) {
        return true;
    }
    _progress(MPIX_STREAM_NULL);
    return _is_complete(request) != 0;
}
#else
void CompletionQuery::load(const loader::Binding&) {}

bool CompletionQuery::of(MPI_Request) const {
    return false;
}
#endif

void Native::load_below(const loader::Binding& binding) {
    const auto find = [&binding](const char* name) {
        void* const tool = binding.tool_symbol(name);
        return tool != nullptr ? tool : binding.symbol(name);
    };
#define AWAKEN_NATIVE(name) name = reinterpret_cast<decltype(name)>(find("MPI_" #name));
#define AWAKEN_ABSENT(name)
#include AWAKEN_NATIVE_TABLE
#undef AWAKEN_NATIVE
#undef AWAKEN_ABSENT
}

}  // namespace awaken::AWAKEN_ABI
