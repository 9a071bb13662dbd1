// The specification of ringfeed/worker/sample.h.
#include "ringfeed/worker/sample.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>
#include <string>
#include <vector>

namespace ringfeed {
namespace {

using ::testing::ElementsAre;

template <typename T>
std::span<const std::byte> bytes_of(const std::vector<T>& values) {
  return std::as_bytes(std::span(values));
}
std::span<const std::byte> bytes_of(std::string_view text) {
  return std::as_bytes(std::span(text.data(), text.size()));
}
std::string_view text_of(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

struct alignas(16) Unit {
  std::byte bytes[16];
};

class Written {
 public:
  explicit Written(std::span<const SampleField> fields)
      : bytes_(sample_bytes(fields).value()), room_(bytes_ / 16, Unit{}) {
    std::memset(room_.data(), 0xa5, bytes_);
    write_sample(span(), fields);
  }
  std::span<std::byte> span() { return std::as_writable_bytes(std::span(room_)); }

 private:
  std::uint64_t bytes_;
  std::vector<Unit> room_;
};

const std::vector<float> kNumbers{1.5F, 2.5F, 3.5F, 4.5F, 5.5F, 6.5F};
const std::vector<std::uint32_t> kShape{2, 3};
const std::vector<SampleField> kFields{
    {.name = "text", .dtype = SampleDtype::kText, .data = bytes_of("héllo")},
    {.name = "x", .dtype = SampleDtype::kFloat32, .shape = kShape, .data = bytes_of(kNumbers)},
    {.name = "none", .dtype = SampleDtype::kBytes},
};

TEST(Sample, ComesOutAsItWasWritten) {
  Written written(kFields);
  const auto sample = SampleView::open(written.span());
  ASSERT_TRUE(sample);
  ASSERT_EQ(sample->size(), 3U);
  EXPECT_EQ((*sample)[0].name, "text");
  EXPECT_EQ(text_of((*sample)[0].data), "héllo");
  const auto x = sample->find("x");
  ASSERT_TRUE(x);
  EXPECT_EQ(x->dtype, SampleDtype::kFloat32);
  EXPECT_THAT(x->shape, ElementsAre(2, 3));
  EXPECT_EQ(text_of(x->data), text_of(bytes_of(kNumbers)));
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(x->data.data()) % 16, 0U);
  EXPECT_TRUE(sample->find("none")->data.empty());
  EXPECT_FALSE(sample->find("tex"));
}

TEST(Sample, HasNoByteThatDoesNotFollowFromItsFields) {
  Written one(kFields);
  Written other(kFields);
  std::memset(other.span().data(), 0x5a, other.span().size());
  write_sample(other.span(), kFields);
  EXPECT_EQ(text_of(one.span()), text_of(other.span()));
}

TEST(Sample, MayHaveNoFieldAndTheMostFields) {
  Written none({});
  EXPECT_EQ(none.span().size(), sample::kHeadBytes);
  EXPECT_EQ(SampleView::open(none.span())->size(), 0U);
  std::vector<std::string> names;
  for (std::size_t i = 0; i < sample::kFieldsMax; ++i) names.push_back(std::to_string(i));
  std::vector<SampleField> fields;
  for (const std::string& name : names) {
    fields.push_back({.name = name, .dtype = SampleDtype::kText, .data = bytes_of(name)});
  }
  Written most(fields);
  const auto sample = SampleView::open(most.span());
  EXPECT_EQ(text_of(sample->find("255")->data), "255");
  fields.push_back({.name = "more"});
  EXPECT_FALSE(sample_bytes(fields));
}

TEST(Sample, CannotHoldWhatTheLayoutHasNoRoomFor) {
  const std::string longest(255, 'n');
  const std::string longer(256, 'n');
  const std::vector<std::uint32_t> deep(9, 1);
  const SampleField fits{.name = longest};
  EXPECT_TRUE(sample_bytes({&fits, 1}));
  for (const SampleField& field : {SampleField{.name = longer}, SampleField{.name = ""},
                                   SampleField{.name = "x", .shape = deep}}) {
    EXPECT_FALSE(sample_bytes({&field, 1}));
  }
  EXPECT_EQ(array_bytes(SampleDtype::kInt64, std::vector<std::uint32_t>{1U << 29}), std::nullopt);
  EXPECT_EQ(array_bytes(SampleDtype::kInt64, std::vector<std::uint32_t>(8, 0xffffffff)),
            std::nullopt);
  EXPECT_EQ(array_bytes(SampleDtype::kInt64, std::vector<std::uint32_t>{0xffffffff, 0, 7}), 0U);
  EXPECT_EQ(array_bytes(SampleDtype::kFloat32, {}), 4U) << "a number";
}

// Whatever the bytes are, it is refused, or everything that it shows lies within.
TEST(Sample, IsRefusedWhereItContradictsItself) {
  Written written(kFields);
  const std::string whole(text_of(written.span()));
  std::mt19937_64 random(7);
  std::size_t refused = 0;
  for (int i = 0; i < 20000; ++i) {
    std::string damaged = whole;
    // Mostly in the head and the table, where it matters.
    const std::size_t at = random() % (i % 4 == 0 ? whole.size() : 16 + 3 * 48);
    damaged[at] = static_cast<char>(random());
    std::vector<Unit> room(whole.size() / 16);
    std::memcpy(room.data(), damaged.data(), damaged.size());
    const std::span<const std::byte> bytes = std::as_bytes(std::span(room));
    const auto sample =
        SampleView::open(bytes.first(i % 3 == 0 ? random() % whole.size() : whole.size()));
    if (!sample) {
      ++refused;
      continue;
    }
    for (std::size_t f = 0; f < sample->size(); ++f) {
      const SampleField field = (*sample)[f];
      for (const std::span<const std::byte> part : {bytes_of(field.name), field.data}) {
        EXPECT_GE(part.data(), bytes.data());
        EXPECT_LE(part.data() + part.size(), bytes.data() + bytes.size());
      }
      if (is_array(field.dtype)) {
        EXPECT_EQ(array_bytes(field.dtype, field.shape), field.data.size());
      }
    }
  }
  EXPECT_GT(refused, 8000U);
}

TEST(Sample, TypesHaveTheNamesOfNumPy) {
  for (std::size_t i = 0; i < kSampleDtypes.size(); ++i) {
    const auto dtype = static_cast<SampleDtype>(i);
    EXPECT_EQ(dtype_named(dtype_name(dtype)), dtype);
  }
  EXPECT_EQ(dtype_bytes(SampleDtype::kComplex128), 16U);
  EXPECT_EQ(dtype_named("float"), std::nullopt);
}

}  // namespace
}  // namespace ringfeed
