#include "supervisor/top/screen.h"

#include <langinfo.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <termios.h>
#include <unistd.h>
// Functions in place of macros with the names of things here.
#define NCURSES_NOMACROS
#include <ncurses.h>

#include <algorithm>
#include <array>
#include <clocale>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "ringfeed/shm/result.h"
#include "supervisor/top/terminfo.h"

namespace ringfeed::top {
namespace {

constexpr int kEscapeMs = 25;  // in which the rest of a key's sequence comes

struct Look {
  short colour;         // of the terminal's eight; -1: its own
  attr_t with_colours;  // and what else
  attr_t without;
  const char* sequence;
};

Look look_of(Tone tone) {
  switch (tone) {
    case Tone::kPlain:
      return {-1, A_NORMAL, A_NORMAL, ""};
    case Tone::kDim:
      return {-1, A_DIM, A_DIM, "\x1b[2m"};
    case Tone::kBold:
      return {-1, A_BOLD, A_BOLD, "\x1b[1m"};
    case Tone::kTitle:
      return {-1, A_UNDERLINE, A_UNDERLINE, "\x1b[4m"};
    case Tone::kGood:
      return {COLOR_GREEN, A_BOLD, A_BOLD, "\x1b[1;32m"};
    case Tone::kBad:
      return {COLOR_RED, A_BOLD, A_BOLD, "\x1b[1;31m"};
    case Tone::kBusy:
      return {COLOR_GREEN, A_NORMAL, A_NORMAL, "\x1b[32m"};
    case Tone::kStarved:
      return {COLOR_CYAN, A_NORMAL, A_NORMAL, "\x1b[36m"};
    case Tone::kBlocked:
      return {COLOR_YELLOW, A_NORMAL, A_NORMAL, "\x1b[33m"};
    case Tone::kFill:
      return {COLOR_BLUE, A_NORMAL, A_NORMAL, "\x1b[34m"};
    case Tone::kLimits:
      return {COLOR_MAGENTA, A_BOLD, A_BOLD, "\x1b[1;35m"};
    case Tone::kKey:
      return {-1, A_REVERSE, A_REVERSE, "\x1b[7m"};
  }
  return {-1, A_NORMAL, A_NORMAL, ""};
}

// Terminal types that can be written to, and no more.
bool can_move() {
  const char* const move = ::tigetstr(const_cast<char*>("cup"));
  return move != nullptr && reinterpret_cast<std::intptr_t>(move) != -1;
}

Key key_of(int pressed) {
  switch (pressed) {
    case KEY_UP:
      return Key::kUp;
    case KEY_DOWN:
      return Key::kDown;
    case KEY_PPAGE:
      return Key::kPageUp;
    case KEY_NPAGE:
    case ' ':
      return Key::kPageDown;
    case KEY_HOME:
      return Key::kHome;
    case KEY_END:
      return Key::kEnd;
    case KEY_ENTER:
    case '\n':
    case '\r':
      return Key::kEnter;
    case 27:
    case KEY_BACKSPACE:
    case 127:
    case '\b':
      return Key::kBack;
    case '\t':
    case 'n':
      return Key::kNextFeed;
    case KEY_BTAB:
    case 'p':
      return Key::kLastFeed;
    case 'f':
      return Key::kFeeds;
    case '>':
    case 's':
      return Key::kSortNext;
    case '<':
      return Key::kSortLast;
    case 'r':
      return Key::kReverse;
    case 'w':
      return Key::kWhy;
    case '?':
    case 'h':
      return Key::kHelp;
    case 'q':
      return Key::kQuit;
    default:
      return Key::kNone;
  }
}

Size size_of_terminal() {
  winsize window{};
  if (::ioctl(STDOUT_FILENO, TIOCGWINSZ, &window) == 0 && window.ws_row > 0 && window.ws_col > 0) {
    return {window.ws_row, window.ws_col};
  }
  return {24, 80};
}

// Who is not stops at each attempt to set the terminal (SIGTTOU), and would draw over a shell.
bool in_foreground() {
  const pid_t group = ::tcgetpgrp(STDOUT_FILENO);
  return group < 0 || group == ::getpgrp();
}

// The terminal by its name; by a description of our own if the system has none.
SCREEN* open_terminal(const std::string& name) {
  if (SCREEN* const screen = ::newterm(nullptr, stdout, stdin)) return screen;
  const Description known = description_of(name);
  if (known.type.empty()) return nullptr;
  ::setenv("TERMINFO", known.entry.c_str(), 1);
  return ::newterm(known.type.c_str(), stdout, stdin);
}

// Ctrl-S would stop the picture, and with it this process when it writes.
void ignore_flow_control() {
  termios mode{};
  if (::tcgetattr(STDOUT_FILENO, &mode) != 0) return;
  mode.c_iflag &= ~static_cast<tcflag_t>(IXON);
  ::tcsetattr(STDOUT_FILENO, TCSANOW, &mode);
  ::def_prog_mode();
}

bool names_utf8() {
  for (const char* const name : {"LC_ALL", "LC_CTYPE", "LANG"}) {
    const char* const value = std::getenv(name);
    if (value == nullptr || *value == '\0') continue;
    const std::string text(value);
    return text.find("UTF-8") != std::string::npos || text.find("utf8") != std::string::npos ||
           text.find("UTF8") != std::string::npos || text.find("utf-8") != std::string::npos;
  }
  return false;
}

}  // namespace

bool choose_characters() {
  if (std::setlocale(LC_CTYPE, "") == nullptr && names_utf8()) std::setlocale(LC_CTYPE, "C.UTF-8");
  return std::strcmp(::nl_langinfo(CODESET), "UTF-8") == 0;
}

std::string no_screen() {
  constexpr const char* kInstead = ": `ringfeed top --once` prints one frame";
  if (::isatty(STDOUT_FILENO) == 0) return std::string("standard output is no terminal") + kInstead;
  if (::isatty(STDIN_FILENO) == 0) return std::string("standard input is no terminal") + kInstead;
  return {};
}

struct Screen::State {
  SCREEN* screen = nullptr;
  bool colours = false;
  bool taken = false;  // the terminal is not as it was
};

Screen::Screen(bool colours) : state_(std::make_unique<State>()) {
  const char* const type = std::getenv("TERM");
  const std::string name = type == nullptr ? "" : type;
  const auto refuse = [&](std::string_view why) {
    throw Error(ErrorCode::kIo,
                "the terminal is of type '" + name + "', " + std::string(why) +
                    ": set TERM to its type (xterm-256color, say), or print one frame with "
                    "`ringfeed top --once`");
  };
  if (name.empty()) refuse("which says nothing");
  // The size is that of the window: LINES and COLUMNS would stay as they are when it changes, and
  // some types have none.
  ::use_env(FALSE);
  ::use_tioctl(TRUE);
  state_->screen = open_terminal(name);
  if (state_->screen == nullptr) refuse("which this system does not know");
  state_->taken = true;
  if (!can_move()) {
    give_back();
    refuse("on which nothing can be drawn");
  }
  ::set_escdelay(kEscapeMs);
  ::cbreak();
  ::noecho();
  ::nonl();
  ignore_flow_control();
  ::keypad(stdscr, TRUE);
  ::nodelay(stdscr, TRUE);
  ::curs_set(0);
  if (colours && ::has_colors() && ::start_color() == OK && COLORS >= 8) {
    const short paper = ::use_default_colors() == OK ? -1 : COLOR_BLACK;
    for (short i = 0; i < 8; ++i) ::init_pair(static_cast<short>(i + 1), i, paper);
    state_->colours = true;
  }
  resize();
}

Screen::~Screen() { give_back(); }

void Screen::give_back() {
  suspend();
  ::delscreen(state_->screen);
}

Size Screen::size() const {
  return {static_cast<std::size_t>(std::max(0, getmaxy(stdscr))),
          static_cast<std::size_t>(std::max(0, getmaxx(stdscr)))};
}

void Screen::draw(const Lines& lines) {
  // Where nobody reads, writing would block; the next picture has all that this one has.
  pollfd output{STDOUT_FILENO, POLLOUT, 0};
  if (!state_->taken || ::poll(&output, 1, 0) <= 0) return;
  ::erase();
  const Size screen = size();
  for (std::size_t y = 0; y < std::min(lines.size(), screen.rows); ++y) {
    const Line& line = lines[y];
    ::move(static_cast<int>(y), 0);
    const auto set = [&](Tone tone) {
      const Look look = look_of(tone);
      attr_t attributes = state_->colours ? look.with_colours : look.without;
      if (line.chosen) attributes = (attributes & ~static_cast<attr_t>(A_DIM)) | A_REVERSE;
      const bool painted = state_->colours && look.colour >= 0;
      ::attr_set(attributes, static_cast<short>(painted ? look.colour + 1 : 0), nullptr);
    };
    for (const Piece& piece : line.pieces) {
      set(piece.tone);
      ::addnstr(piece.text.data(), static_cast<int>(piece.text.size()));
    }
    if (!line.chosen) continue;
    set(Tone::kPlain);
    for (std::size_t x = line.width(); x < screen.columns; ++x) ::addch(' ');
  }
  ::attr_set(A_NORMAL, 0, nullptr);
  ::refresh();
}

bool Screen::next(Key& key) {
  const int pressed = ::getch();
  if (pressed == ERR) return false;
  key = key_of(pressed);
  return true;
}

bool Screen::is_there() const {
  pollfd input{STDIN_FILENO, POLLIN, 0};
  return ::poll(&input, 1, 0) < 0 || (input.revents & (POLLHUP | POLLERR | POLLNVAL)) == 0;
}

void Screen::resize() {
  const Size now = size_of_terminal();
  ::resizeterm(static_cast<int>(now.rows), static_cast<int>(now.columns));
  ::clearok(curscr, TRUE);
}

void Screen::suspend() {
  if (!std::exchange(state_->taken, false) || !in_foreground()) return;
  ::def_prog_mode();
  ::endwin();
}

bool Screen::resume() {
  if (!in_foreground()) return false;
  ::reset_prog_mode();
  state_->taken = true;
  resize();
  return true;
}

std::string coloured(const Line& line) {
  std::string out;
  for (const Piece& piece : line.pieces) {
    const char* const sequence = look_of(piece.tone).sequence;
    out += sequence;
    out += piece.text;
    if (*sequence != '\0') out += "\x1b[0m";
  }
  return out;
}

}  // namespace ringfeed::top
