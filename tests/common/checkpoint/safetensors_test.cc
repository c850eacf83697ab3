#include "common/checkpoint/safetensors.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/testing/status_matchers.h"
#include "tests/common/checkpoint/tiny_checkpoint.h"

namespace baton::checkpoint {
namespace {

using ::baton::testing::StatusIs;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

// A heap copy of exactly the image's size, so that ASan sees any overrun.
absl::StatusOr<std::vector<TensorView>> Parse(const std::string& image) {
  static std::vector<std::byte> kept;
  kept.assign(reinterpret_cast<const std::byte*>(image.data()),
              reinterpret_cast<const std::byte*>(image.data() + image.size()));
  kept.shrink_to_fit();
  return ParseSafetensors("f", kept);
}

TEST(SafetensorsTest, ReadsEveryDType) {
  struct Case {
    DType dtype;
    int64_t bytes;
  };
  const Case cases[] = {
      {DType::kI8, 1},     {DType::kU8, 1},   {DType::kF8E4M3, 1},
      {DType::kF8E8M0, 1}, {DType::kBf16, 2}, {DType::kF16, 2},
      {DType::kF32, 4},    {DType::kI32, 4},  {DType::kI64, 8}};
  StoredTensors tensors;
  for (const Case& c : cases) {
    tensors[std::string(DTypeName(c.dtype))] = {
        c.dtype, {2, 3}, std::string(static_cast<size_t>(6 * c.bytes), 'x')};
  }
  ASSERT_OK_AND_ASSIGN(const std::vector<TensorView> views,
                       Parse(ImageOf(tensors)));
  EXPECT_EQ(views.size(), std::size(cases));
  for (const TensorView& view : views) {
    EXPECT_EQ(view.name, DTypeName(view.dtype));
    EXPECT_THAT(view.shape, ElementsAre(2, 3));
    EXPECT_EQ(view.num_elements(), 6);
    EXPECT_EQ(static_cast<char>(view.data[view.bytes - 1]), 'x');
  }
}

TEST(SafetensorsTest, AcceptsScalarsEmptyTensorsMetadataAndPadding) {
  const std::string header = R"({"__metadata__": {"format": "pt"},
    "empty": {"dtype": "F32", "shape": [0, 4], "data_offsets": [4, 4]},
    "scalar": {"dtype": "F32", "shape": [], "data_offsets": [0, 4]},
    "last": {"dtype": "U8", "shape": [1], "data_offsets": [4, 5]}}    )";
  ASSERT_OK_AND_ASSIGN(const std::vector<TensorView> views,
                       Parse(SafetensorsImage(header, "abcde")));
  ASSERT_EQ(views.size(), 3u);
  EXPECT_EQ(views[0].name, "scalar");
  EXPECT_EQ(views[0].num_elements(), 1);
  EXPECT_EQ(views[1].name, "empty");
  EXPECT_EQ(views[1].bytes, 0);
  EXPECT_EQ(static_cast<char>(views[2].data[0]), 'e');
}

TEST(SafetensorsTest, AcceptsAFileWithoutTensors) {
  ASSERT_OK_AND_ASSIGN(const std::vector<TensorView> views,
                       Parse(SafetensorsImage("{}", "")));
  EXPECT_TRUE(views.empty());
}

TEST(SafetensorsTest, CopiesTensorsThatAreNotAligned) {
  const TempDir dir;
  const float value = 2.5f;
  std::string data(5, '\0');
  std::memcpy(data.data() + 1, &value, sizeof(value));
  std::string header =
      R"({"byte":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},)"
      R"("float":{"dtype":"F32","shape":[1],"data_offsets":[1,5]}})";
  while (header.size() % 8 != 0) header += ' ';
  WriteText(dir.File("odd.safetensors"), SafetensorsImage(header, data));
  ASSERT_OK_AND_ASSIGN(const auto file,
                       SafetensorsFile::Open(dir.File("odd.safetensors")));
  const TensorView* const view = file->Find("float");
  ASSERT_NE(view, nullptr);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(view->data) % 4, 0u);
  EXPECT_EQ(view->As<float>()[0], 2.5f);
  EXPECT_EQ(file->realigned_bytes(), 4);
  EXPECT_EQ(file->Find("absent"), nullptr);
}

struct BadCase {
  const char* label;
  std::string image;
  absl::StatusCode code;
  std::string message;  // must be part of the error
};

std::string OneTensor(const std::string& fields, size_t data_bytes) {
  return SafetensorsImage(absl::StrCat("{\"t\":{", fields, "}}"),
                          std::string(data_bytes, 'x'));
}

std::vector<BadCase> BadCases() {
  constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;
  constexpr auto kLoss = absl::StatusCode::kDataLoss;
  const std::string good = R"("dtype":"F32","shape":[2],"data_offsets":[0,8])";
  return {
      {"empty file", "", kLoss, "0 bytes, expected at least the 8 bytes"},
      {"seven bytes", std::string(7, '\0'), kLoss, "7 bytes"},
      {"header of 10 GB", SafetensorsImage(10'000'000'000u, "{}", ""), kInvalid,
       "header of 10000000000 bytes, expected at most 100000000"},
      {"header of 2^64 - 1", SafetensorsImage(~uint64_t{0}, "{}", ""), kInvalid,
       "header of 18446744073709551615 bytes"},
      {"header one byte too long", SafetensorsImage(3, "{}", ""), kLoss,
       "header of 3 bytes in a file of 10 bytes"},
      {"no header", SafetensorsImage("", ""), kInvalid, "does not start with"},
      {"leading space", SafetensorsImage(" {}", ""), kInvalid,
       "does not start with"},
      {"not JSON", SafetensorsImage("{\"t\": nope}", ""), kInvalid,
       "not valid JSON"},
      {"cut JSON", SafetensorsImage("{\"t\":", ""), kInvalid, "not valid JSON"},
      {"invalid UTF-8", SafetensorsImage("{\"\xff\xfe\":1}", ""), kInvalid,
       "not valid JSON"},
      {"deep nesting",
       SafetensorsImage(absl::StrCat("{\"a\":", std::string(1'000'000, '[')),
                        ""),
       kInvalid, "nested deeper than 64"},
      {"duplicate name",
       SafetensorsImage(absl::StrCat("{\"t\":{", good, "},\"t\":{", good, "}}"),
                        std::string(8, 'x')),
       kInvalid, "key 't' appears twice"},
      {"duplicate field",
       OneTensor(absl::StrCat(good, ",\"dtype\":\"I32\""), 8), kInvalid,
       "key 'dtype' appears twice"},
      {"entry is a number", SafetensorsImage("{\"t\":1}", ""), kInvalid,
       "tensor 't': expected exactly dtype, shape and data_offsets"},
      {"missing shape", OneTensor(R"("dtype":"F32","data_offsets":[0,8])", 8),
       kInvalid, "tensor 't': expected exactly"},
      {"extra field", OneTensor(absl::StrCat(good, ",\"x\":1"), 8), kInvalid,
       "tensor 't': expected exactly"},
      {"metadata is a number", SafetensorsImage("{\"__metadata__\":1}", ""),
       kInvalid, "__metadata__: expected an object"},
      {"metadata of numbers",
       SafetensorsImage("{\"__metadata__\":{\"a\":1}}", ""), kInvalid,
       "__metadata__ 'a': expected a string"},
      {"unknown dtype",
       OneTensor(R"("dtype":"F8_E5M2","shape":[8],"data_offsets":[0,8])", 8),
       kInvalid, "tensor 't': unknown dtype 'F8_E5M2'"},
      {"dtype is a number",
       OneTensor(R"("dtype":4,"shape":[2],"data_offsets":[0,8])", 8), kInvalid,
       "dtype: expected a string"},
      {"wrong dtype",
       OneTensor(R"("dtype":"BF16","shape":[2],"data_offsets":[0,8])", 8),
       kInvalid, "tensor 't': BF16 [2] takes 4 bytes, but data_offsets hold 8"},
      {"negative dimension",
       OneTensor(R"("dtype":"F32","shape":[-2],"data_offsets":[0,8])", 8),
       kInvalid, "shape: expected non-negative integers"},
      {"fractional dimension",
       OneTensor(R"("dtype":"F32","shape":[2.0],"data_offsets":[0,8])", 8),
       kInvalid, "shape: expected non-negative integers"},
      {"product beyond 2^64",
       OneTensor(R"("dtype":"F32","shape":[4294967296,4294967296,2],)"
                 R"("data_offsets":[0,8])",
                 8),
       kInvalid, "more than 2^63 bytes"},
      {"one offset",
       OneTensor(R"("dtype":"F32","shape":[2],"data_offsets":[0])", 8),
       kInvalid, "data_offsets: expected [begin, end]"},
      {"reversed offsets",
       OneTensor(R"("dtype":"F32","shape":[2],"data_offsets":[8,0])", 8),
       kInvalid, "0 <= begin <= end"},
      {"offset of 2^64 - 1",
       OneTensor(R"("dtype":"F32","shape":[2],)"
                 R"("data_offsets":[0,18446744073709551615])",
                 8),
       kInvalid, "0 <= begin <= end"},
      {"truncated data", OneTensor(good, 7), kLoss,
       "tensor 't': data ends at byte 8, but the file holds only 7"},
      {"data after the end", OneTensor(good, 9), kInvalid,
       "tensors end at byte 8 of the data, but 9 bytes follow"},
      {"hole at the start",
       OneTensor(R"("dtype":"F32","shape":[2],"data_offsets":[4,12])", 12),
       kInvalid, "tensor 't': hole of 4 bytes before it"},
      {"overlap",
       SafetensorsImage(
           R"({"a":{"dtype":"U8","shape":[6],"data_offsets":[0,6]},)"
           R"("b":{"dtype":"U8","shape":[3],"data_offsets":[5,8]}})",
           std::string(8, 'x')),
       kInvalid, "tensor 'b': bytes from 5 overlap tensor 'a'"},
      {"same bytes twice",
       SafetensorsImage(
           R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]},)"
           R"("b":{"dtype":"U8","shape":[4],"data_offsets":[0,4]}})",
           std::string(4, 'x')),
       kInvalid, "overlap tensor 'a'"},
      {"hole in the middle",
       SafetensorsImage(
           R"({"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},)"
           R"("b":{"dtype":"U8","shape":[5],"data_offsets":[3,8]}})",
           std::string(8, 'x')),
       kInvalid, "tensor 'b': hole of 1 bytes"},
      {"empty name",
       SafetensorsImage(
           R"({"":{"dtype":"U8","shape":[0],"data_offsets":[0,0]}})", ""),
       kInvalid, "empty name"},
  };
}

TEST(SafetensorsTest, RefusesMalformedFilesByName) {
  for (const BadCase& bad : BadCases()) {
    SCOPED_TRACE(bad.label);
    EXPECT_THAT(
        Parse(bad.image),
        StatusIs(bad.code, AllOf(HasSubstr("f: "), HasSubstr(bad.message))));
  }
}

TEST(SafetensorsTest, RefusesEveryTruncationOfAGoodFile) {
  StoredTensors tensors;
  tensors["a"] = {DType::kF32, {3}, std::string(12, 'a')};
  tensors["b"] = {DType::kBf16, {2, 2}, std::string(8, 'b')};
  const std::string image = ImageOf(tensors);
  ASSERT_OK(Parse(image));
  for (size_t size = 0; size < image.size(); ++size) {
    EXPECT_THAT(Parse(image.substr(0, size)),
                StatusIs(absl::StatusCode::kDataLoss))
        << size << " of " << image.size() << " bytes";
  }
}

TEST(SafetensorsTest, NamesTheFileThatCannotBeOpened) {
  EXPECT_THAT(SafetensorsFile::Open("/nonexistent/x.safetensors"),
              StatusIs(absl::StatusCode::kNotFound,
                       HasSubstr("/nonexistent/x.safetensors")));
  const TempDir dir;
  EXPECT_THAT(SafetensorsFile::Open(dir.path()),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("expected a regular file")));
}

}  // namespace
}  // namespace baton::checkpoint
