#pragma once

#include "kernels/include/experts.h"

namespace baton::kernels {

// Aborts on a violated precondition.
void CheckExperts(const ExpertsParams& params);

}  // namespace baton::kernels
