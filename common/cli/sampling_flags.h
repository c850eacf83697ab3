// Sampling flags shared by `baton generate` and `baton chat`. A flag that is
// not given leaves the field unset, so that the server's default applies.
#pragma once

#include <CLI/CLI.hpp>
#include <memory>

#include "baton/v1/types.pb.h"

namespace baton::cli {

inline void AddSamplingFlags(CLI::App& app,
                             const std::shared_ptr<v1::SamplingParams>& p) {
  const auto set_float = [&app](const char* flag, const char* help,
                                std::function<void(float)> set) {
    app.add_option_function<float>(flag, std::move(set), help);
  };
  const auto set_int = [&app](const char* flag, const char* help,
                              std::function<void(int32_t)> set) {
    app.add_option_function<int32_t>(flag, std::move(set), help);
  };
  set_float("--temperature", "0 is greedy",
            [p](float v) { p->set_temperature(v); });
  set_float("--top-p", "nucleus mass, (0, 1]",
            [p](float v) { p->set_top_p(v); });
  set_int("--top-k", "0 keeps all", [p](int32_t v) { p->set_top_k(v); });
  set_float("--min-p", "[0, 1)", [p](float v) { p->set_min_p(v); });
  set_float("--repetition-penalty", "1 is none",
            [p](float v) { p->set_repetition_penalty(v); });
  set_float("--presence-penalty", "[-2, 2]",
            [p](float v) { p->set_presence_penalty(v); });
  set_float("--frequency-penalty", "[-2, 2]",
            [p](float v) { p->set_frequency_penalty(v); });
  app.add_option_function<uint64_t>(
      "--seed", [p](uint64_t v) { p->set_seed(v); },
      "makes the output repeatable");
  set_int("--max-tokens", "output tokens at most",
          [p](int32_t v) { p->set_max_tokens(v); });
  set_int("--min-tokens", "no end before this many",
          [p](int32_t v) { p->set_min_tokens(v); });
  set_int("-n,--samples", "samples of the same prompt",
          [p](int32_t v) { p->set_n(v); });
  app.add_flag_function(
      "--ignore-eos", [p](int64_t v) { p->set_ignore_eos(v > 0); },
      "do not stop at end-of-sequence");
  app.add_option_function<std::vector<std::string>>(
      "--stop",
      [p](const std::vector<std::string>& v) {
        for (const std::string& s : v) p->add_stop(s);
      },
      "string that ends the output; may be repeated");
}

}  // namespace baton::cli
