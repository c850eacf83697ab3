// Injected source of random numbers for ids, seeds and jitter (not sampling:
// that is position-keyed, see kernels/include/sampling.h).
#pragma once

#include <cstdint>
#include <random>

#include "common/base/mutex.h"

namespace baton {

// Thread-safe.
class Random {
 public:
  virtual ~Random() = default;
  virtual uint64_t Uint64() = 0;
  // Uniform in [0, 1).
  double Uniform() { return static_cast<double>(Uint64() >> 11) * 0x1p-53; }

  // Unpredictable numbers from the operating system. Never destroyed.
  static Random* System();
};

// Repeatable numbers for tests and load generation.
class SeededRandom final : public Random {
 public:
  explicit SeededRandom(uint64_t seed) : engine_(seed) {}
  uint64_t Uint64() override {
    MutexLock lock(&mu_);
    return engine_();
  }

 private:
  Mutex mu_;
  std::mt19937_64 engine_ BATON_GUARDED_BY(mu_);
};

}  // namespace baton
