// baton-decode-worker: flags and wiring.
#include <CLI/CLI.hpp>

#include "common/worker/worker_main.h"
#include "common/worker/worker_options.h"
#include "decode_worker/decode_role.h"

int main(int argc, char** argv) {
  baton::worker::WorkerOptions options;
  baton::decode_worker::DecodeOptions decode;
  CLI::App app("Baton decode worker: takes hand-offs over and produces tokens");
  baton::worker::AddWorkerFlags(app, &options);
  app.add_option("--max-batch", decode.max_batch,
                 "Sequences in one step at most; 0: as many as --slots")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();
  const auto seconds = [&app](const char* name, absl::Duration* value,
                              const char* help) {
    app.add_option_function<double>(
           name, [value](double s) { *value = absl::Seconds(s); }, help)
        ->check(CLI::PositiveNumber)
        ->default_str(std::to_string(absl::ToInt64Seconds(*value)));
  };
  seconds("--slow-reader-timeout", &decode.slow_reader_timeout,
          "Seconds without a read after which a call is cut");
  seconds("--lease", &decode.lease,
          "Seconds that a reservation lives without prefill progress");
  CLI11_PARSE(app, argc, argv);
  baton::decode_worker::DecodeRole role(decode);
  return baton::worker::RunWorker(options, &role);
}
