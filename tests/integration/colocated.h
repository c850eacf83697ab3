// Prefill and decode workers of one process over one checkpoint (colocated
// mode, design.md 1): real engines and real hand-offs, joined by in-process
// links. With routers in front, requests go through the public API; without,
// tests drive the workers' doors themselves.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/base/clock.h"
#include "common/base/random.h"
#include "common/cli/client.h"
#include "common/handoff/receiver.h"
#include "common/rpc/server.h"
#include "common/tokenizer/tokenizer.h"
#include "common/transfer/in_process.h"
#include "common/worker/registration.h"
#include "common/worker/worker_runtime.h"
#include "decode_worker/decode_worker.h"
#include "decode_worker/metrics/decode_metrics.h"
#include "decode_worker/output/output_vocabulary.h"
#include "decode_worker/service/decode_service.h"
#include "prefill_worker/prefill_worker.h"
#include "prefill_worker/service/prefill_service.h"
#include "router/app/router_app.h"

namespace baton::integration {

struct ColocatedOptions {
  int32_t routers = 0;
  // Worker i of each role shares one gRPC server and one registration with
  // worker i of the other.
  int32_t prefill = 1;
  int32_t decode = 1;
  // Of every worker.
  int32_t blocks = 64;
  int32_t slots = 16;
  int32_t chunk_tokens = 256;
  bool poison_free_pages = false;
  absl::Duration lease = absl::Seconds(10);
  // Of senders and links.
  Clock* sender_clock = Clock::Real();
  // Of decode engines and receivers.
  Clock* decode_clock = Clock::Real();
  // Each router's queue timeout; the last one stands for the rest.
  std::vector<absl::Duration> queue_timeouts = {absl::Seconds(5)};
};

// Not thread-safe, except that clients, workers and receivers are.
class Colocated final {
 public:
  // The demo model. When there are routers, waits until all workers serve.
  static absl::StatusOr<std::unique_ptr<Colocated>> Start(
      const ColocatedOptions& options);
  // Stops.
  ~Colocated();

  const cli::Client& client(int32_t router = 0) const;
  router::app::RouterApp& router(int32_t index) const;
  prefill_worker::PrefillWorker& prefill(int32_t index = 0) const;
  decode_worker::DecodeWorker& decode(int32_t index = 0) const;
  handoff::Receiver& receiver(int32_t index = 0) const;
  const Sha256Digest& model_digest() const;
  const tokenizer::Tokenizer& tokenizer() const { return *tokenizer_; }

  // Tells the routers the load of now, without waiting for the next heartbeat.
  void ReportSoon() const;

  // Sum over the receivers' components: bytes that were kept.
  int64_t received_bytes() const;

  // Every pool is all free, by the workers' own published ledgers; the error
  // says which is not. Optionally also: decode knows no call any more.
  enum class Calls { kAny, kForgotten };
  absl::Status WaitUntilIdle(absl::Duration timeout,
                             Calls calls = Calls::kAny) const;
  // Stops everything, then audits every pool, which must be all free.
  absl::Status StopAndAudit();

 private:
  struct Prefill;
  struct Decode;
  struct Host;
  explicit Colocated(const ColocatedOptions& options);
  absl::Status StartPrefill(int32_t index);
  absl::Status StartDecode(int32_t index);
  absl::Status StartRouter(int32_t index);
  absl::Status StartHost(int32_t index);
  absl::Status WaitUntilServing() const;
  void Stop();

  const ColocatedOptions options_;
  transfer::InProcessNetwork network_;
  std::unique_ptr<tokenizer::Tokenizer> tokenizer_;
  std::vector<std::unique_ptr<Prefill>> prefills_;
  std::vector<std::unique_ptr<Decode>> decodes_;
  std::vector<std::unique_ptr<SeededRandom>> randoms_;
  std::vector<std::unique_ptr<router::app::RouterApp>> routers_;
  std::vector<std::unique_ptr<cli::Client>> clients_;
  std::vector<std::unique_ptr<Host>> hosts_;
};

}  // namespace baton::integration
