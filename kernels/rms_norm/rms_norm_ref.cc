#include <cmath>

#include "kernels/include/numeric.h"
#include "kernels/include/rms_norm.h"
#include "kernels/internal/check.h"
#include "kernels/rms_norm/rms_norm_check.h"

namespace baton::kernels {

void CheckRmsNorm(const RmsNormParams& params) {
  BATON_KERNEL_CHECK(params.rows >= 0 && params.dim > 0,
                     "rms_norm: rows < 0 or dim <= 0");
  BATON_KERNEL_CHECK(
      params.rows == 0 || (params.x != nullptr && params.y != nullptr),
      "rms_norm: x or y is null");
}

void RmsNormRef(const RmsNormParams& params) {
  CheckRmsNorm(params);
  for (int64_t r = 0; r < params.rows; ++r) {
    const float* x = params.x + r * params.x_row_stride;
    float* y = params.y + r * params.y_row_stride;
    double sum = 0.0;
    for (int32_t i = 0; i < params.dim; ++i) {
      sum += double{x[i]} * double{x[i]};
    }
    const auto factor = static_cast<float>(
        1.0 / std::sqrt(sum / params.dim + double{params.eps}));
    for (int32_t i = 0; i < params.dim; ++i) {
      y[i] = x[i] * factor;
      if (params.weight != nullptr) {
        y[i] *= F32FromBf16(params.weight[i]);
      }
    }
  }
}

}  // namespace baton::kernels
