#include "common/base/random.h"

#include <sys/random.h>

#include "common/base/check.h"

namespace baton {
namespace {

class SystemRandom final : public Random {
 public:
  uint64_t Uint64() override {
    uint64_t value = 0;
    // Requests of up to 256 bytes are never short once the pool is ready.
    CHECK_EQ(getrandom(&value, sizeof(value), 0),
             static_cast<ssize_t>(sizeof(value)));
    return value;
  }
};

}  // namespace

Random* Random::System() {
  static SystemRandom* const random = new SystemRandom;
  return random;
}

}  // namespace baton
