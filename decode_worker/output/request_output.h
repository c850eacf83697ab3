// Output of one request between the step loop, which appends token ids, and its
// call, which renders text and numbers events when it can write (design.md 2:
// the step loop never waits for a reader).
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "common/base/clock.h"
#include "common/base/mutex.h"
#include "common/request/request.h"
#include "decode_worker/output/output_event.h"
#include "decode_worker/output/output_vocabulary.h"
#include "decode_worker/output/text_renderer.h"
#include "kernels/include/sampling.h"

namespace baton::decode_worker {

// One sampled token on its way out.
struct OutputToken {
  int32_t id = 0;
  float logprob = 0.0F;
  std::vector<kernels::TokenLogprob> top = {};  // when asked for
};

// How a sample ended.
struct SampleEnd {
  request::FinishReason reason = request::FinishReason::kStop;
  // The last token ended the sample by its id and has no text.
  bool silent_last_token = false;
  // Bytes of text before the stop string; -1: no stop string.
  int64_t text_bytes = -1;
};

struct RequestOutputOptions {
  int32_t samples = 1;
  std::optional<int32_t> logprobs = std::nullopt;
  const OutputVocabulary* vocabulary = nullptr;  // outlives the output
  Clock* clock = Clock::Real();
  // There may be something to Take. Called by the output pump, never by the
  // step loop; any number of times.
  std::function<void()> on_ready = nullptr;
  // Breaks the transport of a call whose reader takes not even the status; must
  // not block. Called by the step loop.
  std::function<void()> on_cut = nullptr;
  // Ids of one TokensEvent at most, so that a message stays far below gRPC's
  // limit however long the reader was away.
  int32_t max_event_tokens = 1024;
};

// Thread-safe. Writers are the step loop; one reader at a time calls Take and
// Written. Memory is bounded by max_tokens per sample: ids wait, text does not
// exist before it is taken.
class RequestOutput final {
 public:
  explicit RequestOutput(RequestOutputOptions options);

  // --- step loop ---
  void Push(ControlEvent event);
  // Appends to a sample's output and, with `end`, finishes it, in one go: the
  // last ids and the end reach the reader together. No-op after End.
  void Append(int32_t sample, absl::Span<OutputToken> tokens,
              const std::optional<SampleEnd>& end);
  // Ends the call. An error drops what has not been taken; OK is CHECKed to
  // come after the end of every sample. Only the first End counts, except that
  // an error replaces an OK that has not been taken.
  void End(const absl::Status& status);
  // How long the event that was last taken has been waiting to be written.
  absl::Duration StalledFor(absl::Time now) const;
  // See on_cut.
  void Cut() const {
    if (options_.on_cut) options_.on_cut();
  }
  // The call is over; the step loop may forget this object.
  bool closed() const;

  // --- reader ---
  // The next event to write: control events first, then tokens, samples in
  // turn; nothing when none is there or after EndEvent.
  std::optional<OutputEvent> Take();
  // The event that Take gave is out.
  void Written();
  void Close();
  void NotifyReady() const {
    if (options_.on_ready) options_.on_ready();
  }

 private:
  // Written by the step loop, emptied by the reader.
  struct Pending {
    std::vector<OutputToken> tokens;
    size_t taken = 0;  // of `tokens`
    std::optional<SampleEnd> end;
    bool end_taken = false;
    bool has_news() const { return taken < tokens.size() || HasEnd(); }
    bool HasEnd() const { return end.has_value() && !end_taken; }
  };
  // The reader's own, by sample.
  struct Rendered {
    TextRenderer text;
    int64_t events = 0;
    int32_t output_tokens = 0;
    std::optional<SampleFinishedEvent> finished;  // to be written next
  };

  // Moves up to max_event_tokens out; `end` when nothing is left behind it.
  struct Batch {
    int32_t sample = -1;
    std::vector<OutputToken> tokens = {};
    std::optional<SampleEnd> end = std::nullopt;
  };
  Batch TakeBatch() BATON_REQUIRES(mu_);
  std::optional<TokensEvent> Render(Batch batch);
  LogprobEntry EntryOf(int32_t id, float logprob) const;

  const RequestOutputOptions options_;

  mutable Mutex mu_;
  std::deque<ControlEvent> control_ BATON_GUARDED_BY(mu_);
  std::vector<Pending> pending_ BATON_GUARDED_BY(mu_);
  std::optional<absl::Status> end_ BATON_GUARDED_BY(mu_);
  bool end_taken_ BATON_GUARDED_BY(mu_) = false;
  bool closed_ BATON_GUARDED_BY(mu_) = false;
  std::optional<absl::Time> writing_since_ BATON_GUARDED_BY(mu_);

  // Reader only.
  std::vector<Rendered> rendered_;
  size_t next_sample_ = 0;
};

}  // namespace baton::decode_worker
