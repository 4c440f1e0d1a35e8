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
