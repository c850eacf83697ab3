#include "common/checkpoint/tensor_values.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <bit>
#include <limits>

#include "common/testing/status_matchers.h"

namespace baton::checkpoint {
namespace {

using ::baton::testing::StatusIs;
using ::testing::AllOf;
using ::testing::HasSubstr;

template <typename T>
TensorView View(DType dtype, const std::vector<T>& values) {
  TensorView view;
  view.name = "some.tensor";
  view.dtype = dtype;
  view.shape = {static_cast<int64_t>(values.size())};
  view.data = reinterpret_cast<const std::byte*>(values.data());
  view.bytes = static_cast<int64_t>(values.size() * sizeof(T));
  return view;
}

// The scan runs in blocks of 4096.
constexpr size_t kPlaces[] = {0, 1, 4095, 4096, 4097, 9999};

template <typename T>
void ExpectFound(absl::Status (*check)(const TensorView&), DType dtype, T good,
                 T bad) {
  for (const size_t place : kPlaces) {
    std::vector<T> values(10'000, good);
    EXPECT_OK(check(View(dtype, values)));
    values[place] = bad;
    EXPECT_THAT(
        check(View(dtype, values)),
        StatusIs(absl::StatusCode::kDataLoss,
                 AllOf(HasSubstr("'some.tensor'"),
                       HasSubstr(absl::StrCat("value ", place, " is ")))));
  }
}

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

TEST(TensorValuesTest, FiniteFindsNanAndInfinityWhereverTheyAre) {
  ExpectFound(CheckFinite, DType::kF32, -1.0f, kNan);
  ExpectFound(CheckFinite, DType::kF32, std::numeric_limits<float>::max(),
              kInf);
  ExpectFound(CheckFinite, DType::kF32, 1e-45f, -kInf);
  ExpectFound<uint16_t>(CheckFinite, DType::kBf16, 0x7f7f, 0x7f80);  // inf
  ExpectFound<uint16_t>(CheckFinite, DType::kBf16, 0x0001, 0xffc0);  // NaN
  ExpectFound<uint8_t>(CheckFinite, DType::kF8E4M3, 0x7e, 0x7f);
  ExpectFound<uint8_t>(CheckFinite, DType::kF8E4M3, 0xfe, 0xff);
}

TEST(TensorValuesTest, ScalesMustBePositiveAndFinite) {
  ExpectFound(CheckScales, DType::kF32, 1e-45f, 0.0f);
  ExpectFound(CheckScales, DType::kF32, 1.0f, -1.0f);
  ExpectFound(CheckScales, DType::kF32, 1.0f, kNan);
  ExpectFound(CheckScales, DType::kF32, 1.0f, kInf);
  ExpectFound<uint8_t>(CheckScales, DType::kF8E8M0, 0x00, 0xff);
  ExpectFound<uint8_t>(CheckScales, DType::kF8E8M0, 0xfe, 0xff);
  ExpectFound<uint8_t>(CheckScales, DType::kF8E4M3, 0x01, 0x00);
  ExpectFound<uint8_t>(CheckScales, DType::kF8E4M3, 0x7e, 0x7f);
  ExpectFound<uint8_t>(CheckScales, DType::kF8E4M3, 0x38, 0x80);
  ExpectFound<uint8_t>(CheckScales, DType::kF8E4M3, 0x38, 0xb8);
}

TEST(TensorValuesTest, EveryByteIsJudgedAsItsValueSays) {
  for (int32_t code = 0; code < 256; ++code) {
    const std::vector<uint8_t> one = {static_cast<uint8_t>(code)};
    EXPECT_EQ(CheckFinite(View(DType::kF8E4M3, one)).ok(),
              (code & 0x7f) != 0x7f)
        << code;
    EXPECT_EQ(CheckScales(View(DType::kF8E4M3, one)).ok(),
              code >= 1 && code <= 0x7e)
        << code;
    EXPECT_EQ(CheckScales(View(DType::kF8E8M0, one)).ok(), code != 255) << code;
  }
}

TEST(TensorValuesTest, IndicesMustBeBelowTheLimit) {
  const auto check = [](const TensorView& view) {
    return CheckIndices(view, 16);
  };
  ExpectFound<int64_t>(check, DType::kI64, 15, 16);
  ExpectFound<int64_t>(check, DType::kI64, 0, -1);
}

TEST(TensorValuesTest, EmptyTensorsPass) {
  const std::vector<float> none;
  EXPECT_OK(CheckFinite(View(DType::kF32, none)));
  EXPECT_OK(CheckScales(View(DType::kF32, none)));
}

TEST(TensorValuesTest, PowersOfTwoAreRecognised) {
  for (const float yes : {1.0f, 2.0f, 0.5f, 0x1p-126f, 0x1p-140f, 0x1p127f}) {
    EXPECT_TRUE(IsPowerOfTwo(yes)) << yes;
  }
  for (const float no :
       {0.0f, -2.0f, 3.0f, 0.75f, kInf, kNan, std::nextafter(1.0f, 2.0f)}) {
    EXPECT_FALSE(IsPowerOfTwo(no)) << no;
  }
}

}  // namespace
}  // namespace baton::checkpoint
