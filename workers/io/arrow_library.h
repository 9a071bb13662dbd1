// What libringfeed_arrow.so has. A program that is linked with it needs no library.
#pragma once

#include "workers/io/arrow_readers.h"

namespace ringfeed::formats {

extern const ArrowReaders kArrowReaders;

}  // namespace ringfeed::formats
