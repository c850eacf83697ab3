// Channels to workers.
#pragma once

#include <grpcpp/grpcpp.h>

#include <map>
#include <memory>
#include <string>

#include "common/base/mutex.h"
#include "router/registry/worker.h"

namespace baton::router::legs {

// One channel per worker and incarnation: a restarted worker on the same
// address gets a fresh one, and a channel on which a call failed is not used
// again, so a dead connection or its back-off is never inherited
// (golemcloud/golem#3748). Thread-safe.
class ChannelCache final {
 public:
  std::shared_ptr<grpc::Channel> Get(const registry::WorkerRef& worker);
  // Forgets `channel` if it is still the worker's. Calls on it go on.
  void Drop(const registry::WorkerRef& worker,
            const std::shared_ptr<grpc::Channel>& channel);

 private:
  struct Entry {
    registry::WorkerRef worker;
    std::shared_ptr<grpc::Channel> channel;
  };
  Mutex mu_;
  // By name: bounded by the registry's worker names in use; a replaced
  // incarnation replaces the entry.
  std::map<std::string, Entry> channels_ BATON_GUARDED_BY(mu_);
};

}  // namespace baton::router::legs
