// Digests of a checkpoint.
//
// The model digest says "the same model": it is compared on links and is the
// root of block hashes, so it must not depend on flags, and must be cheap for
// 168 GB. It is SHA-256 over
//   1. the text "baton-model-1\n";
//   2. CanonicalText of the config (keys the model does not use are left out);
//   3. for each tensor of every file, drafters included, in order of names:
//      name, dtype, shape and byte count;
//   4. directly after its line, the tensor's bytes: of every tensor when all
//      tensors together hold at most 1 GiB, and otherwise of tensors of at most
//      64 KiB (norms, sinks, biases, mixers' bases, per-tensor scales, which
//      differ between any two trainings or quantisations).
// How tensors are spread over files does not matter. Above 1 GiB a flipped bit
// in a large matrix is not seen: that is what the content check is for.
//
// The content check hashes every byte: the content digest is the model digest's
// recipe with all bytes, whatever the size; and each file that SHA256SUMS lists
// is compared with its sum.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "common/base/hash.h"
#include "common/checkpoint/model_config.h"
#include "common/checkpoint/safetensors.h"

namespace baton::checkpoint {

inline constexpr int64_t kFullDigestMaxBytes = int64_t{1} << 30;
inline constexpr int64_t kSmallTensorMaxBytes = int64_t{64} << 10;

enum class DigestScope { kAllBytes, kSmallTensors };

// The scope that the model digest uses for a checkpoint of this size.
DigestScope ModelDigestScope(int64_t tensor_bytes);

Sha256Digest DigestOf(const ModelConfig& config,
                      absl::Span<const std::unique_ptr<SafetensorsFile>> files,
                      DigestScope scope);

struct ContentCheck {
  bool done = false;
  Sha256Digest content_digest = {};
  bool has_sums = false;       // the folder holds SHA256SUMS
  int32_t files_compared = 0;  // files whose sum was right
};

// Compares the files of `dir` with its SHA256SUMS ("<64 hex digits>  <name>"
// lines, as sha256sum writes them). Every shard must be listed. NotFound: a
// listed file is missing. DataLoss: a sum differs, both sums named.
// InvalidArgument: a malformed line or a name that leaves the folder.
// Without the file, `has_sums` stays false and nothing is compared.
absl::Status CompareSums(
    absl::string_view dir,
    absl::Span<const std::unique_ptr<SafetensorsFile>> files,
    ContentCheck* check);

}  // namespace baton::checkpoint
