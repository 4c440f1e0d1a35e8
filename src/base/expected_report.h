// A report that was asked for and does not come, since the program never gets to MPI_Finalize, is missed with a word:
// src/loader/missing_report.cpp says why there is none when the process ends.
#pragma once

namespace awaken {

/// The environment variable by which `awaken exec` names the process whose report its user expects: not the others to
/// which the environment is handed down, such as a script's tools.
inline constexpr char kReportExpected[] = "_AWAKEN_REPORT_EXPECTED";

}  // namespace awaken
