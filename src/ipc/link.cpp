// SPDX-License-Identifier: Apache-2.0
#include "ipc/link.h"

#include <algorithm>
#include <string>
#include <utility>

#include "base/recycled.h"
#include "base/step_probe.h"

namespace awaken::ipc {

using protocol::SendFacts;
using protocol::SendPath;
using transport::BeyondAllocation;
using transport::Buffer;
using transport::IncomingMessage;
using transport::OutgoingMessage;

namespace {

/// A copy takes memory that the program may want, so copies take at most this part of a card.
constexpr std::size_t kPart = 32;
/// A mapping keeps memory alive for a short while after its owner has freed it. Mappings take at most this part of the
/// owner's card.
constexpr std::size_t kMappedPart = 16;
constexpr std::size_t kMostMapped = std::size_t{16} << 30;

std::size_t part_of_card(gpu::Runtime& runtime, const std::size_t part) {
    gpu::DeviceInfo info;
    if (runtime.device_count() > 0 && runtime.device_info(0, info).ok() && info.memory_bytes != 0) {
        return std::min(kMostMapped, info.memory_bytes / part);
    }
    return kMostMapped;
}

}  // namespace

Resources::Resources(node::Segment& of, gpu::Runtime& gpus, transfer::DeviceCopies& device_copies, const Options& given,
                     Notes::Note note)
    : segment(of),
      runtime(gpus),
      options(given),
      own(of.own_index()),
      processes(of.processes()),
      areas(of),
      notes(std::move(note)),
      outbox(areas.of(own).offers),
      exports(gpus, part_of_card(gpus, kMappedPart)),
      exported(gpus, exports, {.bytes = std::min(tuning.bounce_pool_bytes, part_of_card(gpus, kPart))}),
      mappings(gpus, {.bytes = part_of_card(gpus, kMappedPart)}),
      copies(device_copies),
      window(gpus, given.cpu_copy),
      rings(of, gpus, areas, tuning),
      reachability(of, areas, {gpus, exports, mappings, copies}, tuning, notes),
      queues(given.path != Options::Allowed::ring ? std::make_shared<Order>(*this) : nullptr),
      order(given.order ? queues : nullptr),
      readiness(std::make_shared<Readiness>(gpus, Readiness::Pace(tuning.send_burst))),
      sends(*this),
      background([this] {
          sends.release_finished();
          return sends.pump_left() || exported.statistics().lent_bytes != 0;
      }) {}

Link::Link(node::Segment& segment, gpu::Runtime& runtime, transfer::DeviceCopies& copies, const Options& options,
           Notes::Note note, const std::vector<SlotSet>* const avoided)
    : _resources(segment, runtime, copies, options, std::move(note)), _avoided(avoided) {
    if (_resources.order != nullptr) {
        _resources.order->prepare();
    }
}

Link::~Link() {
    shut_down();
}

void Link::reclaim() noexcept {
    _resources.mappings.reclaim();
    _resources.exported.trim_idle();
    _resources.runtime.close_idle_exports();
    _resources.runtime.do_deferred();
    constexpr unsigned kSeldom = 256;
    if (_reclaims.fetch_add(1, std::memory_order_relaxed) % kSeldom == kSeldom - 1) {
        _resources.rings.trim_idle(SharedRings::Clock::now());
    }
}

// ---- sending --------------------------------------------------------------------------------------------------------

void Link::describe(const int peer, const gpu::PointerInfo& memory, SendFacts& facts) noexcept {
    const bool to_itself = peer == own();
    facts.receiver = to_itself ? SendFacts::Receiver::itself : SendFacts::Receiver::on_node;
    Reachability& known = _resources.reachability;
    if (!to_itself) {
        facts.reach = known.reach_of(peer);
        if (facts.exported_by == SendFacts::Export::descriptors && !known.takes_descriptors(peer)) {
            facts.exported_by = SendFacts::Export::no;
        }
        facts.mapping_pays = !MappingAccount::counts(memory) || facts.bytes > tuning().copy_first_bytes ||
                             _resources.mapping_account.pays(peer, memory, MappingAccount::Clock::now());
    }
    facts.wants_from_host = known.wants_from_host(peer, static_cast<std::int64_t>(facts.bytes));
    facts.allowed = _resources.options.path;
    facts.cpu_reaches_memory = _resources.window.usable();
}

std::shared_ptr<RendezvousSend> Link::reserve(const int peer, const Buffer& from) {
    AWAKEN_STEP("Isend: reserve");
    static const SlotSet kNone;
    const SlotSet& avoided = _avoided != nullptr ? (*_avoided)[static_cast<std::size_t>(peer)] : kNone;
    auto ticket = _resources.outbox.reserve(avoided);
    if (!ticket) {
        _resources.sends.release_finished();
        ticket = _resources.outbox.reserve(avoided);
        if (!ticket) {
            _resources.notes.once("more than " + std::to_string(kSlots) +
                                  " messages in flight at a time: those beyond were sent through host memory");
            return nullptr;
        }
    }
    return std::allocate_shared<RendezvousSend>(RecyclingAllocator<RendezvousSend>{}, _resources, *ticket, peer, from);
}

std::shared_ptr<OutgoingMessage> Link::start_send(const int peer, const Buffer& from,
                                                  const protocol::SendPaths& paths) {
    AWAKEN_STEP("Isend: start_send");
    if (paths.begin() == paths.end() || !protocol::is_on_node(*paths.begin())) {
        return nullptr;
    }
    std::shared_ptr<RendezvousSend> send = reserve(peer, from);
    if (send == nullptr) {
        return nullptr;
    }
    try {
        if (_resources.order != nullptr && send->offer_in_order(paths)) {
            return send;
        }
        // A thread that uses no GPU gets no context for a message in host memory. No work that the program's
        // synchronous-looking calls left behind may still write device memory when another process reads it.
        // RendezvousSend::posted() waits for work in the default stream.
        gpu::Runtime& runtime = _resources.runtime;
        int device = from.info.device;
        const bool usable = from.info.host_accessible()
                                ? runtime.current_device(device).ok() && device >= 0
                                : runtime.order_after_default_stream(from.first, from.info).ok();
        // The receiver of a first message tries whether it can read this process's memory, whichever path that takes.
        const bool is_probed = usable && peer != own() && _resources.options.path != Allowed::ring &&
                               _resources.reachability.has_probe_buffer(_resources.device_or_any(device));
        for (const SendPath path : paths) {
            const bool is_read =
                path == SendPath::pull || path == SendPath::exported || path == SendPath::before_mapping;
            if (usable && (is_probed || peer == own() || !is_read) && send->offer(path)) {
                return send;
            }
        }
    } catch (const BeyondAllocation&) {
        send->withdraw();
        throw;
    } catch (const Error& error) {
        // The copy could not even be started. The plain way may work, and says why when it does not.
        _resources.notes.once(error.what());
    }
    send->withdraw();
    return nullptr;
}

bool Link::makes_places(const int peer, const int device) noexcept {
    return _resources.queues != nullptr && _resources.queues->goes(peer, device);
}

std::optional<transport::PlacedMessage> Link::start_placed(const int peer, const std::size_t bytes) {
    if (_resources.outbox.in_use() > kSlots / 2) {
        _resources.sends.release_finished();
        if (_resources.outbox.in_use() > kSlots / 2) {
            return std::nullopt;
        }
    }
    const std::shared_ptr<RendezvousSend> send = reserve(peer, {nullptr, {}, bytes, nullptr});
    if (send == nullptr) {
        return std::nullopt;
    }
    if (std::byte* const place = send->take_place()) {
        return transport::PlacedMessage{send, place};
    }
    send->withdraw();
    return std::nullopt;
}

std::optional<transport::Placed> Link::find_placed(const std::byte* const message, const std::size_t length,
                                                   const bool repeats) {
    if (_resources.queues == nullptr || !is_rts(message, length)) {
        return std::nullopt;
    }
    Rts rts;
    std::memcpy(&rts, message, sizeof rts);
    if (rts.sender >= static_cast<std::uint32_t>(processes()) || rts.slot >= kSlots || length != rts_length(rts.slot)) {
        return std::nullopt;
    }
    const int peer = static_cast<int>(rts.sender);
    const auto claim = Inbox(_resources.areas.of(peer).offers, own()).claim(rts);
    return claim ? _resources.queues->find(peer, *claim, repeats) : std::nullopt;
}

std::shared_ptr<OutgoingMessage> Link::start_failed(const int peer, const std::size_t bytes, const Error& error) {
    std::shared_ptr<RendezvousSend> send = reserve(peer, {nullptr, {}, bytes, nullptr});
    if (send != nullptr) {
        send->offer_nothing(error);
    }
    return send;
}

std::shared_ptr<OutgoingMessage> Link::wrap(const int peer, const void* const packed, const std::size_t bytes) {
    if (bytes > tuning().small_bytes || !_resources.rings.has_small_places()) {
        return nullptr;
    }
    std::shared_ptr<RendezvousSend> send = reserve(peer, {nullptr, {}, bytes, nullptr});
    if (send != nullptr) {
        send->offer_copy_of(packed);
    }
    return send;
}

void Link::finish_sends() noexcept {
    // A process that says that it takes no RTS messages any more has received all that it wanted.
    if (_resources.order != nullptr) {
        _resources.order->finish();
    }
    _resources.reachability.take_rts(false);
    _resources.sends.finish();
}

// ---- receiving ------------------------------------------------------------------------------------------------------

bool Link::is_rts(const std::byte* const message, const std::size_t length) const noexcept {
    if (length < sizeof(Rts) || length > kLongestRts) {
        return false;
    }
    Rts rts;
    std::memcpy(&rts, message, sizeof rts);
    return rts.secret == _resources.segment.secret();
}

transport::TrueSize Link::size_of(const int peer, const std::size_t length) const noexcept {
    return Inbox(_resources.areas.of(peer).offers, own()).size_of(length);
}

std::shared_ptr<IncomingMessage> Link::start_receive(const std::byte* const message, const std::size_t length,
                                                     const Buffer& into) {
    AWAKEN_STEP("wait: start_receive");
    if (!is_rts(message, length)) {
        return nullptr;
    }
    Rts rts;
    std::memcpy(&rts, message, sizeof rts);
    if (rts.sender >= static_cast<std::uint32_t>(processes()) || rts.slot >= kSlots || length != rts_length(rts.slot)) {
        return nullptr;
    }
    const int peer = static_cast<int>(rts.sender);
    const auto claim = Inbox(_resources.areas.of(peer).offers, own()).claim(rts);
    if (!claim) {
        return nullptr;
    }
    auto get = std::allocate_shared<RendezvousGet>(RecyclingAllocator<RendezvousGet>{}, _resources, peer, *claim, into);
    if (_resources.options.path != Allowed::ring) {
        _resources.reachability.try_to_read(peer, _resources.device_or_any(into.info.device));
    }
    get->start();
    return get;
}

void Link::shut_down() noexcept {
    if (_shut_down.exchange(true)) {
        return;
    }
    _resources.reachability.take_rts(false);
    _resources.ending.store(true, std::memory_order_release);
    _resources.readiness->end();
    if (_resources.queues != nullptr) {
        _resources.queues->end();
    }
    _resources.background.stop();
    _resources.sends.shut_down();
    if (_resources.queues != nullptr) {
        _resources.queues->shut_down();
    }
    _resources.mappings.shut_down();
    _resources.window.shut_down();
    _resources.copies.shut_down();  // nothing reads or writes exported memory any more
    _resources.exported.shut_down();
    _resources.reachability.shut_down();
    _resources.rings.shut_down();
}

}  // namespace awaken::ipc
