#include "supervisor/peek/question.h"

#include <fmt/format.h>

#include <algorithm>

#include "proto/control.pb.h"
#include "proto/view.pb.h"
#include "ringfeed/shm/quote.h"
#include "supervisor/group/plan_question.h"

namespace ringfeed::peek {
namespace {

constexpr int kShowMs = 20'000;
// An array without rows goes whole, or not at all.
constexpr std::uint64_t kWholeBytesMax = std::uint64_t{64} << 20;
// More than this of a row is nothing that anybody reads.
constexpr std::uint64_t kRowsBytesMax = std::uint64_t{256} << 20;

void add_array(const ObservedArray& array, std::uint64_t rows, ShowQuestion& question) {
  ShownArray& to = *question.add_arrays();
  to.set_name(array.name);
  to.set_dtype(array.dtype);
  for (const std::uint64_t size : array.shape) to.add_shape(size);
  std::uint64_t bytes = array.bytes.size();
  if (array.has_rows) {
    to.set_has_rows(true);
    const std::uint64_t all = array.shape[0];
    const std::uint64_t some = std::min(rows, all);
    to.set_shape(0, some);
    bytes = all == 0 ? 0 : bytes / all * some;
  }
  if (bytes > (array.has_rows ? kRowsBytesMax : kWholeBytesMax)) return;
  to.set_data(array.bytes.data(), bytes);
}

}  // namespace

ShowAnswer ask_about(const ObservedBatch& batch, const OriginReply& origin, std::uint64_t rows,
                     const std::vector<std::string>& pictures) {
  ShowQuestion question;
  question.set_config(origin.config());
  for (const OutputOrigin& output : origin.outputs()) {
    if (output.alias() == batch.output()) question.set_stage(output.stage());
  }
  question.set_rows(std::min(rows, batch.rows()));
  for (const ObservedArray& array : batch.arrays()) add_array(array, rows, question);
  for (const std::string& name : pictures) question.add_pictures(name);
  ShowAnswer answer;
  std::string problem;
  try {
    const std::string text =
        process::ask_text(origin.worker(), "--show", question.SerializeAsString(), kShowMs);
    if (answer.ParseFromString(text)) return answer;
    problem = "its answer cannot be read: use the same version of ringfeed and worker";
  } catch (const Error& error) {
    problem = error.message();
  }
  answer.Clear();
  answer.add_problems(fmt::format("the rows are not shown: {}", escaped(problem)));
  return answer;
}

}  // namespace ringfeed::peek
