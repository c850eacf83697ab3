#include "prefill_worker/scheduler/scheduler.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"

namespace baton::prefill_worker {

absl::Status ValidateSchedulerOptions(const SchedulerOptions& options) {
  if (options.chunk_alignment < 1 || options.max_step_prompts < 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("chunk alignment is ", options.chunk_alignment,
                     " and prompts per step are ", options.max_step_prompts,
                     ", expected at least 1 each"));
  }
  if (options.max_step_tokens < options.chunk_alignment) {
    return absl::InvalidArgumentError(absl::StrCat(
        "the token budget of a step is ", options.max_step_tokens,
        ", expected at least the chunk alignment ", options.chunk_alignment));
  }
  if (options.chunk_tokens < options.chunk_alignment ||
      options.chunk_tokens % options.chunk_alignment != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("chunk tokens are ", options.chunk_tokens,
                     ", expected a multiple of the chunk alignment ",
                     options.chunk_alignment));
  }
  return absl::OkStatus();
}

Scheduler::Scheduler(const SchedulerOptions& options) : options_(options) {
  CHECK_OK(ValidateSchedulerOptions(options));
}

void Scheduler::Add(PromptId prompt, int64_t prompt_tokens) {
  CHECK_GT(prompt_tokens, 0);
  CHECK(prompts_.try_emplace(prompt, Prompt{.tokens = prompt_tokens}).second)
      << "prompt " << static_cast<int64_t>(prompt) << " added twice";
  arrivals_.push_back(prompt);
  // Not served so far, but those in front have waited longer.
  rotation_.push_back(prompt);
  backlog_tokens_ += prompt_tokens;
}

void Scheduler::Remove(PromptId prompt) {
  const auto it = prompts_.find(prompt);
  if (it == prompts_.end()) {
    return;
  }
  backlog_tokens_ -= it->second.tokens - it->second.processed;
  prompts_.erase(it);
  std::erase(arrivals_, prompt);
  std::erase(rotation_, prompt);
}

int32_t Scheduler::Extension(const Prompt& prompt, int32_t taken,
                             int32_t limit) const {
  const int64_t at = prompt.processed + taken;
  const int64_t rest = prompt.tokens - at;
  if (rest <= 0 || limit <= 0) {
    return 0;
  }
  if (rest <= limit) {
    return static_cast<int32_t>(rest);
  }
  const int64_t end =
      (at + limit) / options_.chunk_alignment * options_.chunk_alignment;
  return static_cast<int32_t>(std::max<int64_t>(0, end - at));
}

std::vector<Chunk> Scheduler::PlanStep() {
  std::vector<PromptId> served;
  absl::flat_hash_map<PromptId, int32_t> taken;
  int32_t budget = options_.max_step_tokens;
  // Gives `prompt` up to `limit` more tokens; whether it got any.
  const auto take = [&](PromptId prompt, int32_t limit) {
    const auto it = taken.find(prompt);
    const int32_t have = it == taken.end() ? 0 : it->second;
    if (have == 0 &&
        static_cast<int32_t>(served.size()) >= options_.max_step_prompts) {
      return false;
    }
    const int32_t more =
        Extension(prompts_.at(prompt), have, std::min(limit, budget));
    if (more == 0) {
      return false;
    }
    if (have == 0) {
      served.push_back(prompt);
    }
    taken[prompt] = have + more;
    budget -= more;
    return true;
  };

  if (!arrivals_.empty()) {
    // One unit stays for whoever was served longest ago.
    const int32_t share =
        arrivals_.size() == 1
            ? options_.max_step_tokens
            : std::min(options_.max_step_tokens / 2,
                       options_.max_step_tokens - options_.chunk_alignment);
    take(arrivals_.front(), std::min(options_.chunk_tokens, share));
  }
  // Round 0 serves only those without a chunk, later ones whoever still fits.
  for (bool first_round = true, progress = true; progress;
       first_round = false) {
    progress = first_round;
    for (const PromptId prompt : rotation_) {
      const auto it = taken.find(prompt);
      if (first_round && it != taken.end()) {
        continue;
      }
      const int32_t have = it == taken.end() ? 0 : it->second;
      const int32_t limit =
          std::min(options_.chunk_alignment, options_.chunk_tokens - have);
      progress = take(prompt, limit) || progress;
    }
  }

  std::vector<Chunk> chunks;
  chunks.reserve(served.size());
  for (const PromptId prompt : served) {
    const Prompt& state = prompts_.at(prompt);
    const int32_t tokens = taken.at(prompt);
    chunks.push_back({.prompt = prompt,
                      .first = state.processed,
                      .tokens = tokens,
                      .final = state.processed + tokens == state.tokens});
    std::erase(rotation_, prompt);
  }
  rotation_.insert(rotation_.end(), served.begin(), served.end());
  return chunks;
}

void Scheduler::Commit(const Chunk& chunk) {
  const auto it = prompts_.find(chunk.prompt);
  if (it == prompts_.end()) {
    return;
  }
  CHECK_EQ(it->second.processed, chunk.first);
  it->second.processed += chunk.tokens;
  backlog_tokens_ -= chunk.tokens;
  if (it->second.processed == it->second.tokens) {
    Remove(chunk.prompt);
  }
}

int64_t Scheduler::remaining_tokens(PromptId prompt) const {
  const auto it = prompts_.find(prompt);
  return it == prompts_.end() ? 0 : it->second.tokens - it->second.processed;
}

}  // namespace baton::prefill_worker
