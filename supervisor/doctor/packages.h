// The interpreter of stages in Python, and the commands that install packages for it and for the
// programs beside this one.
#pragma once

#include <string>

#include "supervisor/doctor/finding.h"

namespace ringfeed::doctor {

// Where this program lies, with a slash at its end; "": that cannot be read.
[[nodiscard]] std::string own_directory();

// As ringfeed-worker-python chooses it; "": there is none.
[[nodiscard]] std::string interpreter();

// So long an interpreter may take for a question that it answers at once, if it answers at all.
inline constexpr int kQuestionMs = 2'000;
// What it prints, as a child of this process group. "": it cannot be started, or has not ended
// within `limit_ms` (-1: any time) and was killed. Its standard error is that of this process, see
// last_words().
[[nodiscard]] std::string answer_of(const std::string& python, const std::string& program,
                                    int limit_ms);

// `requirement` for an interpreter, such as "numpy>=2.1", with further options of pip. An
// interpreter of the system that takes packages from the system alone (PEP 668) is left as it is:
// an environment is made beside it, with ringfeed of this version.
[[nodiscard]] Remedy install_for(const std::string& python, const std::string& requirement,
                                 const std::string& options = "");

// All programs beside this one once more, by whatever has brought them.
[[nodiscard]] Remedy reinstall();

}  // namespace ringfeed::doctor
