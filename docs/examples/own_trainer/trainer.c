/* A trainer in C99: takes every batch of a feed and gives the mean of one float32 array.
 *
 *   c_trainer FEED ARRAY
 *
 * Exit status 0 at the end of the feed, 1 on an error, 2 on wrong usage. */
#include <inttypes.h>
#include <ringfeed.h>
#include <stdio.h>
#include <string.h>

/* The array of that name, or NULL. The schema lives as long as the handle. */
static const rf_tensor* find_array(const rf_schema_info* schema, const char* name) {
  uint32_t i;
  for (i = 0; i < schema->tensor_count; ++i) {
    const rf_tensor* tensor = &schema->tensors[i];
    if (strcmp(tensor->name, name) == 0 && strcmp(tensor->dtype, "float32") == 0) return tensor;
  }
  return NULL;
}

int main(int argc, char** argv) {
  /* What is not set is 0, and 0 means the default. */
  rf_attach_options options = {0};
  rf_batch batch = {0};
  rf_feed* feed = NULL;
  const rf_tensor* array;
  rf_status status;
  uint64_t rows = 0, items = 0;
  double sum = 0;

  if (argc != 3) {
    fprintf(stderr, "usage: c_trainer FEED ARRAY\n");
    return 2;
  }
  options.struct_size = sizeof options;
  options.feed = argv[1];
  options.group = "c_trainer"; /* each group sees every batch once */
  options.timeout_ms = 30000;  /* for the feed to appear */
  if (rf_attach(&options, &feed) != RF_OK) {
    fprintf(stderr, "c_trainer: %s\n", rf_last_error(NULL));
    return 1;
  }
  array = find_array(rf_schema(feed), argv[2]);
  if (array == NULL) {
    fprintf(stderr, "c_trainer: feed %s has no float32 array %s\n", argv[1], argv[2]);
    rf_detach(feed);
    return 1;
  }
  batch.struct_size = sizeof batch;
  for (;;) {
    const float* values;
    uint64_t count, k;
    status = rf_next(feed, -1, &batch);
    if (status == RF_INTERRUPTED) continue;
    if (status != RF_OK) break;
    /* The batch lies where the feed has written it, and stays there until it is released. */
    values = (const float*)(const void*)((const char*)batch.data + array->offset);
    count = rf_tensor_items(array, &batch);
    for (k = 0; k < count; ++k) sum += (double)values[k];
    items += count;
    rows += batch.rows;
    status = rf_release(feed, batch.seq);
    if (status != RF_OK) break;
  }
  if (status != RF_END) fprintf(stderr, "c_trainer: %s\n", rf_last_error(feed));
  printf("%" PRIu64 " rows, mean of %s %.6f\n", rows, argv[2],
         items == 0 ? 0.0 : sum / (double)items);
  rf_detach(feed);
  return status == RF_END ? 0 : 1;
}
