// The legs of dispatch over gRPC: client streams to PrefillService and
// DecodeService.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "absl/time/time.h"
#include "common/base/clock.h"
#include "common/base/mutex.h"
#include "router/dispatch/legs.h"
#include "router/legs/channel_cache.h"

namespace baton::router::legs {

// Calls that are alive, so that the process can end without any.
class CallCensus;

// Thread-safe. Every call carries the request's deadline and does not wait for
// a connection that cannot be made.
class GrpcLegFactory final : public dispatch::LegFactory {
 public:
  // `model_digest` gives the raw digest that calls name.
  GrpcLegFactory(const Clock* clock, std::function<std::string()> model_digest);
  // Shutdown.
  ~GrpcLegFactory() override;

  std::unique_ptr<dispatch::PrefillLeg> StartPrefill(
      const registry::WorkerRef& worker, const dispatch::PrefillStart& start,
      std::function<void(dispatch::PrefillEvent)> on_event) override;
  std::unique_ptr<dispatch::DecodeLeg> StartDecode(
      const registry::WorkerRef& worker, const dispatch::DecodeStart& start,
      std::function<void(dispatch::DecodeEvent)> on_event) override;

  // Calls that have not ended, those that were let go included.
  int64_t live_calls() const;
  // Cancels all calls and waits until they have ended, at most `limit`.
  void Shutdown(absl::Duration limit);

 private:
  const Clock* const clock_;
  const std::function<std::string()> model_digest_;
  // Shared with calls, which may end after the factory.
  const std::shared_ptr<ChannelCache> channels_;
  const std::shared_ptr<CallCensus> census_;
};

}  // namespace baton::router::legs
