// The terminal: lines in, keys out. It is as it was before once this object is gone, and while this
// process is suspended.
#pragma once

#include <memory>
#include <string>

#include "supervisor/top/frame.h"

namespace ringfeed::top {

// Sets the characters of this process by the environment. Are they UTF-8? An environment that names
// a UTF-8 locale which this system does not have is taken at its word.
[[nodiscard]] bool choose_characters();

// Why a screen cannot be had here, with what to do; "": it can.
[[nodiscard]] std::string no_screen();

class Screen {
 public:
  // Takes the terminal. Throws Error (kIo) if it is one that cannot be drawn on.
  explicit Screen(bool colours);
  ~Screen();
  Screen(const Screen&) = delete;
  Screen& operator=(const Screen&) = delete;

  [[nodiscard]] Size size() const;
  void draw(const Lines& lines);
  // The next key that was pressed: false: none was. Never waits.
  [[nodiscard]] bool next(Key& key);
  // Is there still a terminal?
  [[nodiscard]] bool is_there() const;

  // The window has another size.
  void resize();
  // Gives the terminal back, until resume(). That does nothing in the background: false.
  void suspend();
  [[nodiscard]] bool resume();

 private:
  void give_back();
  struct State;
  std::unique_ptr<State> state_;
};

// A line with the colours of a terminal, as control sequences.
[[nodiscard]] std::string coloured(const Line& line);

}  // namespace ringfeed::top
