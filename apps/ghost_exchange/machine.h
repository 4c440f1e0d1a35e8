// SPDX-License-Identifier: Apache-2.0
// What a rank computes with: its GPU, the kernels compiled for it, NCCL or RCCL where they are asked for; and what is
// known of the GPU's limits.
#pragma once

#include <memory>
#include <string>

#include "ccl.h"
#include "decomposition.h"
#include "device.h"
#include "kernels.h"
#include "links.h"
#include "options.h"

namespace ghost_exchange {

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
    /// Between the GPUs of two neighbours, in one direction: that of the slowest pair of all ranks. Not known where two
    /// neighbours are on different hosts. Collective.
    [[nodiscard]] Limit link_limit(const Block& block) const;

  private:
    [[nodiscard]] std::string gpu_name() const;
    /// Between this rank's GPU and another one of its host.
    [[nodiscard]] Limit link_limit_to(const apps::DevicePlace& own, const apps::DevicePlace& peer) const;

    int _device = -1;
    std::unique_ptr<apps::Kernels> _kernels;
    std::unique_ptr<apps::Ccl> _ccl;
};

}  // namespace ghost_exchange
