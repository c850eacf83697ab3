#include "common/transfer/segment_header.h"

#include <cstring>

#include "absl/strings/str_cat.h"

namespace baton::transfer {

namespace {

constexpr char kSegmentMagic[] = {'B', 'T', 'S', 'G'};
constexpr char kPreambleMagic[] = {'B', 'A', 'T', 'O', 'N', 'D', 'A', 'T'};
constexpr uint16_t kVersion = 1;

template <typename T>
void Put(std::byte* at, T value) {
  for (size_t i = 0; i < sizeof(T); ++i) {
    at[i] = static_cast<std::byte>(value >> (8 * i) & 0xff);
  }
}

template <typename T>
T Get(const std::byte* at) {
  T value = 0;
  for (size_t i = 0; i < sizeof(T); ++i) {
    value = static_cast<T>(value | static_cast<T>(at[i]) << (8 * i));
  }
  return value;
}

// FNV-1a over everything but the check itself (bytes 44 to 47).
uint32_t HeaderCheck(const std::byte* bytes) {
  uint32_t hash = 2166136261U;
  for (size_t i = 0; i < kSegmentHeaderBytes; ++i) {
    if (i >= 44 && i < 48) continue;
    hash = (hash ^ static_cast<uint32_t>(bytes[i])) * 16777619U;
  }
  return hash;
}

}  // namespace

SegmentHeaderBytes EncodeSegmentHeader(const SegmentHeader& header) {
  SegmentHeaderBytes out{};
  std::byte* const at = out.data();
  std::memcpy(at, kSegmentMagic, sizeof(kSegmentMagic));
  Put<uint16_t>(at + 4, kVersion);
  Put<uint64_t>(at + 8, header.link_epoch);
  Put<uint64_t>(at + 16, header.segment_seq);
  Put<uint64_t>(at + 24, header.handoff.hi);
  Put<uint64_t>(at + 32, header.handoff.lo);
  Put<uint32_t>(at + 40, static_cast<uint32_t>(header.attempt));
  Put<uint64_t>(at + 48, static_cast<uint64_t>(header.payload_bytes));
  Put<uint64_t>(at + 56, header.checksum);
  Put<uint32_t>(at + 44, HeaderCheck(at));
  return out;
}

absl::StatusOr<SegmentHeader> DecodeSegmentHeader(
    absl::Span<const std::byte> bytes, int64_t max_segment_bytes) {
  if (bytes.size() != kSegmentHeaderBytes) {
    return absl::DataLossError(absl::StrCat("segment header of ", bytes.size(),
                                            " bytes, expected ",
                                            kSegmentHeaderBytes));
  }
  const std::byte* const at = bytes.data();
  if (std::memcmp(at, kSegmentMagic, sizeof(kSegmentMagic)) != 0) {
    return absl::DataLossError("segment header does not start with BTSG");
  }
  const auto version = Get<uint16_t>(at + 4);
  if (version != kVersion || Get<uint16_t>(at + 6) != 0) {
    return absl::DataLossError(absl::StrCat("segment header version ", version,
                                            ", expected ", kVersion));
  }
  if (Get<uint32_t>(at + 44) != HeaderCheck(at)) {
    return absl::DataLossError("segment header check does not match");
  }
  SegmentHeader header;
  header.link_epoch = Get<uint64_t>(at + 8);
  header.segment_seq = Get<uint64_t>(at + 16);
  header.handoff = {Get<uint64_t>(at + 24), Get<uint64_t>(at + 32)};
  header.attempt = static_cast<Attempt>(Get<uint32_t>(at + 40));
  header.payload_bytes = static_cast<int64_t>(Get<uint64_t>(at + 48));
  header.checksum = Get<uint64_t>(at + 56);
  if (header.payload_bytes < 1 || header.payload_bytes > max_segment_bytes) {
    return absl::DataLossError(absl::StrCat("segment of ", header.payload_bytes,
                                            " bytes, expected 1 to ",
                                            max_segment_bytes));
  }
  return header;
}

PreambleBytes EncodePreamble(const DataPreamble& preamble) {
  PreambleBytes out{};
  std::byte* const at = out.data();
  std::memcpy(at, kPreambleMagic, sizeof(kPreambleMagic));
  Put<uint32_t>(at + 8, kVersion);
  Put<uint64_t>(at + 16, preamble.link_epoch);
  std::memcpy(at + 24, preamble.token.data(), preamble.token.size());
  return out;
}

absl::StatusOr<DataPreamble> DecodePreamble(absl::Span<const std::byte> bytes) {
  if (bytes.size() != kPreambleBytes ||
      std::memcmp(bytes.data(), kPreambleMagic, sizeof(kPreambleMagic)) != 0) {
    return absl::InvalidArgumentError(
        "data connection does not start with BATONDAT");
  }
  const std::byte* const at = bytes.data();
  if (Get<uint32_t>(at + 8) != kVersion || Get<uint32_t>(at + 12) != 0) {
    return absl::InvalidArgumentError(absl::StrCat("data connection version ",
                                                   Get<uint32_t>(at + 8),
                                                   ", expected ", kVersion));
  }
  DataPreamble preamble;
  preamble.link_epoch = Get<uint64_t>(at + 16);
  std::memcpy(preamble.token.data(), at + 24, preamble.token.size());
  return preamble;
}

}  // namespace baton::transfer
