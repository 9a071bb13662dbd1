// A drawing of lines of text, in which queues are rails down the left side, as in the log of a
// version control:
//
//   ╭─────── process front ───╮
//   │ ● source                │    a node on its rail
//   │ │ output 16 records     │    what flows down that rail
//   │ ├─╮ rejects 8 records   │    a second queue of the node takes a rail of its own
//   ╰─┼─┼─────────────────────╯
//     ● │ mix
//     ├─╯                          both arrive
//     ● pack
//
// Lines are wrapped at the width; nothing is cut.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace ringfeed::graph {

struct Glyphs {
  std::string_view across, down, cross, fork, turn_down, join, turn_up;
  std::string_view top_left, top_right, bottom_left, bottom_right;
  std::string_view node, output, to, back, mark, full, empty;
};
[[nodiscard]] const Glyphs& glyphs(bool utf8);

class Rails {
 public:
  static constexpr std::size_t kColumns = 80;
  // More would leave no room for words: a queue beyond them is said, and has no rail.
  static constexpr std::size_t kRailsMax = 12;

  explicit Rails(const Glyphs& glyphs) : glyphs_(glyphs) {}

  void open_frame(std::string_view title);
  void close_frame();

  // Text beside the rails; in a frame if one is open.
  void say(std::string_view text);

  // The wires (any numbers) that end here come together on the leftmost of their rails; where there
  // is none, a free one is taken. `flows`: something will leave on it again.
  void begin(const std::vector<std::size_t>& ending, bool flows);
  // A line of the node that has begun, with `glyph` on its rail, and `right` at the right end.
  void mark(std::string_view glyph, std::string_view text, std::string_view right = {});
  // A wire leaves: the first on the rail of the node, further ones on rails of their own.
  void leave(std::size_t wire, std::string_view text);
  void end();

  [[nodiscard]] std::string take() { return std::move(text_); }

 private:
  struct Rail {
    bool taken = false;
    bool drawn = false;               // something flows on it
    std::optional<std::size_t> wire;  // none: of the node that has begun
  };
  using Cells = std::vector<std::string_view>;

  [[nodiscard]] Cells cells() const;
  [[nodiscard]] std::optional<std::size_t> free_rail(std::size_t from) const;
  void join(const std::vector<std::size_t>& rails);
  void draw(const Cells& first, std::string_view text, std::string_view right = {});
  void line(const Cells& cells, std::string_view text, std::string_view right);
  void border(std::string_view left, std::string_view right, std::string_view title);

  const Glyphs& glyphs_;
  std::string text_;
  std::vector<Rail> rails_;
  std::optional<std::size_t> main_;  // rail of the node that has begun
  bool left_ = false;                // a wire has left on it
  bool framed_ = false;
};

// Lines of at most `columns` columns: broken between words, and in words that are longer. All but
// the first are indented.
[[nodiscard]] std::vector<std::string> wrapped(std::string_view text, std::size_t columns,
                                               std::size_t indent);
// How many columns a text takes: one for each character.
[[nodiscard]] std::size_t columns_of(std::string_view text);

}  // namespace ringfeed::graph
