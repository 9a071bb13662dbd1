// Names: which are valid, and which one was probably meant.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>

namespace ringfeed::config {

inline constexpr std::size_t kNameLengthMax = 64;

// 1 to 64 characters out of A-Z a-z 0-9 _ . - that begin with none of the last two: feeds and
// consumer groups. "-rf" and "--now" are options to whoever types them, ".." is a directory.
[[nodiscard]] bool valid_feed_name(std::string_view name) noexcept;
// The same without the dot, which separates stage and port: stages and stage groups.
[[nodiscard]] bool valid_stage_name(std::string_view name) noexcept;

// Letters to insert, delete, replace or swap with their neighbour to make one out of the other;
// upper and lower case count as equal.
[[nodiscard]] std::size_t edit_distance(std::string_view a, std::string_view b);

// The candidate that was probably meant, or "" if none is near: at most a third of the letters
// differ, or one of the two begins with the other. Ties go to the earlier candidate.
[[nodiscard]] std::string_view nearest_name(std::string_view name,
                                            std::span<const std::string> candidates);

// "; did you mean 'x'?", or, where nothing is near, "; <otherwise> a, b, c" ("" without
// candidates).
[[nodiscard]] std::string did_you_mean(std::string_view name,
                                       std::span<const std::string> candidates,
                                       std::string_view otherwise);

// "a, b, c".
[[nodiscard]] std::string listed(std::span<const std::string> names);

}  // namespace ringfeed::config
