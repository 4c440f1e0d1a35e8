// SPDX-License-Identifier: Apache-2.0
// A report that the user asked for does not come when the program never gets to MPI_Finalize.
// src/loader/missing_report.cpp then says why there is none when the process ends.
#pragma once

namespace awaken {

/// By this environment variable `awaken exec` names the process whose report its user expects. It does not mean the
/// other processes that inherit the environment, such as a script's tools.
inline constexpr char kReportExpected[] = "_AWAKEN_REPORT_EXPECTED";

}  // namespace awaken
