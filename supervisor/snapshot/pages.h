// The contents of a segment as pages with a hash each: what has changed since it was last written
// is found by hashing again, so no process has to tell what it changes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "ringfeed/shm/abi.h"

namespace ringfeed::snapshot {

// XXH3-64 of one page.
[[nodiscard]] std::uint64_t page_hash(const std::byte* page) noexcept;
// Of a page of zeros: nothing is written for it until something else has stood there.
[[nodiscard]] std::uint64_t zero_page_hash() noexcept;
// XXH3-128 over the hashes of all pages, as 32 hexadecimal digits.
[[nodiscard]] std::string digest_of(std::span<const std::uint64_t> hashes);

}  // namespace ringfeed::snapshot
