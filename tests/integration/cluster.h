// Real processes on loopback: one or more routers, prefill and decode workers,
// every port chosen by the system and read back.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "baton/v1/cluster.pb.h"
#include "common/cli/client.h"
#include "tests/integration/process.h"

namespace baton::integration {

struct ClusterOptions {
  int32_t routers = 1;
  int32_t prefill = 1;
  int32_t decode = 1;
  std::string model;  // empty: the demo model
  std::vector<std::string> router_args;
  std::vector<std::string> prefill_args;
  std::vector<std::string> decode_args;
};

// "name{label=\"v\"}" -> value, as scraped.
using Metrics = std::map<std::string, double>;

// One process of the cluster, by name: "router-0", "prefill-1", "decode-0".
struct Member {
  std::string name;
  std::unique_ptr<Process> process;
  ProcessOptions options;  // with fixed ports after the first start
  std::string grpc;        // public address of a router, or the worker's
  std::string cluster;     // router only
  std::string metrics;
  std::string log_file;
  std::string fault_file;       // see Cluster::Arm
  std::vector<int> held_ports;  // sockets, see Cluster::Kill
};

// Not thread-safe, except that clients may run while members are signalled.
class Cluster final {
 public:
  // Starts everything and waits until all workers serve at all routers. The
  // logs lie in a folder that the error names; it is removed by the destructor
  // unless a test has failed.
  static absl::StatusOr<std::unique_ptr<Cluster>> Start(
      const ClusterOptions& options);
  ~Cluster();

  Member& member(const std::string& name);
  const cli::Client& client(int32_t router = 0) const {
    return *clients_[static_cast<size_t>(router)];
  }
  const std::string& address(int32_t router = 0) const;

  // Arms the faults of `spec` (common/base/fault_point.h) in a running member,
  // in place of those armed before; returns when it has them. "" disarms.
  absl::Status Arm(const std::string& name, const std::string& spec);

  // SIGKILL. Keeps the member's ports until Restart: the system would give them
  // to any connection of this busy machine.
  void Kill(const std::string& name);
  // Starts a dead member again on the same addresses (new incarnation).
  absl::Status Restart(const std::string& name);
  // Until `router` sees all workers serving with their current incarnation.
  absl::Status WaitUntilServing(absl::Duration timeout, int32_t router = 0);
  absl::StatusOr<v1::GetClusterStatusResponse> Status(int32_t router = 0) const;

  absl::StatusOr<Metrics> Scrape(const std::string& name) const;
  // Value of one series; 0 when it is not there.
  double Value(const std::string& name, const std::string& series) const;

  // Every worker's pool holds nothing and no block is orphaned: waits up to
  // `timeout`, then says which gauge of which worker is wrong. Dead members are
  // passed over.
  absl::Status WaitUntilIdle(absl::Duration timeout) const;
  // Sum of baton_bug_total over the live members.
  double Bugs() const;

  const std::string& folder() const { return folder_; }

 private:
  Cluster() = default;
  absl::Status StartMember(Member* member);

  std::string folder_;
  std::vector<std::unique_ptr<Member>> members_;
  std::vector<std::unique_ptr<cli::Client>> clients_;
};

// GET http://address/path, without the header. For scrapes.
absl::StatusOr<std::string> HttpGet(const std::string& address,
                                    const std::string& path);

}  // namespace baton::integration
