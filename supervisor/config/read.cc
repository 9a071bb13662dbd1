#include "supervisor/config/read.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cstring>
#include <filesystem>
#include <iterator>
#include <optional>
#include <utility>

#include "proto/config.pb.h"
#include "ringfeed/shm/file.h"
#include "ringfeed/shm/result.h"
#include "supervisor/config/bind.h"
#include "supervisor/config/fields.h"
#include "supervisor/config/names.h"
#include "supervisor/config/serialized.h"
#include "supervisor/config/tree.h"
#include "supervisor/os/text.h"

namespace ringfeed::config {
namespace {

using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using google::protobuf::Reflection;

// One `--set path=value`: walks the path from the whole configuration to the field, then binds the
// value. Whatever is wrong becomes one problem at its place in "--set …".
class Override {
 public:
  Override(const std::string& argument, Configuration& configuration)
      : source_(fmt::format("{}{}", kOverride, argument)),
        argument_(argument),
        configuration_(configuration),
        at_(argument.data()) {}

  void apply() {
    const std::size_t equals = argument_.find('=');
    if (equals == std::string::npos || equals == 0) {
      return refuse("write path=value, for example seed=7 or stages.pool.threads=2");
    }
    rest_ = std::string_view(argument_).substr(0, equals);
    given_ = std::string_view(argument_).substr(equals + 1);
    message_ = &configuration_.message();
    while (message_ != nullptr) step();
  }

 private:
  struct Segment {
    std::string name;
    std::optional<int> index;
  };

  // The place of a character of the argument.
  [[nodiscard]] Place place_of(const char* character) const {
    const std::string_view before(argument_.data(),
                                  static_cast<std::size_t>(character - argument_.data()));
    const std::size_t line = before.rfind('\n');
    const std::size_t column =
        line == std::string_view::npos ? before.size() : before.size() - line - 1;
    return {source_, 1 + static_cast<int>(std::count(before.begin(), before.end(), '\n')),
            1 + static_cast<int>(column)};
  }
  // The place of something in the value.
  [[nodiscard]] Place place_in_value(Position position) const {
    Place place = place_of(given_.data());
    place.column = position.line == 1 ? place.column + position.column - 1 : position.column;
    place.line += position.line - 1;
    return place;
  }

  void refuse_at(Place place, std::string text) {
    configuration_.problems().push_back({std::move(place), {}, std::move(text), path_});
    message_ = nullptr;
  }
  // At the part of the path that was taken last.
  void refuse(std::string text) { refuse_at(place_of(at_), std::move(text)); }
  void refuse_value(std::string text) { refuse_at(place_of(given_.data()), std::move(text)); }

  // The next part of the path, up to a dot.
  std::optional<Segment> take_segment() {
    at_ = rest_.data();
    const std::size_t dot = rest_.find('.');
    std::string_view part = rest_.substr(0, dot);
    rest_ = dot == std::string_view::npos ? std::string_view() : rest_.substr(dot + 1);
    Segment segment;
    if (part.ends_with(']')) {
      const std::size_t open = part.find('[');
      int index = -1;
      if (open != std::string_view::npos) {
        const char* const last = part.data() + part.size() - 1;
        const auto [end, error] = std::from_chars(part.data() + open + 1, last, index);
        if (error != std::errc{} || end != last) index = -1;
      }
      if (index < 0) {
        refuse(fmt::format("'{}' is not an element of a list; write stages[0]", part));
        return std::nullopt;
      }
      segment.index = index;
      part = part.substr(0, open);
    }
    segment.name = part;
    return segment;
  }

  // Goes down by one part of the path. Sets message_ to null when done or refused.
  void step() {
    const std::optional<Segment> segment = take_segment();
    if (!segment) return;
    const FieldDescriptor* field = find(segment->name);
    if (field == nullptr) return;
    const std::string path = path_.empty() ? field->name() : path_ + "." + field->name();
    if (field->is_repeated() && field->cpp_type() == FieldDescriptor::CPPTYPE_MESSAGE &&
        !(rest_.empty() && !segment->index)) {
      return element(*field, path, segment->index);
    }
    if (segment->index) {
      return refuse(field->is_repeated()
                        ? fmt::format("give the whole list: {}=[...]", path)
                        : fmt::format("{} is not a list; leave out [{}]", path, *segment->index));
    }
    if (rest_.empty()) return assign(*field, path);
    if (field->cpp_type() != FieldDescriptor::CPPTYPE_MESSAGE) {
      return refuse(fmt::format("{} has no fields; write {}=VALUE", path, path));
    }
    message_ = message_->GetReflection()->MutableMessage(message_, field);
    path_ = path;
  }

  // The field of that name; below a stage also the fields of its own configuration.
  const FieldDescriptor* find(const std::string& name) {
    if (const FieldDescriptor* field = message_->GetDescriptor()->FindFieldByName(name))
      return field;
    std::vector<std::string> names = field_names(*message_->GetDescriptor());
    if (message_->GetDescriptor() == StageConfig::descriptor()) {
      const std::vector<const FieldDescriptor*> kinds = kinds_set(*message_);
      if (kinds.size() == 1) {
        if (const FieldDescriptor* field = kinds[0]->message_type()->FindFieldByName(name)) {
          message_ = message_->GetReflection()->MutableMessage(message_, kinds[0]);
          path_ += "." + kinds[0]->name();
          return field;
        }
        const std::vector<std::string> own = field_names(*kinds[0]->message_type());
        names.insert(names.begin(), own.begin(), own.end());
      }
    }
    refuse(fmt::format("unknown field '{}' in {}{}", name,
                       path_.empty() ? "the configuration" : path_,
                       did_you_mean(name, names, "it has")));
    return nullptr;
  }

  void only_element(const FieldDescriptor& field, const std::string& path, int count) {
    if (count > 1) {
      return refuse(fmt::format("{} has {} elements; say which one: {}[0]", path, count, path));
    }
    const Reflection& reflection = *message_->GetReflection();
    message_ = count == 0 ? reflection.AddMessage(message_, &field)
                          : reflection.MutableRepeatedMessage(message_, &field, 0);
    path_ = fmt::format("{}[0]", path);
  }

  // An element of a list of messages, by index or, where they have names, by name.
  void element(const FieldDescriptor& field, const std::string& path, std::optional<int> index) {
    const Reflection& reflection = *message_->GetReflection();
    const int count = reflection.FieldSize(*message_, &field);
    if (index && *index >= count) {
      return refuse(fmt::format("there is no {}[{}]; {} has {} elements, counted from 0", path,
                                *index, path, count));
    }
    const bool named = field.message_type()->FindFieldByName("name") != nullptr;
    // Of a list whose elements have no names, the only one; it is made if there is none.
    if (!index && !named) return only_element(field, path, count);
    if (!index) {
      at_ = rest_.data();
      const std::size_t dot = rest_.find('.');
      const std::string name(rest_.substr(0, dot));
      rest_ = dot == std::string_view::npos ? std::string_view() : rest_.substr(dot + 1);
      const FieldDescriptor* key = field.message_type()->FindFieldByName("name");
      std::vector<std::string> names;
      for (int i = 0; i < count && key != nullptr; ++i) {
        const Message& candidate = reflection.GetRepeatedMessage(*message_, &field, i);
        names.push_back(candidate.GetReflection()->GetString(candidate, key));
        if (!index && names.back() == name) index = i;
      }
      if (!index) {
        return refuse(fmt::format("{} has no element '{}'{}", path, name,
                                  names.empty() ? "" : did_you_mean(name, names, "it has")));
      }
    }
    Message* const found = reflection.MutableRepeatedMessage(message_, &field, *index);
    path_ = fmt::format("{}[{}]", path, *index);
    if (!rest_.empty()) {
      message_ = found;
      return;
    }
    const std::optional<Node> node = parse_value();
    if (!node) return;
    if (node->kind != Node::Kind::kObject) {
      return refuse_value(fmt::format("{} takes a message, {{ ... }}", path_));
    }
    found->Clear();
    configuration_.places().erase_below(path_);
    configuration_.places().set(path_, place_of(at_));
    binder().object(*node, *found, path_);
    message_ = nullptr;
  }

  void assign(const FieldDescriptor& field, const std::string& path) {
    std::optional<Node> node;
    const bool text = field.cpp_type() == FieldDescriptor::CPPTYPE_STRING && !field.is_repeated();
    // With a unit; a bare number is read as everywhere.
    const bool size = is_size(field) && parse_bytes(given_).has_value() &&
                      given_.find_first_not_of("0123456789") != std::string_view::npos;
    if ((text || size) && !given_.starts_with('"') && !given_.starts_with('\'')) {
      node.emplace();
      node->kind = Node::Kind::kString;
      node->text = given_;
      node->position = {1, 1};
    } else {
      path_ = path;
      node = parse_value();
      if (!node) return;
    }
    Message& message = *message_;
    message.GetReflection()->ClearField(&message, &field);
    configuration_.places().erase_below(path);
    configuration_.places().set(path, place_of(at_));
    if (field.is_repeated()) {
      if (node->kind == Node::Kind::kObject) {  // a list of one
        Node list;
        list.kind = Node::Kind::kList;
        list.items.push_back(std::move(*node));
        node = std::move(list);
      }
      if (node->kind != Node::Kind::kList) {
        path_ = path;
        return refuse_value(fmt::format("{} takes a list, [ ... ]", path));
      }
      for (std::size_t i = 0; i < node->items.size(); ++i) {
        binder().value(node->items[i], message, field, fmt::format("{}[{}]", path, i));
      }
    } else {
      binder().value(*node, message, field, path);
    }
    message_ = nullptr;
  }

  std::optional<Node> parse_value() {
    Tree tree = parse_text_value(given_);
    if (tree.problems.empty()) return std::move(tree.root);
    refuse_at(place_in_value(tree.problems.front().position), tree.problems.front().text);
    return std::nullopt;
  }

  Binder binder() {
    return Binder(
        Notation::kText, [this](Position position) { return place_in_value(position); },
        configuration_.places(), configuration_.problems());
  }

  std::string source_;
  const std::string& argument_;
  Configuration& configuration_;
  std::string_view rest_;   // of the path
  std::string_view given_;  // the value as written
  const char* at_;          // the part of the path that was taken last
  std::string path_;        // down to message_
  Message* message_ = nullptr;
};

std::string too_large(std::string_view source) {
  return fmt::format(
      "{} has more than {} MiB, or no end, so it is not a configuration; give a file with one",
      source, kConfigBytesMax >> 20);
}

void read_tree(std::string_view text, Notation notation, Configuration& configuration) {
  const Tree tree = notation == Notation::kJson ? parse_json(text) : parse_text_format(text);
  const auto place_of = [source = configuration.places().whole().source](Position position) {
    return Place{source, position.line, position.column};
  };
  configuration.leave_out(tree.problems_left_out);
  for (const TreeProblem& problem : tree.problems) {
    configuration.problems().push_back({place_of(problem.position), {}, problem.text, {}});
  }
  if (!tree.complete) {
    configuration.set_incomplete();
    return;
  }
  Binder binder(notation, place_of, configuration.places(), configuration.problems());
  binder.object(tree.root, configuration.message(), "");
  configuration.leave_out(binder.left_out());
}

void read_serialized(std::string_view bytes, Configuration& configuration) {
  SerializedCheck checked =
      check_serialized(bytes, *DataLoaderConfig::descriptor(), configuration.places().whole());
  configuration.leave_out(checked.left_out);
  std::move(checked.problems.begin(), checked.problems.end(),
            std::back_inserter(configuration.problems()));
  for (std::string& path : checked.doubtful) configuration.places().set_doubtful(std::move(path));
  if (!checked.whole) return configuration.set_incomplete();
  // Fields that it does not know it keeps aside: they have been found above.
  if (!configuration.message().ParseFromArray(bytes.data(), static_cast<int>(bytes.size()))) {
    configuration.problems().push_back(
        {configuration.places().whole(), {}, "protobuf rejects these bytes", {}});
    configuration.set_incomplete();
  }
}

// What has thousands of stages is no pipeline, and to compare all with all takes its time.
void bound_lists(Configuration& configuration) {
  const DataLoaderConfig& message = configuration.message();
  const auto bound = [&](const char* list, int size) {
    if (size <= kStagesMax) return;
    configuration.problems().push_back(
        {configuration.places().find(fmt::format("{}[{}]", list, kStagesMax)),
         {},
         fmt::format("there are {} {}; a feed has at most {}", size, list, kStagesMax),
         list});
    configuration.set_incomplete();
  };
  bound("stages", message.stages_size());
  bound("stage_groups", message.stage_groups_size());
  bound("feed_output", message.feed_output_size());
}

void name_feed(std::string_view source, Configuration& configuration) {
  DataLoaderConfig& message = configuration.message();
  if (message.has_feed() || !configuration.complete()) return;
  const std::string stem = std::filesystem::path(source).stem().string();
  if (valid_feed_name(stem)) {
    message.set_feed(stem);
    return;
  }
  configuration.problems().push_back({configuration.places().whole(),
                                      {},
                                      fmt::format("the feed has no name, and the name of the file, "
                                                  "'{}', cannot be one; add feed: \"NAME\" "
                                                  "with letters, digits, '_', '.' and '-'",
                                                  stem),
                                      "feed"});
  // Reported once is enough.
  message.set_feed("unnamed");
}

}  // namespace

Configuration::Configuration(std::string source)
    : message_(std::make_unique<DataLoaderConfig>()), places_(std::move(source)) {}
Configuration::Configuration(const DataLoaderConfig& message, std::string source)
    : message_(std::make_unique<DataLoaderConfig>(message)), places_(std::move(source)) {}
Configuration::~Configuration() = default;
Configuration::Configuration(Configuration&&) noexcept = default;
Configuration& Configuration::operator=(Configuration&&) noexcept = default;

Format format_of(std::string_view file) {
  const std::string extension = std::filesystem::path(file).extension().string();
  if (extension == ".json") return Format::kJson;
  if (extension == ".binpb" || extension == ".pb") return Format::kSerialized;
  if (extension == ".textproto" || extension == ".txtpb" || extension == ".pbtxt" ||
      extension == ".prototxt") {
    return Format::kText;
  }
  return Format::kAuto;
}

Configuration parse_config(std::string_view text, std::string_view source,
                           std::span<const std::string> overrides, Format format) {
  Configuration configuration{std::string(source)};
  if (format == Format::kAuto) {
    const std::size_t first = text.find_first_not_of(" \t\r\n\xEF\xBB\xBF");
    format = first != std::string_view::npos && text[first] == '{' ? Format::kJson : Format::kText;
  }
  if (text.size() > kConfigBytesMax) {
    configuration.problems().push_back(
        {configuration.places().whole(), {}, too_large(configuration.places().whole().source), {}});
    configuration.set_incomplete();
  } else if (format == Format::kSerialized) {
    read_serialized(text, configuration);
  } else {
    read_tree(text, format == Format::kJson ? Notation::kJson : Notation::kText, configuration);
  }
  bound_lists(configuration);
  if (configuration.complete()) {
    for (const std::string& argument : overrides) Override(argument, configuration).apply();
  }
  name_feed(source, configuration);
  // Only now: an override may have changed a stage's name.
  for (Problem& problem : configuration.problems()) {
    problem.stage = stage_label(configuration.message(), problem.path);
  }
  sort_problems(configuration.problems());
  return configuration;
}

std::string read_config_file(const std::string& file) {
  std::error_code ignored;
  if (file != "-" && std::filesystem::is_directory(file, ignored)) {
    throw Error(ErrorCode::kIo,
                fmt::format("{} is a directory; give a file with a configuration", file));
  }
  const Result<std::string> content = file == "-"
                                          ? shm::read_to_end(STDIN_FILENO, "stdin", kConfigBytesMax)
                                          : shm::read_file(file, kConfigBytesMax);
  if (content) return *content;
  if (content.error().code() == ErrorCode::kInvalidArgument) {
    throw Error(ErrorCode::kIo, too_large(file == "-" ? "stdin" : file));
  }
  throw Error(content.error().code(),
              fmt::format("cannot read the configuration {}; check the path and its permissions",
                          content.error().message()));
}

Configuration read_config(const std::string& file, std::span<const std::string> overrides) {
  const std::string text = read_config_file(file);
  if (file == "-") return parse_config(text, "stdin", overrides);
  return parse_config(text, file, overrides, format_of(file));
}

}  // namespace ringfeed::config
