// Worker processes played by in-process gRPC servers on port 0.
#pragma once

#include <grpcpp/grpcpp.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <set>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "baton/v1/cluster.grpc.pb.h"
#include "baton/v1/decode.grpc.pb.h"
#include "baton/v1/prefill.grpc.pb.h"
#include "common/base/mutex.h"
#include "common/rpc/server.h"

namespace baton::router {

// False when `limit` passes before the condition holds.
template <typename Condition>
bool WaitUntil(const Condition& condition,
               absl::Duration limit = absl::Seconds(10)) {
  Mutex mu;
  CondVar never;
  constexpr absl::Duration kStep = absl::Milliseconds(2);
  for (absl::Duration waited; waited < limit; waited += kStep) {
    if (condition()) return true;
    MutexLock lock(&mu);
    never.WaitFor(&mu, kStep);
  }
  return condition();
}

// Stands for the link between sender and receiver: says which attempts have
// been attached.
class FakeLink {
 public:
  void Attach(const v1::HandoffRef& ref) {
    MutexLock lock(&mu_);
    attached_.insert({ref.handoff_id(), ref.attempt()});
  }
  bool Attached(const std::string& handoff, int attempt) {
    MutexLock lock(&mu_);
    return attached_.contains({handoff, attempt});
  }

 private:
  Mutex mu_;
  std::set<std::pair<std::string, int>> attached_ BATON_GUARDED_BY(mu_);
};

// What a worker's calls do; set before use.
struct WorkerScript {
  // Prefill: the call ends with UNAVAILABLE once it is attached, this often.
  std::atomic<int> prefill_deaths{0};
  // Decode: calls whose prefill dies so.
  std::atomic<int> prefill_deaths_expected{0};
  int tokens = 3;
  std::string text = "ab ";
  // After the tokens, wait for the router's cancel instead of finishing.
  bool hang = false;
  // The same for every so manieth call; 0: none.
  int hang_every = 0;
  // After this many tokens the call ends with UNAVAILABLE.
  int die_after = -1;
  // What happened.
  std::atomic<int> calls{0};
  std::atomic<int> cancelled{0};
  std::atomic<int64_t> tokens_written{0};
};

class FakePrefill final : public v1::PrefillService::Service {
 public:
  FakePrefill(FakeLink* link, WorkerScript* script)
      : link_(link), script_(script) {}

  grpc::Status Prefill(
      grpc::ServerContext* context,
      grpc::ServerReaderWriter<v1::PrefillResponse, v1::PrefillRequest>* stream)
      override {
    ++script_->calls;
    const grpc::Status status = Play(stream);
    if (context->IsCancelled()) ++script_->cancelled;
    return status;
  }

 private:
  grpc::Status Play(grpc::ServerReaderWriter<v1::PrefillResponse,
                                             v1::PrefillRequest>* stream) {
    v1::PrefillRequest request;
    if (!stream->Read(&request) || !request.has_admit()) {
      return {grpc::StatusCode::CANCELLED, "no admit"};
    }
    v1::PrefillResponse response;
    response.mutable_admitted()->set_eta_ms(0);
    stream->Write(response);
    response.mutable_started();
    stream->Write(response);
    if (!stream->Read(&request) || !request.has_attach()) {
      return {grpc::StatusCode::CANCELLED, "no attach"};
    }
    if (script_->prefill_deaths.fetch_sub(1) > 0) {
      return {grpc::StatusCode::UNAVAILABLE, "played dead"};
    }
    response.mutable_sealed()->set_prefill_us(100);
    stream->Write(response);
    link_->Attach(request.attach().ticket().handoff());
    response.mutable_verdict()->set_committed(true);
    stream->Write(response);
    return grpc::Status::OK;
  }

  FakeLink* const link_;
  WorkerScript* const script_;
};

class FakeDecode final : public v1::DecodeService::Service {
 public:
  using Stream =
      grpc::ServerReaderWriter<v1::DecodeResponse, v1::DecodeRequest>;

  FakeDecode(FakeLink* link, WorkerScript* script)
      : link_(link), script_(script) {}

  grpc::Status Decode(grpc::ServerContext* context, Stream* stream) override {
    const int call = ++script_->calls;
    const bool hang = script_->hang || (script_->hang_every > 0 &&
                                        call % script_->hang_every == 0);
    const grpc::Status status = Play(context, stream, hang);
    if (context->IsCancelled()) ++script_->cancelled;
    return status;
  }

 private:
  grpc::Status Play(grpc::ServerContext* context, Stream* stream, bool hang) {
    v1::DecodeRequest request;
    if (!stream->Read(&request) || !request.has_start()) {
      return {grpc::StatusCode::CANCELLED, "no start"};
    }
    const v1::DecodeStart start = request.start();
    int attempt = 1;
    v1::DecodeResponse response;
    const auto set_ticket = [&](v1::Ticket* ticket) {
      ticket->mutable_handoff()->set_handoff_id(start.handoff_id());
      ticket->mutable_handoff()->set_attempt(attempt);
    };
    set_ticket(response.mutable_reserved()->mutable_ticket());
    stream->Write(response);
    const auto attached = [&] {
      return context->IsCancelled() ||
             link_->Attached(start.handoff_id(), attempt);
    };
    if (script_->prefill_deaths_expected > 0) {
      // The prefill dies first: the next word is Reticket.
      --script_->prefill_deaths_expected;
      if (!stream->Read(&request) || !request.has_reticket()) {
        return {grpc::StatusCode::CANCELLED, "no reticket"};
      }
      attempt = request.reticket().attempt();
      set_ticket(response.mutable_reticketed()->mutable_ticket());
      stream->Write(response);
    }
    if (!WaitUntil(attached) || context->IsCancelled()) {
      return {grpc::StatusCode::CANCELLED, "never attached"};
    }
    response.mutable_committed()->set_attempt(attempt);
    stream->Write(response);
    for (int sample = 0; sample < start.sampling().n(); ++sample) {
      for (int i = 0; i < script_->tokens; ++i) {
        if (i == script_->die_after) {
          return {grpc::StatusCode::UNAVAILABLE, "played dead"};
        }
        v1::Tokens* const tokens = response.mutable_tokens();
        tokens->Clear();
        tokens->set_index(sample);
        tokens->set_sequence(i);
        tokens->add_token_ids(10 + i);
        tokens->set_text(script_->text);
        if (!stream->Write(response)) {
          return {grpc::StatusCode::CANCELLED, "gone"};
        }
        ++script_->tokens_written;
      }
      if (hang) {
        (void)WaitUntil([&] { return context->IsCancelled(); });
        return {grpc::StatusCode::CANCELLED, "hung"};
      }
      v1::SampleFinished* const finished = response.mutable_finished();
      finished->set_index(sample);
      finished->set_finish_reason(v1::FINISH_REASON_LENGTH);
      finished->set_output_tokens(script_->tokens);
      finished->set_events(script_->tokens);
      stream->Write(response);
    }
    return grpc::Status::OK;
  }

  FakeLink* const link_;
  WorkerScript* const script_;
};

// One worker with one role.
class FakeWorker {
 public:
  FakeWorker(std::string name, bool prefill, FakeLink* link,
             WorkerScript* script, uint64_t incarnation = 1,
             const std::string& address = "127.0.0.1:0")
      : name_(std::move(name)),
        prefill_role_(prefill),
        incarnation_(incarnation),
        prefill_(link, script),
        decode_(link, script) {
    grpc::Service* const service =
        prefill ? static_cast<grpc::Service*>(&prefill_) : &decode_;
    server_ = *rpc::Server::Start({.address = address, .services = {service}});
  }

  const std::string& address() const { return server_->address(); }

  v1::WorkerInfo Info() const {
    v1::WorkerInfo info;
    info.set_name(name_);
    info.add_roles(prefill_role_ ? v1::WORKER_ROLE_PREFILL
                                 : v1::WORKER_ROLE_DECODE);
    info.set_incarnation(incarnation_);
    info.add_endpoints(server_->address());
    info.set_model_digest(std::string(32, 'm'));
    info.set_state_format_hash(std::string(32, 's'));
    info.set_state_format("fake");
    info.set_compute_policy("fake");
    info.set_ranks(1);
    info.set_blocks(256);
    info.set_slots(64);
    info.set_max_positions(4096);
    info.set_max_backlog_tokens(65536);
    return info;
  }
  // Registers and reports once.
  grpc::Status Join(v1::ClusterService::Stub* cluster) {
    v1::RegisterRequest request;
    *request.mutable_worker() = Info();
    v1::RegisterResponse response;
    grpc::ClientContext context;
    const grpc::Status status = cluster->Register(&context, request, &response);
    return status.ok() ? Beat(cluster, v1::WORKER_STATE_SERVING) : status;
  }
  grpc::Status Beat(v1::ClusterService::Stub* cluster, v1::WorkerState state) {
    v1::HeartbeatRequest request;
    request.set_name(name_);
    request.set_incarnation(incarnation_);
    request.mutable_load()->set_sequence(++sequence_);
    request.mutable_load()->set_state(state);
    request.mutable_load()->set_free_blocks(256);
    request.mutable_load()->set_free_slots(64);
    v1::HeartbeatResponse response;
    grpc::ClientContext context;
    return cluster->Heartbeat(&context, request, &response);
  }

 private:
  const std::string name_;
  const bool prefill_role_;
  const uint64_t incarnation_;
  int64_t sequence_ = 0;
  FakePrefill prefill_;
  FakeDecode decode_;
  std::unique_ptr<rpc::Server> server_;
};

}  // namespace baton::router
