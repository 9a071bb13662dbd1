// Leela Chess Zero training records: sizes, offsets, whether a chunk is whole records of a known
// kind, and what an old record is as one of version 6.
//
// A chunk is one game: records of one version, one after the other, nothing before, between or
// after. Records are packed, little-endian, floats are IEEE-754 binary32. The first four bytes name
// the version, so a chunk tells what it is.
//
//   version        3     4     5     6     7
//   bytes/record   8276  8292  8308  8356  8396
//   becomes        6     6     6     6     7      (upgrade_record)
//
// Versions 3 to 5 lack fields at the end, 3 and 4 also input_format. They have the game's result as
// an int8 where version 6 has `dummy`, and version 3 marks illegal moves with 0, as moves that are
// legal and were not visited.
//
// Layout of version 6 (offset, size, field; q is W-L, d the draw probability, m plies left, all in
// the mover's view):
//      0     4  version                      8300   4  best_m
//      4     4  input_format                 8304   4  plies_left
//      8  7432  probabilities f32[1858]      8308   8  result_q, result_d
//   7440   832  planes u64[104]              8316  12  played_q, played_d, played_m
//   8272     4  castling: us_ooo us_oo       8328  12  orig_q, orig_d, orig_m (may be NaN)
//               them_ooo them_oo             8340   4  visits
//   8276     1  side to move                 8344   4  played_idx u16, best_idx u16
//   8277     1  rule50_count                 8348   4  policy_kld
//   8278     2  invariance_info, dummy       8352   4  q_st
//   8280     8  root_q, best_q               8356      end
//   8288     8  root_d, best_d
//   8296     4  root_m
//
// Version 7 goes on: 8356 d_st f32, 8360 opp_played_idx u16, 8362 next_played_idx u16, 8364
// reserved f32[8], 8396 end.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

namespace ringfeed::formats {

// Moves that the policy has an entry for; an entry of exactly -1 marks an illegal move.
inline constexpr std::size_t kPolicyMoves = 1858;
// Bit planes of a record: 8 history steps of 13.
inline constexpr std::size_t kBitPlanes = 104;
inline constexpr std::size_t kBitPlaneBytes = kBitPlanes * 8;
inline constexpr std::size_t kPolicyBytes = kPolicyMoves * 4;

// Bytes of a record of each version.
inline constexpr std::size_t kV3RecordBytes = 8276;
inline constexpr std::size_t kV4RecordBytes = 8292;
inline constexpr std::size_t kV5RecordBytes = 8308;
inline constexpr std::size_t kV6RecordBytes = 8356;
inline constexpr std::size_t kV7RecordBytes = 8396;

// Offsets inside a record of version 6, as in the table above.
namespace v6 {
inline constexpr std::size_t kVersion = 0;
inline constexpr std::size_t kInputFormat = 4;
inline constexpr std::size_t kPolicy = 8;
inline constexpr std::size_t kPlanes = 7440;
inline constexpr std::size_t kCastlingUsOoo = 8272;
inline constexpr std::size_t kCastlingUsOo = 8273;
inline constexpr std::size_t kCastlingThemOoo = 8274;
inline constexpr std::size_t kCastlingThemOo = 8275;
inline constexpr std::size_t kSideToMove = 8276;
inline constexpr std::size_t kRule50 = 8277;
inline constexpr std::size_t kInvarianceInfo = 8278;
inline constexpr std::size_t kRootQ = 8280;
inline constexpr std::size_t kBestQ = 8284;
inline constexpr std::size_t kRootD = 8288;
inline constexpr std::size_t kBestD = 8292;
inline constexpr std::size_t kRootM = 8296;
inline constexpr std::size_t kBestM = 8300;
inline constexpr std::size_t kPliesLeft = 8304;
inline constexpr std::size_t kResultQ = 8308;
inline constexpr std::size_t kResultD = 8312;
inline constexpr std::size_t kPlayedQ = 8316;
inline constexpr std::size_t kPlayedD = 8320;
inline constexpr std::size_t kPlayedM = 8324;
inline constexpr std::size_t kOrigQ = 8328;
inline constexpr std::size_t kOrigD = 8332;
inline constexpr std::size_t kOrigM = 8336;
inline constexpr std::size_t kVisits = 8340;
inline constexpr std::size_t kPlayedIdx = 8344;
inline constexpr std::size_t kBestIdx = 8346;
inline constexpr std::size_t kPolicyKld = 8348;
inline constexpr std::size_t kQSt = 8352;
// What version 7 has more.
inline constexpr std::size_t kDSt = 8356;
inline constexpr std::size_t kOppPlayedIdx = 8360;
inline constexpr std::size_t kNextPlayedIdx = 8362;
static_assert(kPolicy + kPolicyBytes == kPlanes);
static_assert(kPlanes + kBitPlaneBytes == kCastlingUsOoo);
static_assert(kQSt + 4 == kV6RecordBytes);
}  // namespace v6

// Bytes of a record of this version; 0 for a version that nobody has defined.
[[nodiscard]] std::size_t frame_bytes_of_version(std::uint32_t version) noexcept;

enum class ChunkReason : std::uint8_t {
  kUsable,
  kEmpty,                   // no bytes at all
  kWrongSize,               // not a whole number of records of the version that the first one names
  kWrongVersion,            // the first four bytes name no version of this format
  kUnsupportedInputFormat,  // an input_format that nobody has defined
  kMixedRecords,            // a later record is of another version or input format than the first
  kWrongResult,             // version 3 to 5: a result that is none of -1, 0, 1
};

// A word for counters and logs: "usable", "empty", "wrong_size", ...
[[nodiscard]] const char* chunk_reason_name(ChunkReason reason) noexcept;

// What a chunk's bytes are.
struct ChunkCheck {
  ChunkReason reason = ChunkReason::kEmpty;
  std::uint32_t version = 0;       // as the chunk says; 0 if it is too short to say
  std::uint32_t input_format = 0;  // of the first record
  std::size_t chunk_bytes = 0;
  std::size_t frame_bytes = 0;   // 0 if the version is unknown
  std::size_t frame_count = 0;   // 0 unless usable
  std::size_t frame_offset = 0;  // where the record that was refused begins
  [[nodiscard]] bool usable() const noexcept { return reason == ChunkReason::kUsable; }
};

// Looks at the size and at the first eight bytes of every record; any bytes may be given. Allocates
// nothing, any thread.
[[nodiscard]] ChunkCheck check_chunk(std::span<const std::byte> chunk) noexcept;

// Refusal with its numbers and what to do, for the log: "217256 bytes are not a whole number of
// ...".
[[nodiscard]] std::string chunk_check_text(const ChunkCheck& check);

// What the first 112 planes mean and where they come from; the values are those of the files.
namespace input_format {
inline constexpr std::uint32_t kClassical = 1;               // castling 0/1
inline constexpr std::uint32_t kCastlingPlane = 2;           // castling as bits of the rooks' files
inline constexpr std::uint32_t kCanonical = 3;               // and en passant as bits of a file
inline constexpr std::uint32_t kHectoplies = 4;              // and rule50 in hundredths
inline constexpr std::uint32_t kCanonicalV2 = 5;             // and no history behind a repetition
inline constexpr std::uint32_t kHectopliesArmageddon = 132;  // and who has to win
inline constexpr std::uint32_t kCanonicalV2Armageddon = 133;
}  // namespace input_format
[[nodiscard]] bool input_format_known(std::uint32_t format) noexcept;

// The version that a record of this one becomes: 6, or 7 for 7. 0 for a version that is not read.
[[nodiscard]] std::uint32_t upgraded_version(std::uint32_t version) noexcept;

// A record of version 3, 4 or 5 as one of version 6: writes kV6RecordBytes to `to`. Fields that it
// has not are 0, but orig_* NaN and input_format 1; result_q and result_d come from its int8
// result, which check_chunk() has looked at. RF_CHECK: version 3 to 5.
void upgrade_record(const std::byte* record, std::uint32_t version, std::byte* to) noexcept;

}  // namespace ringfeed::formats
