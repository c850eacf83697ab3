// Holds threads at fault points so that races are replayed, not hoped for.
//
//   SyncPoint held("handoff.before_commit");   // arms it
//   ... start the thread ...
//   held.WaitUntilReached();                   // it stands there now
//   ... do the racing thing ...
//   held.Release();                            // also done by the destructor
#pragma once

#include <memory>
#include <string>

#include "absl/strings/string_view.h"
#include "common/base/fault_point.h"
#include "common/base/mutex.h"

namespace baton::testing {

class SyncPoint final {
 public:
  explicit SyncPoint(absl::string_view name);
  ~SyncPoint();
  // False when `timeout` passes first.
  bool WaitUntilReached(absl::Duration timeout = absl::Seconds(20));
  void Release();

 private:
  struct State;
  std::string name_;
  std::shared_ptr<State> state_;
};

}  // namespace baton::testing
