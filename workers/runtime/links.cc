#include "workers/runtime/links.h"

#include <algorithm>
#include <charconv>
#include <map>
#include <string>
#include <string_view>

#include "proto/config.pb.h"
#include "workers/runtime/registry.h"

namespace ringfeed {
namespace {

using google::protobuf::FieldDescriptor;
using google::protobuf::Message;

// What the configuration gives for an input: the string field of its name, or, for "name[2]", the
// third element of the repeated one, whose first is "name" too. "": nothing.
std::string source_of(const Message& own, std::string_view port) {
  const std::string name(port.substr(0, port.find('[')));
  const FieldDescriptor* const field = own.GetDescriptor()->FindFieldByName(name);
  if (field == nullptr || field->cpp_type() != FieldDescriptor::CPPTYPE_STRING) return {};
  const auto& reflection = *own.GetReflection();
  if (!field->is_repeated()) return reflection.GetString(own, field);
  int element = 0;
  if (name.size() != port.size()) {
    const char* const digits = port.data() + name.size() + 1;
    if (std::from_chars(digits, port.data() + port.size(), element).ec != std::errc()) return {};
  }
  return element >= 0 && element < reflection.FieldSize(own, field)
             ? reflection.GetRepeatedString(own, field, element)
             : std::string();
}

// The output that a reader means: `asked`, empty where it names the stage alone. Which one a stage
// alone is, supervisor/config/wiring.cc says. A name that no output has is refused there; here the
// stages are linked all the same, so that nothing else is reported because of it.
std::string output_meant(const std::vector<PortSpec>& outputs, std::string_view asked) {
  const auto has = [&](std::string_view name) {
    return std::any_of(outputs.begin(), outputs.end(),
                       [name](const PortSpec& output) { return output.name == name; });
  };
  if (has(asked)) return std::string(asked);
  if (!has("output") && outputs.size() == 1) return outputs.front().name;
  return "output";
}

}  // namespace

PipelineLinks::PipelineLinks(const DataLoaderConfig& feed, const Registry& registry) : feed_(feed) {
  entries_.resize(static_cast<std::size_t>(feed.stages_size()));
  for (std::size_t s = 0; s < entries_.size(); ++s) {
    const StageConfig& config = feed.stages(static_cast<int>(s));
    entries_[s].type = registry.of(config);
    find_ports(entries_[s], config);
  }
  find_wires();
  const std::vector<std::size_t> order = downward();
  for (const std::size_t s : order) {
    Entry& entry = entries_[s];
    if (entry.type == nullptr || !entry.type->facts) continue;
    entry.type->facts(view(static_cast<int>(s)), entry.facts);
    for (const Wire& wire : entry.writes) {
      const auto said = entry.facts.find(wire.port);
      if (said == entry.facts.end()) continue;
      entries_[wire.peer].links.add_input(wire.peer_port).said = said->second;
    }
  }
  const std::vector<std::size_t> upward(order.rbegin(), order.rend());
  for (const std::size_t s : upward) {
    Entry& entry = entries_[s];
    if (entry.type == nullptr || !entry.type->wishes) continue;
    entry.type->wishes(view(static_cast<int>(s)), entry.wishes);
    for (const Wire& wire : entry.reads) {
      const auto said = entry.wishes.find(wire.port);
      if (said == entry.wishes.end() || !wire.first) continue;
      entries_[wire.peer].links.add_output(wire.peer_port).said = said->second;
    }
  }
  // Once more: some ports follow from what the others have said.
  for (std::size_t s = 0; s < entries_.size(); ++s) {
    find_ports(entries_[s], feed.stages(static_cast<int>(s)));
  }
}

void PipelineLinks::find_ports(Entry& entry, const StageConfig& config) const {
  if (entry.type == nullptr) return;
  entry.inputs = entry.type->inputs;
  entry.outputs = entry.type->outputs;
  if (!entry.type->more_ports) return;
  entry.type->more_ports({config, feed_, entry.links}, entry.inputs, entry.outputs);
}

void PipelineLinks::find_wires() {
  std::map<std::string, std::size_t, std::less<>> by_name;
  for (std::size_t s = 0; s < entries_.size(); ++s) {
    by_name.emplace(feed_.stages(static_cast<int>(s)).name(), s);
  }
  for (std::size_t s = 0; s < entries_.size(); ++s) {
    if (entries_[s].type == nullptr) continue;
    const StageConfig& config = feed_.stages(static_cast<int>(s));
    const Message& own = settings_of(config);
    for (const PortSpec& input : entries_[s].inputs) {
      if (!input.from.empty()) continue;
      const std::string source = source_of(own, input.name);
      const std::size_t dot = source.find('.');
      const auto writer = by_name.find(std::string_view(source).substr(0, dot));
      if (writer == by_name.end() || writer->first.empty()) continue;
      const std::string port = output_meant(
          entries_[writer->second].outputs,
          dot == std::string::npos ? std::string_view() : std::string_view(source).substr(dot + 1));
      Link& from = entries_[s].links.add_input(input.name);
      from.stage = writer->first;
      from.port = port;
      Link& to = entries_[writer->second].links.add_output(port);
      const bool first = !to.linked();
      if (first) to = {config.name(), input.name, {}};
      entries_[writer->second].writes.push_back({port, s, input.name, first});
      entries_[s].reads.push_back({input.name, writer->second, port, first});
    }
  }
}

std::vector<std::size_t> PipelineLinks::downward() const {
  std::vector<std::size_t> waits(entries_.size());  // inputs whose writer is not in `order` yet
  std::vector<std::size_t> order;
  for (std::size_t s = 0; s < entries_.size(); ++s) {
    waits[s] = entries_[s].reads.size();
    if (waits[s] == 0) order.push_back(s);
  }
  for (std::size_t next = 0; next < order.size(); ++next) {
    for (const Wire& wire : entries_[order[next]].writes) {
      if (--waits[wire.peer] == 0) order.push_back(wire.peer);
    }
  }
  for (std::size_t s = 0; s < entries_.size(); ++s) {
    if (waits[s] != 0) order.push_back(s);
  }
  return order;
}

StageView PipelineLinks::view(int stage) const {
  return {feed_.stages(stage), feed_, entries_[static_cast<std::size_t>(stage)].links};
}
const std::vector<PortSpec>& PipelineLinks::inputs(int stage) const {
  return entries_[static_cast<std::size_t>(stage)].inputs;
}
const std::vector<PortSpec>& PipelineLinks::outputs(int stage) const {
  return entries_[static_cast<std::size_t>(stage)].outputs;
}
const PortFacts& PipelineLinks::facts(int stage) const {
  return entries_[static_cast<std::size_t>(stage)].facts;
}
const PortFacts& PipelineLinks::wishes(int stage) const {
  return entries_[static_cast<std::size_t>(stage)].wishes;
}

}  // namespace ringfeed
