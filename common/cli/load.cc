#include "common/cli/load.h"

#include <algorithm>
#include <atomic>
#include <map>

#include "common/base/clock.h"
#include "common/base/mutex.h"
#include "common/base/random.h"
#include "common/base/status_macros.h"
#include "common/base/thread.h"

namespace baton::cli {
namespace {

struct Shared {
  Mutex mu;
  LoadResult result BATON_GUARDED_BY(mu);
  std::map<std::string, int64_t> errors BATON_GUARDED_BY(mu);
  // Counter: requests handed out so far.
  std::atomic<int32_t> next{0};
};

v1::GenerateRequest MakeRequest(const LoadOptions& o, int32_t number,
                                int32_t vocab_size) {
  v1::GenerateRequest request;
  SeededRandom random(o.seed * 1'000'003 + static_cast<uint64_t>(number));
  // The first ids of a vocabulary are control tokens; ordinary text starts
  // beyond them in both shipped tokenizers.
  const int32_t first = std::min(vocab_size / 4, 256);
  for (int32_t i = 0; i < o.prompt_tokens; ++i) {
    request.mutable_token_ids()->add_ids(
        first +
        static_cast<int32_t>(random.Uint64() %
                             static_cast<uint64_t>(vocab_size - first)));
  }
  request.mutable_sampling()->set_max_tokens(o.output_tokens);
  request.mutable_sampling()->set_ignore_eos(true);
  request.mutable_sampling()->set_temperature(0);
  request.set_return_token_ids(true);
  return request;
}

void RunStream(const LoadOptions& o, const Client& client, int32_t vocab_size,
               Shared* shared) {
  const Clock* const clock = Clock::Real();
  while (true) {
    const int32_t number = shared->next.fetch_add(1);
    if (number >= o.requests) return;
    const v1::GenerateRequest request = MakeRequest(o, number, vocab_size);
    const absl::Time sent = clock->Now();
    absl::Time last = absl::InfinitePast();
    std::vector<double> itl;
    double ttft = -1;
    int64_t tokens = 0;
    int64_t prompt_tokens = 0;
    const absl::Status status = client.Generate(
        request, o.timeout, [&](const v1::GenerateResponse& event) {
          if (event.has_started())
            prompt_tokens = event.started().prompt_tokens();
          if (!event.has_delta()) return true;
          const absl::Time now = clock->Now();
          const int32_t count = event.delta().token_ids_size();
          if (count > 0 && ttft < 0) {
            ttft = absl::ToDoubleSeconds(now - sent);
            itl.insert(itl.end(), static_cast<size_t>(count - 1), 0.0);
          } else if (count > 0) {
            itl.push_back(absl::ToDoubleSeconds(now - last));
            itl.insert(itl.end(), static_cast<size_t>(count - 1), 0.0);
          }
          if (count > 0) last = now;
          tokens += count;
          return true;
        });
    MutexLock lock(&shared->mu);
    if (status.ok()) {
      ++shared->result.completed;
    } else {
      ++shared->errors[Describe(status)];
    }
    shared->result.prompt_tokens += prompt_tokens;
    shared->result.output_tokens += tokens;
    if (ttft >= 0) shared->result.ttft.push_back(ttft);
    shared->result.itl.insert(shared->result.itl.end(), itl.begin(), itl.end());
  }
}

}  // namespace

absl::StatusOr<LoadResult> RunLoad(const LoadOptions& options) {
  const Client client(options.address);
  ASSIGN_OR_RETURN(const v1::GetModelInfoResponse info, client.ModelInfo());
  Shared shared;
  const absl::Time start = Clock::Real()->Now();
  {
    std::vector<Thread> threads;
    for (int32_t i = 0; i < options.streams; ++i) {
      threads.emplace_back("load", [&] {
        RunStream(options, client, info.vocab_size(), &shared);
      });
    }
  }
  MutexLock lock(&shared.mu);
  LoadResult result = std::move(shared.result);
  result.seconds = absl::ToDoubleSeconds(Clock::Real()->Now() - start);
  result.errors.assign(shared.errors.begin(), shared.errors.end());
  std::sort(result.ttft.begin(), result.ttft.end());
  std::sort(result.itl.begin(), result.itl.end());
  return result;
}

double Quantile(const std::vector<double>& sorted, double q) {
  if (sorted.empty()) return 0;
  const size_t index =
      static_cast<size_t>(q * static_cast<double>(sorted.size() - 1) + 0.5);
  return sorted[std::min(index, sorted.size() - 1)];
}

}  // namespace baton::cli
