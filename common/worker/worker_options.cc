#include "common/worker/worker_options.h"

#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <thread>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "common/base/status_macros.h"
#include "common/kv/state_format.h"
#include "common/model/compute_policy.h"

namespace baton::worker {
namespace {

absl::Status BadFlag(absl::string_view flag, absl::string_view value,
                     absl::string_view expected) {
  return absl::InvalidArgumentError(
      absl::StrCat(flag, " is '", value, "', expected ", expected));
}

absl::Status CheckHostPort(absl::string_view flag, absl::string_view value,
                           int min_port) {
  const size_t colon = value.rfind(':');
  int port = -1;
  if (colon == absl::string_view::npos || colon == 0 ||
      !absl::SimpleAtoi(value.substr(colon + 1), &port) || port < min_port ||
      port > 65535) {
    return BadFlag(
        flag, value,
        absl::StrCat("host:port with a port of ", min_port, " to 65535"));
  }
  return absl::OkStatus();
}

}  // namespace

void AddWorkerFlags(CLI::App& app, WorkerOptions* options) {
  app.add_option("--name", options->name,
                 "Name of this worker: unique, stable over restarts")
      ->required();
  app.add_option("--listen", options->listen,
                 "gRPC address host:port; port 0 takes a free one")
      ->capture_default_str();
  app.add_option("--advertise", options->advertise,
                 "host:port that routers and workers dial (default: as bound)");
  app.add_option("--metrics", options->metrics,
                 "Address host:port of /metrics; port 0 takes a free one, "
                 "empty: not served")
      ->capture_default_str();
  app.add_option("--routers", options->routers,
                 "Cluster addresses of all routers, host:port,...")
      ->delimiter(',');
  app.add_option("--model", options->model, "Checkpoint folder")->required();
  app.add_option("--policy", options->policy, "ComputePolicy preset: exact")
      ->capture_default_str();
  app.add_option("--state-format", options->state_format,
                 "Encoding of cached rows: f32 or bf16")
      ->capture_default_str();
  app.add_option("--blocks", options->blocks, "Blocks of 256 positions")
      ->capture_default_str();
  app.add_option("--slots", options->slots, "Sequences at once")
      ->capture_default_str();
  app.add_option("--threads", options->threads,
                 "Compute threads; 0 takes one per core")
      ->capture_default_str();
  app.add_option("--max-step-tokens", options->max_step_tokens,
                 "Tokens of one step over all sequences")
      ->capture_default_str();
  app.add_option("--memory-fraction", options->memory_fraction,
                 "Part of the physical memory that may be planned")
      ->capture_default_str();
  app.add_option("--reserve-memory", options->reserve_memory_bytes,
                 "Bytes kept out of the plan; suffixes kb, mb, gb")
      ->transform(CLI::AsSizeValue(/*kb_is_1000=*/false))
      ->capture_default_str();
  app.add_option("--node", options->node,
                 "Node name (default: the host's name)");
  app.add_option_function<double>(
         "--drain-timeout",
         [options](double seconds) {
           options->drain_timeout = absl::Seconds(seconds);
         },
         "Seconds that running work has to finish after SIGTERM")
      ->default_str(
          absl::StrCat(absl::ToDoubleSeconds(options->drain_timeout)));
  app.add_flag("--poison-free-pages", options->poison_free_pages,
               "Fill freed pages with NaN so that no stale row passes unseen");
  app.add_option("--log-level", options->log_level,
                 "debug, info, warning or error")
      ->capture_default_str();
}

absl::Status FinishWorkerOptions(WorkerOptions* options) {
  if (options->name.empty() || options->name.size() > 128) {
    return BadFlag("--name", options->name, "1 to 128 characters");
  }
  RETURN_IF_ERROR(CheckHostPort("--listen", options->listen, 0));
  if (!options->metrics.empty()) {
    RETURN_IF_ERROR(CheckHostPort("--metrics", options->metrics, 0));
  }
  if (!options->advertise.empty()) {
    RETURN_IF_ERROR(CheckHostPort("--advertise", options->advertise, 1));
  }
  const absl::string_view listen_host =
      absl::string_view(options->listen).substr(0, options->listen.rfind(':'));
  if (options->advertise.empty() &&
      (listen_host == "0.0.0.0" || listen_host == "[::]" ||
       listen_host == "*")) {
    return BadFlag("--advertise", "",
                   absl::StrCat("the host:port that others dial, since "
                                "--listen is the wildcard '",
                                options->listen, "'"));
  }
  for (const std::string& router : options->routers) {
    RETURN_IF_ERROR(CheckHostPort("--routers", router, 1));
  }
  if (options->model.empty()) {
    return BadFlag("--model", options->model, "a checkpoint folder");
  }
  RETURN_IF_ERROR(Annotate(
      model::ComputePolicyFromName(options->policy).status(), "--policy"));
  RETURN_IF_ERROR(
      Annotate(kv::StateFormatFromName(options->state_format, {}).status(),
               "--state-format"));
  struct Range {
    absl::string_view flag;
    int64_t value;
    int64_t min;
    int64_t max;
  };
  const std::array<Range, 4> ranges = {
      Range{"--blocks", options->blocks, 1, 1 << 24},
      Range{"--slots", options->slots, 1, 1 << 16},
      Range{"--threads", options->threads, 0, 1024},
      Range{"--max-step-tokens", options->max_step_tokens, 1, 1 << 16},
  };
  for (const Range& range : ranges) {
    if (range.value < range.min || range.value > range.max) {
      return BadFlag(range.flag, absl::StrCat(range.value),
                     absl::StrCat(range.min, " to ", range.max));
    }
  }
  if (!(options->memory_fraction > 0 && options->memory_fraction <= 1)) {
    return BadFlag("--memory-fraction", absl::StrCat(options->memory_fraction),
                   "in (0, 1]");
  }
  if (options->reserve_memory_bytes < 0) {
    return BadFlag("--reserve-memory",
                   absl::StrCat(options->reserve_memory_bytes),
                   "0 bytes or more");
  }
  if (options->drain_timeout < absl::ZeroDuration() ||
      options->drain_timeout > absl::Hours(24)) {
    return BadFlag("--drain-timeout",
                   absl::FormatDuration(options->drain_timeout),
                   "0 to 86400 seconds");
  }
  constexpr std::array<absl::string_view, 4> kLevels = {"debug", "info",
                                                        "warning", "error"};
  if (std::find(kLevels.begin(), kLevels.end(), options->log_level) ==
      kLevels.end()) {
    return BadFlag("--log-level", options->log_level,
                   "debug, info, warning or error");
  }
  if (options->threads == 0) {
    options->threads = std::max<int32_t>(
        1, static_cast<int32_t>(std::thread::hardware_concurrency()));
  }
  if (options->node.empty()) {
    std::array<char, 256> host{};
    if (gethostname(host.data(), host.size() - 1) == 0) {
      options->node = host.data();
    }
  }
  return absl::OkStatus();
}

}  // namespace baton::worker
