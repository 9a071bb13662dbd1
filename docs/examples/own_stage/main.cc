// The program of the plug-in: a worker of ringfeed that also has the stages given here.
#include <ringfeed/worker/main.h>

#include "word_filter.h"

int main(int argc, char** argv) { return ringfeed::worker_main(argc, argv, {word_filter_type()}); }
