#include "common/transfer/segment_header.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/testing/status_matchers.h"

namespace baton::transfer {
namespace {

using baton::testing::StatusIs;

constexpr int64_t kMax = 1 << 20;

SegmentHeader Example() {
  return {.link_epoch = 0x0102030405060708,
          .segment_seq = 9,
          .handoff = {0x1111222233334444, 0x5555666677778888},
          .attempt = 2,
          .payload_bytes = kMax,
          .checksum = 0xfedcba9876543210};
}

TEST(SegmentHeaderTest, RoundTripsEveryField) {
  const SegmentHeaderBytes bytes = EncodeSegmentHeader(Example());
  ASSERT_OK_AND_ASSIGN(const SegmentHeader got,
                       DecodeSegmentHeader(bytes, kMax));
  EXPECT_EQ(got.link_epoch, Example().link_epoch);
  EXPECT_EQ(got.segment_seq, Example().segment_seq);
  EXPECT_EQ(got.handoff, Example().handoff);
  EXPECT_EQ(got.attempt, Example().attempt);
  EXPECT_EQ(got.payload_bytes, Example().payload_bytes);
  EXPECT_EQ(got.checksum, Example().checksum);
}

TEST(SegmentHeaderTest, IsLittleEndianAtTheDocumentedOffsets) {
  const SegmentHeaderBytes bytes = EncodeSegmentHeader(Example());
  EXPECT_EQ(bytes[0], std::byte{'B'});
  EXPECT_EQ(bytes[8], std::byte{8});
  EXPECT_EQ(bytes[15], std::byte{1});
  EXPECT_EQ(bytes[16], std::byte{9});
  EXPECT_EQ(bytes[40], std::byte{2});
  EXPECT_EQ(bytes[56], std::byte{0x10});
}

TEST(SegmentHeaderTest, RefusesEveryFlippedBit) {
  const SegmentHeaderBytes good = EncodeSegmentHeader(Example());
  for (size_t bit = 0; bit < 8 * kSegmentHeaderBytes; ++bit) {
    SegmentHeaderBytes bytes = good;
    bytes[bit / 8] ^= static_cast<std::byte>(1 << bit % 8);
    EXPECT_THAT(DecodeSegmentHeader(bytes, kMax),
                StatusIs(absl::StatusCode::kDataLoss))
        << "bit " << bit;
  }
}

TEST(SegmentHeaderTest, BoundsThePayload) {
  SegmentHeader header = Example();
  for (const auto& [bytes, ok] : {std::pair<int64_t, bool>{-1, false},
                                  {0, false},
                                  {1, true},
                                  {kMax - 1, true},
                                  {kMax, true},
                                  {kMax + 1, false},
                                  {INT64_MAX, false},
                                  {INT64_MIN, false}}) {
    header.payload_bytes = bytes;
    EXPECT_EQ(DecodeSegmentHeader(EncodeSegmentHeader(header), kMax).ok(), ok)
        << bytes;
  }
}

TEST(SegmentHeaderTest, RefusesAnotherLength) {
  const SegmentHeaderBytes bytes = EncodeSegmentHeader(Example());
  EXPECT_THAT(DecodeSegmentHeader(absl::MakeSpan(bytes).first(63), kMax),
              StatusIs(absl::StatusCode::kDataLoss));
  EXPECT_THAT(DecodeSegmentHeader({}, kMax),
              StatusIs(absl::StatusCode::kDataLoss));
}

TEST(PreambleTest, RoundTripsAndRefusesOtherMagicAndVersion) {
  DataPreamble preamble{.link_epoch = 77};
  preamble.token.fill(0xab);
  const PreambleBytes good = EncodePreamble(preamble);
  ASSERT_OK_AND_ASSIGN(const DataPreamble got, DecodePreamble(good));
  EXPECT_EQ(got.link_epoch, 77U);
  EXPECT_EQ(got.token, preamble.token);
  for (const size_t at : {0, 7, 8, 12}) {
    PreambleBytes bytes = good;
    bytes[at] ^= std::byte{1};
    EXPECT_THAT(DecodePreamble(bytes),
                StatusIs(absl::StatusCode::kInvalidArgument))
        << at;
  }
}

}  // namespace
}  // namespace baton::transfer
