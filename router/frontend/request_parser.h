// Bytes of a GenerateRequest to the message. protobuf refuses strings that are
// not UTF-8 without saying which; this names the field.
#pragma once

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "baton/v1/inference.pb.h"

namespace baton::router::frontend {

// INVALID_ARGUMENT kInvalidField: not a GenerateRequest, or a string field that
// is not valid UTF-8 (its path: "chat.messages[1].content").
absl::StatusOr<v1::GenerateRequest> ParseGenerateRequest(
    absl::string_view bytes);

}  // namespace baton::router::frontend
