// ClusterService: what workers and `baton status` talk to.
#pragma once

#include <functional>
#include <string>

#include "baton/v1/cluster.grpc.pb.h"
#include "common/base/clock.h"
#include "common/base/ids.h"
#include "router/registry/registry.h"

namespace baton::router::registry {

struct ClusterServiceOptions {
  Incarnation router_incarnation = 0;
  std::string version;
  // Requests running at this router.
  std::function<int64_t()> running_requests;
};

// Thread-safe. Handlers answer at once on gRPC's threads.
class ClusterService final : public v1::ClusterService::CallbackService {
 public:
  // The registry and the clock outlive the service.
  ClusterService(const Clock* clock, Registry* registry,
                 ClusterServiceOptions options)
      : clock_(clock), registry_(registry), options_(std::move(options)) {}

  grpc::ServerUnaryReactor* Register(grpc::CallbackServerContext* context,
                                     const v1::RegisterRequest* request,
                                     v1::RegisterResponse* response) override;
  grpc::ServerUnaryReactor* Heartbeat(grpc::CallbackServerContext* context,
                                      const v1::HeartbeatRequest* request,
                                      v1::HeartbeatResponse* response) override;
  grpc::ServerUnaryReactor* GetClusterStatus(
      grpc::CallbackServerContext* context,
      const v1::GetClusterStatusRequest* request,
      v1::GetClusterStatusResponse* response) override;

 private:
  const Clock* const clock_;
  Registry* const registry_;
  const ClusterServiceOptions options_;
};

}  // namespace baton::router::registry
