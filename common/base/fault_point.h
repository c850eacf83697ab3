// Named places where tests hold a thread, inject an error or mutate behaviour.
// Without the build option BATON_FAULT_POINTS they compile to nothing.
//
//   BATON_FAULT_POINT("handoff.before_commit");        // order, delay, kill
//   if (BATON_FAULT("handoff.omit_region", "l2.c4")) continue;  // mutation
//
// Arming, in process: FaultRegistry::Global().Arm(name, handler).
// Arming, other processes: BATON_FAULTS="name[@detail][*count]=action;..." in
// the environment, action one of  fire | sleep:MILLISECONDS | kill . A fault
// with @detail matches only that detail; *count limits how often it acts.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "common/base/mutex.h"

namespace baton {

// Thread-safe. Handlers run on the thread that reached the point, without the
// registry's lock, so they may block to order threads.
class FaultRegistry final {
 public:
  // Returns whether a BATON_FAULT at this place takes the faulty path.
  using Handler = std::function<bool(absl::string_view detail)>;

  static FaultRegistry& Global();

  void Arm(absl::string_view name, Handler handler);
  void Disarm(absl::string_view name);
  void DisarmAll();
  // Parses the BATON_FAULTS syntax; InvalidArgument names the bad part.
  absl::Status ArmFromSpec(absl::string_view spec);
  // Times the point was reached while armed.
  int64_t hits(absl::string_view name) const;

  bool Reach(absl::string_view name, absl::string_view detail);

 private:
  struct Entry {
    Handler handler;
    int64_t hits = 0;
  };
  mutable Mutex mu_;
  std::map<std::string, Entry> entries_ BATON_GUARDED_BY(mu_);
};

// Arms what BATON_FAULTS asks for, and follows the file that BATON_FAULTS_FILE
// names: its text has the same syntax and replaces all armed faults whenever it
// changes. In a build without fault points either variable is an error: a
// switch that does nothing would lie.
absl::Status ArmFaultsFromEnvironment();

}  // namespace baton

#ifdef BATON_FAULT_POINTS
#define BATON_FAULT_POINT(name) \
  ((void)::baton::FaultRegistry::Global().Reach(name, ""))
#define BATON_FAULT(name, detail) \
  (::baton::FaultRegistry::Global().Reach(name, detail))
#else
#define BATON_FAULT_POINT(name) ((void)0)
// Never evaluated, yet its arguments count as used.
#define BATON_FAULT(name, detail) \
  (false && ((void)(name), (void)(detail), true))
#endif
