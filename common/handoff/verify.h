// The receiver's checks of a sealed attempt (design.md 2, step 6).
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "common/base/hash.h"
#include "common/kv/kv_store.h"
#include "common/transfer/link.h"

namespace baton::handoff {

// What the receiver expects, from its own configuration and from the router.
struct SealExpectation {
  int64_t prompt_tokens = 0;
  Sha256Digest prompt_hash{};
  kv::SequenceView sequence;
  int32_t vocab_size = 0;
};

// Checks the manifest against every region that the store's own format expects
// and against the rows as they lie in the store now, then the logits.
// FailedPrecondition with kMismatch: StateFormat, prompt hash or tokens differ.
// DataLoss with kHandoffRejected: anything else, naming region and numbers.
// Reads every row of the sequence; the caller keeps them from changing.
absl::Status VerifySeal(const kv::KvStore& store, const transfer::Seal& seal,
                        const SealExpectation& expectation);

}  // namespace baton::handoff
