#include "supervisor/metrics/json_writer.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <nlohmann/json.hpp>

namespace ringfeed::metrics {
namespace {

bool is_plain(char byte) { return byte >= ' ' && byte < 0x7f && byte != '"' && byte != '\\'; }

// Of a string or a number, which goes away without memory.
std::string scalar_text(const nlohmann::json& scalar) {
  return scalar.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

}  // namespace

void JsonWriter::separate() {
  if (!std::exchange(first_, false)) text_ += ',';
}

void JsonWriter::begin(char bracket) {
  separate();
  text_ += bracket;
  first_ = true;
}

void JsonWriter::end(char bracket) {
  text_ += bracket;
  first_ = false;
}

void JsonWriter::name(std::string_view text) {
  value(text);
  text_ += ':';
  first_ = true;
}

void JsonWriter::value(std::string_view text) {
  separate();
  if (!std::ranges::all_of(text, is_plain)) {
    text_ += scalar_text(std::string(text));
    return;
  }
  // As good as all of them, and nlohmann takes a buffer for each.
  text_ += '"';
  text_ += text;
  text_ += '"';
}

void JsonWriter::value(std::int64_t number) {
  separate();
  fmt::format_to(std::back_inserter(text_), "{}", number);
}

void JsonWriter::value(std::uint64_t number) {
  separate();
  fmt::format_to(std::back_inserter(text_), "{}", number);
}

void JsonWriter::value(double number) {
  separate();
  text_ += scalar_text(number);
}

void JsonWriter::value(bool truth) {
  separate();
  text_ += truth ? "true" : "false";
}

void JsonWriter::json(std::string_view text) {
  separate();
  text_ += text;
}

}  // namespace ringfeed::metrics
