#include "common/checkpoint/digest.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

#include "common/checkpoint/checkpoint.h"
#include "common/checkpoint/inspect.h"
#include "common/testing/status_matchers.h"
#include "tests/common/checkpoint/tiny_checkpoint.h"

namespace baton::checkpoint {
namespace {

using ::baton::testing::StatusIs;
using ::testing::AllOf;
using ::testing::HasSubstr;

StoredTensors Tensors() {
  return TinyTensors(Encoding::kFp8BlockE8m0, Encoding::kNvfp4);
}

std::string DigestOfCheckpoint(const nlohmann::json& config,
                               const StoredTensors& tensors) {
  const TempDir dir;
  WriteTinyCheckpoint(dir, config, tensors);
  const auto opened = Checkpoint::Open(dir.path());
  CHECK_OK(opened);
  return HexOf((*opened)->digest());
}

TEST(IncrementalSha256Test, EqualsTheHashOfTheWhole) {
  std::string text;
  for (int32_t i = 0; i < 1000; ++i) absl::StrAppend(&text, i);
  for (const size_t cut : {size_t{0}, size_t{1}, size_t{63}, size_t{64},
                           size_t{65}, text.size()}) {
    Sha256Hasher hasher;
    hasher.Update(absl::string_view(text).substr(0, cut));
    hasher.Update(absl::string_view(text).substr(cut));
    EXPECT_EQ(hasher.Finish(), Sha256(text)) << cut;
  }
}

TEST(ModelDigestTest, DoesNotDependOnFilesOrUnusedKeys) {
  const std::string base = DigestOfCheckpoint(TinyConfigJson(), Tensors());
  nlohmann::json config = TinyConfigJson();
  config["transformers_version"] = "9.9";
  EXPECT_EQ(DigestOfCheckpoint(config, Tensors()), base);

  const TempDir single;
  WriteText(single.File("config.json"), TinyConfigJson().dump());
  WriteText(single.File("x.safetensors"), ImageOf(Tensors()));
  ASSERT_OK_AND_ASSIGN(const auto opened, Checkpoint::Open(single.path()));
  EXPECT_EQ(HexOf(opened->digest()), base);
}

TEST(ModelDigestTest, ChangesWithConfigTensorsAndEveryByte) {
  std::set<std::string> digests;
  digests.insert(DigestOfCheckpoint(TinyConfigJson(), Tensors()));

  nlohmann::json config = TinyConfigJson();
  config["rms_norm_eps"] = 2e-6;
  EXPECT_TRUE(digests.insert(DigestOfCheckpoint(config, Tensors())).second);

  // One bit in the first, a middle and the last byte of two tensors.
  for (const char* const name :
       {"embed.weight", "layers.2.ffn.experts.1.w2.weight"}) {
    const size_t size = Tensors().at(name).bytes.size();
    for (const size_t at : {size_t{0}, size / 2, size - 1}) {
      StoredTensors tensors = Tensors();
      tensors[name].bytes[at] ^= 1;
      EXPECT_TRUE(
          digests.insert(DigestOfCheckpoint(TinyConfigJson(), tensors)).second)
          << name << " byte " << at;
    }
  }

  StoredTensors drafter = Tensors();
  drafter["mtp.0.x"] = {DType::kU8, {1}, "x"};
  EXPECT_TRUE(
      digests.insert(DigestOfCheckpoint(TinyConfigJson(), drafter)).second);
}

TEST(ModelDigestTest, ReadsOnlySmallTensorsOfLargeCheckpoints) {
  EXPECT_EQ(ModelDigestScope(kFullDigestMaxBytes), DigestScope::kAllBytes);
  EXPECT_EQ(ModelDigestScope(kFullDigestMaxBytes + 1),
            DigestScope::kSmallTensors);

  const auto digest = [](const std::string& large, const std::string& small) {
    const TempDir dir;
    StoredTensors tensors;
    tensors["large"] = {
        DType::kU8, {static_cast<int64_t>(large.size())}, large};
    tensors["small"] = {
        DType::kU8, {static_cast<int64_t>(small.size())}, small};
    WriteText(dir.File("x"), ImageOf(tensors));
    std::vector<std::unique_ptr<SafetensorsFile>> files;
    auto file = SafetensorsFile::Open(dir.File("x"));
    CHECK_OK(file);
    files.push_back(*std::move(file));
    return HexOf(DigestOf(TinyConfig(), files, DigestScope::kSmallTensors));
  };
  const size_t limit = static_cast<size_t>(kSmallTensorMaxBytes);
  const std::string base =
      digest(std::string(limit + 1, 'a'), std::string(limit, 'b'));
  EXPECT_EQ(digest(std::string(limit + 1, 'x'), std::string(limit, 'b')), base);
  EXPECT_NE(digest(std::string(limit + 1, 'a'), std::string(limit, 'x')), base);
  EXPECT_NE(digest(std::string(limit + 2, 'a'), std::string(limit, 'b')), base);
}

class SumsTest : public ::testing::Test {
 protected:
  SumsTest() { WriteTinyCheckpoint(dir_, TinyConfigJson(), Tensors()); }

  std::string Line(const std::string& name) const {
    return absl::StrCat(HexOf(Sha256(ReadText(dir_.File(name)))), "  ", name,
                        "\n");
  }
  std::string AllLines() const {
    return absl::StrCat(Line("config.json"), Line(TinyFiles::kFirst),
                        Line(TinyFiles::kSecond));
  }
  absl::StatusOr<std::unique_ptr<Checkpoint>> Verify() const {
    OpenOptions options;
    options.verify_content = true;
    return Checkpoint::Open(dir_.path(), options);
  }
  void WriteSums(const std::string& text) {
    WriteText(dir_.File("SHA256SUMS"), text);
  }

  TempDir dir_;
};

TEST_F(SumsTest, ComparesEveryListedFile) {
  WriteSums(AllLines());
  ASSERT_OK_AND_ASSIGN(const auto opened, Verify());
  EXPECT_TRUE(opened->content_check().done);
  EXPECT_TRUE(opened->content_check().has_sums);
  EXPECT_EQ(opened->content_check().files_compared, 3);
  EXPECT_EQ(opened->content_check().content_digest, opened->digest());
  EXPECT_THAT(CensusReport(*opened), HasSubstr("SHA256SUMS: 3 files right\n"));
}

TEST_F(SumsTest, NamesADamagedShard) {
  WriteSums(AllLines());
  std::string shard = ReadText(dir_.File(TinyFiles::kSecond));
  shard.back() = static_cast<char>(shard.back() ^ 1);
  WriteText(dir_.File(TinyFiles::kSecond), shard);
  EXPECT_THAT(Verify(), StatusIs(absl::StatusCode::kDataLoss,
                                 AllOf(HasSubstr(TinyFiles::kSecond),
                                       HasSubstr("SHA-256 is "),
                                       HasSubstr("expected "))));
  // The same damage passes without the check: an E8M0 code is as good as
  // another.
  EXPECT_OK(Checkpoint::Open(dir_.path()));
}

TEST_F(SumsTest, WorksWithoutTheFile) {
  ASSERT_OK_AND_ASSIGN(const auto opened, Verify());
  EXPECT_TRUE(opened->content_check().done);
  EXPECT_FALSE(opened->content_check().has_sums);
  EXPECT_THAT(CensusReport(*opened),
              HasSubstr("SHA256SUMS: none in the folder\n"));
}

TEST_F(SumsTest, RefusesSumsThatDoNotCoverEveryShard) {
  WriteSums(absl::StrCat(Line("config.json"), Line(TinyFiles::kFirst)));
  EXPECT_THAT(Verify(), StatusIs(absl::StatusCode::kFailedPrecondition,
                                 HasSubstr(TinyFiles::kSecond)));
}

TEST_F(SumsTest, RefusesMalformedSums) {
  const std::string digits(64, '0');
  struct Case {
    std::string text;
    absl::StatusCode code;
    const char* message;
  };
  const Case cases[] = {
      {"abc  config.json\n", absl::StatusCode::kInvalidArgument, "line 1"},
      {absl::StrCat(AllLines(), std::string(64, 'g'), "  x\n"),
       absl::StatusCode::kInvalidArgument, "line 4: expected 64 hex digits"},
      {absl::StrCat(digits, "  \n"), absl::StatusCode::kInvalidArgument,
       "line 1"},
      {absl::StrCat(digits, "  ../x\n"), absl::StatusCode::kInvalidArgument,
       "a plain file name"},
      {absl::StrCat(AllLines(), Line("config.json")),
       absl::StatusCode::kInvalidArgument, "'config.json' appears twice"},
      {absl::StrCat(AllLines(), digits, "  absent\n"),
       absl::StatusCode::kNotFound, "absent"},
  };
  for (const Case& c : cases) {
    WriteSums(c.text);
    EXPECT_THAT(Verify(), StatusIs(c.code, HasSubstr(c.message))) << c.text;
  }
}

}  // namespace
}  // namespace baton::checkpoint
