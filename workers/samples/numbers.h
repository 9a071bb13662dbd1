// Numbers of a sample as another type has them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "ringfeed/worker/sample.h"

namespace ringfeed {

// The nearest, ties to even; beyond the largest it is infinite, as for every narrowing of floats.
[[nodiscard]] std::uint16_t to_half(double value);
[[nodiscard]] std::uint16_t to_bfloat16(double value);
[[nodiscard]] double from_half(std::uint16_t bits);

// Whether numbers of one type may be wanted as another at all: numbers and truth values (0 and 1)
// as any numbers, complex ones and truth values as they are.
[[nodiscard]] bool can_become(SampleDtype from, SampleDtype to) noexcept;

// Puts the numbers into `to`, which is emptied first. False: one of them is out of the type's
// range, which finite ones are that would become infinite, or has a fraction that the type has not,
// or can_become() says no.
[[nodiscard]] bool convert_numbers(std::span<const std::byte> numbers, SampleDtype from,
                                   SampleDtype dtype, std::vector<std::byte>& to);

// Whether numbers of one type may be taken for those of another as long as none of them changes:
// whole ones for others and for floats, floats for whole ones, truth values for whole ones. Floats
// are taken for floats of any size: what is written 0.1 is in none of them, but next to one of
// each.
[[nodiscard]] bool can_stay(SampleDtype from, SampleDtype to) noexcept;

// As convert_numbers(), but rounds nothing other than floats. False: a number would change, or a
// finite one become infinite, or can_stay() says no.
[[nodiscard]] bool convert_exactly(std::span<const std::byte> numbers, SampleDtype from,
                                   SampleDtype dtype, std::vector<std::byte>& to);

}  // namespace ringfeed
