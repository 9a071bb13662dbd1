#include "supervisor/config/reference.h"

#include <fmt/format.h>
#include <google/protobuf/descriptor.h>
#include <google/protobuf/descriptor.pb.h>

#include <algorithm>
#include <utility>

#include "proto/config.pb.h"
#include "proto/config_desc.h"
#include "ringfeed/shm/result.h"
#include "supervisor/config/fields.h"

namespace ringfeed::config {
namespace {

using google::protobuf::Descriptor;
using google::protobuf::DescriptorPool;
using google::protobuf::EnumDescriptor;
using google::protobuf::FieldDescriptor;

// The schema with its comments.
class Comments {
 public:
  Comments() {
    google::protobuf::FileDescriptorSet set;
    const std::string_view bytes = config_descriptor_set();
    const bool parsed = set.ParseFromArray(bytes.data(), static_cast<int>(bytes.size()));
    RF_CHECK(parsed, bytes.size());
    for (const google::protobuf::FileDescriptorProto& file : set.file()) {
      RF_CHECK(pool_.BuildFile(file) != nullptr, set.file_size());
    }
  }

  // The comment before the thing and the one behind it in its line, as lines without the marks.
  template <typename Thing>
  [[nodiscard]] static std::vector<std::string> of(const Thing* thing) {
    google::protobuf::SourceLocation where;
    if (thing == nullptr || !thing->GetSourceLocation(&where)) return {};
    std::vector<std::string> lines;
    for (std::string_view rest :
         {std::string_view(where.leading_comments), std::string_view(where.trailing_comments)}) {
      while (!rest.empty()) {
        const std::size_t end = rest.find('\n');
        std::string_view line = rest.substr(0, end);
        if (line.starts_with(' ')) line.remove_prefix(1);
        lines.emplace_back(line);
        rest.remove_prefix(end == std::string_view::npos ? rest.size() : end + 1);
      }
    }
    return lines;
  }
  [[nodiscard]] std::vector<std::string> of_message(const std::string& name) const {
    return of(pool_.FindMessageTypeByName(name));
  }
  [[nodiscard]] std::vector<std::string> of_field(const std::string& name) const {
    return of(pool_.FindFieldByName(name));
  }
  [[nodiscard]] std::vector<std::string> of_enum(const std::string& name) const {
    return of(pool_.FindEnumTypeByName(name));
  }
  [[nodiscard]] std::vector<std::string> of_value(const std::string& name) const {
    return of(pool_.FindEnumValueByName(name));
  }

 private:
  DescriptorPool pool_;
};

std::string one_line(const std::vector<std::string>& lines) {
  std::string text;
  for (std::string_view line : lines) {
    while (line.starts_with(' ')) line.remove_prefix(1);
    if (!text.empty() && !line.empty()) text += ' ';
    text += line;
  }
  return text;
}

// Paragraphs, and lists whose items are lines of their own.
std::vector<std::string> blocks(const std::vector<std::string>& lines) {
  std::vector<std::string> all;
  bool open = false;  // the last block goes on
  for (std::string_view line : lines) {
    while (line.starts_with(' ')) line.remove_prefix(1);
    if (line.empty()) {
      open = false;
      continue;
    }
    if (!open) {
      all.emplace_back(line);
    } else {
      all.back() += (line.starts_with("- ") ? "\n" : " ") + std::string(line);
    }
    open = true;
  }
  return all;
}

// "Finds files below a directory": up to the first full stop or colon.
std::string first_clause(const std::string& text) {
  std::size_t end = text.size();
  for (const std::string_view stop : {". ", ": "}) end = std::min(end, text.find(stop));
  std::string clause = text.substr(0, end);
  if (clause.ends_with('.') || clause.ends_with(':')) clause.pop_back();
  return clause;
}

// Takes `words` out, with the mark before them, where they are a clause or a sentence of their own.
void take_out(std::string& text, const std::string& words) {
  for (std::size_t at = 0; (at = text.find(words, at)) != std::string::npos; ++at) {
    const std::size_t end = at + words.size();
    // Not the beginning of "1.0" or of "10".
    const bool ends = end == text.size() || text[end] == ';' || text.compare(end, 2, ". ") == 0 ||
                      text.compare(end, std::string::npos, ".") == 0;
    if (!ends) continue;
    const bool clause = at >= 2 && text.compare(at - 2, 2, "; ") == 0;
    const bool sentence = at == 0 || (at >= 2 && text.compare(at - 2, 2, ". ") == 0);
    if (clause) {
      text.erase(at - 2, end - (at - 2));
    } else if (sentence && end < text.size()) {
      // "Default 0; from 1 on." keeps its other half; "Default 0." goes with its full stop.
      const std::size_t next = std::min(text.size(), end + 2);
      text.erase(at, next - at);
    } else {
      continue;
    }
    while (text.ends_with(' ')) text.pop_back();
    return;
  }
}

std::string default_of(const FieldDescriptor& field) {
  if (!field.has_default_value()) return "";
  switch (field.cpp_type()) {
    case FieldDescriptor::CPPTYPE_INT32:
      return fmt::format("{}", field.default_value_int32());
    case FieldDescriptor::CPPTYPE_INT64:
      return fmt::format("{}", field.default_value_int64());
    case FieldDescriptor::CPPTYPE_UINT32:
      return fmt::format("{}", field.default_value_uint32());
    case FieldDescriptor::CPPTYPE_UINT64:
      return fmt::format("{}", field.default_value_uint64());
    case FieldDescriptor::CPPTYPE_FLOAT:
      return fmt::format("{}", field.default_value_float());
    case FieldDescriptor::CPPTYPE_DOUBLE:
      return fmt::format("{}", field.default_value_double());
    case FieldDescriptor::CPPTYPE_BOOL:
      return field.default_value_bool() ? "true" : "false";
    case FieldDescriptor::CPPTYPE_ENUM:
      return field.default_value_enum()->name();
    case FieldDescriptor::CPPTYPE_STRING:
      return field.default_value_string();
    case FieldDescriptor::CPPTYPE_MESSAGE:
      break;
  }
  return "";
}

std::string type_of(const FieldDescriptor& field) {
  std::string type = field.type_name();
  if (field.cpp_type() == FieldDescriptor::CPPTYPE_ENUM) type = "word";
  if (field.options().GetExtension(::ringfeed::path_use) != NO_PATH) type = "path";
  return field.is_repeated() ? "repeated " + type : type;
}

// The setting and, of a message, those in it, behind it.
void add_settings(const Comments& comments, const FieldDescriptor& field, const std::string& prefix,
                  std::vector<Setting>& to) {
  Setting setting;
  setting.name = prefix + field.name();
  setting.type = type_of(field);
  setting.default_value = default_of(field);
  setting.range = shown_range(field);
  const FieldDescriptor* const common = common_field(field);
  if (common != nullptr) setting.text = one_line(comments.of_field(common->full_name()));
  const std::string own = one_line(comments.of_field(field.full_name()));
  if (!own.empty()) setting.text += (setting.text.empty() ? "" : " ") + own;
  if (field.enum_type() != nullptr) {
    const std::string of_all = one_line(comments.of_enum(field.enum_type()->full_name()));
    if (setting.text.empty()) setting.text = of_all;
    for (int i = 0; i < field.enum_type()->value_count(); ++i) {
      const google::protobuf::EnumValueDescriptor& value = *field.enum_type()->value(i);
      setting.values.push_back({value.name(), one_line(comments.of_value(value.full_name()))});
    }
  }
  if (field.message_type() != nullptr) {
    const std::string of_all = one_line(comments.of_message(field.message_type()->full_name()));
    if (!of_all.empty()) setting.text += (setting.text.empty() ? "" : " ") + of_all;
  }
  // What is said of two settings is said before the first.
  if (setting.text.empty() && prefix.empty()) {
    const auto before = std::find_if(to.rbegin(), to.rend(), [](const Setting& earlier) {
      return earlier.name.find('.') == std::string::npos;
    });
    if (before != to.rend()) setting.text = fmt::format("See `{}`.", before->name);
  }
  const Range* const range = range_of(field);
  if (range != nullptr && range->has_min() && range->has_max()) {
    take_out(setting.text, setting.range);
  }
  if (!setting.default_value.empty()) {
    take_out(setting.text, "default " + setting.default_value);
    take_out(setting.text, "Default " + setting.default_value);
  }
  to.push_back(std::move(setting));
  if (field.message_type() == nullptr) return;
  for (int i = 0; i < field.message_type()->field_count(); ++i) {
    add_settings(comments, *field.message_type()->field(i), prefix + field.name() + ".", to);
  }
}

}  // namespace

std::vector<KindSchema> kind_schemas() {
  const Comments comments;
  std::vector<KindSchema> kinds;
  for (const FieldDescriptor* field : kind_fields()) {
    const Descriptor& message = *field->message_type();
    KindSchema& kind = kinds.emplace_back();
    kind.kind = field->name();
    std::string file = message.file()->name();  // "proto/stages/lc0.proto"
    file.erase(0, file.rfind('/') + 1);
    kind.domain = file.substr(0, file.find('.'));
    kind.text = blocks(comments.of_message(message.full_name()));
    if (!kind.text.empty()) kind.summary = first_clause(kind.text.front());
    for (int i = 0; i < message.field_count(); ++i) {
      const FieldDescriptor& own = *message.field(i);
      add_settings(comments, own, "", common_field(own) == nullptr ? kind.settings : kind.common);
    }
  }
  return kinds;
}

}  // namespace ringfeed::config
