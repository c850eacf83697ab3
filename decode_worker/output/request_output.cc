#include "decode_worker/output/request_output.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "common/base/check.h"

namespace baton::decode_worker {

RequestOutput::RequestOutput(RequestOutputOptions options)
    : options_(std::move(options)),
      pending_(static_cast<size_t>(options_.samples)) {
  rendered_.reserve(pending_.size());
  for (int32_t i = 0; i < options_.samples; ++i) {
    rendered_.push_back(
        {.text = TextRenderer(options_.vocabulary), .finished = std::nullopt});
  }
}

void RequestOutput::Push(ControlEvent event) {
  MutexLock lock(&mu_);
  if (!end_.has_value()) control_.push_back(std::move(event));
}

void RequestOutput::Append(int32_t sample, absl::Span<OutputToken> tokens,
                           const std::optional<SampleEnd>& end) {
  MutexLock lock(&mu_);
  if (end_.has_value()) return;
  Pending& pending = pending_[static_cast<size_t>(sample)];
  CHECK(!pending.end.has_value())
      << "output after the end of sample " << sample;
  pending.tokens.insert(pending.tokens.end(),
                        std::make_move_iterator(tokens.begin()),
                        std::make_move_iterator(tokens.end()));
  pending.end = end;
}

void RequestOutput::End(const absl::Status& status) {
  MutexLock lock(&mu_);
  const bool replaces =
      end_.has_value() && end_->ok() && !status.ok() && !end_taken_;
  if (end_.has_value() && !replaces) return;
  end_ = status;
  if (status.ok()) {
    for (const Pending& pending : pending_) {
      CHECK(pending.end.has_value()) << "OK before the end of every sample";
    }
    return;
  }
  control_.clear();
  for (Pending& pending : pending_) pending = Pending();
}

absl::Duration RequestOutput::StalledFor(absl::Time now) const {
  MutexLock lock(&mu_);
  return writing_since_.has_value() ? now - *writing_since_
                                    : absl::ZeroDuration();
}

bool RequestOutput::closed() const {
  MutexLock lock(&mu_);
  return closed_;
}

void RequestOutput::Written() {
  MutexLock lock(&mu_);
  writing_since_.reset();
}

void RequestOutput::Close() {
  MutexLock lock(&mu_);
  closed_ = true;
  writing_since_.reset();
}

RequestOutput::Batch RequestOutput::TakeBatch() {
  for (size_t i = 0; i < pending_.size(); ++i) {
    const size_t sample = (next_sample_ + i) % pending_.size();
    Pending& pending = pending_[sample];
    if (!pending.has_news()) continue;
    Batch batch{.sample = static_cast<int32_t>(sample), .end = std::nullopt};
    const size_t count =
        std::min(pending.tokens.size() - pending.taken,
                 static_cast<size_t>(options_.max_event_tokens));
    if (pending.taken == 0 && count == pending.tokens.size()) {
      batch.tokens.swap(pending.tokens);
    } else {
      const auto first =
          pending.tokens.begin() + static_cast<std::ptrdiff_t>(pending.taken);
      const auto last = first + static_cast<std::ptrdiff_t>(count);
      batch.tokens.assign(std::make_move_iterator(first),
                          std::make_move_iterator(last));
      pending.taken += count;
      if (pending.taken == pending.tokens.size()) {
        pending.tokens.clear();
        pending.taken = 0;
      }
    }
    if (pending.tokens.empty() && pending.HasEnd()) {
      batch.end = pending.end;
      pending.end_taken = true;
    }
    next_sample_ = (sample + 1) % pending_.size();
    return batch;
  }
  return {};
}

std::optional<OutputEvent> RequestOutput::Take() {
  for (Rendered& rendered : rendered_) {
    if (!rendered.finished.has_value()) continue;
    MutexLock lock(&mu_);
    if (end_.has_value() && !end_->ok()) break;
    writing_since_ = options_.clock->Now();
    OutputEvent event = *std::exchange(rendered.finished, std::nullopt);
    return event;
  }
  for (;;) {
    Batch batch;
    {
      MutexLock lock(&mu_);
      if (!control_.empty()) {
        OutputEvent event =
            std::visit([](auto&& e) { return OutputEvent(std::move(e)); },
                       std::move(control_.front()));
        control_.pop_front();
        writing_since_ = options_.clock->Now();
        return event;
      }
      batch = TakeBatch();
      if (batch.sample < 0) {
        if (!end_.has_value() || end_taken_) return std::nullopt;
        end_taken_ = true;
        writing_since_ = options_.clock->Now();
        return OutputEvent(EndEvent{*end_});
      }
      writing_since_ = options_.clock->Now();
    }
    const int32_t sample = batch.sample;
    std::optional<TokensEvent> event = Render(std::move(batch));
    if (event.has_value()) return OutputEvent(*std::move(event));
    // The sample ended without a further token.
    Rendered& rendered = rendered_[static_cast<size_t>(sample)];
    if (rendered.finished.has_value()) {
      return OutputEvent(*std::exchange(rendered.finished, std::nullopt));
    }
  }
}

std::optional<TokensEvent> RequestOutput::Render(Batch batch) {
  Rendered& rendered = rendered_[static_cast<size_t>(batch.sample)];
  TokensEvent event{.index = batch.sample};
  event.token_ids.reserve(batch.tokens.size());
  if (batch.end.has_value() && batch.end->text_bytes >= 0) {
    rendered.text.Limit(batch.end->text_bytes);
  }
  const bool silent_last =
      batch.end.has_value() && batch.end->silent_last_token;
  for (size_t i = 0; i < batch.tokens.size(); ++i) {
    const OutputToken& token = batch.tokens[i];
    event.token_ids.push_back(token.id);
    if (!silent_last || i + 1 < batch.tokens.size()) {
      rendered.text.Append(token.id, &event.text);
    }
    if (!options_.logprobs.has_value()) continue;
    TokenLogprobs& out = event.logprobs.emplace_back();
    out.token = EntryOf(token.id, token.logprob);
    for (const kernels::TokenLogprob& top : token.top) {
      out.top.push_back(EntryOf(top.id, top.logprob));
    }
  }
  rendered.output_tokens += static_cast<int32_t>(event.token_ids.size());
  if (batch.end.has_value()) rendered.text.Flush(&event.text);
  const bool empty = event.token_ids.empty() && event.text.empty();
  if (!empty) event.sequence = rendered.events++;
  if (batch.end.has_value()) {
    rendered.finished = SampleFinishedEvent{
        .index = batch.sample,
        .reason = batch.end->reason,
        .output_tokens = rendered.output_tokens,
        .events = rendered.events,
    };
  }
  if (empty) return std::nullopt;
  return event;
}

LogprobEntry RequestOutput::EntryOf(int32_t id, float logprob) const {
  return {.token_id = id,
          .logprob = logprob,
          .token_bytes = std::string(options_.vocabulary->TokenBytes(id))};
}

}  // namespace baton::decode_worker
