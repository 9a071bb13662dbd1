// A batch as `ringfeed peek` shows it to people: StageType::show_row gets one and says how a row of
// it reads.
//
//   type.show_row = [](const BatchView& batch, std::uint64_t row) {
//     const BatchViewArray* const ids = batch.find("ids");
//     return ids == nullptr ? "" : std::format("id {}", ids->row<std::int64_t>(row).front());
//   };
//
// It is a copy of the first rows, in a process of its own that has nothing else to lose. Shapes
// have been compared with the bytes; what is in the bytes has been seen by nobody.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace ringfeed {

class DataLoaderConfig;
class StageConfig;

struct BatchViewArray {
  std::string name;
  std::string dtype;                 // as NumPy names it; "bfloat16"
  std::vector<std::uint64_t> shape;  // in this batch
  bool has_rows = false;             // the first number of its shape is the rows
  // As the shape says. At least 64 bytes aligned. Empty: it was too large to be copied.
  std::span<const std::byte> bytes = {};

  // All elements, if these are as large as a T and all there; else none.
  template <typename T>
  [[nodiscard]] std::span<const T> all() const noexcept {
    std::uint64_t items = 1;
    for (const std::uint64_t size : shape) items *= size;
    if (items == 0 || bytes.size() != items * sizeof(T)) return {};
    return {reinterpret_cast<const T*>(bytes.data()), static_cast<std::size_t>(items)};
  }
  // Those of one row; none, if the array has no row of this number.
  template <typename T>
  [[nodiscard]] std::span<const T> row(std::uint64_t number) const noexcept {
    const std::span<const T> items = all<T>();
    if (!has_rows || items.empty() || number >= shape[0]) return {};
    const std::size_t each = items.size() / static_cast<std::size_t>(shape[0]);
    return items.subspan(static_cast<std::size_t>(number) * each, each);
  }
};

class BatchView {
 public:
  BatchView(const StageConfig& stage, const DataLoaderConfig& feed, std::uint64_t rows,
            std::vector<BatchViewArray> arrays)
      : stage_(stage), feed_(feed), rows_(rows), arrays_(std::move(arrays)) {}

  // The stage that wrote it; plugin_settings() has the options of a plug-in's.
  [[nodiscard]] const StageConfig& stage() const noexcept { return stage_; }
  [[nodiscard]] const DataLoaderConfig& feed() const noexcept { return feed_; }
  // Those that are here.
  [[nodiscard]] std::uint64_t rows() const noexcept { return rows_; }
  [[nodiscard]] const std::vector<BatchViewArray>& arrays() const noexcept { return arrays_; }
  // nullptr: the batch has no array of this name.
  [[nodiscard]] const BatchViewArray* find(std::string_view name) const noexcept {
    const auto found =
        std::find_if(arrays_.begin(), arrays_.end(),
                     [&](const BatchViewArray& array) { return array.name == name; });
    return found == arrays_.end() ? nullptr : &*found;
  }

 private:
  const StageConfig& stage_;
  const DataLoaderConfig& feed_;
  std::uint64_t rows_;
  std::vector<BatchViewArray> arrays_;
};

}  // namespace ringfeed
