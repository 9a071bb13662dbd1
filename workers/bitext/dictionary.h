// The symbols of a vocabulary and their ids, as fairseq's dict.txt lists them.
//
//   ids   0 "<s>", 1 "<pad>", 2 "</s>", 3 "<unk>", which are in no file; then the file's lines,
//         from 4 on; then what add_symbol() adds
//   line  "SYMBOL COUNT" in UTF-8, ended by LF, CR or CR LF. The last space is what separates, so
//         symbols may have spaces. The count is an integer, and of no effect.
//         "SYMBOL COUNT #fairseq:overwrite": a symbol that is there already gets a new id, and the
//         old one stays behind without a name
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "ringfeed/shm/result.h"

namespace ringfeed::formats {

class Dictionary {
 public:
  static constexpr std::uint32_t kBos = 0;
  static constexpr std::uint32_t kPad = 1;
  static constexpr std::uint32_t kEos = 2;
  static constexpr std::uint32_t kUnk = 3;

  Dictionary();  // of the four symbols that are in no file

  // Errors (text: which file, line and offset, what is wrong, what to do): kNotFound, kIo: it
  // cannot be read; kDamaged: a line that is blank, lacks a count, repeats a symbol or is no UTF-8.
  static Result<Dictionary> read(const std::string& path);
  // The same of a file's content; `path` is for messages.
  static Result<Dictionary> parse(std::string_view text, const std::string& path);

  // Its id: of a new symbol the next one, of one that is there the one it has.
  std::uint32_t add_symbol(std::string_view symbol);
  [[nodiscard]] std::optional<std::uint32_t> find(std::string_view symbol) const noexcept;
  // Ids are below this.
  [[nodiscard]] std::uint32_t size() const noexcept {
    return static_cast<std::uint32_t>(symbols_.size());
  }
  // RF_CHECK: id < size().
  [[nodiscard]] std::string_view symbol(std::uint32_t id) const noexcept;
  // Symbols with spaces between them; an id that is none is shown as its number, "#70000".
  [[nodiscard]] std::string text(std::span<const std::int64_t> ids) const;

  // Whether every symbol has the same id in both.
  friend bool operator==(const Dictionary& one, const Dictionary& other) noexcept {
    return one.symbols_ == other.symbols_;
  }

 private:
  struct Hash {
    using is_transparent = void;
    std::size_t operator()(std::string_view text) const noexcept {
      return std::hash<std::string_view>{}(text);
    }
  };
  void append(std::string_view symbol);

  std::vector<std::string> symbols_;  // by id; of names that were given anew, both
  std::unordered_map<std::string, std::uint32_t, Hash, std::equal_to<>> ids_;
};

}  // namespace ringfeed::formats
