// Bytes on the data connection of a link: one preamble, then segments, each a
// 64-byte header and its payload. All integers little-endian.
//
//   preamble  0 "BATONDAT"  8 u32 version  12 u32 zero  16 u64 link epoch
//             24 token[32]
//   header    0 "BTSG"  4 u16 version  6 u16 zero  8 u64 link epoch
//             16 u64 segment_seq  24 u64 handoff hi  32 u64 handoff lo
//             40 i32 attempt  44 u32 check of the other 60 bytes
//             48 i64 payload_bytes  56 u64 checksum
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/transfer/link.h"

namespace baton::transfer {

inline constexpr size_t kSegmentHeaderBytes = 64;
inline constexpr size_t kPreambleBytes = 56;

using SegmentHeaderBytes = std::array<std::byte, kSegmentHeaderBytes>;
using PreambleBytes = std::array<std::byte, kPreambleBytes>;
// Secret of one link, drawn by the receiver, told to the sender in Welcome.
using DataToken = std::array<uint8_t, 32>;

struct DataPreamble {
  LinkEpoch link_epoch = 0;
  DataToken token{};
};

SegmentHeaderBytes EncodeSegmentHeader(const SegmentHeader& header);
// DataLoss, naming the field, unless all of it is well formed and the payload
// is 1 .. max_segment_bytes.
absl::StatusOr<SegmentHeader> DecodeSegmentHeader(
    absl::Span<const std::byte> bytes, int64_t max_segment_bytes);

PreambleBytes EncodePreamble(const DataPreamble& preamble);
absl::StatusOr<DataPreamble> DecodePreamble(absl::Span<const std::byte> bytes);

}  // namespace baton::transfer
