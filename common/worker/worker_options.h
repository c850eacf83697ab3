// The flags that both worker binaries have. main.cc parses them; nothing else
// reads flags.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"

namespace CLI {
class App;
}  // namespace CLI

namespace baton::worker {

// Defaults suit the demo model on a machine of two cores.
struct WorkerOptions {
  std::string name;  // unique in the cluster, stable over restarts
  std::string listen = "127.0.0.1:0";   // gRPC; port 0: any free one
  std::string advertise;                // what others dial; empty: as bound
  std::string metrics = "127.0.0.1:0";  // /metrics; empty: not served
  std::vector<std::string> routers;     // cluster addresses, host:port
  std::string model;                    // checkpoint folder
  std::string policy = "exact";         // ComputePolicy preset
  std::string state_format = "f32";     // f32 | bf16
  int32_t blocks = 512;
  int32_t slots = 64;
  int32_t threads = 0;  // compute threads; 0: one per core
  int32_t max_step_tokens = 512;
  double memory_fraction = 0.9;      // of physical memory that may be planned
  int64_t reserve_memory_bytes = 0;  // kept out of that
  std::string node;                  // empty: the host name
  absl::Duration drain_timeout = absl::Seconds(30);
  bool poison_free_pages = false;
  std::string log_level = "info";  // debug | info | warning | error
};

// Adds --name, --listen, --advertise, --metrics, --routers, --model, --policy,
// --state-format, --blocks, --slots, --threads, --max-step-tokens,
// --memory-fraction, --reserve-memory, --node, --drain-timeout,
// --poison-free-pages and --log-level. `options` outlives the parsing.
void AddWorkerFlags(CLI::App& app, WorkerOptions* options);

// What the parser cannot check; fills `node`, `threads` where they were left to
// us. InvalidArgument names the flag, the value and what is accepted.
absl::Status FinishWorkerOptions(WorkerOptions* options);

}  // namespace baton::worker
