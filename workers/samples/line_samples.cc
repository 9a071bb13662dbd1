// Lines as samples: JSON objects, or text. The cursor of an item is where the next line begins,
// from the part's begin.
#include <fmt/format.h>
#include <simdjson.h>

#include "proto/config.pb.h"
#include "workers/io/line_reader.h"
#include "workers/samples/json_block.h"
#include "workers/samples/json_sample.h"
#include "workers/samples/sample_file.h"

namespace ringfeed {
namespace {

class LineSamples final : public SampleFile {
 public:
  LineSamples(const SampleSourceConfig& config, bool json, SamplePart part)
      : begin_(part.begin),
        line_bytes_max_(config.line_bytes_max()),
        lines_(stream_of(config, part), part.begin + part.cursor, part.end,
               config.line_bytes_max()) {
    if (json) json_.emplace(wanted_fields(config), config.strict());
    if (json) block_.emplace(wanted_fields(config));
  }

  Result<bool> next(Item& item) override {
    Result<std::optional<formats::Line>> line = lines_.next();
    if (!line) return line.error();
    if (!*line) return false;
    // What a file begins with, and what was put behind another file.
    std::string_view& whole = (*line)->text;
    if (whole.starts_with(kByteOrderMark)) whole.remove_prefix(kByteOrderMark.size());
    item.place = (*line)->offset;
    item.cursor = (*line)->next - begin_;
    item.bytes = (*line)->next - (*line)->offset;
    item.fault = SampleFault::kNone;
    item.text.clear();
    item.fields = {};
    item.nothing = false;
    item.head = item.data = {};
    if ((*line)->too_long) {
      item.fault = SampleFault::kTooLarge;
      item.text =
          fmt::format("a line of more than {} bytes: raise line_bytes_max", line_bytes_max_);
    } else if ((*line)->text.empty()) {
      item.nothing = true;
    } else if (json_ && read_in_block(**line)) {
      item.head = block_->head();
      item.data = block_->data();
    } else if (json_) {
      JsonSamples::Outcome read = json_->read((*line)->text);
      item.fault = read.fault;
      item.text = std::move(read.text);
      item.fields = read.fields;
    } else {
      const std::string_view text = (*line)->text;
      text_ = {.name = "text",
               .dtype = SampleDtype::kText,
               .data = std::as_bytes(std::span(text.data(), text.size()))};
      if (simdjson::validate_utf8(text)) {
        item.fields = {&text_, 1};
      } else {
        item.fault = SampleFault::kWrongType;
        item.text = "it is no UTF-8";
      }
    }
    return true;
  }

  std::uint64_t checked() const override { return lines_.stream().checked(); }
  std::uint64_t trailing_bytes() const override { return lines_.stream().trailing_bytes(); }

 private:
  // False: the line is for JsonSamples.
  bool read_in_block(const formats::Line& line) {
    if (lines_.refills() != refills_ || !block_->is_in(line.text)) {
      refills_ = lines_.refills();
      block_->begin(lines_.lines_from(line));
    }
    return block_->read(line.text);
  }

  // Packed files are unpacked up to where the reader was. Of a plain one a byte more shows whether
  // a line begins there.
  static std::unique_ptr<formats::ByteStream> stream_of(const SampleSourceConfig& config,
                                                        SamplePart& part) {
    const std::uint64_t begin = part.begin + part.cursor;
    const bool plain = part.packing == formats::Packing::kPlain;
    return std::make_unique<formats::ByteStream>(std::move(part.fd), part.packing,
                                                 plain && begin != 0 ? begin - 1 : 0,
                                                 config.window_bytes_max());
  }

  std::uint64_t begin_;
  std::uint64_t line_bytes_max_;
  formats::LineReader lines_;
  std::optional<JsonSamples> json_;
  std::optional<JsonBlock> block_;
  std::uint64_t refills_ = 0;  // when the block began
  SampleField text_;
};

}  // namespace

std::unique_ptr<SampleFile> open_lines(const SampleSourceConfig& config, bool json,
                                       SamplePart part) {
  return std::make_unique<LineSamples>(config, json, std::move(part));
}

}  // namespace ringfeed
