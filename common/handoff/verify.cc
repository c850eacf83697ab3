#include "common/handoff/verify.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/handoff/checksum.h"
#include "common/request/request.h"

namespace baton::handoff {

namespace {

using request::ErrorReason;

constexpr int32_t kChecksumAlgorithm = 1;

absl::Status Mismatch(absl::string_view message) {
  return request::MakeError(absl::StatusCode::kFailedPrecondition, message,
                            {.reason = ErrorReason::kMismatch});
}

absl::Status Rejected(absl::string_view message) {
  return request::MakeError(absl::StatusCode::kDataLoss, message,
                            {.reason = ErrorReason::kHandoffRejected});
}

absl::Status VerifyRegions(const kv::KvStore& store,
                           const transfer::Manifest& manifest,
                           const SealExpectation& expectation) {
  std::map<kv::Region, const transfer::ManifestRegion*> listed;
  for (const transfer::ManifestRegion& region : manifest.regions) {
    if (!listed.emplace(region.region, &region).second) {
      return Rejected(absl::StrCat(
          "manifest lists layer ", region.region.layer, " component ",
          static_cast<int>(region.region.component), " twice"));
    }
  }
  const std::vector<kv::Region> regions = kv::Regions(store.format());
  for (const kv::Region& region : regions) {
    const auto it = listed.find(region);
    if (it == listed.end()) {
      return Rejected(absl::StrCat("manifest lacks ", kv::ToString(region)));
    }
    const std::vector<kv::RowRange> rows = kv::CompleteRows(
        store.format(), region.component, expectation.prompt_tokens);
    if (it->second->rows != kv::CountRows(rows)) {
      return Rejected(absl::StrCat("manifest has ", it->second->rows,
                                   " rows of ", kv::ToString(region),
                                   ", expected ", kv::CountRows(rows)));
    }
  }
  if (listed.size() != regions.size()) {
    return Rejected(absl::StrCat("manifest lists ", listed.size(),
                                 " regions, expected ", regions.size()));
  }
  for (const kv::Region& region : regions) {
    const uint64_t checksum =
        store.ChecksumRows(region, expectation.sequence,
                           kv::CompleteRows(store.format(), region.component,
                                            expectation.prompt_tokens));
    if (checksum != listed[region]->checksum) {
      return Rejected(absl::StrCat("checksum of ", kv::ToString(region),
                                   " does not match"));
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status VerifySeal(const kv::KvStore& store, const transfer::Seal& seal,
                        const SealExpectation& expectation) {
  const transfer::Manifest& manifest = seal.manifest;
  if (manifest.state_format_hash != store.format().Hash()) {
    return Mismatch("StateFormat of sender and receiver differ");
  }
  if (manifest.processed_tokens != expectation.prompt_tokens) {
    return Mismatch(absl::StrCat("sender processed ", manifest.processed_tokens,
                                 " tokens, the prompt has ",
                                 expectation.prompt_tokens));
  }
  if (manifest.prompt_hash != expectation.prompt_hash) {
    return Mismatch("prompt hash of sender and receiver differ");
  }
  if (manifest.checksum_algorithm != kChecksumAlgorithm) {
    return Rejected(absl::StrCat("checksum algorithm ",
                                 manifest.checksum_algorithm, ", expected ",
                                 kChecksumAlgorithm));
  }
  RETURN_IF_ERROR(VerifyRegions(store, manifest, expectation));
  if (seal.last_logits.size() != static_cast<size_t>(expectation.vocab_size)) {
    return Rejected(absl::StrCat(seal.last_logits.size(), " logits, expected ",
                                 expectation.vocab_size));
  }
  if (!std::all_of(seal.last_logits.begin(), seal.last_logits.end(),
                   [](float x) { return std::isfinite(x); })) {
    return Rejected("the last logits are not all finite");
  }
  if (LogitsChecksum(seal.last_logits) != seal.logits_checksum) {
    return Rejected("checksum of the last logits does not match");
  }
  return absl::OkStatus();
}

}  // namespace baton::handoff
