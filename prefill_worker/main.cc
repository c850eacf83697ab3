// baton-prefill-worker: flags and wiring.
#include <CLI/CLI.hpp>

#include "common/transfer/grpc_link_dialer.h"
#include "common/worker/worker_main.h"
#include "common/worker/worker_options.h"
#include "prefill_worker/prefill_role.h"

int main(int argc, char** argv) {
  baton::worker::WorkerOptions options;
  baton::prefill_worker::PrefillOptions prefill;
  CLI::App app("Baton prefill worker: turns prompts into cached state");
  baton::worker::AddWorkerFlags(app, &options);
  app.add_option("--chunk-tokens", prefill.chunk_tokens,
                 "Tokens of one prompt in one step; a multiple of 256")
      ->capture_default_str();
  app.add_option("--max-backlog-tokens", prefill.max_backlog_tokens,
                 "Prompt tokens that may wait or run before new ones are "
                 "refused")
      ->capture_default_str();
  app.add_option_function<double>(
         "--attach-timeout",
         [&prefill](double seconds) {
           prefill.attach_timeout = absl::Seconds(seconds);
         },
         "Seconds that a computed prompt waits for its receiver")
      ->default_str("10");
  CLI11_PARSE(app, argc, argv);
  baton::transfer::GrpcLinkDialer dialer;
  baton::prefill_worker::PrefillRole role(prefill, &dialer);
  return baton::worker::RunWorker(options, &role);
}
