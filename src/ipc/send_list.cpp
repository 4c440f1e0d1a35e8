// SPDX-License-Identifier: Apache-2.0
#include "ipc/send_list.h"

#include <algorithm>
#include <iterator>
#include <thread>
#include <utility>

#include "base/step_probe.h"
#include "ipc/rendezvous_send.h"
#include "ipc/resources.h"

namespace awaken::ipc {

namespace {

/// Adding this many sends that wait for their receivers makes the list look through all of them.
constexpr std::uint32_t kLookEvery = 16;

}  // namespace

void SendList::retire(std::shared_ptr<RendezvousSend> send) {
    AWAKEN_STEP("retire");
    if (send->is_withdrawn()) {
        return;
    }
    if (send->is_over()) {
        send->give_back();
        return;
    }
    bool look_through = false;
    {
        const std::scoped_lock lock(_mutex);
        _lingering.push_back(std::move(send));
        look_through = ++_retired % kLookEvery == 0;
    }
    if (look_through) {
        release_finished();
    }
}

void SendList::leave(std::shared_ptr<RendezvousSend> send) {
    AWAKEN_STEP("Isend: leave");
    if (send->is_free()) {
        return;
    }
    if (send->wants_background() || !_resources.reachability.is_readable(send->peer())) {
        _resources.background.take(std::move(send));
        return;
    }
    // The send needs work only in the rare case that the receiver cannot map its memory, so a look now and then is
    // enough. Until the next look there may be thousands of such sends, most of which are over.
    Sends over;
    {
        const std::scoped_lock lock(_mutex);
        if (_left.size() >= _left_enough) {
            const auto first_over =
                std::partition(_left.begin(), _left.end(), [](const auto& each) { return !each->is_free(); });
            over.assign(std::make_move_iterator(first_over), std::make_move_iterator(_left.end()));
            _left.erase(first_over, _left.end());
            _left_enough = std::max(kLeftEnough, 2 * _left.size());
        }
        _left.push_back(std::move(send));
    }
    _resources.background.reclaim_idle();
}

bool SendList::pump_left() noexcept {
    Sends left;
    {
        const std::scoped_lock lock(_mutex);
        left.swap(_left);
    }
    std::erase_if(left, [this](const std::shared_ptr<RendezvousSend>& send) {
        if (send->pump()) {
            return true;
        }
        if (!send->wants_background()) {
            return false;
        }
        _resources.background.take(send);  // was refused: a look now and then is too little
        return true;
    });
    const std::scoped_lock lock(_mutex);
    _left.insert(_left.end(), left.begin(), left.end());
    return !_left.empty();
}

void SendList::watch_copy(RendezvousSend& send) {
    {
        const std::scoped_lock lock(_mutex);
        _exported_copies.push_back(send.weak_from_this());
    }
    if (send.peer() != _resources.own && !_resources.reachability.is_readable(send.peer())) {
        // It may well be refused: a look now and then is too little.
        _resources.background.take(send.shared_from_this());
    }
    _resources.background.reclaim_idle();
}

void SendList::release_finished() noexcept {
    Sends over, copies;
    {
        const std::scoped_lock lock(_mutex);
        std::erase_if(_exported_copies, [&](const std::weak_ptr<RendezvousSend>& copy) {
            std::shared_ptr<RendezvousSend> send = copy.lock();
            const bool gone = send == nullptr || send->is_over();
            if (send != nullptr) {
                copies.push_back(std::move(send));  // the last owner destroys the send after the lock is released
            }
            return gone;
        });
        for (std::size_t i = 0; i < _lingering.size();) {
            if (_lingering[i]->is_over()) {
                over.push_back(std::move(_lingering[i]));
                _lingering[i] = std::move(_lingering.back());
                _lingering.pop_back();
            } else {
                ++i;
            }
        }
    }
    for (const std::shared_ptr<RendezvousSend>& send : over) {
        send->give_back();
    }
    for (const std::shared_ptr<RendezvousSend>& send : copies) {
        send->serve_refused_copy();
    }
}

void SendList::finish() noexcept {
    for (;;) {
        _resources.readiness->ask();
        release_finished();
        Sends rest;
        {
            const std::scoped_lock lock(_mutex);
            rest = _lingering;
        }
        for (const std::shared_ptr<RendezvousSend>& send : rest) {
            send->pump();  // where there is no thread for the send
        }
        const bool any = std::any_of(rest.begin(), rest.end(), [this](const auto& send) {
            const int peer = send->peer();
            return !send->is_over() && peer != _resources.own && _resources.reachability.takes_rts(peer) &&
                   _resources.segment.alive(peer);
        });
        if (!any) {
            return;
        }
        std::this_thread::yield();
    }
}

void SendList::shut_down() noexcept {
    Sends all;
    {
        const std::scoped_lock lock(_mutex);
        all.swap(_lingering);
        all.insert(all.end(), _left.begin(), _left.end());
        _left.clear();
    }
    for (const std::shared_ptr<RendezvousSend>& send : all) {
        send->give_up();
    }
}

}  // namespace awaken::ipc
