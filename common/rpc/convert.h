// Wire messages to our own structs and back, for the edges of every process.
#pragma once

#include "absl/status/statusor.h"
#include "baton/v1/types.pb.h"
#include "common/base/hash.h"
#include "common/base/ids.h"
#include "common/request/request.h"

namespace baton::rpc {

// Unset fields take the value of `defaults`. Does not check ranges.
request::SamplingParams SamplingFromProto(
    const v1::SamplingParams& proto, const request::SamplingParams& defaults);
// Sets every field: the effective values.
v1::SamplingParams SamplingToProto(const request::SamplingParams& params);

v1::FinishReason FinishReasonToProto(request::FinishReason reason);
// kError for values that this version does not know.
request::FinishReason FinishReasonFromProto(v1::FinishReason reason);

struct HandoffKey {
  HandoffId handoff;
  Attempt attempt = 0;
};
v1::HandoffRef HandoffToProto(HandoffId handoff, Attempt attempt);
// InvalidArgument: not 16 bytes, zero, or attempt < 1.
absl::StatusOr<HandoffKey> HandoffFromProto(const v1::HandoffRef& proto);

// InvalidArgument with `field` unless exactly 32 bytes.
absl::StatusOr<Sha256Digest> DigestFromBytes(absl::string_view bytes,
                                             absl::string_view field);

}  // namespace baton::rpc
