// Puts a tree of values into a message by its schema. For .cc files only, because it shows
// protobuf.
#pragma once

#include <google/protobuf/message.h>

#include <cstddef>
#include <functional>
#include <string>
#include <vector>

#include "supervisor/config/places.h"
#include "supervisor/config/tree.h"

namespace ringfeed::config {

// JSON has its own names (chunkPoolSize) and says some values differently; text format is stricter
// about quotes.
enum class Notation { kText, kJson };

class Binder {
 public:
  using PlaceOf = std::function<Place(Position)>;

  // What it finds goes to `places` and `problems`; a problem's `stage` is left empty.
  Binder(Notation notation, PlaceOf place_of, Places& places, std::vector<Problem>& problems)
      : notation_(notation), place_of_(std::move(place_of)), places_(places), problems_(problems) {}

  // The entries of an object into the fields of `message`, which lies at `path` ("": the whole).
  void object(const Node& node, google::protobuf::Message& message, const std::string& path);
  // One value into a field that is not repeated, or as one more element of one that is.
  void value(const Node& node, google::protobuf::Message& message,
             const google::protobuf::FieldDescriptor& field, const std::string& path);

  // Problems that were found and not kept, beyond kProblemsKept.
  [[nodiscard]] std::size_t left_out() const { return left_out_; }

  // The field of that name; null if there is none.
  [[nodiscard]] const google::protobuf::FieldDescriptor* field(
      const google::protobuf::Descriptor& descriptor, const std::string& name) const;

 private:
  void list(const Entry& entry, google::protobuf::Message& message,
            const google::protobuf::FieldDescriptor& field, const std::string& path);
  void unknown(const Entry& entry, const Node& object, google::protobuf::Message& message,
               const std::string& path);
  void problem(Position position, const std::string& path, std::string text);
  // True: no more are kept; it has been counted.
  [[nodiscard]] bool too_many();

  Notation notation_;
  PlaceOf place_of_;
  Places& places_;
  std::vector<Problem>& problems_;
  std::size_t left_out_ = 0;
};

}  // namespace ringfeed::config
