// Injected time source: code under test never reads the wall clock itself.
#pragma once

#include "absl/time/time.h"

namespace baton {

// Thread-safe.
class Clock {
 public:
  virtual ~Clock() = default;
  // Non-decreasing; for durations, deadlines and timeouts. The epoch is
  // arbitrary: compare only with other values of the same Clock.
  virtual absl::Time Now() const = 0;

  // The process's steady clock. Never destroyed.
  static Clock* Real();
};

}  // namespace baton
