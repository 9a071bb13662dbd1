#include "workers/samples/array_rows.h"

#include <fmt/format.h>
#include <simdjson.h>

#include <algorithm>
#include <bit>
#include <charconv>
#include <cstring>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "workers/samples/numbers.h"

namespace ringfeed {
namespace {

static_assert(std::endian::native == std::endian::little);

using Kind = ArrayColumn::Kind;

Error unsupported(std::string text) { return {ErrorCode::kUnsupported, std::move(text)}; }

// The numbers of a kind and size, if a sample has such.
std::optional<SampleDtype> number_dtype(char kind, std::uint64_t bytes) {
  // Dates and times are whole numbers in their unit.
  if ((kind == 'M' || kind == 'm') && bytes == 8) return SampleDtype::kInt64;
  for (std::size_t i = 0; i < kSampleDtypes.size(); ++i) {
    const auto dtype = static_cast<SampleDtype>(i);
    const std::string_view name = dtype_name(dtype);
    const char letter = name == "bool"                ? 'b'
                        : name.starts_with("int")     ? 'i'
                        : name.starts_with("uint")    ? 'u'
                        : name.starts_with("float")   ? 'f'
                        : name.starts_with("complex") ? 'c'
                                                      : '\0';
    if (letter == kind && bytes == dtype_bytes(dtype)) return dtype;
  }
  return std::nullopt;
}

Result<ArrayColumn> column_of(std::string_view descr) {
  const auto refuse = [&] {
    return unsupported(fmt::format("its elements are {}, which no sample has", descr));
  };
  if (descr == "|O") return unsupported("its elements are |O: pickled objects are not read");
  if (descr.size() < 3 || std::string_view("<>|=").find(descr[0]) == std::string_view::npos) {
    return refuse();
  }
  ArrayColumn column;
  std::uint64_t size = 0;
  // Behind the size of dates there is their unit.
  const char* const end = descr.data() + descr.size();
  const auto [stop, error] = std::from_chars(descr.data() + 2, end, size);
  const bool dated = descr[1] == 'M' || descr[1] == 'm';
  if (error != std::errc() || (stop != end && !(dated && *stop == '['))) return refuse();
  if (size > 0xffffffff) return refuse();
  switch (descr[1]) {
    case 'U':
      column.kind = Kind::kText;
      column.dtype = SampleDtype::kText;
      column.bytes = 4 * size;
      column.swap_bytes = descr[0] == '>' ? 4 : 0;
      return column;
    case 'S':
    case 'a':
      column.kind = Kind::kBytes;
      column.bytes = size;
      return column;
    case 'V':
      column.kind = Kind::kRaw;
      column.bytes = size;
      return column;
    default:
      break;
  }
  const std::optional<SampleDtype> dtype = number_dtype(descr[1], size);
  if (!dtype) return refuse();
  column.dtype = *dtype;
  column.bytes = size;
  const auto one = static_cast<std::uint32_t>(descr[1] == 'c' ? size / 2 : size);
  column.swap_bytes = descr[0] == '>' && one > 1 ? one : 0;
  return column;
}

// Behind the axes of a row come those of a member.
Status add_shape(std::span<const std::uint64_t> axes, std::span<const std::uint64_t> inner,
                 ArrayColumn& column) {
  if (axes.size() + inner.size() > sample::kDimsMax) {
    return unsupported(fmt::format("it has {} axes, a sample at most {}",
                                   axes.size() + inner.size(), sample::kDimsMax));
  }
  for (const std::span<const std::uint64_t> some : {axes, inner}) {
    for (const std::uint64_t size : some) {
      if (size > 0xffffffff) return unsupported("its rows are larger than any sample");
      column.shape.push_back(static_cast<std::uint32_t>(size));
    }
  }
  if (column.kind != Kind::kNumbers) {
    if (!column.shape.empty()) return unsupported("its rows have several strings each");
    return {};
  }
  if (!array_bytes(column.dtype, column.shape)) {
    return unsupported("its rows are larger than any sample");
  }
  for (const std::uint64_t size : inner) column.bytes *= size;
  return {};
}

void swap(std::span<std::byte> numbers, std::size_t bytes) {
  for (std::size_t at = 0; at < numbers.size(); at += bytes) {
    std::ranges::reverse(numbers.subspan(at, bytes));
  }
}

// False: a letter is none of Unicode's.
bool put_utf8(std::span<const std::byte> letters, std::vector<std::byte>& to) {
  to.clear();
  const auto put = [&](std::uint32_t byte) { to.push_back(static_cast<std::byte>(byte)); };
  std::size_t count = letters.size() / 4;
  const auto at = [&](std::size_t i) {
    std::uint32_t code = 0;
    std::memcpy(&code, letters.data() + 4 * i, 4);
    return code;
  };
  while (count != 0 && at(count - 1) == 0) --count;
  for (std::size_t i = 0; i < count; ++i) {
    const std::uint32_t code = at(i);
    if (code > 0x10ffff || (code >= 0xd800 && code < 0xe000)) return false;
    if (code < 0x80) {
      put(code);
      continue;
    }
    if (code < 0x800) {
      put(0xc0 | code >> 6);
    } else {
      if (code < 0x10000) {
        put(0xe0 | code >> 12);
      } else {
        put(0xf0 | code >> 18);
        put(0x80 | (code >> 12 & 63));
      }
      put(0x80 | (code >> 6 & 63));
    }
    put(0x80 | (code & 63));
  }
  return true;
}

}  // namespace

Result<ArrayRows> array_rows(const formats::NpyHead& head) {
  ArrayRows array;
  if (head.shape.empty()) return unsupported("it is a single number and has no rows");
  array.rows = head.shape.front();
  array.axes.assign(head.shape.begin() + 1, head.shape.end());
  array.columns_first = head.fortran_order && !array.axes.empty();
  const bool records = !head.members.empty();
  const std::vector<formats::NpyMember> plain = {{.name = "", .descr = head.descr, .shape = {}}};
  for (const formats::NpyMember& member : records ? head.members : plain) {
    Result<ArrayColumn> column = column_of(member.descr);
    if (!column && records) {
      return unsupported(fmt::format("member '{}': {}", member.name, column.error().message()));
    }
    if (!column) return column.error();
    column->name = member.name;
    column->offset = array.element_bytes;
    const bool filler = records && member.name.empty();
    if (Status shaped = add_shape(array.axes, member.shape, *column); !shaped && !filler) {
      return shaped.error();
    }
    array.element_bytes += column->bytes;
    if (!filler) array.columns.push_back(std::move(*column));
  }
  if (array.columns.empty()) return unsupported("its records have no members");
  constexpr std::uint64_t kMost = 0xffffffff;
  const bool empty = std::ranges::find(array.axes, std::uint64_t{0}) != array.axes.end();
  array.cells = empty ? 0 : 1;
  for (const std::uint64_t size : array.axes) {
    array.cells *= size;
    if (array.cells > kMost) return unsupported("its rows are larger than any sample");
  }
  if (array.element_bytes > kMost || array.cells * array.element_bytes > kMost) {
    return unsupported("its rows are larger than any sample");
  }
  array.row_bytes = array.cells * array.element_bytes;
  return array;
}

void put_cells(const ArrayRows& array, std::uint64_t cell, std::span<const std::byte> cells,
               std::span<std::byte> rows) noexcept {
  std::uint64_t place = 0;
  for (const std::uint64_t size : array.axes) {
    place = place * size + cell % size;
    cell /= size;
  }
  const std::uint64_t bytes = array.element_bytes;
  std::byte* to = rows.data() + place * bytes;
  for (std::size_t at = 0; at < cells.size(); at += bytes, to += array.row_bytes) {
    std::memcpy(to, cells.data() + at, bytes);
  }
}

Result<RowFields> RowFields::make(const ArrayRows& array, std::string_view name,
                                  const std::vector<WantedField>& wanted, std::string_view before) {
  RowFields rows;
  rows.cells_ = array.cells;
  rows.element_bytes_ = array.element_bytes;
  const auto add = [&](const ArrayColumn& column, WantedField field) -> Status {
    const SampleDtype dtype = field.dtype.value_or(column.dtype);
    const bool numbers = column.kind == Kind::kNumbers;
    if (is_array(dtype) != numbers || (numbers && !can_become(column.dtype, dtype))) {
      return unsupported(fmt::format("its elements are {}, which cannot be {}",
                                     dtype_name(column.dtype), dtype_name(dtype)));
    }
    field.dtype = dtype;
    rows.parts_.push_back({.column = column, .field = std::move(field)});
    return {};
  };
  if (array.columns.size() == 1 && array.columns.front().name.empty()) {
    const WantedField own{.name = std::string(name), .as = std::string(name)};
    const Status added = add(array.columns.front(), wanted.empty() ? own : wanted.front());
    return added ? Result<RowFields>(std::move(rows)) : Result<RowFields>(added.error());
  }
  std::vector<WantedField> all = wanted;
  for (const ArrayColumn& column : array.columns) {
    if (wanted.empty()) all.push_back({column.name, std::string(before) + column.name});
  }
  for (const WantedField& field : all) {
    const auto found = std::ranges::find(array.columns, field.name, &ArrayColumn::name);
    if (found != array.columns.end()) {
      if (Status added = add(*found, field); !added) {
        return unsupported(fmt::format("member '{}': {}", field.name, added.error().message()));
      }
    } else if (field.is_needed()) {
      return Error{ErrorCode::kNotFound, fmt::format("its records have no '{}'", field.name)};
    } else if (field.default_value) {
      rows.parts_.push_back({.column = {}, .field = field, .absent = true});
    }
  }
  return rows;
}

std::string RowFields::add(std::span<const std::byte> row, std::vector<SampleField>& fields) {
  for (Part& part : parts_) {
    const ArrayColumn& column = part.column;
    if (part.absent) {
      fields.push_back(part.field.by_default());
      continue;
    }
    SampleField field{
        .name = part.field.as, .dtype = *part.field.dtype, .shape = column.shape, .data = row};
    if (column.bytes != element_bytes_ || column.swap_bytes != 0) {
      part.gathered.resize(cells_ * column.bytes);
      for (std::uint64_t cell = 0; cell < cells_ && column.bytes != 0; ++cell) {
        std::memcpy(part.gathered.data() + cell * column.bytes,
                    row.data() + cell * element_bytes_ + column.offset, column.bytes);
      }
      if (column.swap_bytes != 0) swap(part.gathered, column.swap_bytes);
      field.data = part.gathered;
    }
    const auto cannot = [&](std::string_view what) {
      return fmt::format("field '{}' has {} that {} cannot hold", field.name, what,
                         dtype_name(field.dtype));
    };
    switch (column.kind) {
      case Kind::kNumbers:
        if (field.dtype == column.dtype) break;
        if (!convert_numbers(field.data, column.dtype, field.dtype, part.converted)) {
          return cannot("a number");
        }
        field.data = part.converted;
        break;
      case Kind::kText:
        if (!put_utf8(field.data, part.converted)) return cannot("a letter");
        field.data = part.converted;
        break;
      case Kind::kBytes:
        while (!field.data.empty() && field.data.back() == std::byte{0}) {
          field.data = field.data.first(field.data.size() - 1);
        }
        break;
      case Kind::kRaw:
        break;
    }
    const std::string_view text(reinterpret_cast<const char*>(field.data.data()),
                                field.data.size());
    if (field.dtype == SampleDtype::kText && column.kind != Kind::kText &&
        !simdjson::validate_utf8(text)) {
      return cannot("bytes");
    }
    fields.push_back(field);
  }
  return {};
}

}  // namespace ringfeed
