// All kinds of stages that ringfeed comes with. A new stage is one line in all.cc.
#pragma once

#include "workers/io/row_file.h"
#include "workers/runtime/registry.h"

namespace ringfeed {

// `open_parquet`: of a program that reads Parquet files; the others can plan for it all the same.
void register_all_stages(Registry& registry, formats::OpenRowFile open_parquet = {});

}  // namespace ringfeed
