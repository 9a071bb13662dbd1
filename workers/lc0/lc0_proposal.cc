#include "workers/lc0/lc0_proposal.h"

#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>

#include "ringfeed/shm/file.h"
#include "ringfeed/shm/quote.h"
#include "workers/io/gzip.h"
#include "workers/io/tar.h"
#include "workers/lc0/lc0_record.h"

namespace ringfeed {

namespace pipelines {
extern const std::string_view kLc0;
}

namespace {

using Bytes = std::vector<std::byte>;

// Of a tar only its beginning is read, and of single games a few: enough to know what they are.
constexpr std::size_t kTarBytes = std::size_t{4} << 20;
constexpr std::size_t kGameBytesMax = std::size_t{64} << 20;
constexpr std::size_t kFilesTried = 5;
// The sampler's reservoir as the pipeline has it, and what is enough for any trial.
constexpr std::uint64_t kReservoir = 1'000'000;
constexpr std::uint64_t kReservoirLeast = 10'000;

// What the files that were tried have shown.
struct Seen {
  std::uint64_t positions = 0;
  std::uint64_t bytes = 0;  // that these positions take, as stored
  std::string fault = {};   // the first file that is of no use, and why
};

// The first bytes of a file, and how many it has; empty: `fault` says why.
Bytes read_head(const std::string& path, std::size_t most, std::uint64_t& size,
                std::string& fault) {
  const Result<shm::Fd> file = shm::open_regular(path);
  struct stat info {};
  if (!file || ::fstat(file->get(), &info) != 0) {
    fault = file ? "cannot be read" : file.error().message();
    return {};
  }
  size = static_cast<std::uint64_t>(info.st_size);
  Bytes bytes(static_cast<std::size_t>(std::min<std::uint64_t>(most, size)));
  std::size_t done = 0;
  while (done < bytes.size()) {
    const ssize_t got =
        ::pread(file->get(), bytes.data() + done, bytes.size() - done, static_cast<off_t>(done));
    if (got <= 0) break;
    done += static_cast<std::size_t>(got);
  }
  bytes.resize(done);
  if (bytes.empty()) fault = size == 0 ? "is empty" : "cannot be read";
  return bytes;
}

// Positions of a game; 0: `fault` says why it is none.
std::uint64_t positions_of(std::span<const std::byte> stored, std::string& fault) {
  formats::GzipInflater inflater(kGameBytesMax);
  std::span<const std::byte> bytes;
  const formats::GzipOutcome outcome = inflater.inflate_or_verbatim(stored, &bytes);
  if (!outcome.ok()) {
    fault = formats::gzip_outcome_text(outcome, kGameBytesMax);
    return 0;
  }
  const formats::ChunkCheck check = formats::check_chunk(bytes);
  if (!check.usable()) fault = formats::chunk_check_text(check);
  return check.usable() ? check.frame_count : 0;
}

void try_game(const std::string& path, Seen& seen) {
  std::string fault;
  std::uint64_t size = 0;
  const Bytes bytes = read_head(path, kGameBytesMax, size, fault);
  const std::uint64_t positions = bytes.empty() ? 0 : positions_of(bytes, fault);
  if (positions == 0) {
    if (seen.fault.empty()) seen.fault = fmt::format("{}: {}", escaped(path), fault);
    return;
  }
  seen.positions += positions;
  seen.bytes += size;
}

// The games at the beginning of the tar: the first is read, the others are taken at their word.
void try_tar(const std::string& path, Seen& seen) {
  std::string fault;
  std::uint64_t size = 0;
  const Bytes head = read_head(path, kTarBytes, size, fault);
  const formats::TarIndex index = formats::index_tar(head);
  std::uint64_t positions = 0;
  std::uint64_t record_bytes = 0;
  std::uint64_t end = 0;
  if (fault.empty() && index.members.empty()) fault = "there is no game in its first 4 MiB";
  for (const formats::TarMember& member : index.members) {
    const formats::MemberUse use = formats::member_use(member.name);
    if (use == formats::MemberUse::kNotAChunk) continue;
    const auto stored = std::span(head).subspan(static_cast<std::size_t>(member.data_offset),
                                                static_cast<std::size_t>(member.data_bytes));
    end = member.data_offset + member.data_bytes;
    const bool packed = use == formats::MemberUse::kGzipChunk;
    const std::uint64_t claimed =
        packed ? formats::gzip_uncompressed_bytes(member.last_bytes) : member.data_bytes;
    if (record_bytes != 0) {
      positions += claimed / record_bytes;
      continue;
    }
    const std::uint64_t first = positions_of(stored, fault);
    if (first == 0) {
      fault = fmt::format("{}: {}", escaped(member.name), fault);
      break;
    }
    record_bytes = std::max<std::uint64_t>(claimed / first, 1);
    positions += first;
  }
  if (positions == 0) {
    if (fault.empty()) fault = "there is no game in it";
    if (seen.fault.empty()) seen.fault = fmt::format("{}: {}", escaped(path), fault);
    return;
  }
  // Of a tar that was seen whole all is known.
  seen.positions += positions;
  seen.bytes += head.size() == size ? size : end;
}

std::uint64_t bytes_of(const std::vector<std::string>& files) {
  std::uint64_t bytes = 0;
  for (const std::string& file : files) {
    struct stat info {};
    if (::stat(file.c_str(), &info) == 0) bytes += static_cast<std::uint64_t>(info.st_size);
  }
  return bytes;
}

// Some of them, from all parts of the list.
std::vector<std::string> some_of(const std::vector<std::string>& files) {
  if (files.size() <= kFilesTried) return files;
  std::vector<std::string> some;
  for (std::size_t i = 0; i < kFilesTried; ++i) {
    some.push_back(files[i * (files.size() - 1) / (kFilesTried - 1)]);
  }
  return some;
}

// Two digits: it is an estimate.
std::uint64_t about(std::uint64_t count) {
  std::uint64_t unit = 1;
  while (count / unit >= 100) unit *= 10;
  return (count + unit / 2) / unit * unit;
}

}  // namespace

std::optional<Proposal> propose_lc0(const DirectoryLook& look, const ProposalWish& wish) {
  const std::vector<std::string> games = look.ending_in(".gz");
  const std::vector<std::string> tars = look.ending_in(".tar");
  if (games.empty() && tars.empty()) return std::nullopt;
  Seen of_games;
  Seen of_tars;
  for (const std::string& path : some_of(games)) try_game(path, of_games);
  for (const std::string& path : some_of(tars)) try_tar(path, of_tars);
  Proposal proposal;
  if (of_games.positions + of_tars.positions == 0) {
    proposal.other_data = true;
    proposal.problem = fmt::format("the .gz and .tar files are not games of Leela Chess Zero: {}",
                                   of_tars.fault.empty() ? of_games.fault : of_tars.fault);
    return proposal;
  }
  const auto estimate = [](const std::vector<std::string>& files, const Seen& seen) {
    const double all = static_cast<double>(bytes_of(files));
    return seen.bytes == 0
               ? 0.0
               : static_cast<double>(seen.positions) * all / static_cast<double>(seen.bytes);
  };
  const auto positions =
      static_cast<std::uint64_t>(std::llround(estimate(games, of_games) + estimate(tars, of_tars)));
  std::string files;
  if (!tars.empty()) files = counted(tars.size(), "tar");
  if (!games.empty()) {
    files += fmt::format("{}{} of one game", files.empty() ? "" : " and ",
                         counted(games.size(), ".gz file"));
  }
  proposal.found = fmt::format("{}{}, about {} positions", look.whole ? "" : "at least ", files,
                               about(positions));
  PipelineText pipeline(pipelines::kLc0);
  pipeline.introduce(look, proposal.found);
  pipeline.set("provider", "directory", {text_literal(look.directory)});
  if (look.whole && positions < kReservoir) {
    const std::uint64_t size = std::max(about(positions), kReservoirLeast);
    pipeline.set("sampler", "reservoir_size_per_thread",
                 {fmt::format("{}  # for little data; {} for much data", size, kReservoir)});
  }
  pipeline.name(wish);
  proposal.feed = pipeline.feed();
  proposal.text = pipeline.text();
  return proposal;
}

}  // namespace ringfeed
