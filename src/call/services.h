// SPDX-License-Identifier: Apache-2.0
// The families of functions that the layer serves. Each of these files gives its table.
#pragma once

#include <vector>

#include "loader/loader.h"

namespace awaken::AWAKEN_ABI {

using Services = std::vector<loader::Service>;

[[nodiscard]] Services environment_services();       ///< entry/environment.cpp: start, end, queries, datatype life
[[nodiscard]] Services query_services();             ///< entry/environment.cpp: whether device pointers may be passed
[[nodiscard]] Services memory_kind_services();       ///< entry/memory_kinds.cpp: kinds of memory in info values
[[nodiscard]] Services session_kind_services();      ///< entry/memory_kinds.cpp: more, once a session asks for kinds
[[nodiscard]] Services point_to_point_services();    ///< p2p/point_to_point.cpp: send and receive in all modes
[[nodiscard]] Services persistent_services();        ///< p2p/persistent.cpp: persistent and partitioned
[[nodiscard]] Services completion_services();        ///< p2p/completion.cpp: wait, test, cancel, free
[[nodiscard]] Services collective_services();        ///< coll/collectives.cpp
[[nodiscard]] Services proposing_services();         ///< coll/collectives.cpp: those with proposals; also in the above
[[nodiscard]] Services edge_services();              ///< coll/neighbourhood.cpp: those that all ranks take part in
[[nodiscard]] Services neighbourhood_services();     ///< coll/neighbourhood.cpp
[[nodiscard]] Services stream_services();            ///< enqueue/functions.cpp: MPI's stream API
[[nodiscard]] Services pack_services();              ///< p2p/pack.cpp
[[nodiscard]] Services file_services();              ///< io/files.cpp
[[nodiscard]] Services observed_services();          ///< entry/observed.cpp: all others, while calls are traced
[[nodiscard]] Services one_sided_services();         ///< rma/one_sided.cpp
[[nodiscard]] Services window_agreement_services();  ///< rma/create.cpp: those that ask all ranks; also in the above

}  // namespace awaken::AWAKEN_ABI
