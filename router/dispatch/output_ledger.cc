#include "router/dispatch/output_ledger.h"

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/request/request.h"

namespace baton::router::dispatch {
namespace {

absl::Status Broken(absl::string_view message) {
  return request::MakeError(absl::StatusCode::kInternal, message,
                            {.reason = request::ErrorReason::kBug});
}

}  // namespace

absl::Status OutputLedger::CheckIndex(int32_t index) const {
  if (index < 0 || index >= num_samples()) {
    return Broken(absl::StrCat("output of sample ", index, ", expected 0 to ",
                               num_samples() - 1));
  }
  if (samples_[static_cast<size_t>(index)].finished) {
    return Broken(absl::StrCat("output of sample ", index, " after its end"));
  }
  return absl::OkStatus();
}

absl::Status OutputLedger::CheckTokens(const DecodeTokens& tokens) {
  RETURN_IF_ERROR(CheckIndex(tokens.index));
  Sample& sample = samples_[static_cast<size_t>(tokens.index)];
  if (tokens.sequence != sample.events) {
    return Broken(absl::StrCat("sample ", tokens.index, ": event ",
                               tokens.sequence, " came, expected event ",
                               sample.events));
  }
  ++sample.events;
  sample.tokens += static_cast<int64_t>(tokens.token_ids.size());
  output_tokens_ += static_cast<int64_t>(tokens.token_ids.size());
  return absl::OkStatus();
}

absl::Status OutputLedger::CheckFinished(const DecodeSampleFinished& finished) {
  RETURN_IF_ERROR(CheckIndex(finished.index));
  Sample& sample = samples_[static_cast<size_t>(finished.index)];
  if (finished.events != sample.events ||
      finished.output_tokens != sample.tokens) {
    return Broken(absl::StrCat(
        "sample ", finished.index, ": ", sample.events, " events with ",
        sample.tokens, " tokens came, the decode worker sent ", finished.events,
        " with ", finished.output_tokens));
  }
  sample.finished = true;
  ++finished_;
  return absl::OkStatus();
}

}  // namespace baton::router::dispatch
