#include "common/handoff/checksum.h"

#include <cstring>
#include <vector>

#include "kernels/include/page_copy.h"

namespace baton::handoff {

uint64_t PayloadChecksum(absl::Span<const std::byte> payload) {
  return kernels::BufferChecksum(payload.data(), /*first_row=*/0,
                                 /*num_rows=*/1,
                                 static_cast<int64_t>(payload.size()));
}

uint64_t RowsChecksum(const kv::RowRange& rows, const std::byte* data,
                      int64_t row_bytes) {
  if (rows.stride == 1) {
    return kernels::BufferChecksum(data, rows.first, rows.count, row_bytes);
  }
  uint64_t sum = 0;
  for (int64_t i = 0; i < rows.count; ++i) {
    sum += kernels::BufferChecksum(data + i * row_bytes,
                                   rows.first + i * rows.stride,
                                   /*num_rows=*/1, row_bytes);
  }
  return sum;
}

uint64_t LogitsChecksum(absl::Span<const float> logits) {
  const size_t bytes = logits.size() * sizeof(float);
  std::vector<std::byte> row((bytes + 15) / 16 * 16);
  if (bytes > 0) std::memcpy(row.data(), logits.data(), bytes);
  return PayloadChecksum(row);
}

}  // namespace baton::handoff
