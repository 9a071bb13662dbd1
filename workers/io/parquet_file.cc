#include "workers/io/parquet_file.h"

#include <arrow/io/file.h>
#include <arrow/util/float16.h>
#include <arrow/util/thread_pool.h>
#include <errno.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <parquet/column_reader.h>
#include <parquet/file_reader.h>
#include <parquet/metadata.h>
#include <parquet/schema.h>
#include <sys/stat.h>

#include <algorithm>
#include <cstdlib>
#include <limits>
#include <utility>

#include "ringfeed/shm/file.h"
#include "ringfeed/shm/segment.h"
#include "workers/io/arrow_help.h"

namespace ringfeed::formats {
namespace {

constexpr std::int64_t kBatchRows = 1024;
constexpr std::uint64_t kFirstGuessRows = 16;

using Damage = ArrowDamage;

// Values one after the other, not initialised as a vector's would be.
template <typename T>
class Values {
 public:
  Values() = default;
  ~Values() { std::free(data_); }
  Values(const Values&) = delete;
  Values& operator=(const Values&) = delete;

  // Room for that many more.
  T* extend(std::size_t more) {
    if (size_ + more > capacity_) {
      const std::size_t wanted = std::max(size_ + more, capacity_ + capacity_ / 2);
      void* grown = std::realloc(data_, wanted * sizeof(T));
      if (grown == nullptr) throw std::bad_alloc();
      data_ = static_cast<T*>(grown);
      capacity_ = wanted;
    }
    return data_ + size_;
  }
  void added(std::size_t more) noexcept { size_ += more; }
  void drop_front(std::size_t count) noexcept {
    if (count == 0) return;
    if (count < size_) std::memmove(data_, data_ + count, (size_ - count) * sizeof(T));
    size_ -= count;
  }
  void clear() noexcept { size_ = 0; }
  [[nodiscard]] T* data() noexcept { return data_; }
  [[nodiscard]] const T* data() const noexcept { return data_; }
  [[nodiscard]] std::size_t size() const noexcept { return size_; }

 private:
  T* data_ = nullptr;
  std::size_t size_ = 0;
  std::size_t capacity_ = 0;
};

// A column's values as they lie in the file, and what becomes of them.
enum class Encoding {
  kNothing,  // null only
  kText,
  kFixedText,
  kBoolean,
  kInt32,
  kUint32,
  kInt64,
  kUint64,
  kInt96,
  kFloat16,
  kFloat32,
  kFloat64,
};

struct Fit {
  Encoding encoding = Encoding::kNothing;
  bool fits = false;
  std::string type;
};

// A column by its name, which may be a group's.
Fit fit_of(const parquet::SchemaDescriptor& schema, const parquet::schema::Node& node,
           ColumnType wanted) {
  using Logical = parquet::LogicalType::Type;
  Fit fit;
  const int number = node.is_primitive() ? schema.ColumnIndex(node) : -1;
  if (number < 0) {
    fit.type = node.logical_type() != nullptr && !node.logical_type()->is_none()
                   ? node.logical_type()->ToString()
                   : "struct";
    return fit;
  }
  const parquet::ColumnDescriptor& column = *schema.Column(number);
  const parquet::LogicalType& logical = *column.logical_type();
  const bool plain = !logical.is_valid() || logical.is_none();
  fit.type = plain ? parquet::TypeToString(column.physical_type()) : logical.ToString();
  if (column.max_repetition_level() != 0) {
    fit.type = "repeated " + fit.type;
    return fit;
  }
  if (column.max_definition_level() > 1) return fit;
  const bool any = wanted == ColumnType::kAny;
  const bool number_wanted = wanted != ColumnType::kText;
  const bool time = logical.is_date() || logical.is_time() || logical.is_timestamp();
  const auto is = [&](Encoding encoding, bool fits) {
    fit.encoding = encoding;
    fit.fits = fits;
    return fit;
  };
  if (logical.type() == Logical::NIL) return is(Encoding::kNothing, true);
  switch (column.physical_type()) {
    case parquet::Type::BYTE_ARRAY:
      return is(Encoding::kText,
                (wanted == ColumnType::kText || any) && (logical.is_string() || logical.is_enum() ||
                                                         logical.is_JSON() || (any && plain)));
    case parquet::Type::FIXED_LEN_BYTE_ARRAY:
      if (logical.type() == Logical::FLOAT16) return is(Encoding::kFloat16, number_wanted);
      return is(Encoding::kFixedText, any && (plain || logical.type() == Logical::UUID));
    case parquet::Type::BOOLEAN:
      return is(Encoding::kBoolean, number_wanted && plain);
    case parquet::Type::INT32:
    case parquet::Type::INT64: {
      const bool is_int = logical.is_int();
      const bool is_signed =
          !is_int || static_cast<const parquet::IntLogicalType&>(logical).is_signed();
      const bool wide = column.physical_type() == parquet::Type::INT64;
      // Of an identity the bits are all that matters: as numbers some would become the same.
      const Encoding encoding = wide ? (is_signed || any ? Encoding::kInt64 : Encoding::kUint64)
                                     : (is_signed ? Encoding::kInt32 : Encoding::kUint32);
      return is(encoding, number_wanted && (plain || is_int || (any && time)));
    }
    case parquet::Type::INT96:
      return is(Encoding::kInt96, any);
    case parquet::Type::FLOAT:
      return is(Encoding::kFloat32, number_wanted && plain);
    case parquet::Type::DOUBLE:
      return is(Encoding::kFloat64, number_wanted && plain);
    default:
      return fit;
  }
}

constexpr ColumnKind kind_of(Encoding encoding) noexcept {
  switch (encoding) {
    case Encoding::kNothing:
      return ColumnKind::kMissing;
    case Encoding::kText:
    case Encoding::kFixedText:
      return ColumnKind::kText;
    case Encoding::kFloat16:
    case Encoding::kFloat32:
    case Encoding::kFloat64:
      return ColumnKind::kNumber;
    default:
      return ColumnKind::kInteger;
  }
}

// Most texts are a few bytes long, for which a call of memcpy is dear.
inline void copy_text(char* to, const std::uint8_t* from, std::size_t bytes) noexcept {
  if (bytes > 16) {
    std::memcpy(to, from, bytes);
  } else if (bytes >= 8) {
    std::memcpy(to, from, 8);
    std::memcpy(to + bytes - 8, from + bytes - 8, 8);
  } else if (bytes >= 4) {
    std::memcpy(to, from, 4);
    std::memcpy(to + bytes - 4, from + bytes - 4, 4);
  } else {
    for (std::size_t i = 0; i < bytes; ++i) to[i] = static_cast<char>(from[i]);
  }
}

// One column of the row group under way: the rows up to end() are decoded, and some wait to be put
// into a record.
class Column {
 public:
  Column(int number, Encoding encoding, const parquet::ColumnDescriptor* descriptor)
      : number_(number),
        encoding_(encoding),
        nullable_(descriptor != nullptr && descriptor->max_definition_level() > 0),
        fixed_bytes_(encoding == Encoding::kFixedText
                         ? static_cast<std::size_t>(std::max(descriptor->type_length(), 0))
                         : 0) {}

  [[nodiscard]] int number() const noexcept { return number_; }
  [[nodiscard]] std::uint64_t end() const noexcept { return end_; }
  [[nodiscard]] const std::string& fault() const noexcept { return fault_; }

  // Begins a row group, or begins it again.
  void open(parquet::RowGroupReader& group, std::uint64_t row, std::int64_t batch_rows) noexcept {
    end_ = row;
    first_ = 0;
    batch_rows_ = batch_rows;
    text_.clear();
    ends_.clear();
    given_.clear();
    integers_.clear();
    numbers_.clear();
    nulls_ = 0;
    reader_.reset();
    fault_ = fault_of([&] {
      if (encoding_ == Encoding::kNothing) return;
      reader_ = group.Column(number_);
      skip(row);
    });
  }

  // Decodes up to that row, or to where the column is damaged: then fault() says why.
  void fill(std::uint64_t upto) noexcept {
    if (end_ >= upto || !fault_.empty()) return;
    drop_passed();
    fault_ = fault_of([&] {
      while (end_ < upto) {
        end_ += decode(static_cast<std::int64_t>(
            std::min(upto - end_, static_cast<std::uint64_t>(batch_rows_))));
      }
    });
  }

  // Of the next `rows` rows, all decoded.
  [[nodiscard]] std::uint64_t text_bytes(std::uint64_t rows) const noexcept {
    if (kind_of(encoding_) != ColumnKind::kText || rows == 0) return 0;
    return ends_.data()[first_ + rows - 1] - text_begin();
  }
  // At most, whatever is missing.
  [[nodiscard]] std::uint64_t bytes(std::uint32_t rows) const noexcept {
    return RowBatchWriter::column_bytes(kind_of(encoding_), nullable_, rows, text_bytes(rows));
  }
  struct Cut {
    ColumnKind kind = ColumnKind::kMissing;
    bool has_missing = false;
    std::uint64_t text_bytes = 0;
    [[nodiscard]] std::uint64_t bytes(std::uint32_t rows) const noexcept {
      return RowBatchWriter::column_bytes(kind, has_missing, rows, text_bytes);
    }
  };
  [[nodiscard]] Cut cut(std::uint32_t rows) const noexcept {
    Cut cut{kind_of(encoding_), false, text_bytes(rows)};
    if (cut.kind == ColumnKind::kText || cut.kind == ColumnKind::kInteger) {
      const std::uint64_t missing = missing_in(rows);
      if (missing == rows) return {};
      cut.has_missing = missing != 0;
    }
    if (encoding_ == Encoding::kUint64) {
      const std::int64_t* values = integers_.data() + first_;
      if (std::any_of(values, values + rows, [](std::int64_t value) { return value < 0; })) {
        cut = {ColumnKind::kNumber, false, 0};
      }
    }
    return cut;
  }
  void write(RowBatchWriter& writer, const Cut& cut, std::uint32_t rows) const noexcept {
    const RowBatchWriter::Column to = writer.add(cut.kind, cut.has_missing, cut.text_bytes);
    if (cut.has_missing) {
      std::memcpy(to.given.data(), given_.data() + first_, rows);
    }
    switch (cut.kind) {
      case ColumnKind::kText: {
        const std::uint64_t begin = text_begin();
        const std::uint64_t* ends = ends_.data() + first_;
        std::uint32_t* offsets = to.offsets.data();
        *offsets++ = 0;
        for (std::uint32_t i = 0; i < rows; ++i) {
          offsets[i] = static_cast<std::uint32_t>(ends[i] - begin);
        }
        if (cut.text_bytes != 0) std::memcpy(to.text, text_.data() + begin, cut.text_bytes);
        break;
      }
      case ColumnKind::kInteger:
        std::memcpy(to.integers.data(), integers_.data() + first_, 8 * std::size_t{rows});
        break;
      case ColumnKind::kNumber:
        if (encoding_ != Encoding::kUint64) {
          std::memcpy(to.numbers.data(), numbers_.data() + first_, 8 * std::size_t{rows});
          break;
        }
        for (std::uint32_t i = 0; i < rows; ++i) {
          const bool missing = nulls_ != 0 && given_.data()[first_ + i] == 0;
          to.numbers[i] =
              missing
                  ? std::numeric_limits<double>::quiet_NaN()
                  : static_cast<double>(static_cast<std::uint64_t>(integers_.data()[first_ + i]));
        }
        break;
      default:
        break;
    }
  }
  void pass(std::uint32_t rows) noexcept { first_ += rows; }

 private:
  [[nodiscard]] std::uint64_t text_begin() const noexcept {
    return first_ == 0 ? 0 : ends_.data()[first_ - 1];
  }
  [[nodiscard]] std::uint64_t missing_in(std::uint32_t rows) const noexcept {
    if (nulls_ == 0) return 0;
    const std::uint8_t* given = given_.data() + first_;
    return static_cast<std::uint64_t>(std::count(given, given + rows, std::uint8_t{0}));
  }

  // What has been passed is not needed; what waits moves to the front.
  void drop_passed() noexcept {
    if (first_ == 0) return;
    const std::size_t passed = std::exchange(first_, 0);
    switch (kind_of(encoding_)) {
      case ColumnKind::kText: {
        const std::uint64_t text = ends_.data()[passed - 1];
        text_.drop_front(text);
        ends_.drop_front(passed);
        for (std::size_t i = 0; i < ends_.size(); ++i) ends_.data()[i] -= text;
        break;
      }
      case ColumnKind::kInteger:
        integers_.drop_front(passed);
        break;
      case ColumnKind::kNumber:
        numbers_.drop_front(passed);
        break;
      default:
        return;
    }
    if (nullable_) {
      nulls_ -= static_cast<std::uint64_t>(
          std::count(given_.data(), given_.data() + passed, std::uint8_t{0}));
      given_.drop_front(passed);
    }
  }

  template <typename Type>
  parquet::TypedColumnReader<Type>& typed() {
    return static_cast<parquet::TypedColumnReader<Type>&>(*reader_);
  }

  void skip(std::uint64_t rows) {
    while (rows > 0) {
      std::int64_t passed = 0;
      const auto some = static_cast<std::int64_t>(rows);
      switch (encoding_) {
        case Encoding::kText:
          passed = typed<parquet::ByteArrayType>().Skip(some);
          break;
        case Encoding::kFixedText:
        case Encoding::kFloat16:
          passed = typed<parquet::FLBAType>().Skip(some);
          break;
        case Encoding::kBoolean:
          passed = typed<parquet::BooleanType>().Skip(some);
          break;
        case Encoding::kInt32:
        case Encoding::kUint32:
          passed = typed<parquet::Int32Type>().Skip(some);
          break;
        case Encoding::kInt64:
        case Encoding::kUint64:
          passed = typed<parquet::Int64Type>().Skip(some);
          break;
        case Encoding::kInt96:
          passed = typed<parquet::Int96Type>().Skip(some);
          break;
        case Encoding::kFloat32:
          passed = typed<parquet::FloatType>().Skip(some);
          break;
        case Encoding::kFloat64:
          passed = typed<parquet::DoubleType>().Skip(some);
          break;
        case Encoding::kNothing:
          return;
      }
      if (passed <= 0) throw Damage("the column ends early");
      rows -= static_cast<std::uint64_t>(passed);
    }
  }

  // Reads up to `rows` rows of one page, those that have a value to the front of `values`. Returns
  // the rows.
  template <typename Type>
  std::size_t read(std::int64_t rows, typename Type::c_type* values) {
    std::int64_t found = 0;
    const std::int64_t levels = typed<Type>().ReadBatch(rows, nullable_ ? levels_.data() : nullptr,
                                                        nullptr, values, &found);
    if (levels <= 0) throw Damage("the column ends early");
    if (levels > rows || found < 0 || found > levels || (!nullable_ && found != levels)) {
      throw Damage("the column has other values than it claims");
    }
    found_ = static_cast<std::size_t>(found);
    const auto count = static_cast<std::size_t>(levels);
    if (!nullable_) return count;
    std::uint8_t* given = given_.extend(count);
    if (found == levels) {
      std::memset(given, 1, count);
    } else {
      std::size_t there = 0;
      for (std::size_t i = 0; i < count; ++i) {
        given[i] = levels_[i] == 1 ? 1 : 0;
        there += given[i];
      }
      if (there != found_) throw Damage("the column has other values than it claims");
    }
    given_.added(count);
    nulls_ += count - found_;
    return count;
  }
  // Of the row read last: does it have a value?
  [[nodiscard]] bool dense(std::size_t rows) const noexcept { return found_ == rows; }

  // From the end on, so that nothing is overwritten before it has moved.
  template <typename T>
  void spread(T* values, std::size_t rows, T nothing) const noexcept {
    if (dense(rows)) return;
    const std::uint8_t* given = given_.data() + given_.size() - rows;
    std::size_t from = found_;
    for (std::size_t i = rows; i-- > 0;) values[i] = given[i] != 0 ? values[--from] : nothing;
  }

  template <typename Type, typename Convert>
  std::size_t integers(std::int64_t rows, std::vector<typename Type::c_type>& room,
                       Convert&& convert) {
    room.resize(kBatchRows);
    const std::size_t count = read<Type>(rows, room.data());
    std::int64_t* to = integers_.extend(count);
    for (std::size_t i = 0; i < found_; ++i) to[i] = convert(room[i]);
    spread<std::int64_t>(to, count, 0);
    integers_.added(count);
    return count;
  }

  template <typename Get>
  void texts(std::size_t count, Get&& get) {
    std::uint64_t* ends = ends_.extend(count);
    std::uint64_t end = ends_.size() == 0 ? 0 : ends_.data()[ends_.size() - 1];
    const std::uint64_t before = end;
    for (std::size_t i = 0; i < found_; ++i) ends[i] = end += get(i).second;
    char* at = text_.extend(end - before);
    for (std::size_t i = 0; i < found_; ++i) {
      const auto [from, bytes] = get(i);
      copy_text(at, from, bytes);
      at += bytes;
    }
    text_.added(end - before);
    if (!dense(count)) {
      const std::uint8_t* given = given_.data() + given_.size() - count;
      std::size_t from = found_;
      for (std::size_t i = count; i-- > 0;) {
        ends[i] = from == 0 ? before : ends[from - 1];
        from -= given[i];
      }
    }
    ends_.added(count);
  }

  std::uint64_t decode(std::int64_t rows) {
    rows = std::min(rows, kBatchRows);
    switch (encoding_) {
      case Encoding::kNothing:
        return static_cast<std::uint64_t>(rows);
      case Encoding::kText: {
        arrays_.resize(kBatchRows);
        const std::size_t count = read<parquet::ByteArrayType>(rows, arrays_.data());
        texts(count, [this](std::size_t i) {
          return std::pair<const std::uint8_t*, std::size_t>(arrays_[i].ptr, arrays_[i].len);
        });
        return count;
      }
      case Encoding::kFixedText: {
        fixed_.resize(kBatchRows);
        const std::size_t count = read<parquet::FLBAType>(rows, fixed_.data());
        texts(count, [this](std::size_t i) {
          return std::pair<const std::uint8_t*, std::size_t>(fixed_[i].ptr, fixed_bytes_);
        });
        return count;
      }
      case Encoding::kBoolean: {
        std::array<bool, kBatchRows> room;
        const std::size_t count = read<parquet::BooleanType>(rows, room.data());
        std::int64_t* to = integers_.extend(count);
        for (std::size_t i = 0; i < found_; ++i) to[i] = room[i] ? 1 : 0;
        spread<std::int64_t>(to, count, 0);
        integers_.added(count);
        return count;
      }
      case Encoding::kInt32:
        return integers<parquet::Int32Type>(rows, int32_, [](std::int32_t v) { return v; });
      case Encoding::kUint32:
        return integers<parquet::Int32Type>(
            rows, int32_, [](std::int32_t v) { return static_cast<std::uint32_t>(v); });
      case Encoding::kInt64:
      case Encoding::kUint64: {
        std::int64_t* to = integers_.extend(static_cast<std::size_t>(rows));
        const std::size_t count = read<parquet::Int64Type>(rows, to);
        spread<std::int64_t>(to, count, 0);
        integers_.added(count);
        return count;
      }
      case Encoding::kInt96:
        return integers<parquet::Int96Type>(rows, int96_, [](const parquet::Int96& v) {
          // Nanoseconds of the day, and the Julian day; 2440588 is that of 1970.
          const std::uint64_t nanos = std::uint64_t{v.value[1]} << 32 | v.value[0];
          const std::uint64_t day = std::uint64_t{v.value[2]} - 2440588;
          return static_cast<std::int64_t>(day * 86'400'000'000'000 + nanos);
        });
      case Encoding::kFloat16: {
        fixed_.resize(kBatchRows);
        const std::size_t count = read<parquet::FLBAType>(rows, fixed_.data());
        double* to = numbers_.extend(count);
        for (std::size_t i = 0; i < found_; ++i) {
          to[i] = arrow::util::Float16::FromLittleEndian(fixed_[i].ptr).ToDouble();
        }
        return numbers(to, count);
      }
      case Encoding::kFloat32: {
        floats_.resize(kBatchRows);
        const std::size_t count = read<parquet::FloatType>(rows, floats_.data());
        double* to = numbers_.extend(count);
        for (std::size_t i = 0; i < found_; ++i) to[i] = static_cast<double>(floats_[i]);
        return numbers(to, count);
      }
      case Encoding::kFloat64: {
        double* to = numbers_.extend(static_cast<std::size_t>(rows));
        return numbers(to, read<parquet::DoubleType>(rows, to));
      }
    }
    throw Damage("a column of an unknown kind");
  }
  std::size_t numbers(double* values, std::size_t count) {
    spread(values, count, std::numeric_limits<double>::quiet_NaN());
    numbers_.added(count);
    return count;
  }

  int number_;
  Encoding encoding_;
  bool nullable_;
  std::size_t fixed_bytes_;
  std::shared_ptr<parquet::ColumnReader> reader_;
  std::int64_t batch_rows_ = kBatchRows;
  std::string fault_;
  std::uint64_t end_ = 0;
  std::size_t first_ = 0;  // value of the next record's first row

  // Values of the rows up to end_, the first `first_` of which have been passed.
  Values<char> text_;
  Values<std::uint64_t> ends_;  // of each text in text_
  Values<std::int64_t> integers_;
  Values<double> numbers_;
  Values<std::uint8_t> given_;  // of a nullable column
  std::uint64_t nulls_ = 0;     // in given_

  // Of one batch.
  std::size_t found_ = 0;
  std::vector<std::int16_t> levels_ = std::vector<std::int16_t>(kBatchRows);
  std::vector<parquet::ByteArray> arrays_;
  std::vector<parquet::FixedLenByteArray> fixed_;
  std::vector<std::int32_t> int32_;
  std::vector<parquet::Int96> int96_;
  std::vector<float> floats_;
};

class ParquetFile final : public RowFile {
 public:
  ParquetFile(int fd, const FileVersion& version, const std::vector<ColumnWish>& wishes,
              std::uint32_t threads)
      : version_(version), found_(wishes.size()) {
    auto opened = arrow::io::ReadableFile::Open(fd, arrow::default_memory_pool());
    if (!opened.ok()) {
      ::close(fd);
      throw Damage(opened.status().ToString());
    }
    file_ = *opened;
    parquet::ReaderProperties properties = parquet_properties(pools_, kArrowMemoryBytes);
    const std::shared_ptr<parquet::FileMetaData> metadata =
        parquet::ParquetFileReader::Open(file_, properties)->metadata();
    std::int64_t largest = 0;
    for (int i = 0; i < metadata->num_row_groups(); ++i) {
      const auto group = metadata->RowGroup(i);
      if (group->num_rows() < 0) throw Damage("a row group has a negative number of rows");
      rows_.push_back(static_cast<std::uint64_t>(group->num_rows()));
      largest = std::max(largest, group->total_byte_size());
    }
    properties = parquet_properties(
        pools_, std::min(kArrowMemoryBytes + 3 * std::min(largest, kArrowMemoryBytesMax),
                         kArrowMemoryBytesMax));
    reader_ = parquet::ParquetFileReader::Open(file_, properties, metadata);

    const parquet::SchemaDescriptor& schema = *metadata->schema();
    const parquet::schema::GroupNode& root = *schema.group_node();
    for (std::size_t i = 0; i < wishes.size(); ++i) {
      const int field = root.FieldIndex(wishes[i].name);
      if (field < 0) continue;
      const parquet::schema::Node& node = *root.field(field);
      const Fit fit = fit_of(schema, node, wishes[i].type);
      found_[i] = {.there = true, .fits = fit.fits, .type = fit.type};
      if (!fit.fits) continue;
      const int number = schema.ColumnIndex(node);
      column_of_.resize(wishes.size(), -1);
      column_of_[i] = static_cast<int>(columns_.size());
      columns_.push_back(std::make_unique<Column>(number, fit.encoding, schema.Column(number)));
    }
    column_of_.resize(wishes.size(), -1);
    cuts_.resize(columns_.size());
    if (threads > 1 && columns_.size() > 1) {
      auto pool = arrow::internal::ThreadPool::Make(static_cast<int>(threads) - 1);
      if (pool.ok()) pool_ = *pool;
    }
  }

  [[nodiscard]] const FileVersion& version() const noexcept override { return version_; }
  [[nodiscard]] const std::vector<ColumnFound>& columns() const noexcept override { return found_; }
  [[nodiscard]] std::vector<std::string> column_names() const override {
    std::vector<std::string> names;
    const parquet::schema::GroupNode& root = *reader_->metadata()->schema()->group_node();
    for (int i = 0; i < root.field_count(); ++i) names.push_back(root.field(i)->name());
    return names;
  }
  [[nodiscard]] const std::vector<std::uint64_t>& row_groups() const noexcept override {
    return rows_;
  }

  void seek(std::uint32_t row_group, std::uint64_t row) noexcept override {
    group_ = row_group;
    row_ = row;
    careful_ = false;
    open(kBatchRows);
  }

  [[nodiscard]] Next next(const RecordLimits& limits, std::size_t path_bytes) noexcept override {
    if (next_rows_ != 0) return {Kind::kRows, next_rows_, next_bytes_};
    const std::uint64_t left = rows_[group_] - row_;
    if (left == 0) return {};
    const std::uint64_t head =
        RowBatchWriter::head_bytes(static_cast<std::uint32_t>(found_.size()), path_bytes);
    std::uint64_t have = 0;
    std::uint32_t rows = 0;
    for (std::uint64_t want = guess_;;) {
      want = std::min({want, left, std::uint64_t{limits.rows}});
      if (!fill(row_ + want)) {
        if (!careful_) {
          // Where exactly it is damaged must not depend on how many rows are decoded at once.
          careful_ = true;
          open(1);
          have = 0;
          continue;
        }
      }
      have = std::min(want, decoded() - row_);
      rows = fitting(static_cast<std::uint32_t>(have), head, limits.bytes);
      if (rows < have || have == left || have == limits.rows || have < want) break;
      const std::uint64_t bytes = std::max<std::uint64_t>(bytes_of(rows, head), 1);
      want = have + 1 +
             std::max(have / 8, (limits.bytes - std::min(bytes, limits.bytes)) * have / bytes);
    }
    if (rows == 0 && have == 0) return {Kind::kDamaged, 0, 0, fault()};
    if (rows == 0) {
      if (bytes_of(1, head) > limits.bytes_max) {
        return {Kind::kTooLarge, 0, bytes_of(1, head), {}};
      }
      rows = 1;
    }
    next_rows_ = rows;
    next_bytes_ = head;
    for (std::size_t i = 0; i < columns_.size(); ++i) {
      cuts_[i] = columns_[i]->cut(rows);
      next_bytes_ += cuts_[i].bytes(rows);
    }
    return {Kind::kRows, next_rows_, next_bytes_};
  }

  void write(std::span<std::byte> out, RowBatchHead head, std::string_view path) noexcept override {
    head.rows = next_rows_;
    head.columns = static_cast<std::uint32_t>(found_.size());
    head.path_bytes = static_cast<std::uint32_t>(path.size());
    RowBatchWriter writer(out, head, path);
    for (const int number : column_of_) {
      if (number < 0) {
        static_cast<void>(writer.add(ColumnKind::kAbsent, false, 0));
      } else {
        columns_[static_cast<std::size_t>(number)]->write(
            writer, cuts_[static_cast<std::size_t>(number)], next_rows_);
      }
    }
    RF_CHECK(writer.bytes() == next_bytes_, writer.bytes(), next_bytes_);
  }

  void pass(std::uint32_t rows) noexcept override {
    row_ += rows;
    for (const auto& column : columns_) column->pass(rows);
    next_rows_ = 0;
    // Decoding as many again as a record took is mostly enough, and not many too many.
    guess_ = std::max<std::uint64_t>(rows + rows / 16, kFirstGuessRows);
  }

 private:
  // Begins the row group anew, at row_.
  void open(std::int64_t batch_rows) noexcept {
    next_rows_ = 0;
    group_fault_ = fault_of([&] { group_reader_ = reader_->RowGroup(static_cast<int>(group_)); });
    if (!group_fault_.empty()) return;
    for (const auto& column : columns_) column->open(*group_reader_, row_, batch_rows);
  }

  // Decodes up to that row of the row group; false: it could not, in some column.
  bool fill(std::uint64_t upto) noexcept {
    if (!group_fault_.empty()) return false;
    if (pool_ == nullptr) {
      for (const auto& column : columns_) column->fill(upto);
    } else {
      fill_in_threads(upto);
    }
    return fault().empty();
  }
  void fill_in_threads(std::uint64_t upto) noexcept {
    std::vector<arrow::Future<>> under_way;
    Column* own = nullptr;
    for (const auto& column : columns_) {
      if (column->end() >= upto) continue;
      // More than is needed now, so that threads are worth their while.
      const std::uint64_t ahead = std::min(upto + kBatchRows, rows_[group_]);
      if (own == nullptr) {
        own = column.get();
        continue;
      }
      auto submitted = pool_->Submit([at = column.get(), ahead] { at->fill(ahead); });
      if (submitted.ok()) {
        under_way.push_back(*submitted);
      } else {
        column->fill(upto);
      }
    }
    if (own != nullptr) own->fill(std::min(upto + kBatchRows, rows_[group_]));
    for (const auto& future : under_way) future.Wait();
  }
  // Rows of the row group up to which all columns have been decoded.
  [[nodiscard]] std::uint64_t decoded() const noexcept {
    if (!group_fault_.empty()) return row_;
    std::uint64_t rows = rows_[group_];
    for (const auto& column : columns_) rows = std::min(rows, std::max(row_, column->end()));
    return rows;
  }
  [[nodiscard]] std::string fault() const {
    if (!group_fault_.empty()) return group_fault_;
    for (const auto& column : columns_) {
      if (column->fault().empty()) continue;
      return fmt::format("column {}: {}",
                         reader_->metadata()->schema()->Column(column->number())->name(),
                         column->fault());
    }
    return {};
  }

  [[nodiscard]] std::uint64_t bytes_of(std::uint32_t rows, std::uint64_t head) const noexcept {
    std::uint64_t bytes = head;
    for (const auto& column : columns_) bytes += column->bytes(rows);
    return bytes;
  }
  // The most rows of `have` that take at most `bytes`.
  [[nodiscard]] std::uint32_t fitting(std::uint32_t have, std::uint64_t head,
                                      std::uint64_t bytes) const noexcept {
    if (bytes_of(have, head) <= bytes) return have;
    std::uint32_t fits = 0;
    std::uint32_t too_many = have;
    while (too_many - fits > 1) {
      const std::uint32_t middle = fits + (too_many - fits) / 2;
      (bytes_of(middle, head) <= bytes ? fits : too_many) = middle;
    }
    return fits;
  }

  FileVersion version_;
  std::vector<ColumnFound> found_;  // by wish
  std::vector<int> column_of_;      // by wish; -1: absent
  std::vector<std::uint64_t> rows_;
  std::vector<std::unique_ptr<arrow::MemoryPool>> pools_;
  std::shared_ptr<arrow::io::ReadableFile> file_;
  std::unique_ptr<parquet::ParquetFileReader> reader_;
  std::shared_ptr<parquet::RowGroupReader> group_reader_;
  std::string group_fault_;
  std::vector<std::unique_ptr<Column>> columns_;
  std::shared_ptr<arrow::internal::ThreadPool> pool_;

  std::uint32_t group_ = 0;
  std::uint64_t row_ = 0;  // of the row group; the next record's first
  bool careful_ = false;
  std::uint64_t guess_ = kFirstGuessRows;
  std::vector<Column::Cut> cuts_;  // of the record that next() has found
  std::uint32_t next_rows_ = 0;    // 0: none
  std::uint64_t next_bytes_ = 0;
};

}  // namespace

Result<std::unique_ptr<RowFile>> open_parquet_file(const std::string& path,
                                                   const std::vector<ColumnWish>& wishes,
                                                   std::uint32_t threads) {
  Result<shm::Fd> opened = shm::open_regular(path);
  if (!opened) return opened.error();
  struct stat info {};
  if (::fstat(opened->get(), &info) != 0) return Error(ErrorCode::kIo, std::strerror(errno));
  const FileVersion version = version_of(info);
  const int fd = opened->release();
  std::unique_ptr<RowFile> file;
  const std::string fault =
      fault_of([&] { file = std::make_unique<ParquetFile>(fd, version, wishes, threads); });
  if (!fault.empty()) return Error(ErrorCode::kDamaged, fault);
  return file;
}

}  // namespace ringfeed::formats
