// The specification of workers/io/token_file.h.
#include "workers/io/token_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <iterator>
#include <limits>
#include <nlohmann/json.hpp>
#include <numeric>
#include <random>

#include "ringfeed/shm/segment.h"
#include "tests/support/makers/token_maker.h"

namespace ringfeed::formats {
namespace {

using ::testing::AllOf;
using testing::append_number;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::made_sentences;
using testing::MadeTokens;
using testing::put_number;
using testing::Sentences;
using testing::TokenDir;
using Kind = TokenFile::Kind;

constexpr TokenCode kCodes[] = {TokenCode::kUint8,  TokenCode::kInt8,  TokenCode::kInt16,
                                TokenCode::kInt32,  TokenCode::kInt64, TokenCode::kUint16,
                                TokenCode::kUint32, TokenCode::kUint64};
constexpr Kind kKinds[] = {Kind::kMapped, Kind::kMegatron, Kind::kLegacy};

template <typename Token>
std::vector<Token> tokens_of(const TokenFile& file, std::uint64_t index) {
  const auto sentence = file.sentence(index);
  if (!sentence) return {-999};
  std::vector<Token> tokens(sentence->tokens);
  read_tokens<Token>(file, *sentence, tokens);
  return tokens;
}

Sentences all_of(const TokenFile& file) {
  Sentences all;
  for (std::uint64_t i = 0; i < file.sentences(); ++i) {
    all.push_back(tokens_of<std::int64_t>(file, i));
  }
  return all;
}

std::vector<std::uint32_t> sizes_of(const TokenFile& file) {
  std::vector<std::uint32_t> sizes(file.sentences());
  file.sizes(0, sizes);
  return sizes;
}

std::string text_of_refusal(const std::string& prefix, ErrorCode code = ErrorCode::kDamaged) {
  const Result<TokenFile> opened = TokenFile::open(prefix);
  if (opened) return "it was opened";
  EXPECT_EQ(opened.error().code(), code);
  return opened.error().message();
}

const Sentences kFour = {{4, 5, 6, 2}, {7, 2}, {2}, {100, 101, 102, 103, 104, 2}};

// ---- what is in a file

struct Form {
  Kind kind;
  TokenCode code;
  friend void PrintTo(const Form& form, std::ostream* out) {
    *out << (form.kind == Kind::kMapped     ? "mapped "
             : form.kind == Kind::kMegatron ? "megatron "
                                            : "legacy ")
         << token_code_name(form.code);
  }
};
std::vector<Form> forms() {
  std::vector<Form> all;
  for (const Kind kind : kKinds) {
    for (const TokenCode code : kCodes) all.push_back({kind, code});
  }
  return all;
}

class TokenFileForm : public ::testing::TestWithParam<Form> {};
INSTANTIATE_TEST_SUITE_P(All, TokenFileForm, ::testing::ValuesIn(forms()));

TEST_P(TokenFileForm, GivesWhatWasWritten) {
  const TokenDir directory;
  const auto file =
      TokenFile::open(directory.write("a", MadeTokens{kFour, GetParam().code, GetParam().kind}));
  ASSERT_TRUE(file) << file.error().message();
  EXPECT_EQ(file->kind(), GetParam().kind);
  EXPECT_EQ(file->code(), GetParam().code);
  EXPECT_EQ(file->sentences(), 4U);
  EXPECT_EQ(file->documents(), GetParam().kind == Kind::kMegatron ? 5U : 0U);
  EXPECT_EQ(file->data_bytes(), 13 * token_bytes(GetParam().code));
  EXPECT_EQ(sizes_of(*file), (std::vector<std::uint32_t>{4, 2, 1, 6}));
  EXPECT_EQ(all_of(*file), kFour);
  for (std::uint64_t i = 0; i < 4; ++i) {
    const auto wide = tokens_of<std::int64_t>(*file, i);
    const auto narrow = tokens_of<std::int32_t>(*file, i);
    EXPECT_TRUE(std::equal(wide.begin(), wide.end(), narrow.begin(), narrow.end()));
    file->fetch(i);
  }
  file->warm_up();
}

TEST_P(TokenFileForm, GivesTheLeastAndTheLargestIds) {
  const std::uint32_t bits = 8 * token_bytes(GetParam().code);
  const bool is_signed = std::string_view(token_code_name(GetParam().code)).starts_with("int");
  const bool legacy = GetParam().kind == Kind::kLegacy;
  // What is stored is one more in legacy files, and has to fit too.
  std::int64_t most = bits == 64 ? std::numeric_limits<std::int64_t>::max()
                                 : (std::int64_t{1} << (is_signed ? bits - 1 : bits)) - 1;
  std::int64_t least = 0;
  if (is_signed) least = bits == 64 ? std::numeric_limits<std::int64_t>::min() : -most - 1;
  most -= legacy ? 1 : 0;
  least -= legacy && bits != 64 ? 1 : 0;
  const TokenDir directory;
  // So many that the vectors of the fast loop are filled and a rest is left.
  std::vector<std::int64_t> sentence;
  for (int i = 0; i < 37; ++i) sentence.push_back(i % 3 == 0 ? most : i % 3 == 1 ? least : i);
  const auto file = TokenFile::open(
      directory.write("a", MadeTokens{{{9}, sentence}, GetParam().code, GetParam().kind}));
  ASSERT_TRUE(file);
  EXPECT_EQ(tokens_of<std::int64_t>(*file, 1), sentence);
  std::vector<std::int32_t> cut;
  for (const std::int64_t token : sentence) cut.push_back(static_cast<std::int32_t>(token));
  EXPECT_EQ(tokens_of<std::int32_t>(*file, 1), cut);
}

TEST_P(TokenFileForm, WithoutSentencesIsEmpty) {
  const TokenDir directory;
  const MadeTokens nothing{{}, GetParam().code, GetParam().kind};
  const std::string prefix = directory.write("a", nothing);
  for (const bool data_is_there : {true, false}) {
    if (!data_is_there) directory.remove("a.bin");
    const auto file = TokenFile::open(prefix);
    ASSERT_TRUE(file) << file.error().message();
    EXPECT_EQ(file->sentences(), 0U);
    EXPECT_EQ(file->data_bytes(), 0U);
    file->sizes(0, {});
    file->warm_up();
  }
}

TEST_P(TokenFileForm, SentencesThatLieOutsideAreNone) {
  const TokenDir directory;
  const MadeTokens made{kFour, GetParam().code, GetParam().kind};
  const std::string prefix = directory.write("a", made);
  std::string data = made.data();
  data.pop_back();
  directory.write("a.bin", data);
  const auto file = TokenFile::open(prefix);
  ASSERT_TRUE(file);
  EXPECT_EQ(tokens_of<std::int64_t>(*file, 0), kFour[0]);
  EXPECT_EQ(tokens_of<std::int64_t>(*file, 2), kFour[2]);
  EXPECT_FALSE(file->sentence(3).has_value());
  EXPECT_EQ(sizes_of(*file), (std::vector<std::uint32_t>{4, 2, 1, 6})) << "as the index says";
}

TEST(TokenFile, ReadsTheExampleOfTheFormat) {
  const auto bytes = [](std::string_view hex) {
    std::string out;
    for (std::size_t i = 0; i < hex.size(); i += 2) {
      out += static_cast<char>(std::stoi(std::string(hex.substr(i, 2)), nullptr, 16));
    }
    return out;
  };
  const TokenDir directory;
  directory.write("a.idx",
                  bytes("4d4d494449445800000100000000000000080400000000000000"
                        "04000000020000000100000006000000"
                        "000000000000000008000000000000000c000000000000000e00000000000000"));
  directory.write("a.bin", bytes("0400050006000200070002000200640065006600670068000200"));
  const auto file = TokenFile::open(directory.path("a"));
  ASSERT_TRUE(file) << file.error().message();
  EXPECT_EQ(all_of(*file), kFour);
}

// tests/data/fairseq/inputs, which fairseq has written.
TEST(TokenFile, ReadsTheSharedExamples) {
  const std::string inputs = RINGFEED_SOURCE_DIR "/tests/data/fairseq/inputs";
  const auto expected = nlohmann::json::parse(std::ifstream(inputs + "/expected_tokens.json"));
  const auto legacy = TokenFile::open(inputs + "/legacy");
  ASSERT_TRUE(legacy) << legacy.error().message();
  EXPECT_EQ(legacy->kind(), Kind::kLegacy);
  EXPECT_EQ(all_of(*legacy), expected["legacy"].get<Sentences>());
  int codes = 0;
  for (const TokenCode code : kCodes) {
    const std::string prefix = inputs + "/dtypes/" + token_code_name(code);
    if (!std::filesystem::exists(prefix + ".idx")) continue;
    const auto file = TokenFile::open(prefix);
    ASSERT_TRUE(file) << file.error().message();
    EXPECT_EQ(file->kind(), Kind::kMapped);
    EXPECT_EQ(file->code(), code);
    EXPECT_EQ(all_of(*file), expected["tiny"].get<Sentences>()) << prefix;
    ++codes;
  }
  EXPECT_EQ(codes, 7);
  int pairs = 0;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(inputs + "/data_bin")) {
    if (entry.path().extension() != ".idx") continue;
    const auto file = TokenFile::open(std::filesystem::path(entry.path()).replace_extension());
    ASSERT_TRUE(file) << file.error().message();
    EXPECT_GT(file->sentences(), 0U);
    std::uint64_t bytes = 0;
    for (std::uint64_t i = 0; i < file->sentences(); ++i) {
      const auto tokens = tokens_of<std::int64_t>(*file, i);
      ASSERT_EQ(tokens.back(), 2) << entry.path();
      bytes += tokens.size() * token_bytes(file->code());
    }
    EXPECT_EQ(bytes, file->data_bytes());
    ++pairs;
  }
  EXPECT_EQ(pairs, 28);
}

TEST(TokenFile, SizesStartAnywhere) {
  const TokenDir directory;
  const Sentences sentences = made_sentences(1000);
  for (const Kind kind : kKinds) {
    const auto file =
        TokenFile::open(directory.write("a", MadeTokens{sentences, TokenCode::kUint16, kind}));
    ASSERT_TRUE(file);
    for (const std::size_t first : {0, 1, 7, 500, 999, 1000}) {
      for (const std::size_t count : {0, 1, 17, 500, 1000}) {
        std::vector<std::uint32_t> out(std::min(count, sentences.size() - first), 77);
        file->sizes(first, out);
        for (std::size_t i = 0; i < out.size(); ++i) {
          EXPECT_EQ(out[i], sentences[first + i].size());
        }
      }
    }
  }
}

TEST(TokenFile, SentencesNeedNotLieOneBehindTheOther) {
  const TokenDir directory;
  MadeTokens made{kFour};
  const std::string prefix = directory.write("a", made);
  std::string index = made.index();
  // The first two sentences change places, the third lies within the last.
  const std::size_t pointers = 26 + 4 * 4;
  put_number(index, 26, std::int32_t{2});
  put_number(index, 30, std::int32_t{4});
  put_number(index, pointers, std::int64_t{8});
  put_number(index, pointers + 8, std::int64_t{0});
  put_number(index, pointers + 16, std::int64_t{16});
  directory.write("a.idx", index);
  const auto file = TokenFile::open(prefix);
  ASSERT_TRUE(file);
  EXPECT_EQ(all_of(*file), (Sentences{kFour[1], kFour[0], {101}, kFour[3]}));
}

TEST(TokenFile, ImpossibleSizesAndPlacesAreNoSentences) {
  const TokenDir directory;
  const MadeTokens made{kFour};
  const std::string prefix = directory.write("a", made);
  const std::size_t pointers = 26 + 4 * 4;
  const auto file_with = [&](std::int32_t size, std::int64_t pointer) {
    std::string index = made.index();
    put_number(index, 26, size);
    put_number(index, pointers, pointer);
    directory.write("a.idx", index);
    return std::move(*TokenFile::open(prefix));
  };
  EXPECT_FALSE(file_with(-1, 0).sentence(0).has_value());
  EXPECT_EQ(sizes_of(file_with(-1, 0))[0], 0U);
  EXPECT_EQ(sizes_of(file_with(std::numeric_limits<std::int32_t>::min(), 0))[0], 0U);
  EXPECT_FALSE(file_with(std::numeric_limits<std::int32_t>::max(), 0).sentence(0).has_value());
  EXPECT_FALSE(file_with(1, -2).sentence(0).has_value());
  EXPECT_FALSE(file_with(1, 26).sentence(0).has_value());
  EXPECT_FALSE(file_with(1, 25).sentence(0).has_value());
  EXPECT_TRUE(file_with(1, 24).sentence(0).has_value());
  EXPECT_TRUE(file_with(0, 26).sentence(0).has_value());
  EXPECT_FALSE(file_with(0, 27).sentence(0).has_value());
  EXPECT_FALSE(file_with(1, std::numeric_limits<std::int64_t>::max() - 1).sentence(0).has_value());
  EXPECT_FALSE(file_with(1, std::numeric_limits<std::int64_t>::min()).sentence(0).has_value());
}

TEST(TokenFile, ImpossibleEntriesOfALegacyIndexAreNoSentences) {
  const TokenDir directory;
  const MadeTokens made{kFour, TokenCode::kInt32, Kind::kLegacy};
  const std::string prefix = directory.write("a", made);
  const std::size_t data_places = 48 + 8 * 5;
  const std::size_t sizes = data_places + 8 * 5;
  const auto file_with = [&](std::int64_t size_place, std::int64_t size, std::int64_t data_place) {
    std::string index = made.index();
    put_number(index, 48, size_place);
    put_number(index, sizes, size);
    put_number(index, data_places, data_place);
    directory.write("a.idx", index);
    return std::move(*TokenFile::open(prefix));
  };
  constexpr std::int64_t kMost = std::numeric_limits<std::int64_t>::max();
  EXPECT_EQ(tokens_of<std::int64_t>(file_with(0, 4, 0), 0), kFour[0]);
  EXPECT_EQ(tokens_of<std::int64_t>(file_with(1, 4, 0), 0), (std::vector<std::int64_t>{4, 5}));
  for (const std::int64_t place : {std::int64_t{4}, std::int64_t{-1}, kMost}) {
    EXPECT_FALSE(file_with(place, 4, 0).sentence(0).has_value());
    EXPECT_EQ(sizes_of(file_with(place, 4, 0))[0], 0U);
  }
  for (const std::int64_t size :
       {std::int64_t{-1}, std::int64_t{14}, std::int64_t{1} << 32, kMost}) {
    EXPECT_FALSE(file_with(0, size, 0).sentence(0).has_value());
  }
  EXPECT_EQ(sizes_of(file_with(0, kMost, 0))[0], std::numeric_limits<std::uint32_t>::max());
  for (const std::int64_t place :
       {std::int64_t{-1}, std::int64_t{10}, std::int64_t{1} << 62, kMost}) {
    EXPECT_FALSE(file_with(0, 4, place).sentence(0).has_value());
  }
  EXPECT_TRUE(file_with(0, 4, 9).sentence(0).has_value());
}

TEST(TokenFile, MovesWithItsMapping) {
  const TokenDir directory;
  auto opened = TokenFile::open(directory.write("a", MadeTokens{kFour}));
  ASSERT_TRUE(opened);
  TokenFile first = std::move(*opened);
  TokenFile second;
  EXPECT_EQ(second.sentences(), 0U);
  second = std::move(first);
  EXPECT_EQ(all_of(second), kFour);
  second = std::move(*TokenFile::open(directory.write("b", MadeTokens{{{5, 2}}})));
  EXPECT_EQ(all_of(second), (Sentences{{5, 2}}));
  // What is mapped stays, also when the name is gone.
  directory.remove("b.bin");
  EXPECT_EQ(all_of(second), (Sentences{{5, 2}}));
}

// ---- what is refused

TEST(TokenFileRefusal, NamesTheFileThatIsMissing) {
  const TokenDir directory;
  EXPECT_THAT(text_of_refusal(directory.path("a")),
              AllOf(HasSubstr(directory.path("a.idx")), HasSubstr("no such file")));
  const std::string prefix = directory.write("a", MadeTokens{kFour});
  directory.remove("a.bin");
  EXPECT_THAT(text_of_refusal(prefix),
              AllOf(HasSubstr(directory.path("a.bin")), HasSubstr("no such file")));
}

TEST(TokenFileRefusal, SaysWhatCannotBeOpened) {
  const TokenDir directory;
  const std::string prefix = directory.write("a", MadeTokens{kFour});
  directory.remove("a.bin");
  std::filesystem::create_directory(directory.path("a.bin"));
  EXPECT_THAT(text_of_refusal(prefix), HasSubstr("not a regular file"));
  directory.remove("a.bin");
  ASSERT_EQ(::mkfifo(directory.path("a.bin").c_str(), 0600), 0);
  EXPECT_THAT(text_of_refusal(prefix), HasSubstr("not a regular file"));
  EXPECT_THAT(text_of_refusal(directory.path(std::string(300, 'x')), ErrorCode::kIo),
              HasSubstr("cannot be opened"));
}

TEST(TokenFileRefusal, OfRawText) {
  const TokenDir directory;
  const std::string prefix = directory.write("a", MadeTokens{kFour});
  directory.write("a", "words and words\n");
  EXPECT_THAT(text_of_refusal(prefix), AllOf(HasSubstr(prefix), HasSubstr("raw text")));
  // A directory of that name is none.
  directory.remove("a");
  std::filesystem::create_directory(prefix);
  EXPECT_TRUE(TokenFile::open(prefix).ok());
}

TEST(TokenFileRefusal, OfOtherKinds) {
  const TokenDir directory;
  const std::string prefix = directory.write("a", MadeTokens{kFour});
  const auto with = [&](std::string_view head) {
    std::string index = MadeTokens{kFour}.index();
    index.replace(0, head.size(), head);
    directory.write("a.idx", index);
    return text_of_refusal(prefix);
  };
  EXPECT_THAT(with(std::string_view("HUFFIDX\0", 8)),
              AllOf(HasSubstr("a.idx: offset 0"), HasSubstr("Huffman"), HasSubstr("mmap")));
  EXPECT_THAT(with("XXXX"), AllOf(HasSubstr("offset 0"), HasSubstr("58 58 58 58 49 44 58 00"),
                                  HasSubstr("copy it again, or binarize the text again")));
  EXPECT_THAT(with(std::string_view("MMIDIDX\0\1", 9)), HasSubstr("offset 8"));
  directory.write("a.idx", "");
  EXPECT_THAT(text_of_refusal(prefix), HasSubstr("is empty"));
  directory.write("a.idx", "MMIDIDX");
  EXPECT_THAT(text_of_refusal(prefix), HasSubstr("4d 4d 49 44 49 44 58"));
}

TEST(TokenFileRefusal, OfOtherVersionsAndCodes) {
  const TokenDir directory;
  for (const Kind kind : kKinds) {
    const bool legacy = kind == Kind::kLegacy;
    const MadeTokens made{kFour, TokenCode::kInt32, kind};
    const std::string prefix = directory.write("a", made);
    for (const int version : {0, 2, 1 << 30}) {
      std::string index = made.index();
      put_number(index, legacy ? 8 : 9, std::uint64_t{static_cast<std::uint32_t>(version)});
      directory.write("a.idx", index);
      EXPECT_THAT(text_of_refusal(prefix), AllOf(HasSubstr(legacy ? "offset 8" : "offset 9"),
                                                 HasSubstr(std::to_string(version))));
    }
    for (const int code : {0, 6, 7, 11, 255}) {
      std::string index = made.index();
      if (legacy) {
        put_number(index, 16, std::uint64_t{static_cast<std::uint32_t>(code)});
      } else {
        put_number(index, 17, static_cast<std::uint8_t>(code));
      }
      directory.write("a.idx", index);
      EXPECT_THAT(text_of_refusal(prefix), AllOf(HasSubstr(legacy ? "offset 16" : "offset 17"),
                                                 HasSubstr(fmt::format("is {}", code))));
    }
  }
  const MadeTokens made{kFour, TokenCode::kInt32, Kind::kLegacy};
  const std::string prefix = directory.write("a", made);
  std::string index = made.index();
  put_number(index, 24, std::uint64_t{8});
  directory.write("a.idx", index);
  EXPECT_THAT(text_of_refusal(prefix), HasSubstr("offset 24"));
}

TEST(TokenFileRefusal, OfEveryLengthButTheRightOne) {
  const TokenDir directory;
  for (const Kind kind : kKinds) {
    const MadeTokens made{kFour, TokenCode::kInt32, kind};
    const std::string prefix = directory.write("a", made);
    const std::string index = made.index();
    for (std::size_t bytes = 0; bytes < index.size() + 30; ++bytes) {
      if (bytes == index.size()) continue;
      // So much of one of Megatron is as long as one of fairseq would be.
      if (kind == Kind::kMegatron && bytes == 26 + 12 * kFour.size()) continue;
      std::string other = index;
      other.resize(bytes);
      directory.write("a.idx", other);
      EXPECT_THAT(text_of_refusal(prefix), HasSubstr("a.idx: offset")) << bytes;
    }
    directory.write("a.idx", index);
    EXPECT_TRUE(TokenFile::open(prefix).ok());
  }
}

TEST(TokenFileRefusal, OfNumbersThatWouldOverflow) {
  const TokenDir directory;
  for (const Kind kind : kKinds) {
    const MadeTokens made{kFour, TokenCode::kInt32, kind};
    const std::string prefix = directory.write("a", made);
    const std::size_t at = kind == Kind::kLegacy ? 32 : 18;
    // Products with 12, 8 or 24 that come out right modulo 2^64.
    for (const std::uint64_t much :
         {std::uint64_t{4} + (std::uint64_t{1} << 62), std::uint64_t{4} + (std::uint64_t{1} << 61),
          std::uint64_t{4} + (std::uint64_t{1} << 60), ~std::uint64_t{0}, ~std::uint64_t{0} - 1,
          std::uint64_t{1} << 63}) {
      std::string index = made.index();
      put_number(index, at, much);
      directory.write("a.idx", index);
      EXPECT_THAT(text_of_refusal(prefix), HasSubstr(std::to_string(much)));
      index = made.index();
      put_number(index, kind == Kind::kLegacy ? 40 : 26, much);
      directory.write("a.idx", index);
      if (kind != Kind::kMapped) text_of_refusal(prefix);
    }
  }
}

// ---- hostile files

template <typename T>
T number_at(const std::string& bytes, std::size_t at) {
  RF_CHECK(at <= bytes.size() && sizeof(T) <= bytes.size() - at, at, bytes.size());
  T value;
  std::memcpy(&value, bytes.data() + at, sizeof value);
  return value;
}

// What a file of these bytes is to give, in 128 bits, where nothing overflows.
struct Oracle {
  __extension__ using Wide = __int128;
  std::string index;
  std::string data;
  bool opens = false;
  Kind kind = Kind::kMapped;
  Wide sentences = 0;

  Oracle(std::string index_bytes, std::string data_bytes)
      : index(std::move(index_bytes)), data(std::move(data_bytes)) {
    const auto bytes = static_cast<Wide>(index.size());
    const auto is_code = [](std::uint64_t code) {
      return code >= 1 && code <= 10 && code != 6 && code != 7;
    };
    if (index.starts_with(std::string_view("MMIDIDX\0\0", 9)) && bytes >= 26) {
      if (number_at<std::uint64_t>(index, 9) != 1) return;
      if (!is_code(number_at<std::uint8_t>(index, 17))) return;
      sentences = number_at<std::uint64_t>(index, 18);
      opens = bytes == 26 + 12 * sentences;
      if (!opens && bytes >= 34) {
        kind = Kind::kMegatron;
        opens = bytes == 34 + 12 * sentences + 8 * Wide{number_at<std::uint64_t>(index, 26)};
      }
    } else if (index.starts_with(std::string_view("TNTIDX\0\0", 8)) && bytes >= 48) {
      kind = Kind::kLegacy;
      const auto code = number_at<std::uint64_t>(index, 16);
      if (number_at<std::uint64_t>(index, 8) != 1 || !is_code(code)) return;
      if (number_at<std::uint64_t>(index, 24) != token_bytes(static_cast<TokenCode>(code))) return;
      sentences = number_at<std::uint64_t>(index, 32);
      opens = bytes == 48 + 16 * (sentences + 1) + 8 * Wide{number_at<std::uint64_t>(index, 40)};
    }
  }
  [[nodiscard]] TokenCode code() const {
    return static_cast<TokenCode>(number_at<std::uint8_t>(index, kind == Kind::kLegacy ? 16 : 17));
  }
  [[nodiscard]] Wide size(std::size_t i) const {
    const auto count = static_cast<std::size_t>(sentences);
    if (kind != Kind::kLegacy) {
      return number_at<std::int32_t>(index, (kind == Kind::kMegatron ? 34 : 26) + 4 * i);
    }
    const auto place = number_at<std::uint64_t>(index, 48 + 8 * i);
    if (place >= number_at<std::uint64_t>(index, 40)) return -1;
    return number_at<std::int64_t>(index, 48 + 16 * (count + 1) + 8 * place);
  }
  // In bytes.
  [[nodiscard]] Wide begin(std::size_t i) const {
    const auto count = static_cast<std::size_t>(sentences);
    if (kind == Kind::kLegacy) {
      return Wide{number_at<std::int64_t>(index, 48 + 8 * (count + 1) + 8 * i)} *
             token_bytes(code());
    }
    return number_at<std::int64_t>(index, (kind == Kind::kMegatron ? 34 : 26) + 4 * count + 8 * i);
  }
};

void compare_file(const TokenFile& file, const Oracle& oracle) {
  ASSERT_EQ(file.sentences(), static_cast<std::uint64_t>(oracle.sentences));
  ASSERT_EQ(file.kind(), oracle.kind);
  ASSERT_EQ(file.code(), oracle.code());
  const std::vector<std::uint32_t> sizes = sizes_of(file);
  const std::uint32_t width = token_bytes(file.code());
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    const Oracle::Wide size = oracle.size(i);
    const Oracle::Wide begin = oracle.begin(i);
    const Oracle::Wide most = std::numeric_limits<std::uint32_t>::max();
    ASSERT_TRUE(sizes[i] == std::clamp<Oracle::Wide>(size, 0, most)) << i;
    const bool inside = size >= 0 && begin >= 0 && size <= most &&
                        begin + size * width <= static_cast<Oracle::Wide>(oracle.data.size());
    const auto sentence = file.sentence(i);
    ASSERT_EQ(sentence.has_value(), inside) << i;
    if (!inside) continue;
    std::vector<std::int64_t> tokens(sentence->tokens);
    read_tokens<std::int64_t>(file, *sentence, tokens);
    ASSERT_TRUE(static_cast<Oracle::Wide>(tokens.size()) == size);
    ASSERT_TRUE(tokens.empty() ||
                std::memcmp(sentence->data, oracle.data.data() + static_cast<std::size_t>(begin),
                            tokens.size() * width) == 0);
  }
}

// A file without a place on a disk, which a link leads to.
class MemoryFile {
 public:
  explicit MemoryFile(const std::string& path) : fd_(::memfd_create("tokens", MFD_CLOEXEC)) {
    RF_CHECK(fd_, errno);
    std::filesystem::create_symlink(fmt::format("/proc/self/fd/{}", fd_.get()), path);
  }
  void write(const std::string& content) const {
    const auto bytes = static_cast<off_t>(content.size());
    RF_CHECK(::ftruncate(fd_.get(), bytes) == 0, errno);
    RF_CHECK(::pwrite(fd_.get(), content.data(), content.size(), 0) == bytes, errno);
  }

 private:
  shm::Fd fd_;
};

class TokenFileDamage : public ::testing::TestWithParam<Kind> {};
INSTANTIATE_TEST_SUITE_P(All, TokenFileDamage, ::testing::ValuesIn(kKinds));

TEST_P(TokenFileDamage, IsRefusedOrRead) {
  constexpr int kMutations = 7000;
  const TokenDir directory;
  // A legacy index of 168 sentences ends with its page: who reads behind it is killed.
  const MadeTokens made{made_sentences(GetParam() == Kind::kLegacy ? 168 : 12), TokenCode::kUint16,
                        GetParam()};
  // Not on a disk: some thousands of files would take their time.
  const MemoryFile index_file(directory.path("a.idx"));
  const MemoryFile data_file(directory.path("a.bin"));
  const std::string prefix = directory.path("a");
  if (GetParam() == Kind::kLegacy) {
    ASSERT_EQ(made.index().size(), 4096U);
  }
  std::mt19937_64 random(17);
  const auto below = [&](std::uint64_t bound) { return random() % bound; };
  const std::size_t head = GetParam() == Kind::kLegacy ? 48 : 34;
  int opened = 0;
  for (int turn = 0; turn < kMutations; ++turn) {
    std::string index = made.index();
    std::string data = made.data();
    for (std::uint64_t change = 0; change <= below(3); ++change) {
      const std::size_t at =
          below(4) == 0 ? below(std::min(head, index.size() + 1)) : below(index.size() + 1);
      switch (below(7)) {
        case 0:  // a bit
          if (at < index.size()) index[at] = static_cast<char>(index[at] ^ (1 << below(8)));
          break;
        case 1:  // cut off
          if (below(4) == 0) index.resize(at);
          break;
        case 2:  // longer
          if (below(4) == 0) index.insert(at, below(40), static_cast<char>(random()));
          break;
        case 3: {  // a number that is huge, or less than nothing, or just too much
          const std::uint64_t odd[] = {0,
                                       1,
                                       data.size() - 1,
                                       data.size() + 1,
                                       std::uint64_t{1} << 31,
                                       std::uint64_t{1} << 32,
                                       std::uint64_t{1} << 63,
                                       ~std::uint64_t{0},
                                       (std::uint64_t{1} << 63) - 1,
                                       std::uint64_t{1} << below(64),
                                       random()};
          const std::uint64_t value = odd[below(std::size(odd))];
          if (at + 8 <= index.size()) put_number(index, at, value);
          break;
        }
        case 4: {  // the same as a size
          const std::int32_t odd[] = {-1, 0, std::numeric_limits<std::int32_t>::max(),
                                      std::numeric_limits<std::int32_t>::min(),
                                      static_cast<std::int32_t>(random())};
          const std::int32_t value = odd[below(std::size(odd))];
          if (at + 4 <= index.size()) put_number(index, at, value);
          break;
        }
        case 5:  // another number of sentences, with which the length may be right
          if (index.size() >= head) {
            put_number(index, GetParam() == Kind::kLegacy ? 32 : 18, below(400));
          }
          break;
        default:
          data.resize(below(data.size() + 1));
          break;
      }
    }
    index_file.write(index);
    data_file.write(data);
    const Oracle oracle(index, data);
    const auto file = TokenFile::open(prefix);
    ASSERT_EQ(file.ok(), oracle.opens)
        << "turn " << turn << ": " << (file ? "opened" : file.error().message());
    if (!file) {
      ASSERT_EQ(file.error().code(), ErrorCode::kDamaged);
      ASSERT_THAT(file.error().message(), HasSubstr("a.idx: offset "));
      continue;
    }
    ++opened;
    ASSERT_NO_FATAL_FAILURE(compare_file(*file, oracle)) << "turn " << turn;
  }
  EXPECT_GT(opened, kMutations / 10);
  EXPECT_LT(opened, kMutations * 9 / 10);
}

}  // namespace
}  // namespace ringfeed::formats
