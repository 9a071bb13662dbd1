#include "workers/programs/show_batch.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <exception>
#include <iostream>
#include <string>
#include <utility>
#include <vector>

#include "proto/config.pb.h"
#include "proto/view.pb.h"
#include "ringfeed/shm/quote.h"
#include "ringfeed/worker/batch_view.h"
#include "workers/io/png.h"
#include "workers/kit/row_text.h"
#include "workers/runtime/registry.h"

namespace ringfeed {
namespace {

constexpr std::size_t kRowTextMax = 64 << 10;
constexpr std::size_t kAligned = 64;

// The arrays of the question. Its bytes are copied to where every type may lie.
class Arrays {
 public:
  explicit Arrays(const ShowQuestion& question) {
    std::size_t bytes = kAligned;
    for (const ShownArray& array : question.arrays()) {
      bytes += (array.data().size() + kAligned - 1) / kAligned * kAligned;
    }
    room_.resize(bytes);
    std::size_t at =
        (kAligned - reinterpret_cast<std::uintptr_t>(room_.data()) % kAligned) % kAligned;
    for (const ShownArray& array : question.arrays()) {
      BatchViewArray& to = views_.emplace_back();
      to.name = array.name();
      to.dtype = array.dtype();
      to.shape.assign(array.shape().begin(), array.shape().end());
      to.has_rows = array.has_rows() && !to.shape.empty();
      std::copy_n(reinterpret_cast<const std::byte*>(array.data().data()), array.data().size(),
                  room_.begin() + static_cast<std::ptrdiff_t>(at));
      to.bytes = std::span(room_).subspan(at, array.data().size());
      at += (array.data().size() + kAligned - 1) / kAligned * kAligned;
    }
  }
  [[nodiscard]] const std::vector<BatchViewArray>& views() const { return views_; }

 private:
  std::vector<std::byte> room_;
  std::vector<BatchViewArray> views_;
};

// Does a word of the name say so? "image", "left_image", "jpg".
bool says_picture(std::string_view name) {
  constexpr std::string_view kWords[] = {"image",  "images", "img",  "picture", "pictures", "photo",
                                         "pixels", "jpg",    "jpeg", "png",     "webp"};
  std::string word;
  for (std::size_t i = 0; i <= name.size(); ++i) {
    const auto c = i < name.size() ? static_cast<unsigned char>(name[i]) : 0U;
    if (std::isalpha(static_cast<int>(c)) != 0) {
      word += static_cast<char>(std::tolower(static_cast<int>(c)));
      continue;
    }
    if (std::ranges::count(kWords, word) != 0) return true;
    word.clear();
  }
  return false;
}

struct Sides {
  std::uint64_t height = 0;
  std::uint64_t width = 0;
  std::uint64_t channels = 0;
  bool planes = false;  // channel by channel
};

// [rows, H, W], [rows, H, W, C] or [rows, C, H, W]; channels 0: none of these.
Sides sides_of(const BatchViewArray& array) {
  const std::vector<std::uint64_t>& shape = array.shape;
  const auto is_channels = [](std::uint64_t size) { return size == 1 || size == 3 || size == 4; };
  if (array.dtype != "uint8" || !array.has_rows) return {};
  if (shape.size() == 3) return {shape[1], shape[2], 1, false};
  if (shape.size() != 4) return {};
  if (is_channels(shape[3])) return {shape[1], shape[2], shape[3], false};
  if (is_channels(shape[1])) return {shape[2], shape[3], shape[1], true};
  return {};
}

std::vector<std::byte> by_pixel(std::span<const std::uint8_t> row, const Sides& sides) {
  const std::size_t plane = sides.height * sides.width;
  std::vector<std::byte> out(row.size());
  for (std::size_t i = 0; i < row.size(); ++i) {
    const std::size_t from = sides.planes ? i % sides.channels * plane + i / sides.channels : i;
    out[i] = static_cast<std::byte>(row[from]);
  }
  return out;
}

void add_pictures(const BatchViewArray& array, bool asked, std::uint64_t rows, ShowAnswer& answer) {
  constexpr std::uint64_t kSideMax = 1 << 16;
  if (!asked && !says_picture(array.name)) return;
  const Sides sides = sides_of(array);
  if (sides.channels == 0 || sides.width == 0 || sides.height == 0 || sides.width > kSideMax ||
      sides.height > kSideMax) {
    if (!asked) return;
    answer.add_problems(fmt::format(
        "{} is no picture: that is an array of uint8 with the shape [rows, height, width], [rows, "
        "height, width, channels] or [rows, channels, height, width], with 1, 3 or 4 channels",
        escaped(array.name)));
    return;
  }
  for (std::uint64_t row = 0; row < rows; ++row) {
    const std::span<const std::uint8_t> bytes = array.row<std::uint8_t>(row);
    if (bytes.empty()) continue;
    const std::vector<std::byte> pixels = by_pixel(bytes, sides);
    Result<std::string> png = formats::encode_png(
        {static_cast<std::uint32_t>(sides.width), static_cast<std::uint32_t>(sides.height),
         static_cast<std::uint32_t>(sides.channels), pixels});
    if (!png) {
      answer.add_problems(fmt::format("{}: {}", escaped(array.name), png.error().message()));
      return;
    }
    ShownPicture& picture = *answer.add_pictures();
    picture.set_array(array.name);
    picture.set_row(row);
    picture.set_width(static_cast<std::uint32_t>(sides.width));
    picture.set_height(static_cast<std::uint32_t>(sides.height));
    picture.set_png(std::move(*png));
  }
}

// As its stage says, else as any.
std::string shown_row(const StageType* type, const BatchView& batch, std::uint64_t row,
                      ShowAnswer& answer) {
  std::string text;
  try {
    if (type != nullptr && type->show_row) text = type->show_row(batch, row);
  } catch (const std::exception& error) {
    answer.add_problems(
        fmt::format("row {}: its stage cannot show it: {}", row, escaped(error.what())));
  }
  if (text.empty()) text = row_text(batch, row);
  text = escaped_lines(text);
  if (text.size() <= kRowTextMax) return text;
  const std::size_t bytes = text.size();
  text.resize(kRowTextMax);
  return escaped_lines(text) + fmt::format(" … ({} bytes in all)\n", bytes);
}

}  // namespace

int show_batch(const Registry& registry) {
  ShowQuestion question;
  DataLoaderConfig config;
  if (!question.ParseFromIstream(&std::cin) || !config.ParseFromString(question.config())) {
    throw Error(ErrorCode::kInvalidArgument, "standard input is not a serialized ShowQuestion");
  }
  const auto stage = std::ranges::find(config.stages(), question.stage(), &StageConfig::name);
  if (stage == config.stages().end()) {
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("the feed has no stage {}", in_quotes(question.stage())));
  }
  const Arrays arrays(question);
  const BatchView batch(*stage, config, question.rows(), arrays.views());
  ShowAnswer answer;
  for (std::uint64_t row = 0; row < question.rows(); ++row) {
    ShownRow& to = *answer.add_rows();
    to.set_row(row);
    to.set_text(shown_row(registry.of(*stage), batch, row, answer));
  }
  for (const BatchViewArray& array : batch.arrays()) {
    const bool asked = std::ranges::count(question.pictures(), array.name) != 0;
    add_pictures(array, asked, question.rows(), answer);
  }
  answer.SerializeToOstream(&std::cout);
  std::cout.flush();
  return std::cout.good() ? 0 : 1;
}

}  // namespace ringfeed
