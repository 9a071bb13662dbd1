/* A trainer in C99: attaches to a feed, sums what it is given, leaves at the end of the feed.
 *
 *   client_example FEED [GROUP]
 *
 * Prints one line per batch and a last line with the totals. Exit status 0 at the end of the feed,
 * 1 on an error, 2 on wrong usage. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "ringfeed.h"

static int print_batch(const rf_schema_info* schema, const rf_batch* batch, double* sum) {
  uint32_t i;
  printf("batch %" PRIu64 ": %" PRIu32 " rows", batch->seq, batch->rows);
  for (i = 0; i < schema->tensor_count; ++i) {
    const rf_tensor* tensor = &schema->tensors[i];
    const uint64_t items = rf_tensor_items(tensor, batch);
    uint64_t k;
    printf(", %s %s x %" PRIu64, tensor->name, tensor->dtype, items);
    if (strcmp(tensor->dtype, "float32") == 0) {
      const float* values = (const float*)(const void*)((const char*)batch->data + tensor->offset);
      for (k = 0; k < items; ++k) *sum += (double)values[k];
    }
  }
  return printf("\n") < 0;
}

int main(int argc, char** argv) {
  rf_attach_options options;
  rf_feed* feed = NULL;
  rf_batch batch;
  rf_status status;
  uint64_t batches = 0;
  uint64_t rows = 0;
  double sum = 0;

  if (argc < 2 || argc > 3) {
    fprintf(stderr, "usage: client_example FEED [GROUP]\n");
    return 2;
  }
  memset(&options, 0, sizeof options);
  options.struct_size = sizeof options;
  options.feed = argv[1];
  options.group = argc == 3 ? argv[2] : NULL;
  options.timeout_ms = 10000;
  status = rf_attach(&options, &feed);
  if (status != RF_OK) {
    fprintf(stderr, "client_example: %s\n", rf_last_error(NULL));
    return 1;
  }
  memset(&batch, 0, sizeof batch);
  batch.struct_size = sizeof batch;
  for (;;) {
    status = rf_next(feed, -1, &batch);
    if (status == RF_INTERRUPTED) continue;
    if (status != RF_OK) break;
    if (print_batch(rf_schema(feed), &batch, &sum)) break;
    ++batches;
    rows += batch.rows;
    status = rf_release(feed, batch.seq);
    if (status != RF_OK) break;
  }
  if (status != RF_END) fprintf(stderr, "client_example: %s\n", rf_last_error(feed));
  printf("total: %" PRIu64 " batches, %" PRIu64 " rows, sum %.1f, ringfeed %s\n", batches, rows,
         sum, rf_version());
  rf_detach(feed);
  return status == RF_END ? 0 : 1;
}
