#include "supervisor/config/paths.h"

#include <fmt/format.h>
#include <google/protobuf/descriptor.h>
#include <google/protobuf/message.h>

#include <string_view>
#include <vector>

#include "proto/config.pb.h"

namespace ringfeed::config {
namespace {

namespace fs = std::filesystem;
using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using google::protobuf::Reflection;

bool has_directory(const Message& message) {
  const FieldDescriptor* const field = message.GetDescriptor()->FindFieldByName("directory");
  return field != nullptr && message.GetReflection()->HasField(message, field);
}

void make_absolute(Message& message, const fs::path& directory) {
  const Reflection& reflection = *message.GetReflection();
  std::vector<const FieldDescriptor*> fields;
  reflection.ListFields(message, &fields);
  for (const FieldDescriptor* field : fields) {
    if (field->cpp_type() == FieldDescriptor::CPPTYPE_MESSAGE) {
      if (!field->is_repeated())
        make_absolute(*reflection.MutableMessage(&message, field), directory);
      for (int i = 0; field->is_repeated() && i < reflection.FieldSize(message, field); ++i) {
        make_absolute(*reflection.MutableRepeatedMessage(&message, field, i), directory);
      }
      continue;
    }
    const PathUse use = field->options().GetExtension(::ringfeed::path_use);
    if (use == NO_PATH || (use == PATH_BELOW && has_directory(message))) continue;
    // Not normalized: x/.. is another place than . if x is a link.
    const auto absolute = [&directory](const fs::path& given) {
      const bool is_meant = !given.empty() && given.is_relative() && !is_address(given.string());
      return is_meant ? (directory / given).string() : given.string();
    };
    if (!field->is_repeated()) {
      reflection.SetString(&message, field, absolute(reflection.GetString(message, field)));
      continue;
    }
    for (int i = 0; i < reflection.FieldSize(message, field); ++i) {
      reflection.SetRepeatedString(&message, field, i,
                                   absolute(reflection.GetRepeatedString(message, field, i)));
    }
  }
}

// The first file that a provider would output, or at least look at.
bool holds_a_file(const fs::path& directory) {
  std::error_code failed;
  fs::recursive_directory_iterator at(directory,
                                      fs::directory_options::follow_directory_symlink |
                                          fs::directory_options::skip_permission_denied,
                                      failed);
  for (; !failed && at != fs::recursive_directory_iterator(); at.increment(failed)) {
    if (at->path().filename().native().front() == '.') {
      at.disable_recursion_pending();
    } else if (at->is_regular_file(failed)) {
      return true;
    }
    failed.clear();
  }
  // What cannot be looked at is not called empty.
  return static_cast<bool>(failed);
}

}  // namespace

void make_paths_absolute(DataLoaderConfig& config, const fs::path& directory) {
  make_absolute(config, directory);
}

bool is_address(std::string_view path) noexcept {
  const std::size_t mark = path.find("://");
  return mark != std::string_view::npos && mark > 1 &&
         path.substr(0, mark).find_first_not_of(
             "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789+.-") ==
             std::string_view::npos;
}

std::string address_text(std::string_view path) {
  return fmt::format(
      "{} is the address of an object store, and this stage finds its files by itself, on this "
      "host: copy them to a directory first (aws s3 sync, rclone sync) or mount the store (rclone "
      "mount, mount-s3, gcsfuse), and give that directory. Only stages that find files for others "
      "take such an address",
      path);
}

std::string doubt_about_data(const fs::path& directory, bool finite) {
  std::error_code failed;
  const fs::file_status status = fs::status(directory, failed);
  const std::string_view then = finite ? "a finite run then has no data" : "the feed will wait for";
  if (status.type() == fs::file_type::not_found) {
    return fmt::format("directory {} does not exist: {}{}", directory.string(), then,
                       finite ? "" : " it");
  }
  if (failed) return {};
  if (status.type() != fs::file_type::directory) {
    return fmt::format("{} is not a directory: {}{}", directory.string(), then,
                       finite ? "" : " one in its place");
  }
  if (holds_a_file(directory)) return {};
  return fmt::format("directory {} has no files yet: {}{}", directory.string(), then,
                     finite ? "" : " them");
}

std::string doubt_about_file(const fs::path& file, bool finite) {
  std::error_code failed;
  const fs::file_status status = fs::status(file, failed);
  const std::string_view then = finite ? "it is left out" : "it is left out until it appears";
  if (status.type() == fs::file_type::not_found) {
    return fmt::format("file {} does not exist: {}", file.string(), then);
  }
  if (failed || status.type() != fs::file_type::directory) return {};
  return fmt::format("{} is a directory, not a file: {}", file.string(), then);
}

std::string doubt_about_setting(const fs::path& file) {
  std::error_code failed;
  const fs::file_status status = fs::status(file, failed);
  if (status.type() == fs::file_type::not_found) {
    return fmt::format("file {} does not exist: it is needed when the feed starts", file.string());
  }
  if (failed || status.type() != fs::file_type::directory) return {};
  return fmt::format("{} is a directory, not a file: a file is needed when the feed starts",
                     file.string());
}

}  // namespace ringfeed::config
