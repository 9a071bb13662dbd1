// The checks of the machine: what `ringfeed doctor` looks at without a configuration. Each looks at
// one thing, changes nothing, and may throw Error: what it says is then not known.
//
// What is asked of a feed itself, that is which processes and files it has, is in feeds.h; of a
// configuration, in configuration.h.
#pragma once

#include "supervisor/doctor/finding.h"

namespace ringfeed::doctor {

// kernel.cc
[[nodiscard]] Findings look_at_kernel();
[[nodiscard]] Findings look_at_system_calls();
[[nodiscard]] Findings look_at_proc();

// memory.cc
[[nodiscard]] Findings look_at_large_pages();
[[nodiscard]] Findings look_at_memory();
[[nodiscard]] Findings look_at_shared_memory_mount();

// processors.cc
[[nodiscard]] Findings look_at_clock();
[[nodiscard]] Findings look_at_vector_units();
[[nodiscard]] Findings look_at_numa();
[[nodiscard]] Findings look_at_processors();

// limits.cc
[[nodiscard]] Findings look_at_open_files();
[[nodiscard]] Findings look_at_processes();
[[nodiscard]] Findings look_at_address_space();
[[nodiscard]] Findings look_at_stack();
[[nodiscard]] Findings look_at_file_size();
[[nodiscard]] Findings look_at_core_dumps();
[[nodiscard]] Findings look_at_locked_memory();

// files.cc
[[nodiscard]] Findings look_at_inotify();
[[nodiscard]] Findings look_at_temporary_directory();
[[nodiscard]] Findings look_at_dead_letters();

// programs.cc
[[nodiscard]] Findings look_at_workers();
[[nodiscard]] Findings look_at_python();

}  // namespace ringfeed::doctor
