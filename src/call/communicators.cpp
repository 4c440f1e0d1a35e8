// SPDX-License-Identifier: Apache-2.0
#include "call/communicators.h"

#include <algorithm>
#include <numeric>

namespace awaken::AWAKEN_ABI {

Communicators::~Communicators() = default;

bool Communicators::begin(const node::Segment* const segment) {
    _native.Comm_group(MPI_COMM_WORLD, &_world);
    if (_native.Comm_create_keyval(&copy_nothing, &forget, &_key, this) != MPI_SUCCESS) {
        _key = MPI_KEYVAL_INVALID;
        return false;
    }
    _segment = segment;
    return true;
}

void Communicators::give_up() noexcept {
    const std::scoped_lock lock(_records_mutex);
    for (CommunicatorRecord* const record : _records) {
        for (const auto& object : record->objects) {
            object->begin_to_leave();
        }
    }
    for (CommunicatorRecord* const record : _records) {
        for (const auto& object : record->objects) {
            object->give_up();
        }
    }
    _records.clear();
}

int Communicators::copy_nothing(MPI_Comm, int, void*, void*, void*, int* const flag) {
    *flag = 0;
    return MPI_SUCCESS;
}

int Communicators::forget(MPI_Comm, int, void* const record, void* const self) {
    auto* const owner = static_cast<Communicators*>(self);
    owner->_generation.fetch_add(1, std::memory_order_acq_rel);
    const std::unique_ptr<CommunicatorRecord> gone(static_cast<CommunicatorRecord*>(record));
    const std::scoped_lock lock(owner->_records_mutex);
    owner->_records.erase(gone.get());
    return MPI_SUCCESS;
}

MPI_Group Communicators::members_of(const MPI_Comm communicator, const bool between) const {
    MPI_Group group = MPI_GROUP_NULL;
    if (between) {
        _native.Comm_remote_group(communicator, &group);
    } else {
        _native.Comm_group(communicator, &group);
    }
    return group;
}

std::unique_ptr<CommunicatorRecord> Communicators::make_record(const MPI_Comm communicator) const {
    auto record = std::make_unique<CommunicatorRecord>();
    int inter = 0, size = 0;
    _native.Comm_test_inter(communicator, &inter);
    record->between = inter != 0;
    MPI_Group group = members_of(communicator, record->between);
    _native.Group_size(group, &size);
    record->indices.assign(static_cast<std::size_t>(size), -1);
    // Looks up the few processes of this node in the communicator, and not its many members in the node.
    std::vector<int> world, there;
    for (int index = 0; _segment != nullptr && index < _segment->processes(); ++index) {
        world.push_back(_segment->process(index).world_rank);
    }
    there.assign(world.size(), MPI_UNDEFINED);
    _native.Group_translate_ranks(_world, static_cast<int>(world.size()), world.data(), group, there.data());
    for (std::size_t index = 0; index < there.size(); ++index) {
        if (there[index] >= 0 && there[index] < size) {
            record->indices[static_cast<std::size_t>(there[index])] = static_cast<int>(index);
        }
    }
    _native.Group_free(&group);
    for (const Make make : _make) {
        record->objects.push_back(make(communicator, *record));
    }
    return record;
}

CommunicatorRecord* Communicators::attached_record_of(const MPI_Comm communicator) {
    void* known = nullptr;
    int found = 0;
    if (_native.Comm_get_attr(communicator, _key, static_cast<void*>(&known), &found) != MPI_SUCCESS) {
        return nullptr;
    }
    if (found == 0) {
        const std::scoped_lock lock(_mutex);
        _native.Comm_get_attr(communicator, _key, static_cast<void*>(&known), &found);
        if (found == 0) {
            std::unique_ptr<CommunicatorRecord> made = make_record(communicator);
            _attached.fetch_add(1, std::memory_order_acq_rel);
            if (_native.Comm_set_attr(communicator, _key, made.get()) != MPI_SUCCESS) {
                return nullptr;
            }
            known = made.get();
            const std::scoped_lock records_lock(_records_mutex);
            _records.insert(made.release());
        }
    }
    // Another thread may have attached the record. An MPI need not look up attributes under a lock, so the layer itself
    // orders the writes of that thread before the reads of this one: the later of two changes to one word sees the
    // earlier.
    _attached.fetch_add(0, std::memory_order_acq_rel);
    return static_cast<CommunicatorRecord*>(known);
}

CommunicatorRecord* Communicators::record_of(const MPI_Comm communicator) {
    // Most calls use the communicator of the previous call. The handle of a freed communicator may come back for
    // another one; the generation then differs.
    struct Last {
        MPI_Comm communicator;
        std::uint64_t generation = 0;
        CommunicatorRecord* record = nullptr;
    };
    static thread_local Last last{};
    const std::uint64_t generation = _generation.load(std::memory_order_acquire);
    if (last.generation != generation || last.communicator != communicator) {
        last = {communicator, generation, attached_record_of(communicator)};
    }
    return last.record;
}

int Communicators::world_rank_of(const MPI_Comm communicator, const int rank) {
    CommunicatorRecord* const record = record_of(communicator);
    if (record == nullptr || rank < 0 || static_cast<std::size_t>(rank) >= record->indices.size()) {
        return -1;
    }
    std::call_once(record->ranks_known, [&] {
        MPI_Group group = members_of(communicator, record->between);
        std::vector<int> own(record->indices.size());
        std::iota(own.begin(), own.end(), 0);
        record->world_ranks.assign(own.size(), MPI_UNDEFINED);
        _native.Group_translate_ranks(group, static_cast<int>(own.size()), own.data(), _world,
                                      record->world_ranks.data());
        _native.Group_free(&group);
        std::replace(record->world_ranks.begin(), record->world_ranks.end(), int{MPI_UNDEFINED}, -1);
    });
    return record->world_ranks[static_cast<std::size_t>(rank)];
}

bool Communicators::are_all_of_world(const MPI_Comm communicator) {
    const CommunicatorRecord* const record = record_of(communicator);
    if (record == nullptr || record->indices.empty() || world_rank_of(communicator, 0) < 0) {
        return false;
    }
    std::vector<int> ranks = record->world_ranks;
    if (record->between) {
        MPI_Group own = MPI_GROUP_NULL;
        int size = 0;
        _native.Comm_group(communicator, &own);
        _native.Group_size(own, &size);
        std::vector<int> members(static_cast<std::size_t>(size)), there(members.size(), MPI_UNDEFINED);
        std::iota(members.begin(), members.end(), 0);
        _native.Group_translate_ranks(own, size, members.data(), _world, there.data());
        _native.Group_free(&own);
        ranks.insert(ranks.end(), there.begin(), there.end());
    }
    return std::all_of(ranks.begin(), ranks.end(), [](const int rank) { return rank >= 0; });
}

}  // namespace awaken::AWAKEN_ABI
