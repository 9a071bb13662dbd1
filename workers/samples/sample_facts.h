// What stages of samples tell each other (ringfeed/worker/facts.h), so that a type need be given
// once: where the samples are made, or where they become batches.
//
// Shufflers and mixers pass both on. A stage in Python, or of a plug-in, may make other fields of
// the same names, so nothing is known behind it, and nothing can be wished before it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "ringfeed/worker/facts.h"
#include "ringfeed/worker/sample.h"
#include "ringfeed/worker/stage.h"
#include "workers/kit/batch_columns.h"
#include "workers/samples/sample_file.h"

namespace ringfeed {

class SampleSourceConfig;

namespace samples {

struct TypedField {
  std::string name;  // in the sample
  SampleDtype dtype = SampleDtype::kBytes;
  std::optional<std::vector<std::uint32_t>> shape = {};  // none: not known
  std::string place = {};                                // "fields[1] of stage 'lines'"
};

// "id int64, x float32"
std::string fact_text(const std::vector<TypedField>& fields);

}  // namespace samples

using TypedFields = std::vector<samples::TypedField>;

// ---- facts

// Those whose type is known. Of a mixture all that its inputs say: a name may be there several
// times.
inline constexpr Fact<TypedFields> kTypedFields{"samples.fields"};

// ---- wishes

// The batch that a stage makes of samples as they are; those between it and the source pass the
// wish on.
struct BatchWish {
  std::string stage;
  std::vector<BatchColumn> columns;
};
inline std::string fact_text(const BatchWish&) { return {}; }  // the batch itself is shown
inline constexpr Fact<BatchWish> kBatchWish{"samples.batch"};

// Of a stage that changes no sample.
inline void pass_on_batch_wish(const Links& links, const std::string& input, PortFacts& inputs) {
  const BatchWish* const wish = links.output("output").said.find(kBatchWish);
  if (wish != nullptr) inputs[input].set(kBatchWish, *wish);
}

// ---- what stages do with them

// What a source of these settings says of the fields that they give a type to.
[[nodiscard]] TypedFields typed_fields(const StageView& source);
// The settings with the types that are wished of the output, for fields of which they give none.
[[nodiscard]] SampleSourceConfig with_wishes(const SampleSourceConfig& config, const Link& reader);

// What of a tar is wished as a number; there it is text.
[[nodiscard]] std::vector<WantedField> wanted_numbers(const Link& reader);

// The fields of a batcher, with types and shapes where its configuration leaves them out.
[[nodiscard]] std::vector<BatchField> with_facts(std::vector<BatchField> fields,
                                                 const Link& source);
// A type that cannot hold what the source says of the field.
[[nodiscard]] std::vector<Problem> type_problems(const std::vector<BatchField>& fields,
                                                 const Link& source);

}  // namespace ringfeed
