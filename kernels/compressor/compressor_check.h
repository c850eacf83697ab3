#pragma once

#include "kernels/include/compressor.h"

namespace baton::kernels {

// Aborts on a violated precondition.
void CheckCompressor(const CompressorParams& params);

}  // namespace baton::kernels
