// Checksums of a hand-off (algorithm: kernels/include/page_copy.h).
#pragma once

#include <cstdint>

#include "absl/types/span.h"
#include "common/transfer/link.h"

namespace baton::handoff {

// Of a segment's payload, as one row of 16-byte words; size a multiple of 16.
uint64_t PayloadChecksum(absl::Span<const std::byte> payload);
// Of gathered rows, by their row numbers; `data` holds rows.count * row_bytes.
uint64_t RowsChecksum(const kv::RowRange& rows, const std::byte* data,
                      int64_t row_bytes);
// Of the logits' bytes as row 0, filled up with zeros to a multiple of 16.
uint64_t LogitsChecksum(absl::Span<const float> logits);

}  // namespace baton::handoff
