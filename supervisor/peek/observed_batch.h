// The newest batch of a feed as an observer has it: a copy, taken from nobody
// (pyclient/ringfeed.h).
//
// The copy is whole, or it is tried again: the lane that writes the slot anew says so before it
// does (shm/feed.h). Lengths that vary have been compared with the room of their arrays.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "ringfeed/shm/result.h"

namespace ringfeed::peek {

struct ObservedArray {
  std::string name;
  std::string dtype;  // as NumPy names it; "bfloat16"
  std::uint64_t item_bytes = 0;
  std::vector<std::uint64_t> shape;  // in this batch
  bool has_rows = false;             // the first number of the shape is the rows
  std::span<const std::byte> bytes;  // all of it, at least 64 bytes aligned
};

class ObservedBatch {
 public:
  struct Wish {
    std::string feed;
    std::vector<std::string> directories;  // of sockets, in this order
    std::string output = {};               // alias; "": the first
    std::uint64_t timeout_ms = 0;          // for the first batch
  };
  // Errors: kNotFound (no supervisor serves the feed), kTimeout (no batch came in time), kClosed
  // (the feed has ended and holds none, or has failed), kInvalidArgument (there is no such output),
  // kInterrupted, others.
  [[nodiscard]] static Result<ObservedBatch> take(const Wish& wish);

  [[nodiscard]] std::uint64_t number() const { return number_; }
  [[nodiscard]] std::uint64_t rows() const { return rows_; }
  [[nodiscard]] std::uint64_t rows_max() const { return rows_max_; }
  [[nodiscard]] std::uint64_t bytes() const { return bytes_; }
  [[nodiscard]] std::uint32_t crc32c() const { return crc32c_; }
  [[nodiscard]] std::uint64_t published_ns() const { return published_ns_; }  // CLOCK_MONOTONIC
  [[nodiscard]] const std::string& output() const { return output_; }         // alias
  [[nodiscard]] const std::vector<ObservedArray>& arrays() const { return arrays_; }

 private:
  struct Held;
  std::shared_ptr<Held> held_;  // the bytes
  std::uint64_t number_ = 0;
  std::uint64_t rows_ = 0;
  std::uint64_t rows_max_ = 0;
  std::uint64_t bytes_ = 0;
  std::uint32_t crc32c_ = 0;
  std::uint64_t published_ns_ = 0;
  std::string output_;
  std::vector<ObservedArray> arrays_;
};

}  // namespace ringfeed::peek
