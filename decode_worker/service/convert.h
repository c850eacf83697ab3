// Wire messages of DecodeService to our own structs and back.
#pragma once

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "baton/v1/decode.pb.h"
#include "decode_worker/output/output_event.h"
#include "decode_worker/scheduler/start_request.h"

namespace baton::decode_worker {

// INVALID_ARGUMENT names a field of the wrong size. Values are checked by
// PrepareStart.
absl::StatusOr<StartRequest> StartFromProto(const v1::DecodeStart& proto,
                                            absl::Time deadline);

// Any event but EndEvent; replaces what `out` held.
void EventToProto(const OutputEvent& event, v1::DecodeResponse* out);

}  // namespace baton::decode_worker
