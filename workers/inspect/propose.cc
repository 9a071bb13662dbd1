#include "workers/inspect/propose.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <string_view>
#include <utility>
#include <vector>

#include "ringfeed/shm/quote.h"
#include "ringfeed/shm/result.h"

namespace ringfeed::inspect {
namespace {

using Kinds = std::vector<DataKind>;

std::vector<std::string_view> names_of(const Kinds& kinds) {
  std::vector<std::string_view> names;
  for (const DataKind& kind : kinds) names.push_back(kind.name);
  return names;
}

bool is_kind(const Kinds& kinds, std::string_view name) {
  return std::ranges::any_of(kinds, [&](const DataKind& kind) { return kind.name == name; });
}

// What the kind's data is; of all kinds: "".
std::string readable(const Kinds& kinds, std::string_view name) {
  std::vector<std::string_view> data;
  for (const DataKind& kind : kinds) {
    if (name.empty() || kind.name == name) data.push_back(kind.data);
  }
  return fmt::format("{}", fmt::join(data, "; "));
}

}  // namespace

ProposalAnswer propose(const ProposalQuestion& question, const Describers& describers) {
  const Kinds& kinds = describers.kinds;
  if (!question.kind.empty() && !is_kind(kinds, question.kind)) {
    return {kWrongWords, fmt::format("there is no kind of data '{}': there are {}",
                                     escaped(question.kind), fmt::join(names_of(kinds), ", "))};
  }
  const DirectoryLook look = look_at(question.directory);
  const std::string directory = escaped(look.directory);
  std::vector<std::pair<const DataKind*, Proposal>> useful;
  std::vector<std::pair<const DataKind*, Proposal>> others;
  const auto ask = [&](bool of_anybody) {
    for (const DataKind& kind : kinds) {
      if (!question.kind.empty() ? question.kind != kind.name : kind.of_anybody != of_anybody) {
        continue;
      }
      std::optional<Proposal> proposal = kind.propose(look, question.wish);
      if (proposal)
        (proposal->text.empty() ? others : useful).emplace_back(&kind, *std::move(proposal));
    }
  };
  ask(false);
  const bool somebodys =
      std::ranges::any_of(others, [](const auto& other) { return !other.second.other_data; });
  if (question.kind.empty() && useful.empty() && !somebodys) ask(true);
  if (useful.size() > 1) {
    std::vector<std::string> data;
    std::vector<std::string_view> names;
    for (const auto& [kind, proposal] : useful) {
      data.emplace_back(kind->data);
      names.push_back(kind->name);
    }
    return {kNoProposal,
            fmt::format("{} has {}: say which, 'ringfeed init {} {}' say, or give a directory with "
                        "one kind of data",
                        directory, fmt::join(data, ", and "), names.front(), directory)};
  }
  if (useful.size() == 1) {
    const auto& [kind, proposal] = useful.front();
    return {kProposed, fmt::format("{}\n{}\n{}\n{}", kind->name, proposal.feed,
                                   escaped(proposal.found), proposal.text)};
  }
  if (!others.empty()) {
    std::vector<std::string> problems;
    for (const auto& [kind, proposal] : others) problems.push_back(proposal.problem);
    return {kNoProposal, fmt::format("{}: {}", directory, fmt::join(problems, "; "))};
  }
  const std::size_t files = look.files.size();
  const std::string none =
      files == 0 ? "there are no files here"
                 : fmt::format("none of the files here ({}) is such data", look.count_text(files));
  return {kNoProposal, fmt::format("{}: {}: ringfeed reads {}", directory, none,
                                   readable(kinds, question.kind))};
}

int propose_main(int count, char** words, const Describers& describers) {
  const Kinds& kinds = describers.kinds;
  ProposalQuestion question;
  std::vector<std::string> places;
  for (int i = 0; i < count; ++i) {
    const std::string_view word(words[i]);
    if (word.starts_with("--feed=")) {
      question.wish.feed = word.substr(std::strlen("--feed="));
    } else if (word.starts_with("--file=")) {
      question.wish.file = word.substr(std::strlen("--file="));
    } else {
      places.emplace_back(word);
    }
  }
  // A word alone is a kind of data, if there is one of that name, or else a directory.
  const bool kind_alone = places.size() == 1 && is_kind(kinds, places.front());
  if (kind_alone || places.size() == 2) question.kind = places.front();
  question.directory = kind_alone || places.empty() ? "." : places.back();
  ProposalAnswer answer;
  try {
    answer = propose(question, describers);
  } catch (const Error& error) {
    answer.text = error.message();
    if (error.code() == ErrorCode::kNotFound && question.kind.empty()) {
      answer.text += fmt::format(", nor a kind of data of this name ({}): check the path",
                                 fmt::join(names_of(kinds), ", "));
    }
  }
  if (answer.status != kProposed) {
    std::fprintf(stderr, "ringfeed: %s\n", escaped_lines(answer.text).c_str());
    return answer.status;
  }
  const bool printed =
      std::fwrite(answer.text.data(), 1, answer.text.size(), stdout) == answer.text.size();
  return std::fflush(stdout) == 0 && printed ? kProposed : kNoProposal;
}

}  // namespace ringfeed::inspect
