// `baton status`: the cluster as one router sees it.

#include <cstdio>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/cli/client.h"
#include "common/cli/commands.h"
#include "common/rpc/server.h"
#include "common/rpc/status.h"

namespace baton::cli {
namespace {

struct Options {
  std::string cluster = kDefaultClusterAddress;
};

// "WORKER_STATE_SERVING" -> "serving".
std::string Short(const std::string& name, size_t prefix) {
  std::string out = name.substr(prefix);
  for (char& c : out) c = static_cast<char>(std::tolower(c));
  return out;
}

int RunStatus(const Options& o) {
  const auto stub = v1::ClusterService::NewStub(rpc::CreateChannel(o.cluster));
  grpc::ClientContext context;
  context.set_deadline(rpc::DeadlineIn(absl::Seconds(10)));
  v1::GetClusterStatusResponse response;
  const absl::Status status = rpc::FromGrpc(stub->GetClusterStatus(
      &context, v1::GetClusterStatusRequest(), &response));
  if (!status.ok()) {
    std::fprintf(stderr, "baton status: router %s: %s\n", o.cluster.c_str(),
                 Describe(status).c_str());
    return 1;
  }
  std::printf(
      "router %s  version %s  running %lld  model %.16s\n", o.cluster.c_str(),
      response.version().c_str(),
      static_cast<long long>(response.running_requests()),
      response.model_digest().empty() ? "-" : response.model_digest().c_str());
  std::printf("%-14s %-8s %-9s %-22s %7s %11s %9s %9s %8s %7s\n", "worker",
              "role", "state", "endpoint", "seqs", "free blocks", "free slots",
              "backlog", "inflight", "hb ms");
  for (const v1::WorkerStatus& w : response.workers()) {
    std::vector<std::string> roles;
    for (const int role : w.info().roles()) {
      roles.push_back(
          Short(v1::WorkerRole_Name(static_cast<v1::WorkerRole>(role)),
                sizeof("WORKER_ROLE_") - 1));
    }
    std::printf(
        "%-14s %-8s %-9s %-22s %7d %11s %9s %9lld %8d %7lld\n",
        w.info().name().c_str(), absl::StrJoin(roles, "+").c_str(),
        Short(v1::WorkerState_Name(w.state()), sizeof("WORKER_STATE_") - 1)
            .c_str(),
        w.info().endpoints_size() > 0 ? w.info().endpoints(0).c_str() : "-",
        w.load().sequences(),
        absl::StrCat(w.load().free_blocks(), "/", w.info().blocks()).c_str(),
        absl::StrCat(w.load().free_slots(), "/", w.info().slots()).c_str(),
        static_cast<long long>(w.load().backlog_tokens()), w.in_flight(),
        static_cast<long long>(w.heartbeat_age_ms()));
  }
  return 0;
}

}  // namespace

Run AddStatus(CLI::App& app) {
  auto* command = app.add_subcommand("status", "Shows the workers.");
  const auto o = std::make_shared<Options>();
  command->add_option("--cluster", o->cluster, "cluster address of a router")
      ->capture_default_str();
  return [o] { return RunStatus(*o); };
}

}  // namespace baton::cli
