// json_bound: what the JSON library alone does with lines of JSON that are in memory. The limit of
// sample_source; nothing is read, copied or passed on.
//
//   json_bound --seconds 2 FILE.jsonl...
// Prints one JSON object, in bytes of lines per CPU second of one thread:
//   parse_bytes_per_cpu_s   each line found and parsed by itself, as a reader has to that names the
//                           line that is wrong
//   values_bytes_per_cpu_s  the same, and each member of the object is asked for
//   many_bytes_per_cpu_s    the library's own loop over documents (parse_many), in blocks of 1 MB
// and lines, bytes, and lines_refused: those that are no JSON.
#include <fmt/format.h>
#include <simdjson.h>
#include <time.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <cstring>
#include <string>
#include <string_view>
#include <vector>

namespace {

namespace dom = simdjson::dom;

double cpu_seconds() {
  timespec now{};
  ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) * 1e-9;
}

struct Pass {
  std::uint64_t lines = 0;
  std::uint64_t refused = 0;
  std::uint64_t seen = 0;  // of the values, so that nobody leaves them out
};

std::uint64_t look_at(dom::element value) {
  if (value.is_string()) return value.get_string().value_unsafe().size();
  if (value.is_int64()) return static_cast<std::uint64_t>(value.get_int64().value_unsafe());
  if (value.is_double()) return static_cast<std::uint64_t>(value.get_double().value_unsafe() > 0);
  std::uint64_t sum = 1;
  if (value.is_array()) {
    const dom::array array = value.get_array().value_unsafe();
    for (const dom::element one : array) sum += look_at(one);
  }
  return sum;
}

template <bool kValues>
Pass parse_lines(dom::parser& parser, const simdjson::padded_string& text) {
  Pass pass;
  const char* at = text.data();
  const char* const end = at + text.size();
  while (at < end) {
    const void* const found = std::memchr(at, '\n', static_cast<std::size_t>(end - at));
    const char* const line_end = found == nullptr ? end : static_cast<const char*>(found);
    const auto bytes = static_cast<std::size_t>(line_end - at);
    if (bytes != 0) {
      ++pass.lines;
      dom::element root;
      // The text goes on behind the line, and is padded behind the last: nothing is copied.
      if (parser.parse(reinterpret_cast<const std::uint8_t*>(at), bytes, false).get(root) !=
          simdjson::SUCCESS) {
        ++pass.refused;
      } else if constexpr (kValues) {
        dom::object object;
        if (root.get_object().get(object) == simdjson::SUCCESS) {
          for (const dom::key_value_pair member : object) {
            pass.seen += member.key.size() + look_at(member.value);
          }
        }
      }
    }
    at = line_end + 1;
  }
  return pass;
}

Pass parse_many(dom::parser& parser, const simdjson::padded_string& text) {
  Pass pass;
  dom::document_stream documents;
  if (parser.parse_many(text, 1'000'000).get(documents) != simdjson::SUCCESS) return pass;
  for (const auto document : documents) {
    ++pass.lines;
    pass.refused += document.error() != simdjson::SUCCESS ? 1 : 0;
  }
  return pass;
}

// Bytes per CPU second of passes over all texts; the first is not counted.
template <typename Body>
double rate(const std::vector<simdjson::padded_string>& texts, double seconds, Pass& last,
            Body&& body) {
  std::uint64_t bytes = 0;
  double begun = 0;
  for (int round = 0;; ++round) {
    last = {};
    for (const simdjson::padded_string& text : texts) {
      const Pass pass = body(text);
      last.lines += pass.lines;
      last.refused += pass.refused;
      last.seen += pass.seen;
      if (round != 0) bytes += text.size();
    }
    const double now = cpu_seconds();
    if (round == 0) {
      begun = now;
    } else if (now - begun > seconds) {
      return static_cast<double>(bytes) / (now - begun);
    }
  }
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app("The JSON library alone: the bound of sample_source.");
  double seconds = 2;
  std::vector<std::string> files;
  app.add_option("--seconds", seconds);
  app.add_option("files", files)->required();
  CLI11_PARSE(app, argc, argv);

  std::vector<simdjson::padded_string> texts;
  std::uint64_t bytes = 0;
  for (const std::string& file : files) {
    simdjson::padded_string text;
    if (simdjson::padded_string::load(file).get(text) != simdjson::SUCCESS) {
      std::fprintf(stderr, "json_bound: %s cannot be read\n", file.c_str());
      return 1;
    }
    bytes += text.size();
    texts.push_back(std::move(text));
  }
  dom::parser parser;
  Pass lines;
  Pass other;
  const double parse = rate(texts, seconds, lines, [&](const simdjson::padded_string& text) {
    return parse_lines<false>(parser, text);
  });
  const double values = rate(texts, seconds, other, [&](const simdjson::padded_string& text) {
    return parse_lines<true>(parser, text);
  });
  const double many = rate(texts, seconds, other, [&](const simdjson::padded_string& text) {
    return parse_many(parser, text);
  });
  if (lines.lines == 0) {
    std::fputs("json_bound: no lines in these files\n", stderr);
    return 1;
  }
  fmt::print(
      "{{\"lines\": {}, \"bytes\": {}, \"lines_refused\": {}, \"parse_bytes_per_cpu_s\": {:.0f}, "
      "\"values_bytes_per_cpu_s\": {:.0f}, \"many_bytes_per_cpu_s\": {:.0f}}}\n",
      lines.lines, bytes, lines.refused, parse, values, many);
  return 0;
}
