// ringfeed: the command line, and nothing else.
#include "supervisor/cli/verbs.h"

int main(int argc, char** argv) { return ringfeed::cli::main_with(argc, argv); }
