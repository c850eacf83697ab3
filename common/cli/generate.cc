// `baton generate`: one prompt, one or more samples, streamed to the terminal.

#include <cstdio>
#include <map>

#include "absl/strings/str_cat.h"
#include "common/cli/client.h"
#include "common/cli/commands.h"
#include "common/cli/sampling_flags.h"

namespace baton::cli {
namespace {

struct Options {
  std::string address = kDefaultAddress;
  std::string prompt;
  std::vector<int32_t> ids;
  int32_t logprobs = -1;
  bool show_ids = false;
  double timeout_s = 120;
};

int RunGenerate(const Options& o, const v1::SamplingParams& sampling) {
  if (o.prompt.empty() == o.ids.empty()) {
    std::fprintf(stderr,
                 "baton generate: give either a prompt or --ids, got %s\n",
                 o.prompt.empty() ? "neither" : "both");
    return 2;
  }
  v1::GenerateRequest request;
  if (o.ids.empty()) {
    request.set_prompt(o.prompt);
  } else {
    for (const int32_t id : o.ids) request.mutable_token_ids()->add_ids(id);
  }
  *request.mutable_sampling() = sampling;
  if (o.logprobs >= 0) request.set_logprobs(o.logprobs);
  request.set_return_token_ids(o.show_ids);

  // One sample streams as it comes; several are printed when all have ended,
  // since their deltas interleave.
  const bool streams = !sampling.has_n() || sampling.n() == 1;
  std::map<int32_t, std::string> texts;
  std::string ids;
  v1::Finished last;
  const Client client(o.address);
  const absl::Status status = client.Generate(
      request, absl::Seconds(o.timeout_s),
      [&](const v1::GenerateResponse& event) {
        if (event.has_delta()) {
          const v1::Delta& delta = event.delta();
          texts[delta.index()] += delta.text();
          if (streams) {
            std::fputs(delta.text().c_str(), stdout);
            std::fflush(stdout);
          }
          for (const int32_t id : delta.token_ids()) {
            absl::StrAppend(&ids, " ", id);
          }
          for (const v1::TokenLogprobs& lp : delta.logprobs()) {
            std::fprintf(stderr, "[%d] token %d logprob %.4f\n", delta.index(),
                         lp.token_id(), static_cast<double>(lp.logprob()));
          }
        } else if (event.has_finished()) {
          last = event.finished();
        }
        return true;
      });
  if (streams) {
    std::fputs("\n", stdout);
  } else {
    for (const auto& [index, text] : texts) {
      std::printf("[%d] %s\n", index, text.c_str());
    }
  }
  if (!status.ok()) {
    std::fprintf(stderr, "baton generate: %s\n", Describe(status).c_str());
    return 1;
  }
  if (o.show_ids) std::printf("ids:%s\n", ids.c_str());
  std::fprintf(stderr,
               "%s, %d prompt + %d output tokens, first after %.1f ms\n",
               v1::FinishReason_Name(last.finish_reason()).c_str(),
               last.usage().prompt_tokens(), last.usage().output_tokens(),
               static_cast<double>(last.timeline().first_token_us()) / 1e3);
  return 0;
}

}  // namespace

Run AddGenerate(CLI::App& app) {
  auto* command = app.add_subcommand(
      "generate", "Continues a prompt as it is (no chat encoding).");
  const auto o = std::make_shared<Options>();
  const auto sampling = std::make_shared<v1::SamplingParams>();
  command->add_option("prompt", o->prompt, "text to continue");
  command->add_option("--ids", o->ids, "token ids instead of text");
  command->add_option("--address", o->address, "router")->capture_default_str();
  command->add_option("--logprobs", o->logprobs,
                      "print log-probabilities with this many alternatives");
  command->add_flag("--show-ids", o->show_ids,
                    "print the token ids at the end");
  command->add_option("--timeout", o->timeout_s, "seconds")
      ->capture_default_str();
  AddSamplingFlags(*command, sampling);
  return [o, sampling] { return RunGenerate(*o, *sampling); };
}

}  // namespace baton::cli
