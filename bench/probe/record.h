// SPDX-License-Identifier: Apache-2.0
// What a probe tells the process that started its job: lines on stdout that begin with "@awaken " and hold one JSON
// object each. Launchers may put something before the line, and other output between lines.
#pragma once

#include <string>

#include "base/json_text.h"

namespace awaken::probe {

/// Writes one record by a single write(2), so that lines of several ranks do not mix in what they share.
void write_record(const Json& record);
/// The same, of a record whose text another rank has made.
void write_record_text(const std::string& text);

/// Waits until whoever reads this process's stdout has taken all of it, at most a second: a launcher that hears of a
/// crash or an abort first may leave the pipe unread.
void let_records_be_read();

/// From now on a signal that ends the process writes {"record": "crash", "signal": NAME, "rank": N} first. The signal
/// then does what it does by default, so the launcher sees a crash as it is. Core files are switched off.
void report_crashes(int rank);

}  // namespace awaken::probe
