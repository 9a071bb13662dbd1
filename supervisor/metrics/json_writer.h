// JSON text, piece by piece. A tree of nlohmann's takes memory even when it goes away, where
// nothing may be refused: the supervisor, which lives on without memory, builds none.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

namespace ringfeed::metrics {

class JsonWriter {
 public:
  void begin_object() { begin('{'); }
  void end_object() { end('}'); }
  void begin_array() { begin('['); }
  void end_array() { end(']'); }
  // Of the member whose value comes next.
  void name(std::string_view text);

  // Bytes that are no UTF-8 become U+FFFD.
  void value(std::string_view text);
  void value(std::int64_t number);
  void value(std::uint64_t number);
  void value(double number);  // null: it is none, or infinite
  void value(bool truth);
  void value(const char*) = delete;  // it would be a truth
  // A value that is such text already.
  void json(std::string_view text);

  // All of it, once.
  [[nodiscard]] std::string take() { return std::exchange(text_, {}); }

 private:
  void begin(char bracket);
  void end(char bracket);
  void separate();

  std::string text_;
  bool first_ = true;  // nothing that a comma separates is before what comes next
};

}  // namespace ringfeed::metrics
