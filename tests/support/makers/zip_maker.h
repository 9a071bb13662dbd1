// ZipMaker: zips of stored and deflated members, with and without the numbers of zip64.
#pragma once

#include <libdeflate.h>

#include <concepts>
#include <cstdint>
#include <string>
#include <string_view>

#include "ringfeed/shm/result.h"

namespace ringfeed::testing {

struct ZipOptions {
  bool deflated = false;
  bool zip64 = false;  // sizes and place stand in the extra field
  std::uint16_t flags = 0;
};

class ZipMaker {
 public:
  void add(std::string_view name, std::string_view data, ZipOptions options = {}) {
    const std::string packed = options.deflated ? deflate(data) : std::string(data);
    const std::uint32_t crc = ::libdeflate_crc32(0, data.data(), data.size());
    const std::uint64_t at = bytes_.size();
    const auto sizes = [&](std::string& to) {
      put<std::uint32_t>(to, crc);
      put(to, options.zip64 ? 0xffffffff : static_cast<std::uint32_t>(packed.size()));
      put(to, options.zip64 ? 0xffffffff : static_cast<std::uint32_t>(data.size()));
    };
    const auto kind = [&](std::string& to) {
      put<std::uint16_t>(to, 45);
      put<std::uint16_t>(to, options.flags);
      put<std::uint16_t>(to, options.deflated ? 8 : 0);
      put<std::uint32_t>(to, 0);
    };
    std::string extra;
    if (options.zip64) {
      // One that is not known comes first.
      put<std::uint16_t>(extra, 0x9999);
      put<std::uint16_t>(extra, 3);
      extra += "abc";
      put<std::uint16_t>(extra, 1);
      put<std::uint16_t>(extra, 24);
      put<std::uint64_t>(extra, data.size());
      put<std::uint64_t>(extra, packed.size());
      put<std::uint64_t>(extra, at);
    }
    put<std::uint32_t>(bytes_, 0x04034b50);
    kind(bytes_);
    sizes(bytes_);
    put(bytes_, static_cast<std::uint16_t>(name.size()));
    put(bytes_, static_cast<std::uint16_t>(extra.size()));
    bytes_ += name;
    bytes_ += extra;
    bytes_ += packed;
    put<std::uint32_t>(directory_, 0x02014b50);
    put<std::uint16_t>(directory_, 45);
    kind(directory_);
    sizes(directory_);
    put(directory_, static_cast<std::uint16_t>(name.size()));
    put(directory_, static_cast<std::uint16_t>(extra.size()));
    put<std::uint16_t>(directory_, 2);  // of a comment
    directory_.append(8, '\0');
    put(directory_, options.zip64 ? 0xffffffff : static_cast<std::uint32_t>(at));
    directory_ += name;
    directory_ += extra;
    directory_ += "co";
    ++entries_;
  }

  [[nodiscard]] std::string finish(bool zip64 = false, std::string_view comment = {}) const {
    std::string all = bytes_ + directory_;
    if (zip64) {
      const std::uint64_t at = all.size();
      put<std::uint32_t>(all, 0x06064b50);
      put<std::uint64_t>(all, 44);
      put<std::uint32_t>(all, 45 | 45 << 16);
      put<std::uint64_t>(all, 0);
      put<std::uint64_t>(all, entries_);
      put<std::uint64_t>(all, entries_);
      put<std::uint64_t>(all, directory_.size());
      put<std::uint64_t>(all, bytes_.size());
      put<std::uint32_t>(all, 0x07064b50);
      put<std::uint32_t>(all, 0);
      put<std::uint64_t>(all, at);
      put<std::uint32_t>(all, 1);
    }
    put<std::uint32_t>(all, 0x06054b50);
    put<std::uint32_t>(all, 0);
    put<std::uint16_t>(all, zip64 ? 0xffff : entries_);
    put<std::uint16_t>(all, zip64 ? 0xffff : entries_);
    put(all, zip64 ? 0xffffffff : static_cast<std::uint32_t>(directory_.size()));
    put(all, zip64 ? 0xffffffff : static_cast<std::uint32_t>(bytes_.size()));
    put(all, static_cast<std::uint16_t>(comment.size()));
    return all.append(comment);
  }

 private:
  template <std::integral T>
  static void put(std::string& to, T value) {
    to.append(reinterpret_cast<const char*>(&value), sizeof value);
  }
  static std::string deflate(std::string_view data) {
    libdeflate_compressor* const own = ::libdeflate_alloc_compressor(6);
    RF_CHECK(own != nullptr, data.size());
    std::string out(::libdeflate_deflate_compress_bound(own, data.size()), '\0');
    out.resize(
        ::libdeflate_deflate_compress(own, data.data(), data.size(), out.data(), out.size()));
    ::libdeflate_free_compressor(own);
    return out;
  }

  std::string bytes_;
  std::string directory_;
  std::uint16_t entries_ = 0;
};

}  // namespace ringfeed::testing
