#include "supervisor/peek/saved.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <system_error>

#include "ringfeed/shm/quote.h"
#include "ringfeed/shm/segment.h"

namespace ringfeed::peek {
namespace {

[[noreturn]] void refuse(const std::filesystem::path& path, int error) {
  throw Error(ErrorCode::kIo,
              fmt::format("{} cannot be written: {}: give another directory with --save",
                          escaped(path.string()), std::strerror(error)));
}

void write_all(int fd, std::string_view bytes, const std::filesystem::path& path) {
  while (!bytes.empty()) {
    const ssize_t n = ::write(fd, bytes.data(), bytes.size());
    if (n < 0 && errno != EINTR) refuse(path, errno);
    if (n > 0) bytes.remove_prefix(static_cast<std::size_t>(n));
  }
}

// As NumPy's files name a type; of one that it lacks, its bytes.
std::string descr_of(const ObservedArray& array) {
  struct Known {
    std::string_view dtype;
    std::string_view descr;
  };
  constexpr std::array<Known, 15> kKnown{{{"bool", "|b1"},
                                          {"int8", "|i1"},
                                          {"int16", "<i2"},
                                          {"int32", "<i4"},
                                          {"int64", "<i8"},
                                          {"uint8", "|u1"},
                                          {"uint16", "<u2"},
                                          {"uint32", "<u4"},
                                          {"uint64", "<u8"},
                                          {"float16", "<f2"},
                                          {"bfloat16", "<u2"},
                                          {"float32", "<f4"},
                                          {"float64", "<f8"},
                                          {"complex64", "<c8"},
                                          {"complex128", "<c16"}}};
  const auto found = std::ranges::find(kKnown, array.dtype, &Known::dtype);
  if (found != kKnown.end()) return std::string(found->descr);
  return fmt::format("|V{}", array.item_bytes);
}

}  // namespace

std::string file_name(std::string_view name) {
  std::string safe;
  for (const char c : name.substr(0, 100)) {
    const bool plain = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
                       c == '_' || c == '-' || (c == '.' && !safe.empty());
    safe += plain ? c : '_';
  }
  return safe.empty() ? "_" : safe;
}

const std::string& FileNames::of(const std::string& name) {
  const auto [known, fresh] = names_.try_emplace(name, file_name(name));
  std::string& file = known->second;
  for (std::size_t i = 2; fresh && !taken_.insert(file).second; ++i) {
    file = fmt::format("{}~{}", file_name(name), i);
  }
  return file;
}

std::filesystem::path make_directory(const std::filesystem::path& parent, const std::string& feed,
                                     const ObservedBatch& batch) {
  std::string name = file_name(feed);
  if (!batch.output().empty()) name += "-" + file_name(batch.output());
  std::filesystem::path directory = parent / fmt::format("{}-{:09}", name, batch.number());
  std::error_code error;
  std::filesystem::create_directories(directory, error);
  if (error) refuse(directory, error.value());
  return directory;
}

void save_file(const std::filesystem::path& path, std::string_view head, std::string_view bytes) {
  std::string beside = path.string() + ".XXXXXX";
  const shm::Fd fd(::mkostemp(beside.data(), O_CLOEXEC));
  if (!fd) refuse(path, errno);
  try {
    write_all(fd.get(), head, path);
    write_all(fd.get(), bytes, path);
    if (::rename(beside.c_str(), path.c_str()) != 0) refuse(path, errno);
  } catch (...) {
    ::unlink(beside.c_str());
    throw;
  }
}

// Version 1.0 of the format: magic, length, a dictionary, padded so that the data is at 64.
void save_array(const std::filesystem::path& path, const ObservedArray& array) {
  std::string shape;
  for (const std::uint64_t size : array.shape) shape += fmt::format("{}, ", size);
  std::string said = fmt::format("{{'descr': '{}', 'fortran_order': False, 'shape': ({}), }}",
                                 descr_of(array), shape);
  constexpr std::size_t kBefore = 10;
  said.append(63 - (kBefore + said.size()) % 64, ' ');
  said += '\n';
  std::string head{"\x93NUMPY\x01\x00", 8};
  head += static_cast<char>(said.size() & 0xff);
  head += static_cast<char>(said.size() >> 8 & 0xff);
  head += said;
  save_file(path, head, {reinterpret_cast<const char*>(array.bytes.data()), array.bytes.size()});
}

}  // namespace ringfeed::peek
