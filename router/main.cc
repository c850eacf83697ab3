// baton-router: flags, wiring, signals.
#include <grpc/grpc.h>

#include <CLI/CLI.hpp>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <limits>
#include <map>
#include <memory>
#include <string>

#include "absl/time/time.h"
#include "common/base/clock.h"
#include "common/base/fault_point.h"
#include "common/base/log.h"
#include "common/base/random.h"
#include "common/metrics/metrics.h"
#include "router/app/router_app.h"

namespace baton::router {
namespace {

// Flags in plain units; CLI11 prints the defaults.
struct Flags {
  app::RouterOptions options;
  std::string log_level = "info";
  double default_deadline_s = 600;
  double max_deadline_s = 3600;
  double slow_reader_timeout_s = 30;
  double queue_timeout_s = 5;
  double progress_timeout_s = 10;
  double output_timeout_s = 30;
  double drain_timeout_s = 30;
  int64_t heartbeat_interval_ms = 1000;
  int64_t reserve_ahead_ms = 200;
};

void AddFlags(CLI::App* cli, Flags* flags) {
  app::RouterOptions& o = flags->options;
  cli->add_option("--model", o.model_dir,
                  "Folder with config.json, generation_config.json and "
                  "tokenizer.json")
      ->required();
  cli->add_option("--listen", o.listen,
                  "Public gRPC address: inference, health, reflection");
  cli->add_option("--cluster", o.cluster,
                  "gRPC address where workers register");
  cli->add_option("--metrics", o.metrics,
                  "HTTP address of /metrics; empty: not served");
  cli->add_option("--model-digest", o.model_digest,
                  "Digest that workers must have (hex); the first worker "
                  "fixes it otherwise");
  cli->add_option("--max-prompt-bytes", o.limits.max_prompt_bytes,
                  "Text of one prompt or conversation")
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 40));
  cli->add_option("--max-message-bytes", o.max_message_bytes,
                  "gRPC message size")
      ->check(CLI::Range(1024, std::numeric_limits<int>::max()));
  cli->add_option("--max-running", o.queue.max_running,
                  "Requests that run at once")
      ->check(CLI::Range(1, 1 << 20));
  cli->add_option("--max-waiting", o.queue.max_waiting,
                  "Requests that wait for room; more are refused")
      ->check(CLI::Range(0, 1 << 20));
  cli->add_option("--queue-timeout", flags->queue_timeout_s,
                  "Seconds a request waits for room before it is refused; 0 "
                  "refuses at once")
      ->check(CLI::Range(0.0, 86400.0));
  cli->add_option("--default-deadline", flags->default_deadline_s,
                  "Seconds for requests without a deadline")
      ->check(CLI::Range(0.001, 86400.0));
  cli->add_option("--max-deadline", flags->max_deadline_s,
                  "Longest deadline in seconds; longer ones are cut to it")
      ->check(CLI::Range(0.001, 86400.0));
  cli->add_option("--slow-reader-timeout", flags->slow_reader_timeout_s,
                  "Seconds a client may leave a message unread")
      ->check(CLI::Range(0.001, 86400.0));
  cli->add_option("--progress-timeout", flags->progress_timeout_s,
                  "Seconds without progress after which a prefill is given up")
      ->check(CLI::Range(0.001, 86400.0));
  cli->add_option("--output-timeout", flags->output_timeout_s,
                  "Seconds without output after which a decode is given up")
      ->check(CLI::Range(0.001, 86400.0));
  cli->add_option("--reserve-ahead-ms", flags->reserve_ahead_ms,
                  "How near a prompt's turn must be to reserve at decode")
      ->check(CLI::Range(0, 60000));
  cli->add_option("--heartbeat-interval-ms", flags->heartbeat_interval_ms,
                  "How often workers report; three missed are a loss")
      ->check(CLI::Range(10, 60000));
  cli->add_option("--drain-timeout", flags->drain_timeout_s,
                  "Seconds that running requests get after SIGTERM")
      ->check(CLI::Range(0.0, 86400.0));
  cli->add_option("--encode-threads", o.encode_threads,
                  "Threads that tokenise prompts")
      ->check(CLI::Range(1, 256));
  cli->add_flag("--allow-placement", o.limits.allow_placement,
                "Let clients choose workers (tests, canaries)");
  cli->add_option("--log-level", flags->log_level, "Lowest level shown")
      ->check(CLI::IsMember({"debug", "info", "warning", "error"}));
}

void Apply(Flags* flags) {
  app::RouterOptions& o = flags->options;
  o.limits.default_deadline = absl::Seconds(flags->default_deadline_s);
  o.limits.max_deadline = absl::Seconds(flags->max_deadline_s);
  o.run.slow_reader_timeout = absl::Seconds(flags->slow_reader_timeout_s);
  o.run.queue_timeout = absl::Seconds(flags->queue_timeout_s);
  o.run.progress_timeout = absl::Seconds(flags->progress_timeout_s);
  o.run.output_timeout = absl::Seconds(flags->output_timeout_s);
  o.run.reserve_ahead = absl::Milliseconds(flags->reserve_ahead_ms);
  o.heartbeat_interval = absl::Milliseconds(flags->heartbeat_interval_ms);
  o.drain_timeout = absl::Seconds(flags->drain_timeout_s);
  const std::map<std::string, LogLevel> levels = {
      {"debug", LogLevel::kDebug},
      {"info", LogLevel::kInfo},
      {"warning", LogLevel::kWarning},
      {"error", LogLevel::kError}};
  SetLogLevel(levels.at(flags->log_level));
}

int Main(int argc, char** argv) {
  CLI::App cli("Baton's router: public API, placement, life of requests",
               "baton-router");
  cli.option_defaults()->always_capture_default();
  Flags flags;
  AddFlags(&cli, &flags);
  CLI11_PARSE(cli, argc, argv);
  SetLogIdentity("router");
  Apply(&flags);

  // Blocked before any thread starts, so that all inherit it and only the wait
  // below takes them.
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGTERM);
  sigaddset(&signals, SIGINT);
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  std::signal(SIGPIPE, SIG_IGN);
  // Held to the end of the process: with its last user gRPC would shut its
  // threads down, which can wait ten seconds for an idle connection's poll.
  grpc_init();

  if (const absl::Status faults = ArmFaultsFromEnvironment(); !faults.ok()) {
    std::fprintf(stderr, "baton-router: %s\n", faults.ToString().c_str());
    return 1;
  }
  auto router =
      app::RouterApp::Start(flags.options, Clock::Real(), Random::System());
  if (!router.ok()) {
    std::fprintf(stderr, "baton-router: %s\n",
                 router.status().ToString().c_str());
    return 1;
  }
  baton::metrics::InstallBugCounter((*router)->metric_set());
  int signal = 0;
  sigwait(&signals, &signal);
  LogInfo("signal", {{"number", signal}});
  (*router)->Drain(flags.options.drain_timeout);
  return 0;
}

}  // namespace
}  // namespace baton::router

int main(int argc, char** argv) { return baton::router::Main(argc, argv); }
