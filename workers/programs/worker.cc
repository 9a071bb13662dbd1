// ringfeed-worker: runs the lanes of one stage group, tells what the stages of a configuration
// need, says what a file is, or makes a configuration for a directory. ringfeed-worker-parquet: the
// same, and reads Parquet files.
#include "workers/programs/worker_main.h"
#ifdef RINGFEED_PARQUET
#include "workers/io/parquet_file.h"
#include "workers/io/parquet_table.h"
#endif

int main(int argc, char** argv) {
#ifdef RINGFEED_PARQUET
  ringfeed::formats::set_parquet_opener(&ringfeed::formats::open_parquet_file);
  ringfeed::formats::set_parquet_table_opener(&ringfeed::formats::open_parquet_table);
#endif
  return ringfeed::run_program(argc, argv, {});
}
