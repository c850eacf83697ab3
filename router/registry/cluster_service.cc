#include "router/registry/cluster_service.h"

#include "absl/strings/escaping.h"
#include "absl/time/time.h"
#include "common/base/status_macros.h"
#include "common/request/request.h"
#include "common/rpc/status.h"

namespace baton::router::registry {
namespace {

absl::StatusOr<WorkerIdentity> IdentityFromProto(const v1::WorkerInfo& info) {
  WorkerIdentity out;
  out.name = info.name();
  for (const int role : info.roles()) {
    switch (role) {
      case v1::WORKER_ROLE_PREFILL:
        out.prefill = true;
        break;
      case v1::WORKER_ROLE_DECODE:
        out.decode = true;
        break;
      default:
        return request::InvalidField(
            "worker.roles",
            absl::StrCat("role ", role, ", expected prefill or decode"));
    }
  }
  out.incarnation = info.incarnation();
  out.endpoints.assign(info.endpoints().begin(), info.endpoints().end());
  out.model_digest = info.model_digest();
  out.state_format_hash = info.state_format_hash();
  out.state_format = info.state_format();
  out.compute_policy = info.compute_policy();
  out.node = info.node();
  out.bus_ids.assign(info.bus_ids().begin(), info.bus_ids().end());
  out.ranks = info.ranks();
  out.blocks = info.blocks();
  out.slots = info.slots();
  out.max_positions = info.max_positions();
  out.max_backlog_tokens = info.max_backlog_tokens();
  return out;
}

WorkerState StateFromProto(v1::WorkerState state) {
  switch (state) {
    case v1::WORKER_STATE_SERVING:
      return WorkerState::kServing;
    case v1::WORKER_STATE_DRAINING:
      return WorkerState::kDraining;
    case v1::WORKER_STATE_STALLED:
      return WorkerState::kStalled;
    case v1::WORKER_STATE_LOST:
      return WorkerState::kLost;
    default:
      // Unknown states of newer workers take no work.
      return WorkerState::kLoading;
  }
}

v1::WorkerState StateToProto(WorkerState state) {
  switch (state) {
    case WorkerState::kLoading:
      return v1::WORKER_STATE_LOADING;
    case WorkerState::kServing:
      return v1::WORKER_STATE_SERVING;
    case WorkerState::kDraining:
      return v1::WORKER_STATE_DRAINING;
    case WorkerState::kStalled:
      return v1::WORKER_STATE_STALLED;
    case WorkerState::kLost:
      return v1::WORKER_STATE_LOST;
  }
  return v1::WORKER_STATE_LOST;
}

LoadReport LoadFromProto(const v1::LoadReport& load) {
  LoadReport out;
  out.sequence = load.sequence();
  out.tick = load.tick();
  out.state = StateFromProto(load.state());
  out.free_blocks = load.free_blocks();
  out.free_slots = load.free_slots();
  out.sequences = load.sequences();
  out.backlog_tokens = load.backlog_tokens();
  out.prefill_tokens_per_second = load.prefill_tokens_per_second();
  for (const std::string& bytes : load.admitted_since_report()) {
    const absl::StatusOr<HandoffId> id = FromBytes<HandoffId>(bytes);
    // An id that we did not mint cannot be one of ours.
    if (id.ok()) out.admitted_since_report.push_back(*id);
  }
  return out;
}

void IdentityToProto(const WorkerIdentity& identity, v1::WorkerInfo* out) {
  out->set_name(identity.name);
  if (identity.prefill) out->add_roles(v1::WORKER_ROLE_PREFILL);
  if (identity.decode) out->add_roles(v1::WORKER_ROLE_DECODE);
  out->set_incarnation(identity.incarnation);
  for (const std::string& endpoint : identity.endpoints) {
    out->add_endpoints(endpoint);
  }
  out->set_model_digest(identity.model_digest);
  out->set_state_format_hash(identity.state_format_hash);
  out->set_state_format(identity.state_format);
  out->set_compute_policy(identity.compute_policy);
  out->set_node(identity.node);
  for (const std::string& bus_id : identity.bus_ids) out->add_bus_ids(bus_id);
  out->set_ranks(identity.ranks);
  out->set_blocks(identity.blocks);
  out->set_slots(identity.slots);
  out->set_max_positions(identity.max_positions);
  out->set_max_backlog_tokens(identity.max_backlog_tokens);
}

void LoadToProto(const LoadReport& load, v1::LoadReport* out) {
  out->set_sequence(load.sequence);
  out->set_tick(load.tick);
  out->set_state(StateToProto(load.state));
  out->set_free_blocks(load.free_blocks);
  out->set_free_slots(load.free_slots);
  out->set_sequences(load.sequences);
  out->set_backlog_tokens(load.backlog_tokens);
  out->set_prefill_tokens_per_second(load.prefill_tokens_per_second);
}

grpc::ServerUnaryReactor* Answer(grpc::CallbackServerContext* context,
                                 const absl::Status& status) {
  grpc::ServerUnaryReactor* const reactor = context->DefaultReactor();
  reactor->Finish(rpc::ToGrpc(status));
  return reactor;
}

}  // namespace

grpc::ServerUnaryReactor* ClusterService::Register(
    grpc::CallbackServerContext* context, const v1::RegisterRequest* request,
    v1::RegisterResponse* response) {
  const absl::StatusOr<WorkerIdentity> identity =
      IdentityFromProto(request->worker());
  if (!identity.ok()) return Answer(context, identity.status());
  const absl::Status status = registry_->Register(*identity);
  response->set_heartbeat_interval_ms(
      absl::ToInt64Milliseconds(registry_->heartbeat_interval()));
  response->set_router_incarnation(options_.router_incarnation);
  return Answer(context, status);
}

grpc::ServerUnaryReactor* ClusterService::Heartbeat(
    grpc::CallbackServerContext* context, const v1::HeartbeatRequest* request,
    v1::HeartbeatResponse* response) {
  response->set_router_incarnation(options_.router_incarnation);
  return Answer(context,
                registry_->Heartbeat(request->name(), request->incarnation(),
                                     LoadFromProto(request->load())));
}

grpc::ServerUnaryReactor* ClusterService::GetClusterStatus(
    grpc::CallbackServerContext* context,
    const v1::GetClusterStatusRequest* /*request*/,
    v1::GetClusterStatusResponse* response) {
  const absl::Time now = clock_->Now();
  for (const WorkerView& view : *registry_->snapshot()) {
    v1::WorkerStatus* const out = response->add_workers();
    IdentityToProto(*view.identity, out->mutable_info());
    LoadToProto(view.load, out->mutable_load());
    out->set_state(StateToProto(view.state));
    out->set_heartbeat_age_ms(
        absl::ToInt64Milliseconds(now - view.last_heartbeat));
    out->set_in_flight(view.in_flight);
  }
  response->set_running_requests(options_.running_requests());
  response->set_model_digest(absl::BytesToHexString(registry_->model_digest()));
  response->set_version(options_.version);
  return Answer(context, absl::OkStatus());
}

}  // namespace baton::router::registry
