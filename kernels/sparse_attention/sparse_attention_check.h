#pragma once

#include "kernels/include/sparse_attention.h"

namespace baton::kernels {

// Aborts on a violated precondition.
void CheckSparseAttention(const SparseAttentionParams& params);

}  // namespace baton::kernels
