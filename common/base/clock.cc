#include "common/base/clock.h"

#include <chrono>

namespace baton {
namespace {

class SteadyClock final : public Clock {
 public:
  absl::Time Now() const override {
    return absl::UnixEpoch() +
           absl::FromChrono(
               std::chrono::steady_clock::now().time_since_epoch());
  }
};

}  // namespace

Clock* Clock::Real() {
  static SteadyClock* const clock = new SteadyClock;
  return clock;
}

}  // namespace baton
