#include "tests/numeric/oracle_support.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/status_macros.h"
#include "common/testing/paths.h"

namespace baton::numeric {

using model::LogitsWanted;

std::string CheckpointDir(absl::string_view name) {
  return testing::SourcePath(name == "demo" ? "deploy/demo-model"
                                            : "tests/data/oracle/random-model");
}

std::string GoldenPath(absl::string_view name) {
  return testing::SourcePath(
      absl::StrCat("tests/data/oracle/", name, "-golden.safetensors"));
}

Golden::Golden(absl::string_view name) {
  auto file = checkpoint::SafetensorsFile::Open(GoldenPath(name));
  CHECK_OK(file);
  file_ = std::move(file).value();
}

bool Golden::Has(absl::string_view tensor) const {
  return file_->Find(tensor) != nullptr;
}

std::vector<int32_t> Golden::Ints(absl::string_view tensor) const {
  const auto* const view = file_->Find(tensor);
  CHECK(view != nullptr && view->dtype == checkpoint::DType::kI32)
      << std::string(tensor);
  const auto values = view->As<int32_t>();
  return {values.begin(), values.end()};
}

std::vector<float> Golden::Floats(absl::string_view tensor) const {
  const auto* const view = file_->Find(tensor);
  CHECK(view != nullptr) << std::string(tensor);
  if (view->dtype == checkpoint::DType::kF32) {
    const auto values = view->As<float>();
    return {values.begin(), values.end()};
  }
  CHECK(view->dtype == checkpoint::DType::kF16) << std::string(tensor);
  std::vector<float> values;
  for (const uint16_t bits : view->As<uint16_t>()) {
    values.push_back(F32FromF16(bits));
  }
  return values;
}

int32_t Golden::Count(absl::string_view kind) const {
  int32_t count = 0;
  while (Has(absl::StrCat(kind, ".", count, ".ids"))) ++count;
  return count;
}

float F32FromF16(uint16_t bits) {
  const int exponent = (bits >> 10) & 31;
  const int mantissa = bits & 1023;
  const float sign = (bits & 0x8000) != 0 ? -1.0f : 1.0f;
  if (exponent == 31) {
    return mantissa == 0 ? sign * INFINITY : NAN;
  }
  return exponent == 0 ? sign * std::ldexp(static_cast<float>(mantissa), -24)
                       : sign * std::ldexp(static_cast<float>(1024 + mantissa),
                                           exponent - 25);
}

uint16_t F16FromF32(float value) {
  const auto sign = static_cast<uint16_t>(std::signbit(value) ? 0x8000 : 0);
  const float magnitude = std::fabs(value);
  if (std::isnan(value)) return static_cast<uint16_t>(sign | 0x7e00);
  if (magnitude >= 65520.0f) return static_cast<uint16_t>(sign | 0x7c00);
  if (magnitude == 0) return sign;
  int exponent = 0;
  std::frexp(magnitude, &exponent);  // magnitude in [2^(e-1), 2^e)
  const int ulp = std::max(exponent - 11, -24);
  // nearbyint rounds to even, and the quotient is exact. A carry to the next
  // power of two is right by itself, since codes are consecutive.
  const auto steps =
      static_cast<int>(std::nearbyint(std::ldexp(magnitude, -ulp)));
  const int code = ulp == -24 ? steps : (ulp + 25 - 1) * 1024 + steps;
  return static_cast<uint16_t>(sign | code);
}

int32_t ArgMax(absl::Span<const float> logits) {
  return static_cast<int32_t>(std::max_element(logits.begin(), logits.end()) -
                              logits.begin());
}

float Margin(absl::Span<const float> logits) {
  float best = -INFINITY;
  float second = -INFINITY;
  for (const float value : logits) {
    if (value > best) {
      second = best;
      best = value;
    } else {
      second = std::max(second, value);
    }
  }
  return best - second;
}

absl::StatusOr<std::unique_ptr<Rig>> Rig::Create(const RigOptions& options) {
  auto rig = std::unique_ptr<Rig>(new Rig(options));
  ASSIGN_OR_RETURN(rig->checkpoint_, checkpoint::Checkpoint::Open(
                                         CheckpointDir(options.checkpoint)));
  rig->threads_ = std::make_unique<device::ThreadPool>(options.threads);
  model::ModelOptions model_options;
  ASSIGN_OR_RETURN(model_options.format,
                   kv::StateFormatFromName(
                       options.format,
                       model::Model::GeometryOf(rig->checkpoint_->config())));
  model_options.format.index_row.rotated = options.rotated;
  ASSIGN_OR_RETURN(model_options.policy, model::ComputePolicyFromName("exact"));
  model_options.max_step_tokens = options.max_step_tokens;
  model_options.max_step_spans = options.max_step_spans;
  ASSIGN_OR_RETURN(rig->model_,
                   model::Model::Create(rig->checkpoint_.get(), model_options,
                                        rig->threads_.get()));
  ASSIGN_OR_RETURN(rig->store_,
                   kv::KvStore::Create(model_options.format, options.num_blocks,
                                       options.num_slots));
  return rig;
}

Rig::Sequence Rig::NewSequence(int64_t max_positions) {
  auto holding = pool_.Acquire(kv::BlocksFor(max_positions), /*slots=*/1,
                               kv::BlockUse::kActive);
  CHECK_OK(holding);
  if (options_.poison) {
    for (const BlockId block : holding->blocks) store_->PoisonBlock(block);
    store_->PoisonSlot(holding->slots[0]);
  } else {
    store_->ResetSlot(holding->slots[0]);
  }
  Sequence sequence;
  sequence.owner = holding->owner;
  sequence.state.blocks = holding->blocks;
  sequence.state.slot = holding->slots[0];
  return sequence;
}

void Rig::Release(const Sequence& sequence) { pool_.Release(sequence.owner); }

absl::StatusOr<std::vector<float>> Rig::Feed(Sequence* sequence,
                                             absl::Span<const int32_t> tokens,
                                             int64_t chunk, LogitsWanted logits,
                                             model::StepTaps* taps) {
  std::vector<float> all;
  std::vector<float> step;
  chunk = std::min<int64_t>(chunk, options_.max_step_tokens);
  for (size_t begin = 0; begin < tokens.size();
       begin += static_cast<size_t>(chunk)) {
    const auto part = tokens.subspan(begin, static_cast<size_t>(chunk));
    const bool last = begin + part.size() == tokens.size();
    CHECK(taps == nullptr || part.size() == tokens.size())
        << "taps need the tokens in one step";
    const model::Span span = {.sequence = sequence->state.view(),
                              .first_position = sequence->state.processed,
                              .tokens = part,
                              .logits = logits == LogitsWanted::kLast && !last
                                            ? LogitsWanted::kNone
                                            : logits};
    ASSIGN_OR_RETURN(const model::StepInputs inputs,
                     model_->Plan(absl::MakeConstSpan(&span, 1)));
    RETURN_IF_ERROR(model_->Run(inputs, store_.get(), &step, taps));
    sequence->state.Commit(static_cast<int64_t>(part.size()));
    all.insert(all.end(), step.begin(), step.end());
  }
  return all;
}

absl::StatusOr<Rig::Continuation> Rig::Greedy(absl::Span<const int32_t> prompt,
                                              int64_t chunk, int32_t steps) {
  Continuation out;
  Sequence sequence = NewSequence(static_cast<int64_t>(prompt.size()) + steps);
  ASSIGN_OR_RETURN(std::vector<float> logits,
                   Feed(&sequence, prompt, chunk, LogitsWanted::kLast));
  for (int32_t i = 0; i < steps; ++i) {
    out.logits.insert(out.logits.end(), logits.begin(), logits.end());
    out.ids.push_back(ArgMax(logits));
    if (i + 1 == steps) break;
    ASSIGN_OR_RETURN(logits,
                     Feed(&sequence, absl::MakeConstSpan(&out.ids.back(), 1), 1,
                          LogitsWanted::kLast));
  }
  Release(sequence);
  return out;
}

std::vector<std::byte> Rig::CachedRows(const Sequence& sequence) const {
  std::vector<std::byte> bytes;
  const kv::StateFormat& format = store_->format();
  for (const kv::Region& region : kv::Regions(format)) {
    const auto rows =
        kv::CompleteRows(format, region.component, sequence.state.processed);
    const size_t begin = bytes.size();
    bytes.resize(begin +
                 static_cast<size_t>(kv::CountRows(rows) *
                                     kv::RowBytes(format, region.component)));
    store_->GatherRows(region, sequence.state.view(), rows,
                       bytes.data() + begin);
  }
  return bytes;
}

}  // namespace baton::numeric
