#include "supervisor/config/tree.h"

#include <fmt/format.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <utility>

namespace ringfeed::config {
namespace {

// Deeper nesting than any configuration has; bounds the recursion.
constexpr int kDepthMax = 64;
constexpr std::size_t kProblemsMax = 50;

bool is_digit(char c) { return c >= '0' && c <= '9'; }
bool is_word_start(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_'; }
bool is_word(char c) { return is_word_start(c) || is_digit(c); }

std::optional<std::uint32_t> digit_value(char c) {
  if (is_digit(c)) return static_cast<std::uint32_t>(c - '0');
  if (c >= 'a' && c <= 'f') return static_cast<std::uint32_t>(c - 'a' + 10);
  if (c >= 'A' && c <= 'F') return static_cast<std::uint32_t>(c - 'A' + 10);
  return std::nullopt;
}

void append_utf8(std::string& out, std::uint32_t code) {
  const auto put = [&out](std::uint32_t byte) { out += static_cast<char>(byte); };
  if (code < 0x80) {
    put(code);
  } else if (code < 0x800) {
    put(0xC0 | (code >> 6));
    put(0x80 | (code & 0x3F));
  } else if (code < 0x10000) {
    put(0xE0 | (code >> 12));
    put(0x80 | ((code >> 6) & 0x3F));
    put(0x80 | (code & 0x3F));
  } else {
    put(0xF0 | (code >> 18));
    put(0x80 | ((code >> 12) & 0x3F));
    put(0x80 | ((code >> 6) & 0x3F));
    put(0x80 | (code & 0x3F));
  }
}

// The text with the place of its next byte, and what both readers need of it.
class Reader {
 public:
  explicit Reader(std::string_view text) : text_(text) {
    // A byte order mark is not part of the text.
    if (text_.starts_with("\xEF\xBB\xBF")) text_.remove_prefix(3);
  }

  [[nodiscard]] bool at_end() const { return next_ >= text_.size(); }
  [[nodiscard]] char peek() const { return at_end() ? '\0' : text_[next_]; }
  [[nodiscard]] Position position() const { return position_; }

  char take() {
    const char c = text_[next_++];
    if (c == '\n') {
      ++position_.line;
      position_.column = 1;
    } else {
      ++position_.column;
    }
    return c;
  }
  bool take_if(char c) {
    if (at_end() || peek() != c) return false;
    take();
    return true;
  }
  void skip_space() {
    while (!at_end() && (peek() == ' ' || peek() == '\t' || peek() == '\n' || peek() == '\r'))
      take();
  }
  void skip_line() {
    while (!at_end() && peek() != '\n') take();
  }
  std::string take_word() {
    std::string word;
    while (!at_end() && is_word(peek())) word += take();
    return word;
  }
  // Everything that can belong to a number; whether it is one, the binding finds out.
  std::string take_number() {
    std::string number;
    const auto hexadecimal = [&number] { return number.find_first_of("xX") != std::string::npos; };
    while (!at_end()) {
      const char c = peek();
      const bool sign_of_exponent = (c == '+' || c == '-') && !number.empty() && !hexadecimal() &&
                                    (number.back() == 'e' || number.back() == 'E');
      if (!is_word(c) && c != '.' && !sign_of_exponent) break;
      number += take();
    }
    return number;
  }
  // How the next thing looks in a message.
  [[nodiscard]] std::string found() const {
    if (at_end()) return "the end";
    if (is_word(peek())) {
      std::size_t end = next_;
      while (end < text_.size() && is_word(text_[end]) && end - next_ < 40) ++end;
      return fmt::format("'{}'", text_.substr(next_, end - next_));
    }
    const auto byte = static_cast<unsigned char>(peek());
    if (byte < 0x20 || byte >= 0x7F) return fmt::format("the byte 0x{:02x}", byte);
    return fmt::format("'{}'", peek());
  }

 private:
  std::string_view text_;
  std::size_t next_ = 0;
  Position position_{1, 1};
};

class Parser {
 public:
  explicit Parser(std::string_view text) : reader_(text) {}
  virtual ~Parser() = default;

 protected:
  void problem(Position position, std::string text) {
    if (tree_.problems.size() < kProblemsMax) {
      tree_.problems.push_back({position, std::move(text)});
    } else {
      ++tree_.problems_left_out;
    }
  }
  void structural_problem(Position position, std::string text) {
    tree_.complete = false;
    problem(position, std::move(text));
  }

  // Reads a string up to its closing quote, in the same line. False: it has none, which was said.
  bool quoted(std::string& out) {
    const Position start = reader_.position();
    const char quote = reader_.take();
    for (;;) {
      if (reader_.at_end() || reader_.peek() == '\n') {
        problem(start, fmt::format("this string is never closed; add {}", quote));
        return false;
      }
      if (reader_.take_if(quote)) return true;
      const Position position = reader_.position();
      const char c = reader_.take();
      if (c != '\\') {
        out += c;
      } else if (reader_.at_end() || !escape(reader_.take(), out)) {
        problem(position, "unknown escape in a string; write \\\\ for a backslash");
      }
    }
  }
  // What a backslash and this character stand for, with the digits that follow.
  virtual bool escape(char c, std::string& out) = 0;

  // The escapes without digits that a format has: letters of control characters, and marks that
  // stand for themselves.
  static bool plain_escape(char c, std::string_view letters, std::string_view marks,
                           std::string& out) {
    constexpr std::string_view kLetters = "abfnrtv";
    constexpr std::string_view kControls = "\a\b\f\n\r\t\v";
    if (marks.find(c) != std::string_view::npos) {
      out += c;
      return true;
    }
    if (letters.find(c) == std::string_view::npos) return false;
    out += kControls[kLetters.find(c)];
    return true;
  }
  // The number that at least `count_min` and at most `count_max` digits continue.
  std::optional<std::uint32_t> digits(std::uint32_t base, int count_min, int count_max,
                                      std::uint32_t code = 0) {
    int count = 0;
    for (; count < count_max && !reader_.at_end(); ++count) {
      const std::optional<std::uint32_t> digit = digit_value(reader_.peek());
      if (!digit || *digit >= base) break;
      code = code * base + *digit;
      reader_.take();
    }
    if (count < count_min) return std::nullopt;
    return code;
  }

  Reader reader_;
  Tree tree_;
};

// ---------------------------------------------------------------------------------- text format

class TextParser final : public Parser {
 public:
  using Parser::Parser;

  Tree parse_document() {
    tree_.root.kind = Node::Kind::kObject;
    tree_.root.position = {1, 1};
    fields(tree_.root, '\0', 0);
    return std::move(tree_);
  }

  Tree parse_single_value() {
    skip();
    if (std::optional<Node> node = value(0)) tree_.root = std::move(*node);
    skip();
    if (tree_.complete && !reader_.at_end()) {
      structural_problem(reader_.position(),
                         fmt::format("{} after the value; give one value", reader_.found()));
    }
    return std::move(tree_);
  }

 private:
  void skip() {
    for (;;) {
      reader_.skip_space();
      if (reader_.peek() != '#' || reader_.at_end()) return;
      reader_.skip_line();
    }
  }

  // Fields up to the closing mark ('\0': the end of the text).
  void fields(Node& object, char close, int depth) {
    for (;;) {
      skip();
      while (reader_.take_if(',') || reader_.take_if(';')) skip();
      if (reader_.at_end()) {
        if (close != '\0') {
          structural_problem(object.position,
                             fmt::format("this message is never closed; add '{}'", close));
        }
        return;
      }
      if (close != '\0' && reader_.take_if(close)) return;
      const Position position = reader_.position();
      if (reader_.peek() == '}' || reader_.peek() == '>' || reader_.peek() == ']') {
        structural_problem(position, fmt::format("{} closes nothing; remove it or open it before",
                                                 reader_.found()));
        reader_.take();
        continue;
      }
      if (reader_.peek() == '[') {
        structural_problem(position,
                           "expected the name of a field, found '['; extensions have no "
                           "meaning here");
        reader_.skip_line();
        continue;
      }
      if (!is_word_start(reader_.peek())) {
        problem(position, fmt::format("expected the name of a field, found {}", reader_.found()));
        reader_.skip_line();
        continue;
      }
      field(object, depth);
      if (!tree_.complete && reader_.at_end()) return;
    }
  }

  void field(Node& object, int depth) {
    Entry entry;
    entry.position = reader_.position();
    entry.name = reader_.take_word();
    skip();
    const bool colon = reader_.take_if(':');
    if (colon) skip();
    const bool message = reader_.peek() == '{' || reader_.peek() == '<';
    if (!colon && !message) {
      const Position position = reader_.position();
      const bool next_line = position.line != entry.position.line;
      const std::string after = fmt::format("expected ':' after '{}'", entry.name);
      if (next_line || reader_.at_end()) {
        problem(entry.position, fmt::format("'{0}' has no value; write {0}: VALUE", entry.name));
        return;
      }
      problem(position,
              fmt::format("{}, found {}; write {}: VALUE", after, reader_.found(), entry.name));
      // What follows is taken for the value, so that it is not complained about as well.
    }
    if (colon && reader_.position().line != entry.position.line && begins_field()) {
      problem(entry.position, fmt::format("'{0}' has no value; write {0}: VALUE", entry.name));
      return;
    }
    std::optional<Node> node = value(depth);
    if (!node) return;
    entry.value = std::move(*node);
    object.entries.push_back(std::move(entry));
  }

  // Whether "name:" or "name {" follows: then a value is missing before it.
  [[nodiscard]] bool begins_field() {
    if (!is_word_start(reader_.peek())) return false;
    Reader look = reader_;
    look.take_word();
    look.skip_space();
    return look.peek() == ':' || look.peek() == '{' || look.peek() == '<';
  }

  std::optional<Node> value(int depth) {
    Node node;
    node.position = reader_.position();
    if (depth > kDepthMax) {
      structural_problem(node.position, fmt::format("nested deeper than {}", kDepthMax));
      while (!reader_.at_end()) reader_.take();
      return std::nullopt;
    }
    const char c = reader_.peek();
    if (c == '{' || c == '<') {
      reader_.take();
      node.kind = Node::Kind::kObject;
      fields(node, c == '{' ? '}' : '>', depth + 1);
      return node;
    }
    if (c == '[') return list(std::move(node), depth);
    if (c == '"' || c == '\'') return string(std::move(node));
    if (c == '-') {
      reader_.take();
      skip();
      if (is_digit(reader_.peek()) || reader_.peek() == '.') {
        node.kind = Node::Kind::kNumber;
        node.text = "-" + reader_.take_number();
        return node;
      }
      if (is_word_start(reader_.peek())) {
        node.kind = Node::Kind::kWord;
        node.text = "-" + reader_.take_word();
        return node;
      }
    } else if (is_digit(c) || c == '.') {
      node.kind = Node::Kind::kNumber;
      node.text = reader_.take_number();
      return node;
    } else if (is_word_start(c)) {
      node.kind = Node::Kind::kWord;
      node.text = reader_.take_word();
      return node;
    }
    problem(node.position, fmt::format("expected a value, found {}", reader_.found()));
    if (reader_.peek() != '}' && reader_.peek() != '>' && reader_.peek() != ']')
      reader_.skip_line();
    return std::nullopt;
  }

  std::optional<Node> list(Node node, int depth) {
    node.kind = Node::Kind::kList;
    reader_.take();
    skip();
    if (reader_.take_if(']')) return node;
    for (;;) {
      skip();
      if (std::optional<Node> item = value(depth + 1)) node.items.push_back(std::move(*item));
      skip();
      if (reader_.take_if(']')) return node;
      if (reader_.take_if(',')) continue;
      structural_problem(node.position, fmt::format("this list is never closed: found {} where ',' "
                                                    "or ']' belongs",
                                                    reader_.found()));
      reader_.skip_line();
      return std::nullopt;
    }
  }

  std::optional<Node> string(Node node) {
    node.kind = Node::Kind::kString;
    while (reader_.peek() == '"' || reader_.peek() == '\'') {
      if (!quoted(node.text)) return std::nullopt;
      skip();
    }
    return node;
  }

  bool escape(char c, std::string& out) override {
    if (plain_escape(c, "abfnrtv", "\\'\"?", out)) return true;
    if (c == 'x' || c == 'X') return put_byte(digits(16, 1, 2), out);
    if (c == 'u') return put_character(digits(16, 4, 4), out);
    if (c == 'U') return put_character(digits(16, 8, 8), out);
    if (c < '0' || c > '7') return false;
    return put_byte(digits(8, 0, 2, static_cast<std::uint32_t>(c - '0')), out);
  }

  static bool put_byte(std::optional<std::uint32_t> code, std::string& out) {
    if (!code || *code > 0xFF) return false;
    out += static_cast<char>(*code);
    return true;
  }

  static bool put_character(std::optional<std::uint32_t> code, std::string& out) {
    if (!code || *code > 0x10FFFF || (*code >= 0xD800 && *code < 0xE000)) return false;
    append_utf8(out, *code);
    return true;
  }
};

// ----------------------------------------------------------------------------------------- JSON

class JsonParser final : public Parser {
 public:
  using Parser::Parser;

  Tree parse_document() {
    reader_.skip_space();
    const Position start = reader_.position();
    if (reader_.peek() != '{') {
      structural_problem(start, fmt::format("expected '{{', found {}", reader_.found()));
      return std::move(tree_);
    }
    if (std::optional<Node> node = value(0)) tree_.root = std::move(*node);
    reader_.skip_space();
    if (tree_.complete && !reader_.at_end()) {
      structural_problem(reader_.position(),
                         fmt::format("{} after the end of the object", reader_.found()));
    }
    return std::move(tree_);
  }

 private:
  // Comments are not JSON, but everybody writes them: said once, then skipped.
  void skip() {
    for (;;) {
      reader_.skip_space();
      if (reader_.peek() != '#' && reader_.peek() != '/') return;
      problem(reader_.position(), "JSON has no comments; remove it, or use the text format");
      reader_.skip_line();
    }
  }

  std::optional<Node> value(int depth) {
    Node node;
    node.position = reader_.position();
    if (depth > kDepthMax) {
      structural_problem(node.position, fmt::format("nested deeper than {}", kDepthMax));
      return std::nullopt;
    }
    const char c = reader_.peek();
    if (c == '{') return object(std::move(node), depth);
    if (c == '[') return list(std::move(node), depth);
    if (c == '"') {
      node.kind = Node::Kind::kString;
      if (!string(node.text)) return std::nullopt;
      return node;
    }
    if (c == '-' || is_digit(c)) {
      node.kind = Node::Kind::kNumber;
      if (reader_.take_if('-')) node.text = "-";
      node.text += reader_.take_number();
      return node;
    }
    if (is_word_start(c)) {
      node.text = reader_.take_word();
      if (node.text == "null") {
        node.text.clear();
        return node;
      }
      node.kind = Node::Kind::kWord;
      if (node.text != "true" && node.text != "false") {
        problem(node.position, fmt::format("'{0}' has no quotes; write \"{0}\"", node.text));
        node.kind = Node::Kind::kString;
      }
      return node;
    }
    structural_problem(node.position, fmt::format("expected a value, found {}", reader_.found()));
    return std::nullopt;
  }

  std::optional<Node> object(Node node, int depth) {
    node.kind = Node::Kind::kObject;
    reader_.take();
    skip();
    if (reader_.take_if('}')) return node;
    for (;;) {
      skip();
      Entry entry;
      entry.position = reader_.position();
      if (reader_.peek() != '"') {
        structural_problem(entry.position, fmt::format("expected a name in double quotes, found {}",
                                                       reader_.found()));
        return std::nullopt;
      }
      if (!string(entry.name)) return std::nullopt;
      skip();
      if (!reader_.take_if(':')) {
        const std::string text =
            fmt::format("expected ':' after \"{}\", found {}", entry.name, reader_.found());
        if (reader_.at_end() || reader_.peek() == ',' || reader_.peek() == '}') {
          structural_problem(reader_.position(), text);
          return std::nullopt;
        }
        problem(reader_.position(), text);
      }
      skip();
      std::optional<Node> member = value(depth + 1);
      if (!member) return std::nullopt;
      entry.value = std::move(*member);
      node.entries.push_back(std::move(entry));
      if (!goes_on('}', node.position, "object")) break;
    }
    return tree_.complete ? std::optional<Node>(std::move(node)) : std::nullopt;
  }

  std::optional<Node> list(Node node, int depth) {
    node.kind = Node::Kind::kList;
    reader_.take();
    skip();
    if (reader_.take_if(']')) return node;
    for (;;) {
      skip();
      std::optional<Node> item = value(depth + 1);
      if (!item) return std::nullopt;
      node.items.push_back(std::move(*item));
      if (!goes_on(']', node.position, "list")) break;
    }
    return tree_.complete ? std::optional<Node>(std::move(node)) : std::nullopt;
  }

  // After a member: true if another one follows.
  bool goes_on(char close, Position opened, std::string_view what) {
    skip();
    if (reader_.take_if(close)) return false;
    const Position position = reader_.position();
    if (reader_.take_if(',')) {
      skip();
      if (reader_.peek() != close) return true;
      problem(position, fmt::format("JSON has no ',' before '{}'; remove it", close));
      reader_.take();
      return false;
    }
    if (reader_.at_end()) {
      structural_problem(opened, fmt::format("this {} is never closed; add '{}'", what, close));
      return false;
    }
    const char next = reader_.peek();
    if (next == '"' || next == '{' || next == '[' || next == '-' || is_word(next)) {
      problem(position, fmt::format("expected ',' or '{}', found {}", close, reader_.found()));
      return true;
    }
    structural_problem(position,
                       fmt::format("expected ',' or '{}', found {}", close, reader_.found()));
    return false;
  }

  // Where a string ends is not known here: what follows cannot be read.
  bool string(std::string& out) {
    if (quoted(out)) return true;
    tree_.complete = false;
    return false;
  }

  bool escape(char c, std::string& out) override {
    if (plain_escape(c, "bfnrt", "\"\\/", out)) return true;
    if (c != 'u') return false;
    std::optional<std::uint32_t> code = digits(16, 4, 4);
    if (!code) return false;
    // Beyond the basic plane a character is a pair of codes.
    if (*code >= 0xD800 && *code < 0xDC00) {
      if (!reader_.take_if('\\') || !reader_.take_if('u')) return false;
      const std::optional<std::uint32_t> low = digits(16, 4, 4);
      if (!low || *low < 0xDC00 || *low >= 0xE000) return false;
      code = 0x10000 + ((*code - 0xD800) << 10) + (*low - 0xDC00);
    } else if (*code >= 0xDC00 && *code < 0xE000) {
      return false;
    }
    append_utf8(out, *code);
    return true;
  }
};

}  // namespace

Tree parse_text_format(std::string_view text) { return TextParser(text).parse_document(); }
Tree parse_json(std::string_view text) { return JsonParser(text).parse_document(); }
Tree parse_text_value(std::string_view text) { return TextParser(text).parse_single_value(); }

}  // namespace ringfeed::config
