// What a rank computes with: its GPU, the kernels compiled for it, NCCL or RCCL where they are asked for; and what is
// known of the GPU's limits.
#pragma once

#include <memory>
#include <string>

#include "ccl.h"
#include "kernels.h"
#include "options.h"

namespace ghost_exchange {

/// A limit in GB/s (10^9), and where it is from; 0 where it is not known.
struct Limit {
    double gb_s = 0;
    std::string source;
};

class Machine {
  public:
    /// Selects a device, unless the CPU computes, and compiles the kernels. Ends all ranks with exit_misuse where what
    /// the options ask for is not there. Collective.
    Machine(const std::string& program, const Options& options);

    /// -1: none.
    [[nodiscard]] int device() const { return _device; }
    /// Null where the CPU computes.
    [[nodiscard]] apps::Kernels* kernels() const { return _kernels.get(); }
    /// Null where the exchange does not use it.
    [[nodiscard]] const apps::Ccl* ccl() const { return _ccl.get(); }

    /// Of the GPU's memory.
    [[nodiscard]] Limit memory_limit() const;
    /// Between two GPUs of one host, in one direction.
    [[nodiscard]] Limit link_limit() const;

  private:
    [[nodiscard]] std::string gpu_name() const;

    int _device = -1;
    std::unique_ptr<apps::Kernels> _kernels;
    std::unique_ptr<apps::Ccl> _ccl;
};

}  // namespace ghost_exchange
