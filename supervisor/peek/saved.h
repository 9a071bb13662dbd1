// A batch as files: for NumPy, for a viewer of pictures, for a colleague.
//
//   DIR/FEED[-OUTPUT]-NUMBER/
//     NAME.npy      each array, byte for byte; bfloat16 as uint16
//     NAME-ROW.png  pictures
//     batch.json    what is in it (`ringfeed peek --json`)
#pragma once

#include <filesystem>
#include <map>
#include <set>
#include <string>
#include <string_view>

#include "supervisor/peek/observed_batch.h"

namespace ringfeed::peek {

// Its directory; made, if it is not there yet. Throws Error (kIo).
[[nodiscard]] std::filesystem::path make_directory(const std::filesystem::path& parent,
                                                   const std::string& feed,
                                                   const ObservedBatch& batch);
// Each is the old file or the whole new one. Throw Error (kIo).
void save_array(const std::filesystem::path& path, const ObservedArray& array);
void save_file(const std::filesystem::path& path, std::string_view head, std::string_view bytes);
// What can be part of a file's name, of what a name says.
[[nodiscard]] std::string file_name(std::string_view name);

// The same of several names, each its own: "a/b" and "a_b" are two files.
class FileNames {
 public:
  [[nodiscard]] const std::string& of(const std::string& name);

 private:
  std::map<std::string, std::string> names_;
  std::set<std::string> taken_;
};

}  // namespace ringfeed::peek
