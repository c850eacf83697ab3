#pragma once

#include "kernels/include/rms_norm.h"

namespace baton::kernels {

// Aborts on a violated precondition.
void CheckRmsNorm(const RmsNormParams& params);

}  // namespace baton::kernels
