// A trainer in C++20: takes every batch of a feed and gives the mean of one float32 array.
//
//   cpp_trainer FEED ARRAY
//
// Exit status 0 at the end of the feed, 1 on an error, 2 on wrong usage.
#include <cstdint>
#include <cstdio>
#include <optional>
#include <ringfeed.hpp>
#include <span>
#include <string>

int main(int argc, char** argv) {
  if (argc != 3) {
    std::fprintf(stderr, "usage: cpp_trainer FEED ARRAY\n");
    return 2;
  }
  const std::string array = argv[2];
  try {
    // Each group sees every batch once; timeout_ms is for the feed to appear.
    ringfeed::Feed feed({.feed = argv[1], .group = "cpp_trainer", .timeout_ms = 30'000});
    std::uint64_t rows = 0;
    std::uint64_t items = 0;
    double sum = 0;
    while (const std::optional<ringfeed::Batch> batch = feed.next()) {
      // The batch lies where the feed has written it, and goes back at the end of this block.
      const std::span<const float> values = batch->tensor<float>(array);
      for (const float value : values) sum += static_cast<double>(value);
      items += values.size();
      rows += batch->rows();
    }
    std::printf("%llu rows, mean of %s %.6f\n", static_cast<unsigned long long>(rows),
                array.c_str(), items == 0 ? 0.0 : sum / static_cast<double>(items));
    return 0;
  } catch (const ringfeed::ClientError& error) {
    std::fprintf(stderr, "cpp_trainer: %s\n", error.what());
    return 1;
  }
}
