// The stage word_filter: lets samples through whose text has enough words, and not too many.
#pragma once

#include <ringfeed/worker/stage.h>

ringfeed::StageType word_filter_type();
