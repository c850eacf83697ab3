// Helpers of the kernel tests: inputs, thread stand-ins, instruction sets,
// bit comparison.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "gtest/gtest.h"
#include "hwy/targets.h"
#include "kernels/include/parallel.h"

namespace baton::kernels {

inline constexpr float kEpsilon = 0x1p-24f;  // unit round-off of fp32
inline constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

// Runs chunks in reverse order on the calling thread: n threads' worth of
// splitting without threads, so every split point is deterministic.
class ChunkedParallel final : public Parallel {
 public:
  explicit ChunkedParallel(int32_t chunks) : chunks_(chunks) {}
  int32_t num_threads() const override { return chunks_; }
  void For(int64_t n, RangeFunction f) override {
    for (int64_t i = chunks_ - 1; i >= 0; --i) {
      const int64_t begin = n * i / chunks_;
      const int64_t end = n * (i + 1) / chunks_;
      if (begin < end) {
        f(begin, end);
      }
    }
  }

 private:
  int32_t chunks_;
};

// Restricts Highway to one instruction set while it lives.
class ScopedTarget final {
 public:
  explicit ScopedTarget(int64_t target) {
    hwy::SetSupportedTargetsForTest(target);
    hwy::GetChosenTarget().Update(hwy::SupportedTargets());
  }
  ~ScopedTarget() {
    hwy::SetSupportedTargetsForTest(0);
    hwy::GetChosenTarget().Update(hwy::SupportedTargets());
  }
  ScopedTarget(const ScopedTarget&) = delete;
  ScopedTarget& operator=(const ScopedTarget&) = delete;
};

// The instruction sets with FMA that this machine has: their bits must agree.
inline std::vector<int64_t> FmaTargets() {
  std::vector<int64_t> targets;
  for (const int64_t target : {HWY_AVX2, HWY_AVX3}) {
    if ((hwy::SupportedTargets() & target) != 0) {
      targets.push_back(target);
    }
  }
  return targets;
}

// Normal values with some zeros and a few extreme magnitudes.
inline std::vector<float> RandomFloats(size_t n, uint32_t seed,
                                       float scale = 1.0f) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(0.0f, scale);
  std::vector<float> values(n);
  for (float& v : values) {
    const uint32_t kind = random() % 64;
    v = normal(random);
    if (kind == 0) {
      v = 0.0f;
    } else if (kind == 1) {
      v *= 0x1p-30f;
    }
  }
  return values;
}

inline std::vector<uint8_t> RandomBytes(size_t n, uint32_t seed) {
  std::mt19937 random(seed);
  std::vector<uint8_t> bytes(n);
  for (uint8_t& b : bytes) {
    b = static_cast<uint8_t>(random());
  }
  return bytes;
}

inline uint32_t Bits(float v) {
  uint32_t bits;
  std::memcpy(&bits, &v, sizeof(bits));
  return bits;
}

inline ::testing::AssertionResult SameBits(const std::vector<float>& a,
                                           const std::vector<float>& b) {
  if (a.size() != b.size()) {
    return ::testing::AssertionFailure() << a.size() << " vs " << b.size();
  }
  for (size_t i = 0; i < a.size(); ++i) {
    if (Bits(a[i]) != Bits(b[i])) {
      return ::testing::AssertionFailure()
             << "element " << i << ": " << a[i] << " vs " << b[i];
    }
  }
  return ::testing::AssertionSuccess();
}

inline ::testing::AssertionResult SameBits(const float* a, const float* b,
                                           size_t n) {
  return SameBits(std::vector<float>(a, a + n), std::vector<float>(b, b + n));
}

}  // namespace baton::kernels
