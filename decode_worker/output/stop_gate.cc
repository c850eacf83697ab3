#include "decode_worker/output/stop_gate.h"

#include <optional>

#include "absl/strings/string_view.h"

namespace baton::decode_worker {

StopGate::Result StopGate::Push(int32_t id) {
  const absl::string_view bytes = vocabulary_->TextBytes(id);
  const int64_t size = static_cast<int64_t>(bytes.size());
  held_.push_back({bytes_, bytes_ + size});
  bytes_ += size;
  ++pushed_tokens_;
  std::optional<tokenizer::StopMatch> match;
  if (unsearched_tokens_ > 0) {
    --unsearched_tokens_;
    unsearched_bytes_ = bytes_;
  } else {
    match = matcher_.Push(bytes);
  }
  const int64_t safe_bytes = unsearched_bytes_ + matcher_.safe_bytes();
  while (!held_.empty() && held_.front().end <= safe_bytes) {
    held_.pop_front();
    ++safe_tokens_;
  }
  if (!match.has_value()) return {.safe_tokens = safe_tokens_};
  while (!held_.empty() && held_.front().begin < safe_bytes) {
    held_.pop_front();
    ++safe_tokens_;
  }
  return {
      .safe_tokens = safe_tokens_, .matched = true, .text_bytes = safe_bytes};
}

StopGate::Result StopGate::Finish() {
  matcher_.Finish();
  held_.clear();
  safe_tokens_ = pushed_tokens_;
  return {.safe_tokens = safe_tokens_};
}

}  // namespace baton::decode_worker
