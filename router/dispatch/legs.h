// The two calls that serve a request, and the client's stream, as dispatch sees
// them. router/legs implements the first two over gRPC, router/frontend the
// third; tests use fakes.
#pragma once

#include <functional>
#include <memory>

#include "absl/status/status.h"
#include "router/dispatch/types.h"
#include "router/registry/worker.h"

namespace baton::router::dispatch {

// What a prefill worker is asked to do.
struct PrefillStart {
  RequestId request;
  HandoffId handoff;
  Attempt attempt = 1;
  std::shared_ptr<const std::vector<int32_t>> prompt_ids;
  Sha256Digest prompt_hash{};
  absl::Time deadline;
};

// What a decode worker is asked to do.
struct DecodeStart {
  RequestId request;
  HandoffId handoff;
  std::shared_ptr<const std::vector<int32_t>> prompt_ids;
  Sha256Digest prompt_hash{};
  request::SamplingParams sampling;
  std::optional<int32_t> logprobs;
  absl::Time deadline;
};

// Handles of a running call. The handle's owner calls from one thread at a
// time; nothing blocks. Destroying a handle cancels the call unless it ended or
// was let go. Events go on until LegEnded, also after Cancel.
class PrefillLeg {
 public:
  virtual ~PrefillLeg() = default;
  virtual void Attach(const OpaqueTicket& ticket) = 0;
  virtual void Cancel() = 0;
  // The call runs to its own end; its events no longer matter.
  virtual void LetGo() = 0;
};

class DecodeLeg {
 public:
  virtual ~DecodeLeg() = default;
  // Asks for one more event: exactly one event follows each call, until
  // LegEnded. This is the back-pressure: who does not ask does not receive.
  virtual void Next() = 0;
  virtual void Reticket(Attempt attempt) = 0;
  virtual void Cancel() = 0;
  virtual void LetGo() = 0;
};

// Thread-safe. Event callbacks come from any thread, possibly before Start
// returns, never two at once for one leg.
class LegFactory {
 public:
  virtual ~LegFactory() = default;
  virtual std::unique_ptr<PrefillLeg> StartPrefill(
      const registry::WorkerRef& worker, const PrefillStart& start,
      std::function<void(PrefillEvent)> on_event) = 0;
  virtual std::unique_ptr<DecodeLeg> StartDecode(
      const registry::WorkerRef& worker, const DecodeStart& start,
      std::function<void(DecodeEvent)> on_event) = 0;
};

// The client's stream. One write is outstanding at a time: each Write is
// answered by one Run::OnWriteDone. Finish is called once, with no write
// outstanding, and is the last call.
class ClientSink {
 public:
  virtual ~ClientSink() = default;
  virtual void Write(const ClientEvent& event) = 0;
  // Breaks the stream so that an outstanding write ends (failed) although the
  // client does not read; `why` is for the client.
  virtual void Cut(const absl::Status& why) = 0;
  virtual void Finish(const absl::Status& status) = 0;
};

}  // namespace baton::router::dispatch
