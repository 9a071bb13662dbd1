#include "supervisor/snapshot/pages.h"

#include <fmt/format.h>
#include <xxhash.h>

namespace ringfeed::snapshot {

std::uint64_t page_hash(const std::byte* page) noexcept {
  return ::XXH3_64bits(page, shm::kPageBytes);
}

std::uint64_t zero_page_hash() noexcept {
  static const std::uint64_t hash = [] {
    alignas(64) const std::byte zeros[shm::kPageBytes] = {};
    return page_hash(zeros);
  }();
  return hash;
}

std::string digest_of(std::span<const std::uint64_t> hashes) {
  const ::XXH128_hash_t digest = ::XXH3_128bits(hashes.data(), hashes.size_bytes());
  return fmt::format("{:016x}{:016x}", digest.high64, digest.low64);
}

}  // namespace ringfeed::snapshot
