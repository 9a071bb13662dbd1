// ringfeed-worker: runs the lanes of one stage group, tells what the stages of a configuration
// need, says what a file is, or makes a configuration for a directory.
#include "workers/programs/worker_main.h"

int main(int argc, char** argv) { return ringfeed::run_program(argc, argv, {}); }
