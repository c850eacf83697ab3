// Scans of tensor values for what must never be there.
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "common/checkpoint/safetensors.h"

namespace baton::checkpoint {

// Each returns OK or DataLoss naming the tensor, the value and its index.

// BF16, F32, F8_E4M3: no NaN, no infinity. Other dtypes have neither.
absl::Status CheckFinite(const TensorView& tensor);
// Scales. F8_E8M0: no byte 255 (NaN). F32: finite and > 0. F8_E4M3 (NVFP4
// blocks, clamped to [2^-9, 448] by their producer): no NaN and > 0.
absl::Status CheckScales(const TensorView& tensor);
// I64: every value in [0, limit).
absl::Status CheckIndices(const TensorView& tensor, int64_t limit);

// Whether a finite positive float is 2^k.
bool IsPowerOfTwo(float value);

}  // namespace baton::checkpoint
