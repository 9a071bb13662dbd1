#include "workers/lc0/lc0_tensors.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

#include "ringfeed/shm/result.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace ringfeed::formats {

namespace {

constexpr std::uint32_t kNanBits = 0x7fc00000;  // the quiet NaN without a payload

// The 18 values of a row as offsets in the record; 0 where no version has one.
constexpr std::size_t kValueOffsets[kValuesRowFloats] = {
    v6::kResultQ, v6::kResultD, v6::kPliesLeft,  // result
    v6::kBestQ,   v6::kBestD,   v6::kBestM,      // best
    v6::kPlayedQ, v6::kPlayedD, v6::kPlayedM,    // played
    v6::kOrigQ,   v6::kOrigD,   v6::kOrigM,      // orig
    v6::kRootQ,   v6::kRootD,   v6::kRootM,      // root
    v6::kQSt,     v6::kDSt,     0,               // st
};
enum Row : std::size_t { kResult, kBest, kPlayed, kOrig, kRoot, kSt, kRows };
static_assert(3 * kRows == kValuesRowFloats);

std::uint32_t tail_u32(const PackedFrameView& view, std::size_t offset) noexcept {
  std::uint32_t bits = 0;
  std::memcpy(&bits, view.tail + (offset - v6::kCastlingUsOoo), 4);
  return bits;
}

std::uint8_t tail_u8(const PackedFrameView& view, std::size_t offset) noexcept {
  return std::to_integer<std::uint8_t>(view.tail[offset - v6::kCastlingUsOoo]);
}

// Does the record have no value there, whatever stands in it?
bool unknown(const PackedFrameView& view, std::size_t value) noexcept {
  const std::size_t row = value / 3;
  const std::size_t column = value % 3;
  // A rescorer may have counted the plies that are left in versions 3 and 4; none of them are 0.
  if (row == kResult && column == 2) return view.origin <= 4 && tail_u32(view, v6::kPliesLeft) == 0;
  if (column == 2 && (view.origin <= 4 || row == kSt)) return true;
  if (row == kPlayed) return tail_u32(view, v6::kVisits) == 0;
  if (row == kBest || row == kRoot) return view.origin == 3;
  return row == kSt && view.origin != 7;
}

// As bits and not as floats: a NaN keeps its payload.
using Values = std::uint32_t[kValuesRowFloats];
void read_values(const PackedFrameView& view, UnknownValues policy, Values& bits) noexcept {
  for (std::size_t i = 0; i < kValuesRowFloats - 2; ++i) bits[i] = tail_u32(view, kValueOffsets[i]);
  bits[kValuesRowFloats - 2] = view.origin == 7 ? tail_u32(view, v6::kDSt) : 0;
  bits[kValuesRowFloats - 1] = kNanBits;
  if (policy == UnknownValues::kAsStored) return;
  for (std::size_t i = 0; i < kValuesRowFloats; ++i) {
    const bool nan = std::isnan(std::bit_cast<float>(bits[i]));
    if (nan || unknown(view, i)) bits[i] = policy == UnknownValues::kNan ? kNanBits : 0;
  }
}

// Shares of win, draw and loss; of a NaN, or of a zero for what is unknown, three of the same.
void shares_of(std::uint32_t q_bits, std::uint32_t d_bits, bool zero, float (&shares)[3]) noexcept {
  const auto q = std::bit_cast<float>(q_bits);
  const auto d = std::bit_cast<float>(d_bits);
  if (zero || std::isnan(q) || std::isnan(d)) {
    std::fill(std::begin(shares), std::end(shares),
              zero ? 0.0F : std::numeric_limits<float>::quiet_NaN());
    return;
  }
  const float value = std::clamp(q, -1.0F, 1.0F);
  const float draw = std::clamp(d, 0.0F, 1.0F - std::abs(value));
  shares[0] = (1.0F + value - draw) / 2.0F;
  shares[1] = draw;
  shares[2] = (1.0F - value - draw) / 2.0F;
}

// A byte of a record has file a in its lowest bit, a rank of a plane in its highest.
std::uint64_t turned(std::uint8_t files) noexcept {
  std::uint64_t rank = 0;
  for (unsigned file = 0; file < 8; ++file) {
    rank |= static_cast<std::uint64_t>(files >> file & 1) << (7 - file);
  }
  return rank;
}

// The planes from 104 on.
struct LastPlanes {
  std::uint64_t squares[kMadePlanes];  // where the value stands
  float values[kMadePlanes];
  std::uint8_t rule50;
};
enum Made : std::size_t {
  kUsOoo,
  kUsOo,
  kThemOoo,
  kThemOo,
  kSideOrEnPassant,
  kRule50Plane,
  kArmageddon,
  kOnes
};

LastPlanes last_planes(const PackedFrameView& view, bool classical) noexcept {
  constexpr std::uint64_t kEverywhere = ~std::uint64_t{0};
  const std::uint32_t format = classical ? input_format::kClassical : view.input_format;
  LastPlanes last{};
  last.rule50 = tail_u8(view, v6::kRule50);
  const auto everywhere = [&last](Made plane, float value) {
    last.squares[plane] = kEverywhere;
    last.values[plane] = value;
  };
  const auto squares = [&last](Made plane, std::uint64_t where) {
    last.squares[plane] = where;
    last.values[plane] = 1.0F;
  };
  const std::uint8_t us_ooo = tail_u8(view, v6::kCastlingUsOoo);
  const std::uint8_t us_oo = tail_u8(view, v6::kCastlingUsOo);
  const std::uint8_t them_ooo = tail_u8(view, v6::kCastlingThemOoo);
  const std::uint8_t them_oo = tail_u8(view, v6::kCastlingThemOo);
  const std::uint8_t side = tail_u8(view, v6::kSideToMove);
  if (format == input_format::kClassical) {
    everywhere(kUsOoo, us_ooo);
    everywhere(kUsOo, us_oo);
    everywhere(kThemOoo, them_ooo);
    everywhere(kThemOo, them_oo);
  } else {
    squares(kUsOoo, turned(us_ooo) | turned(them_ooo) << 56);
    squares(kUsOo, turned(us_oo) | turned(them_oo) << 56);
    squares(kThemOoo, 0);
    squares(kThemOo, 0);
  }
  if (format <= input_format::kCastlingPlane) {
    everywhere(kSideOrEnPassant, side);
  } else {
    squares(kSideOrEnPassant, turned(side) << 56);
  }
  const float plies = format > input_format::kCanonical ? 100.0F : 99.0F;
  everywhere(kRule50Plane, static_cast<float>(last.rule50) / plies);
  const bool armageddon = format >= input_format::kHectopliesArmageddon;
  everywhere(kArmageddon, armageddon && tail_u8(view, v6::kInvarianceInfo) >= 128 ? 1.0F : 0.0F);
  everywhere(kOnes, 1.0F);
  return last;
}

std::uint32_t listed_value(const PackedFrameView& view, std::size_t entry) noexcept {
  std::uint32_t bits = 0;
  std::memcpy(&bits, view.policy_values + 4 * entry, 4);
  return bits;
}
std::uint16_t listed_move(const PackedFrameView& view, std::size_t entry) noexcept {
  std::uint16_t move = 0;
  std::memcpy(&move, view.policy_indices + 2 * entry, 2);
  return move;
}

void prefetch_for_writing(const void* line) noexcept { __builtin_prefetch(line, 1); }

std::size_t planes_row_bytes(PlanesType type) noexcept {
  switch (type) {
    case PlanesType::kFloat32:
      return 4 * kPlanesRowFloats;
    case PlanesType::kFloat16:
    case PlanesType::kBfloat16:
      return 2 * kPlanesRowFloats;
    case PlanesType::kUint8:
      return kPlanesRowFloats;
    case PlanesType::kBits:
      return 8 * kInputPlanes;
  }
  return 0;
}

const char* planes_dtype(PlanesType type) noexcept {
  switch (type) {
    case PlanesType::kFloat32:
      return "float32";
    case PlanesType::kFloat16:
      return "float16";
    case PlanesType::kBfloat16:
      return "bfloat16";
    case PlanesType::kUint8:
      return "uint8";
    case PlanesType::kBits:
      return "uint64";
  }
  return "";
}

template <typename T>
void put_at(void* tensor, std::size_t index, T value) noexcept {
  std::memcpy(static_cast<std::byte*>(tensor) + index * sizeof value, &value, sizeof value);
}

}  // namespace

std::vector<Lc0Field> lc0_fields(const Lc0Options& options) {
  const bool five = options.layout == Lc0Layout::kFive;
  std::vector<Lc0Field> fields;
  const bool bits = options.planes == PlanesType::kBits;
  fields.push_back({"planes", planes_dtype(options.planes),
                    bits ? std::vector<std::int64_t>{112} : std::vector<std::int64_t>{112, 8, 8},
                    planes_row_bytes(options.planes), &Lc0Tensors::planes});
  if (options.policy == PolicyType::kSparse) {
    const std::size_t entries = options.policy_entries_max;
    const std::vector<std::int64_t> shape = {static_cast<std::int64_t>(entries)};
    fields.push_back({five ? "probabilities_indices" : "policy_indices", "int16", shape,
                      2 * entries, &Lc0Tensors::policy_indices});
    fields.push_back({five ? "probabilities_values" : "policy_values", "float32", shape,
                      4 * entries, &Lc0Tensors::policy});
    fields.push_back({five ? "probabilities_lengths" : "policy_lengths",
                      "int32",
                      {},
                      4,
                      &Lc0Tensors::policy_lengths});
    fields.push_back({five ? "probabilities_filler" : "policy_filler",
                      "float32",
                      {},
                      4,
                      &Lc0Tensors::policy_filler});
  } else {
    const bool half = options.policy == PolicyType::kFloat16;
    fields.push_back({five ? "probabilities" : "policy",
                      half ? "float16" : "float32",
                      {1858},
                      (half ? 2 : 4) * kPolicyMoves,
                      &Lc0Tensors::policy});
  }
  if (five) {
    fields.push_back({"winner", "float32", {3}, 12, &Lc0Tensors::winner});
    fields.push_back({"best_q", "float32", {3}, 12, &Lc0Tensors::best_q});
    fields.push_back({"plies_left", "float32", {}, 4, &Lc0Tensors::plies_left});
  } else {
    fields.push_back({"values", "float32", {6, 3}, 4 * kValuesRowFloats, &Lc0Tensors::values});
  }
  return fields;
}

const char* row_status_name(RowStatus status) noexcept {
  switch (status) {
    case RowStatus::kWritten:
      return "written";
    case RowStatus::kDamagedFrame:
      return "damaged_frame";
    case RowStatus::kUnsupportedInputFormat:
      return "unsupported_input_format";
    case RowStatus::kTooManyMoves:
      return "too_many_moves";
  }
  return "unknown";
}

void store_fence() noexcept {
#if defined(__x86_64__)
  _mm_sfence();
#endif
}

Lc0TensorWriter::Lc0TensorWriter(const Lc0Options& options, Kernel kernel) noexcept
    : options_(options),
      planes_row_bytes_(planes_row_bytes(options.planes)),
      policy_entry_bytes_(options.policy == PolicyType::kFloat16 ? 2 : 4),
      loops_(plane_expansion(kernel)),
      kernel_(kernel) {
  RF_CHECK(kernel_supported(kernel), static_cast<int>(kernel));
  for (std::size_t move = 0; move < kPolicyMoves; ++move) {
    put_entry(policy_[0], move, packed::filler_bits(6));
    put_entry(policy_[1], move, packed::filler_bits(3));
  }
}

template <typename Bits>
void Lc0TensorWriter::write_planes(const PackedFrameView& view, ExpandPlanes<Bits> expand,
                                   std::byte* row) noexcept {
  const LastPlanes last = last_planes(view, options_.classical_planes);
  MadePlanes<Bits> made;
  std::copy(std::begin(last.squares), std::end(last.squares), std::begin(made.squares));
  const auto bits_of = [&](float value) {
    if constexpr (sizeof(Bits) == 4) {
      return std::bit_cast<Bits>(value);
    } else if constexpr (sizeof(Bits) == 2) {
      return options_.planes == PlanesType::kFloat16 ? float16_bits(value) : bfloat16_bits(value);
    } else {
      return static_cast<Bits>(value);
    }
  };
  for (std::size_t plane = 0; plane < kMadePlanes; ++plane) {
    made.values[plane] = bits_of(last.values[plane]);
  }
  if constexpr (sizeof(Bits) == 1) made.values[kRule50Plane] = last.rule50;
  expand(view.planes, bits_of(1.0F), made, reinterpret_cast<Bits*>(row));
}

// The row of this frame's filler.
std::byte* Lc0TensorWriter::scratch(const PackedFrameView& view) noexcept {
  return policy_[view.origin == 3 ? 1 : 0];
}

// Entry `move` of a row in the type that is asked for.
void Lc0TensorWriter::put_entry(std::byte* row, std::size_t move,
                                std::uint32_t bits) const noexcept {
  if (policy_entry_bytes_ == 4) {
    put_at(row, move, bits);
  } else {
    put_at(row, move, float16_bits(std::bit_cast<float>(bits)));
  }
}

// The entries stand in scratch() already.
void Lc0TensorWriter::write_dense(const PackedFrameView& view, std::byte* row) noexcept {
  if (view.kind == PackedKind::kRaw) {
    if (policy_entry_bytes_ == 4) {
      loops_.stream(view.policy_values, kPolicyBytes, row);
    } else {
      for (std::size_t i = 0; i < kPolicyMoves; ++i) put_entry(row, i, listed_value(view, i));
    }
    return;
  }
  std::byte* const filled = scratch(view);
  loops_.stream(filled, policy_entry_bytes_ * kPolicyMoves, row);
  const std::uint32_t filler = packed::filler_bits(view.origin);
  for (std::size_t i = 0; i < view.policy_entries; ++i) {
    put_entry(filled, listed_move(view, i), filler);
  }
}

void Lc0TensorWriter::write_sparse(const PackedFrameView& view, const Lc0Tensors& tensors,
                                   std::size_t row_index) noexcept {
  const std::size_t entries = view.policy_entries;
  const std::size_t room = options_.policy_entries_max;
  const std::uint32_t filler = packed::filler_bits(view.origin);
  auto* values = static_cast<std::byte*>(tensors.policy) + 4 * room * row_index;
  auto* indices = static_cast<std::byte*>(tensors.policy_indices) + 2 * room * row_index;
  std::memcpy(values, view.policy_values, 4 * entries);
  std::memcpy(indices, view.policy_indices, 2 * entries);
  for (std::size_t i = entries; i < room; ++i) {
    put_at(values, i, filler);
    put_at(indices, i, static_cast<std::int16_t>(kPolicyMoves));
  }
  put_at(tensors.policy_lengths, row_index, static_cast<std::int32_t>(entries));
  put_at(tensors.policy_filler, row_index, filler);
}

void Lc0TensorWriter::write_values(const PackedFrameView& view, const Lc0Tensors& tensors,
                                   std::size_t row_index) noexcept {
  Values values;
  read_values(view, options_.unknown, values);
  if (options_.layout == Lc0Layout::kThree) {
    std::memcpy(static_cast<std::byte*>(tensors.values) + sizeof values * row_index, values,
                sizeof values);
    return;
  }
  const auto put_shares = [&](void* tensor, Row row) {
    const bool zero = options_.unknown == UnknownValues::kZero && unknown(view, 3 * row);
    float shares[3];
    shares_of(values[3 * row], values[3 * row + 1], zero, shares);
    std::memcpy(static_cast<std::byte*>(tensor) + sizeof shares * row_index, shares, sizeof shares);
  };
  put_shares(tensors.winner, kResult);
  put_shares(tensors.best_q, kBest);
  put_at(tensors.plies_left, row_index, values[2]);
}

RowStatus Lc0TensorWriter::write_row(std::span<const std::byte> frame, const Lc0Tensors& tensors,
                                     std::size_t row_index) noexcept {
  const std::optional<PackedFrameView> view = view_packed(frame);
  if (!view || view->version != upgraded_version(view->origin)) return RowStatus::kDamagedFrame;
  if (!input_format_known(view->input_format)) return RowStatus::kUnsupportedInputFormat;
  const bool sparse = options_.policy == PolicyType::kSparse;
  if (sparse &&
      (view->kind == PackedKind::kRaw || view->policy_entries > options_.policy_entries_max)) {
    return RowStatus::kTooManyMoves;
  }

  std::byte* planes = static_cast<std::byte*>(tensors.planes) + planes_row_bytes_ * row_index;
  RF_CHECK(reinterpret_cast<std::uintptr_t>(planes) % kTensorAlignment == 0,
           reinterpret_cast<std::uintptr_t>(planes));
  const std::size_t policy_row_bytes = policy_entry_bytes_ * kPolicyMoves;
  std::byte* policy = static_cast<std::byte*>(tensors.policy) + policy_row_bytes * row_index;
  if (!sparse) {
    // The lines that take ordinary stores: asked for here, they arrive while the planes are
    // written.
    prefetch_for_writing(policy + policy_row_bytes - 1);
    if (view->kind == PackedKind::kPacked) {
      // Before the planes, so that these small stores have left the store buffer when wide loads
      // read them back.
      for (std::size_t i = 0; i < view->policy_entries; ++i) {
        put_entry(scratch(*view), listed_move(*view, i), listed_value(*view, i));
      }
    }
  }
  if (tensors.values != nullptr) {
    prefetch_for_writing(static_cast<std::byte*>(tensors.values) +
                         4 * kValuesRowFloats * (row_index + 1) - 1);
  }

  switch (options_.planes) {
    case PlanesType::kFloat32:
      write_planes<std::uint32_t>(*view, loops_.expand32, planes);
      break;
    case PlanesType::kFloat16:
    case PlanesType::kBfloat16:
      write_planes<std::uint16_t>(*view, loops_.expand16, planes);
      break;
    case PlanesType::kUint8:
      write_planes<std::uint8_t>(*view, loops_.expand8, planes);
      break;
    case PlanesType::kBits: {
      const LastPlanes last = last_planes(*view, options_.classical_planes);
      alignas(64) std::uint64_t bits[kMadePlanes];
      for (std::size_t plane = 0; plane < kMadePlanes; ++plane) {
        bits[plane] = last.values[plane] != 0.0F ? last.squares[plane] : 0;
      }
      bits[kRule50Plane] = std::bit_cast<std::uint32_t>(last.values[kRule50Plane]);
      loops_.stream(view->planes, kBitPlaneBytes, planes);
      loops_.stream(reinterpret_cast<const std::byte*>(bits), sizeof bits, planes + kBitPlaneBytes);
      break;
    }
  }
  if (sparse) {
    write_sparse(*view, tensors, row_index);
  } else {
    write_dense(*view, policy);
  }
  write_values(*view, tensors, row_index);
  return RowStatus::kWritten;
}

}  // namespace ringfeed::formats
