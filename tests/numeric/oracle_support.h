// Golden files of the oracle and a model in one process to compare with them.
// Shared by every test that needs sequences run through the real model.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "common/checkpoint/checkpoint.h"
#include "common/checkpoint/safetensors.h"
#include "common/device/thread_pool.h"
#include "common/kv/block_pool.h"
#include "common/kv/kv_store.h"
#include "common/model/model.h"

namespace baton::numeric {

// The two checkpoints that have golden files: "demo" and "random".
std::string CheckpointDir(absl::string_view name);
std::string GoldenPath(absl::string_view name);

// Tensors of a golden file (tests/data/README.md). A missing tensor or another
// dtype ends the test: the files are part of the repository.
class Golden final {
 public:
  explicit Golden(absl::string_view name);

  bool Has(absl::string_view tensor) const;
  // I32.
  std::vector<int32_t> Ints(absl::string_view tensor) const;
  // F32, or F16 widened.
  std::vector<float> Floats(absl::string_view tensor) const;
  // Number I of the first missing "<kind>.I.ids", i.e. how many there are.
  int32_t Count(absl::string_view kind) const;

 private:
  std::unique_ptr<checkpoint::SafetensorsFile> file_;
};

// fp32 <-> fp16 bits, round to nearest even.
float F32FromF16(uint16_t bits);
uint16_t F16FromF32(float value);

// Lowest index of the largest value, and its distance to the second largest.
int32_t ArgMax(absl::Span<const float> logits);
float Margin(absl::Span<const float> logits);

struct RigOptions {
  std::string checkpoint = "demo";
  std::string format = "f32";
  bool rotated = false;
  int32_t num_blocks = 32;
  int32_t num_slots = 8;
  int32_t max_step_tokens = 512;
  int32_t max_step_spans = 64;
  int32_t threads = 2;
  // Fills blocks and slots with NaN before a sequence gets them.
  bool poison = false;
};

// One model with one store. Not thread-safe.
class Rig final {
 public:
  static absl::StatusOr<std::unique_ptr<Rig>> Create(const RigOptions& options);

  // A sequence that holds blocks for `max_positions` positions and a slot.
  // CHECK-fails when the rig has no room.
  struct Sequence {
    kv::OwnerId owner{};
    model::SequenceState state;
  };
  Sequence NewSequence(int64_t max_positions);
  void Release(const Sequence& sequence);

  // Feeds `tokens` in steps of at most `chunk`; the returned logits are those
  // of all tokens (kAll), of the last (kLast), or none. `taps` works with one
  // step only.
  absl::StatusOr<std::vector<float>> Feed(Sequence* sequence,
                                          absl::Span<const int32_t> tokens,
                                          int64_t chunk,
                                          model::LogitsWanted logits,
                                          model::StepTaps* taps = nullptr);
  // Greedy continuation: feeds `prompt`, then `steps` tokens one at a time.
  // logits [steps, vocab], of the steps' inputs.
  struct Continuation {
    std::vector<int32_t> ids;
    std::vector<float> logits;
  };
  absl::StatusOr<Continuation> Greedy(absl::Span<const int32_t> prompt,
                                      int64_t chunk, int32_t steps);

  // All rows that a sequence needs to continue, of every region, in order.
  std::vector<std::byte> CachedRows(const Sequence& sequence) const;

  model::Model& model() { return *model_; }
  kv::KvStore& store() { return *store_; }
  kv::BlockPool& pool() { return pool_; }
  int32_t vocab() const { return model_->vocab_size(); }

 private:
  explicit Rig(const RigOptions& options)
      : options_(options), pool_(options.num_blocks, options.num_slots) {}

  const RigOptions options_;
  std::unique_ptr<checkpoint::Checkpoint> checkpoint_;
  std::unique_ptr<device::ThreadPool> threads_;
  std::unique_ptr<model::Model> model_;
  std::unique_ptr<kv::KvStore> store_;
  kv::BlockPool pool_;
};

}  // namespace baton::numeric
