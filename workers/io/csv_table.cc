#include "workers/io/csv_table.h"

#include <arrow/array.h>
#include <arrow/buffer.h>
#include <arrow/csv/api.h>
#include <arrow/io/interfaces.h>
#include <arrow/io/memory.h>
#include <arrow/record_batch.h>
#include <arrow/type.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <deque>
#include <mutex>
#include <string_view>
#include <unordered_map>
#include <utility>

#include "workers/io/arrow_help.h"

namespace ringfeed::formats {
namespace {

constexpr std::int32_t kBlockBytes = 1 << 20;
constexpr std::size_t kHeadBytes = std::size_t{64} << 10;

// A file as it is unpacked, for Arrow, which reads ahead in a thread of its own: whole rows, as
// long as these are not too long. Where the file cannot be read further it seems to end. What is
// before the rows is left out.
class UnpackedInput final : public arrow::io::InputStream {
 public:
  UnpackedInput(std::shared_ptr<const shm::Fd> fd, const CsvFormat& format, std::uint64_t begin)
      : fd_(std::move(fd)),
        stream_(fd_->get(), format.packing, 0, format.window_bytes_max),
        begin_(begin) {}

  arrow::Status Close() override {
    closed_ = true;
    return arrow::Status::OK();
  }
  [[nodiscard]] bool closed() const override { return closed_; }
  [[nodiscard]] arrow::Result<std::int64_t> Tell() const override {
    return static_cast<std::int64_t>(stream_.offset());
  }
  arrow::Result<std::int64_t> Read(std::int64_t bytes, void* to) override {
    const std::span<std::byte> room(static_cast<std::byte*>(to), static_cast<std::size_t>(bytes));
    std::size_t have = std::min(rest_.size(), room.size());
    std::copy_n(rest_.begin(), have, room.begin());
    rest_.erase(rest_.begin(), rest_.begin() + static_cast<std::ptrdiff_t>(have));
    bool over = false;
    while (have < room.size() && !over && !fault_) {
      const std::uint64_t at = stream_.offset();
      const auto free = room.subspan(have);
      const Result<std::size_t> got = stream_.read(free);
      if (!got) {
        fault_ = got.error();
        break;
      }
      over = *got == 0;
      const std::size_t before = std::min<std::uint64_t>(begin_ - std::min(at, begin_), *got);
      std::copy(free.begin() + static_cast<std::ptrdiff_t>(before),
                free.begin() + static_cast<std::ptrdiff_t>(*got), free.begin());
      have += *got - before;
    }
    if (over) return static_cast<std::int64_t>(have);
    // Behind the last end of a line that is not in quotes, as far as their number tells.
    std::size_t whole = 0;
    bool quoted = in_quotes_;
    for (std::size_t i = 0; i < have; ++i) {
      if (room[i] == std::byte{'"'}) quoted = !quoted;
      if (room[i] == std::byte{'\n'} && !quoted) whole = i + 1;
    }
    if (fault_) {
      // Of a row that is cut nothing is made.
      if (whole == 0 && in_row_) return arrow::Status::IOError(fault_->message());
      return static_cast<std::int64_t>(whole);
    }
    in_row_ = whole == 0;
    in_quotes_ = in_row_ && quoted;
    if (in_row_) return static_cast<std::int64_t>(have);
    rest_.insert(rest_.begin(), room.begin() + static_cast<std::ptrdiff_t>(whole),
                 room.begin() + static_cast<std::ptrdiff_t>(have));
    return static_cast<std::int64_t>(whole);
  }
  arrow::Result<std::shared_ptr<arrow::Buffer>> Read(std::int64_t bytes) override {
    ARROW_ASSIGN_OR_RAISE(auto buffer, arrow::AllocateResizableBuffer(bytes));
    ARROW_ASSIGN_OR_RAISE(const std::int64_t got, Read(bytes, buffer->mutable_data()));
    ARROW_RETURN_NOT_OK(buffer->Resize(got));
    return std::shared_ptr<arrow::Buffer>(std::move(buffer));
  }

  // Why it cannot be read further, after Arrow has said that nothing more comes.
  [[nodiscard]] const std::optional<Error>& fault() const noexcept { return fault_; }
  [[nodiscard]] std::uint64_t trailing_bytes() const noexcept { return stream_.trailing_bytes(); }

 private:
  std::shared_ptr<const shm::Fd> fd_;
  ByteStream stream_;
  std::uint64_t begin_;  // of the rows
  bool closed_ = false;
  std::vector<std::byte> rest_;  // read, behind the last row that was given
  bool in_row_ = false;          // a part of a row was given
  bool in_quotes_ = false;       // and ends in quotes
  std::optional<Error> fault_;
};

// The first bytes, as they are unpacked, and more of them.
class Head {
 public:
  Head(int fd, const CsvFormat& format) : stream_(fd, format.packing, 0, format.window_bytes_max) {}

  // False: there is no more, or it cannot be read, which whoever reads the rows will say. Throws
  // Error if nothing can be read at all.
  bool read(std::size_t bytes) {
    const std::size_t before = text_.size();
    std::size_t have = before;
    for (text_.resize(before + bytes); have < text_.size();) {
      const auto room = std::as_writable_bytes(std::span(text_).subspan(have));
      const Result<std::size_t> got = stream_.read(room);
      if (!got && have == 0) throw got.error();
      if (!got) fault_ = got.error();
      if (!got || *got == 0) break;
      have += *got;
    }
    text_.resize(have);
    return have != before;
  }
  [[nodiscard]] std::string_view text() const noexcept { return text_; }
  // Nothing is read behind it: throws Error if that is for a fault.
  void end() const {
    if (fault_) throw *fault_;
  }

 private:
  ByteStream stream_;
  std::string text_;
  std::optional<Error> fault_;
};

constexpr std::string_view kLineEnds = "\r\n";

// Behind the row that begins there, with the end of its line; npos: it does not end. A cell is in
// quotes if it begins with one.
std::size_t behind_row(std::string_view text, std::size_t at, char delimiter) {
  bool quoted = false;
  for (bool begins = true; at < text.size(); ++at) {
    const char c = text[at];
    if (quoted) {
      if (c != '"') continue;
      if (at + 1 < text.size() && text[at + 1] == '"') {
        ++at;
      } else {
        quoted = false;
      }
    } else if (c == '"' && begins) {
      quoted = true;
    } else if (kLineEnds.find(c) != std::string_view::npos) {
      return at + (text.substr(at).starts_with("\r\n") ? 2 : 1);
    }
    begins = !quoted && c == delimiter;
  }
  return std::string_view::npos;
}

// What stands between the cells of the first line: a comma, if there is one.
char delimiter_of(std::string_view head) {
  std::string outside;
  bool quoted = false;
  for (const char c : head) {
    if (c == '"') quoted = !quoted;
    if (!quoted && (c == '\n' || c == '\r') && !outside.empty()) break;
    if (!quoted && c != '\n' && c != '\r') outside += c;
  }
  for (const char c : {',', '\t', ';', '|'}) {
    if (outside.find(c) != std::string::npos) return c;
  }
  return ',';
}

class CsvTable final : public TableFile {
 public:
  // Throws Error, ArrowDamage.
  CsvTable(shm::Fd fd, const CsvFormat& format)
      : fd_(std::make_shared<const shm::Fd>(std::move(fd))), format_(format) {
    Head head(fd_->get(), format_);
    head.read(kHeadBytes);
    if (head.text().starts_with("\xff\xfe") || head.text().starts_with("\xfe\xff")) {
      throw Error(ErrorCode::kUnsupported, "it is UTF-16: write it as UTF-8");
    }
    if (head.text().starts_with(kMark)) begin_ = kMark.size();
    // Arrow takes a file without any row for an error.
    if (!find_rows(head)) {
      head.end();
      return;
    }
    if (!format_.has_names) {
      arrow::csv::ReadOptions read = read_options();
      read.autogenerate_column_names = true;
      names_ = make_reader(read, {})->schema()->field_names();
    }
    groups_.push_back({.begin = 0, .first_row = 0, .rows = kRowsUnknown});
  }

  [[nodiscard]] const std::vector<std::string>& columns() const noexcept override { return names_; }
  [[nodiscard]] const std::vector<RowGroup>& row_groups() const noexcept override {
    return groups_;
  }
  [[nodiscard]] bool is_text() const noexcept override { return true; }
  [[nodiscard]] bool in_doubt() const noexcept override {
    return format_.packing != Packing::kPlain && !over_;
  }
  [[nodiscard]] std::uint64_t trailing_bytes() const noexcept override { return trailing_bytes_; }

  void choose(std::vector<std::size_t> columns) override { chosen_ = std::move(columns); }

  [[nodiscard]] Status open(std::size_t) override {
    rows_before_ = 0;
    return guarded([&] { open_reader(0); });
  }

  [[nodiscard]] Result<std::uint64_t> decode() override {
    rows_.clear();
    faults_.clear();
    if (Status decoded = guarded([&] { decode_block(); }); !decoded) return decoded.error();
    rows_before_ += rows_.size();
    return rows_.size();
  }

  void value(std::size_t column, std::uint64_t row, TableValue& to) const override {
    const arrow::BinaryArray& cells = *arrays_[place_of_.at(chosen_[column])];
    const std::string_view text = cells.GetView(rows_[row]);
    const auto* const from = reinterpret_cast<const std::byte*>(text.data());
    to.type = TableType::kText;
    to.bytes.assign(from, from + text.size());
  }

  [[nodiscard]] std::string row_fault(std::uint64_t row) const override {
    const auto fault = faults_.find(row);
    return fault == faults_.end() ? std::string() : fault->second;
  }

 private:
  static constexpr std::string_view kMark = "\xef\xbb\xbf";

  // Where the next line that is not empty begins.
  [[nodiscard]] std::size_t next_line(std::string_view text) const {
    return text.find_first_not_of(kLineEnds, begin_);
  }

  // Begins behind the names, if it has some. False: no row comes.
  [[nodiscard]] bool find_rows(Head& head) {
    const auto begins = [&] {
      while (next_line(head.text()) == std::string_view::npos) {
        if (!head.read(kHeadBytes)) return false;
      }
      return true;
    };
    if (!begins()) return false;
    if (!format_.delimiter) format_.delimiter = delimiter_of(head.text().substr(begin_));
    return !format_.has_names || (take_names(head) && begins());
  }

  // Reads the first row as names, with Arrow, which reads the cells of others too; the rows begin
  // behind it. It is not left to Arrow to pass over it: that counts empty lines, and lines within
  // quotes. False: the file ends within it, or with it.
  [[nodiscard]] bool take_names(Head& head) {
    const std::size_t line = next_line(head.text());
    std::size_t behind = behind_row(head.text(), line, *format_.delimiter);
    for (std::size_t more = kHeadBytes; behind == std::string_view::npos; more *= 2) {
      if (head.text().size() > format_.row_bytes_max) {
        throw Error(ErrorCode::kDamaged, "its first row has no end");
      }
      if (!head.read(more)) return false;
      behind = behind_row(head.text(), line, *format_.delimiter);
    }
    const auto row =
        arrow::Buffer::FromString(std::string(head.text().substr(line, behind - line)));
    arrow::csv::ReadOptions read = read_options();
    read.autogenerate_column_names = true;
    read.block_size = static_cast<std::int32_t>(row->size() + 1);
    auto reader = arrow::csv::StreamingReader::Make(arrow::io::default_io_context(),
                                                    std::make_shared<arrow::io::BufferReader>(row),
                                                    read, parse_options(), text_options());
    if (!reader.ok()) throw ArrowDamage(reader.status().ToString());
    std::shared_ptr<arrow::RecordBatch> batch;
    if (arrow::Status got = (*reader)->ReadNext(&batch); !got.ok()) {
      throw ArrowDamage(got.ToString());
    }
    for (int i = 0; batch != nullptr && i < batch->num_columns(); ++i) {
      names_.emplace_back(
          std::static_pointer_cast<arrow::BinaryArray>(batch->column(i))->GetView(0));
    }
    begin_ = behind;
    return true;
  }

  struct BadRow {
    std::uint64_t number;  // among the rows
    std::string text;
  };
  // Arrow parses in threads of its own, which may outlive the table.
  struct BadRows {
    std::mutex mutex;
    std::deque<BadRow> rows;
  };

  template <typename Function>
  Status guarded(Function&& function) {
    std::optional<Error> own;
    const std::string fault = fault_of([&] {
      try {
        function();
      } catch (const Error& error) {
        own = error;
      }
    });
    if (own) return *own;
    if (fault.empty()) return {};
    if (input_ != nullptr && input_->fault()) return *input_->fault();
    return Error{ErrorCode::kDamaged, fault};
  }

  [[nodiscard]] arrow::csv::ReadOptions read_options() const {
    arrow::csv::ReadOptions options = arrow::csv::ReadOptions::Defaults();
    options.use_threads = false;
    return options;
  }

  [[nodiscard]] arrow::csv::ParseOptions parse_options() const {
    arrow::csv::ParseOptions options = arrow::csv::ParseOptions::Defaults();
    options.delimiter = *format_.delimiter;
    options.newlines_in_values = true;
    return options;
  }

  // Cells as they are written.
  static arrow::csv::ConvertOptions text_options() {
    arrow::csv::ConvertOptions options = arrow::csv::ConvertOptions::Defaults();
    options.default_column_type = arrow::binary();
    options.check_utf8 = false;
    options.strings_can_be_null = false;
    return options;
  }

  std::shared_ptr<arrow::csv::StreamingReader> make_reader(
      arrow::csv::ReadOptions read, const arrow::csv::ConvertOptions& convert) {
    for (;;) {
      read.block_size = block_bytes_;
      auto made = try_reader(read, convert);
      if (made.ok()) return *made;
      if (!grow(made.status())) throw ArrowDamage(made.status().ToString());
    }
  }

  arrow::Result<std::shared_ptr<arrow::csv::StreamingReader>> try_reader(
      const arrow::csv::ReadOptions& read, const arrow::csv::ConvertOptions& convert) {
    arrow::csv::ParseOptions parse = parse_options();
    bad_ = std::make_shared<BadRows>();
    parse.invalid_row_handler = [bad = bad_](const arrow::csv::InvalidRow& row) {
      const std::lock_guard lock(bad->mutex);
      bad->rows.push_back({static_cast<std::uint64_t>(row.number) - 1,
                           fmt::format("it has {} cells, and there are {} columns",
                                       row.actual_columns, row.expected_columns)});
      return arrow::csv::InvalidRowResult::Skip;
    };
    over_ = false;
    input_ = std::make_shared<UnpackedInput>(fd_, format_, begin_);
    return arrow::csv::StreamingReader::Make(arrow::io::default_io_context(), input_, read, parse,
                                             convert);
  }

  // At the row with that number.
  void open_reader(std::uint64_t row) {
    arrow::csv::ReadOptions read = read_options();
    // Names of our own, because those of the file may be the same.
    for (std::size_t i = 0; i < names_.size(); ++i) read.column_names.push_back(std::to_string(i));
    arrow::csv::ConvertOptions convert = text_options();
    place_of_.clear();
    for (const std::size_t column : chosen_) {
      if (!place_of_.emplace(column, place_of_.size()).second) continue;
      convert.include_columns.push_back(std::to_string(column));
    }
    // All would be read if there were none.
    if (chosen_.empty()) convert.include_columns.emplace_back("0");
    reader_ = make_reader(read, convert);
    at_ = 0;
    first_ = row;
  }

  // The next batch with a row behind the first ones, those that are none in it.
  void decode_block() {
    while (rows_.empty()) {
      std::shared_ptr<arrow::RecordBatch> batch;
      const arrow::Status read = reader_->ReadNext(&batch);
      if (!read.ok()) {
        if (!grow(read)) throw ArrowDamage(read.ToString());
        open_reader(rows_before_);
        continue;
      }
      const std::uint64_t good =
          batch == nullptr ? 0 : static_cast<std::uint64_t>(batch->num_rows());
      batch_ = batch;
      arrays_.clear();
      for (int i = 0; batch != nullptr && i < batch->num_columns(); ++i) {
        arrays_.push_back(std::static_pointer_cast<arrow::BinaryArray>(batch->column(i)));
      }
      for (std::uint64_t row = 0; row < good;) {
        if (!add_bad(at_)) add_row(static_cast<std::int64_t>(row++), {});
      }
      if (batch != nullptr) continue;
      while (add_bad(kRowsUnknown)) continue;
      if (rows_.empty() && input_->fault()) throw Error(*input_->fault());
      over_ = !input_->fault();
      trailing_bytes_ = input_->trailing_bytes();
      return;
    }
  }

  // The next one, if it comes at row `upto` or before. False: it does not.
  [[nodiscard]] bool add_bad(std::uint64_t upto) {
    const std::lock_guard lock(bad_->mutex);
    if (bad_->rows.empty() || bad_->rows.front().number > upto) return false;
    add_row(0, std::move(bad_->rows.front().text));
    bad_->rows.pop_front();
    return true;
  }
  void add_row(std::int64_t place, std::string fault) {
    if (at_++ < first_) return;
    if (!fault.empty()) faults_.emplace(rows_.size(), std::move(fault));
    rows_.push_back(place);
  }

  // A row is longer than a block: the next are longer.
  [[nodiscard]] bool grow(const arrow::Status& fault) {
    const auto most = static_cast<std::int32_t>(
        std::min<std::uint64_t>(format_.row_bytes_max, std::uint64_t{1} << 30));
    if (input_->fault() || block_bytes_ >= most ||
        fault.message().find("block size") == std::string::npos) {
      return false;
    }
    block_bytes_ =
        static_cast<std::int32_t>(std::min<std::int64_t>(std::int64_t{8} * block_bytes_, most));
    return true;
  }

  // Of Arrow's threads too. It is read from its begin several times, without another descriptor.
  std::shared_ptr<const shm::Fd> fd_;
  CsvFormat format_;
  std::int32_t block_bytes_ = kBlockBytes;
  std::uint64_t begin_ = 0;  // of the rows, in the file as it is unpacked
  std::vector<std::string> names_;
  std::vector<RowGroup> groups_;
  std::vector<std::size_t> chosen_;
  std::unordered_map<std::size_t, std::size_t> place_of_;  // of a chosen column, in a batch
  std::shared_ptr<UnpackedInput> input_;
  std::shared_ptr<arrow::csv::StreamingReader> reader_;
  std::shared_ptr<BadRows> bad_;   // met, and not yet given
  std::uint64_t at_ = 0;           // row of the file that comes next
  std::uint64_t first_ = 0;        // rows before it have been given
  std::uint64_t rows_before_ = 0;  // given by earlier calls of decode()
  bool over_ = false;
  std::uint64_t trailing_bytes_ = 0;
  // Of what was decoded last:
  std::shared_ptr<arrow::RecordBatch> batch_;
  std::vector<std::shared_ptr<arrow::BinaryArray>> arrays_;
  std::vector<std::int64_t> rows_;  // places in batch_
  std::unordered_map<std::uint64_t, std::string> faults_;
};

}  // namespace

Result<std::unique_ptr<TableFile>> open_csv_table(shm::Fd fd, const CsvFormat& format) {
  std::unique_ptr<TableFile> table;
  std::optional<Error> own;
  const std::string fault = fault_of([&] {
    try {
      table = std::make_unique<CsvTable>(std::move(fd), format);
    } catch (const Error& error) {
      own = error;
    }
  });
  if (own) return *own;
  if (!fault.empty()) return Error(ErrorCode::kDamaged, fault);
  return table;
}

}  // namespace ringfeed::formats
