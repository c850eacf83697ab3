#include "common/model/attention.h"

#include <algorithm>
#include <cmath>

#include "common/base/check.h"
#include "kernels/include/linear.h"
#include "kernels/include/quantize.h"
#include "kernels/include/rms_norm.h"
#include "kernels/include/rope.h"
#include "kernels/include/sparse_attention.h"

namespace baton::model {

namespace {

using kernels::LinearParams;
using kernels::RowEncoding;
using kv::Component;

RowEncoding Convert(kv::RowEncoding encoding) {
  return encoding == kv::RowEncoding::kF32 ? RowEncoding::kF32
                                           : RowEncoding::kBf16;
}

size_t Size(int64_t n) { return static_cast<size_t>(n); }

LinearParams Linear(const kernels::LinearWeight& weight, const float* x,
                    float* y, int32_t tokens) {
  return {.x = x,
          .x_row_stride = weight.cols,
          .y = y,
          .y_row_stride = weight.rows,
          .tokens = tokens,
          .weight = weight};
}

// Scores of as many queries at once as fit here, so that memory does not grow
// with tokens times context.
constexpr int64_t kScoreFloats = int64_t{1} << 21;

}  // namespace

Attention::Attention(const checkpoint::ModelConfig& config,
                     const ModelOptions& options, kernels::Parallel* parallel)
    : config_(config),
      format_(options.format),
      top_k_(options.policy.index_topk),
      parallel_(parallel),
      kv_encoding_(Convert(options.format.kv_row)),
      index_encoding_(Convert(options.format.index_row.encoding)),
      kv_row_bytes_(kv::RowBytes(options.format, Component::kWindow)) {
  plain_frequencies_ = kernels::BuildRopeFrequencies(
      {.theta = config.rope_theta, .rotary_dim = config.qk_rope_head_dim});
  const checkpoint::RopeScaling& yarn = config.rope_scaling;
  compressed_frequencies_ = kernels::BuildRopeFrequencies(
      {.theta = config.compress_rope_theta,
       .rotary_dim = config.qk_rope_head_dim,
       .yarn = true,
       .factor = yarn.factor,
       .beta_fast = yarn.beta_fast,
       .beta_slow = yarn.beta_slow,
       .original_positions = yarn.original_max_position_embeddings});

  const int64_t tokens = options.max_step_tokens;
  const int64_t spans = options.max_step_spans;
  const int64_t pairs = config.qk_rope_head_dim / 2;
  const auto size_angles = [pairs](Angles* angles, int64_t n) {
    angles->cosines.resize(Size(n * pairs));
    angles->sines.resize(Size(n * pairs));
  };
  size_angles(&plain_angles_, tokens);
  size_angles(&compressed_angles_, tokens);
  int64_t max_new_rows = 0;
  for (NewRows* rows : {&new_rows_4_, &new_rows_128_}) {
    rows->ratio = rows == &new_rows_4_ ? 4 : 128;
    // A span may complete one row more than its tokens alone would.
    const int64_t capacity = tokens / rows->ratio + spans;
    max_new_rows = std::max(max_new_rows, capacity);
    rows->span_begin.resize(Size(spans + 1));
    rows->span.resize(Size(capacity));
    rows->row.resize(Size(capacity));
    rows->position.resize(Size(capacity));
    size_angles(&rows->angles, capacity);
  }

  const int64_t head_dim = config.head_dim;
  const int64_t q_width = config.num_attention_heads * head_dim;
  const int64_t index_dim = config.index_head_dim;
  qr_.resize(Size(tokens * config.q_lora_rank));
  q_.resize(Size(tokens * q_width));
  kv_.resize(Size(tokens * head_dim));
  compress_kv_.resize(Size(tokens * 2 * head_dim));
  compress_gate_.resize(Size(tokens * 2 * head_dim));
  index_kv_.resize(Size(tokens * 2 * index_dim));
  index_gate_.resize(Size(tokens * 2 * index_dim));
  index_q_.resize(Size(tokens * config.index_n_heads * index_dim));
  index_weights_.resize(Size(tokens * config.index_n_heads));
  pooled_.resize(Size(max_new_rows * head_dim));
  index_pooled_.resize(Size(max_new_rows * index_dim));
  o_.resize(Size(tokens * q_width));
  u_.resize(Size(tokens * config.o_groups * config.o_lora_rank));
  chunk_rows_.resize(Size(tokens * kv_row_bytes_));
  // At least one query's rows.
  scores_.resize(Size(std::max(kScoreFloats, options.max_positions / 4)));
  selected_.resize(Size(tokens * top_k_));
  queries_.resize(Size(tokens));
  spans_.resize(Size(spans));
  const int64_t max_listed =
      config.sliding_window +
      std::max<int64_t>(std::min<int64_t>(top_k_, options.max_positions / 4),
                        options.max_positions / 128);
  row_pointers_.resize(Size(tokens * max_listed));
  row_begin_.resize(Size(tokens + 1));
}

void Attention::BeginStep(const StepInputs& inputs, kv::KvStore* store) {
  inputs_ = &inputs;
  store_ = store;
  tokens_ = inputs.num_tokens;
  ComputeAngles(plain_frequencies_, inputs.positions.data(), tokens_,
                &plain_angles_);
  ComputeAngles(compressed_frequencies_, inputs.positions.data(), tokens_,
                &compressed_angles_);
  BeginNewRows(&new_rows_4_);
  BeginNewRows(&new_rows_128_);
}

void Attention::BeginNewRows(NewRows* rows) {
  int32_t count = 0;
  for (int32_t s = 0; s < inputs_->num_spans; ++s) {
    rows->span_begin[Size(s)] = count;
    const int64_t first = inputs_->span_first[Size(s)];
    const int64_t num_tokens =
        inputs_->span_begin[Size(s + 1)] - inputs_->span_begin[Size(s)];
    const int64_t first_row = first / rows->ratio;
    const int64_t n = kernels::CompressorRows(first, num_tokens, rows->ratio);
    for (int64_t i = 0; i < n; ++i, ++count) {
      rows->span[Size(count)] = s;
      rows->row[Size(count)] = first_row + i;
      // A row's rotary position is its window's first token.
      rows->position[Size(count)] = (first_row + i) * rows->ratio;
    }
  }
  rows->span_begin[Size(inputs_->num_spans)] = count;
  rows->count = count;
  ComputeAngles(compressed_frequencies_, rows->position.data(), count,
                &rows->angles);
}

void Attention::ComputeAngles(const std::vector<float>& frequencies,
                              const int64_t* positions, int32_t count,
                              Angles* angles) {
  kernels::ComputeRopeAngles({.frequencies = frequencies.data(),
                              .pairs = static_cast<int32_t>(frequencies.size()),
                              .positions = positions,
                              .tokens = count,
                              .cosines = angles->cosines.data(),
                              .sines = angles->sines.data()});
}

void Attention::Rope(float* x, int32_t heads, int32_t head_dim,
                     const Angles& angles, bool inverse) {
  kernels::RopeCpu({.x = x,
                    .token_stride = int64_t{heads} * head_dim,
                    .head_stride = head_dim,
                    .tokens = tokens_,
                    .heads = heads,
                    .head_dim = head_dim,
                    .rotary_dim = config_.qk_rope_head_dim,
                    .cosines = angles.cosines.data(),
                    .sines = angles.sines.data(),
                    .inverse = inverse},
                   *parallel_);
}

void Attention::RunLayer(int32_t layer, const LayerLinears& weights,
                         const float* x, float* y) {
  const int32_t ratio = weights.ratio;
  const int32_t heads = config_.num_attention_heads;
  const int32_t head_dim = config_.head_dim;
  const Angles& angles = ratio == 0 ? plain_angles_ : compressed_angles_;
  Project(weights, x);

  Rope(q_.data(), heads, head_dim, angles, /*inverse=*/false);
  Rope(kv_.data(), 1, head_dim, angles, /*inverse=*/false);
  parallel_->For(tokens_, [this](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t) {
      kernels::EncodeRow(kv_.data() + t * config_.head_dim, config_.head_dim,
                         kv_encoding_, chunk_rows_.data() + t * kv_row_bytes_);
    }
  });
  if (ratio == 4) {
    Compress({.weights = &*weights.compressor,
              .kind = kernels::CompressorKind::kOverlap,
              .dim = head_dim,
              .rows = {layer, Component::kC4},
              .tail = {layer, Component::kC4Tail},
              .kv = compress_kv_.data(),
              .gate = compress_gate_.data(),
              .pooled = pooled_.data(),
              .encoding = kv_encoding_},
             new_rows_4_);
    Compress({.weights = &weights.indexer->compressor,
              .kind = kernels::CompressorKind::kOverlap,
              .dim = config_.index_head_dim,
              .rows = {layer, Component::kC4Index},
              .tail = {layer, Component::kC4IndexTail},
              .kv = index_kv_.data(),
              .gate = index_gate_.data(),
              .pooled = index_pooled_.data(),
              .rotate = format_.index_row.rotated,
              .encoding = index_encoding_},
             new_rows_4_);
    SelectRows(layer);
  } else if (ratio == 128) {
    Compress({.weights = &*weights.compressor,
              .kind = kernels::CompressorKind::kOnline,
              .dim = head_dim,
              .rows = {layer, Component::kC128},
              .tail = {layer, Component::kC128Tail},
              .kv = compress_kv_.data(),
              .gate = compress_gate_.data(),
              .pooled = pooled_.data(),
              .encoding = kv_encoding_},
             new_rows_128_);
  }
  ListRows(layer, ratio);

  const int64_t q_width = int64_t{heads} * head_dim;
  kernels::SparseAttentionCpu(
      {.q = q_.data(),
       .q_token_stride = q_width,
       .q_head_stride = head_dim,
       .out = o_.data(),
       .out_token_stride = q_width,
       .out_head_stride = head_dim,
       .rows = row_pointers_.data(),
       .row_begin = row_begin_.data(),
       .encoding = kv_encoding_,
       .sink = weights.sink,
       .tokens = tokens_,
       .heads = heads,
       .dim = head_dim,
       .scale = static_cast<float>(1.0 / std::sqrt(head_dim))},
      *parallel_);
  WriteWindow(layer);

  Rope(o_.data(), heads, head_dim, angles, /*inverse=*/true);
  LinearParams wo_a = Linear(weights.wo_a, o_.data(), u_.data(), tokens_);
  wo_a.x_row_stride = q_width;
  wo_a.num_groups = config_.o_groups;
  wo_a.x_group_stride = q_width / config_.o_groups;
  kernels::LinearCpu(wo_a, *parallel_);
  kernels::LinearCpu(Linear(weights.wo_b, u_.data(), y, tokens_), *parallel_);
}

void Attention::Project(const LayerLinears& weights, const float* x) {
  LinearParams batch[8];
  int32_t n = 0;
  const auto add = [&](const kernels::LinearWeight& weight, const float* input,
                       std::vector<float>* output) {
    batch[n++] = Linear(weight, input, output->data(), tokens_);
  };
  add(weights.wq_a, x, &qr_);
  add(weights.wkv, x, &kv_);
  if (weights.compressor.has_value()) {
    add(weights.compressor->wkv, x, &compress_kv_);
    add(weights.compressor->wgate, x, &compress_gate_);
  }
  if (weights.indexer.has_value()) {
    add(weights.indexer->compressor.wkv, x, &index_kv_);
    add(weights.indexer->compressor.wgate, x, &index_gate_);
    add(weights.indexer->weights_proj, x, &index_weights_);
  }
  kernels::LinearBatchCpu(batch, n, *parallel_);

  const auto eps = static_cast<float>(config_.rms_norm_eps);
  const auto norm = [&](float* values, const uint16_t* weight, int32_t rows,
                        int32_t dim) {
    kernels::RmsNormCpu({.x = values,
                         .x_row_stride = dim,
                         .weight = weight,
                         .y = values,
                         .y_row_stride = dim,
                         .rows = rows,
                         .dim = dim,
                         .eps = eps},
                        *parallel_);
  };
  norm(qr_.data(), weights.q_norm, tokens_, config_.q_lora_rank);
  norm(kv_.data(), weights.kv_norm, tokens_, config_.head_dim);
  n = 0;
  add(weights.wq_b, qr_.data(), &q_);
  if (weights.indexer.has_value()) {
    add(weights.indexer->wq_b, qr_.data(), &index_q_);
  }
  kernels::LinearBatchCpu(batch, n, *parallel_);
  norm(q_.data(), nullptr, tokens_ * config_.num_attention_heads,
       config_.head_dim);
}

void Attention::Compress(const CompressorCall& call, const NewRows& rows) {
  const int32_t width = kernels::CompressorWidth(call.kind, call.dim);
  for (int32_t s = 0; s < inputs_->num_spans; ++s) {
    const int64_t begin = inputs_->span_begin[Size(s)];
    const int32_t first_row = rows.span_begin[Size(s)];
    const bool any = rows.span_begin[Size(s + 1)] > first_row;
    spans_[Size(s)] = {
        .kv = call.kv + begin * width,
        .kv_row_stride = width,
        .gate = call.gate + begin * width,
        .gate_row_stride = width,
        .first_position = inputs_->span_first[Size(s)],
        .num_tokens =
            static_cast<int32_t>(inputs_->span_begin[Size(s + 1)] - begin),
        .state = reinterpret_cast<float*>(
            store_->SlotData(call.tail, inputs_->slots[Size(s)])),
        .pooled = any ? call.pooled + int64_t{first_row} * call.dim : nullptr,
        .pooled_row_stride = call.dim};
  }
  kernels::CompressorCpu({.kind = call.kind,
                          .ratio = rows.ratio,
                          .dim = call.dim,
                          .ape = call.weights->ape,
                          .spans = spans_.data(),
                          .num_spans = inputs_->num_spans},
                         *parallel_);
  if (rows.count == 0) return;
  kernels::RmsNormCpu({.x = call.pooled,
                       .x_row_stride = call.dim,
                       .weight = call.weights->norm,
                       .y = call.pooled,
                       .y_row_stride = call.dim,
                       .rows = rows.count,
                       .dim = call.dim,
                       .eps = static_cast<float>(config_.rms_norm_eps)},
                      *parallel_);
  kernels::RopeCpu({.x = call.pooled,
                    .token_stride = call.dim,
                    .head_stride = call.dim,
                    .tokens = rows.count,
                    .heads = 1,
                    .head_dim = call.dim,
                    .rotary_dim = config_.qk_rope_head_dim,
                    .cosines = rows.angles.cosines.data(),
                    .sines = rows.angles.sines.data()},
                   *parallel_);
  parallel_->For(rows.count, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      float* const values = call.pooled + i * call.dim;
      if (call.rotate) kernels::HadamardRow(values, call.dim);
      const auto layout = PageLayout(call.rows, rows.span[Size(i)]);
      kernels::EncodeRow(values, call.dim, call.encoding,
                         kernels::RowAddress(layout, rows.row[Size(i)]));
    }
  });
}

kernels::RowLayout Attention::PageLayout(kv::Region region,
                                         int32_t span) const {
  return {.base = store_->PageRow(region, BlockId{0}, 0),
          .page_stride_bytes = store_->PageStride(region),
          .row_stride_bytes = kv::RowBytes(format_, region.component),
          .block_table = inputs_->block_tables.data() +
                         int64_t{span} * inputs_->max_blocks,
          .rows_per_page = store_->RowsPerPage(region.component)};
}

int64_t Attention::VisibleRows(int32_t token, int32_t ratio) const {
  // A row is visible to the very token that completes it.
  return (inputs_->positions[Size(token)] + 1) / ratio;
}

void Attention::SelectRows(int32_t layer) {
  const int32_t heads = config_.index_n_heads;
  const int32_t dim = config_.index_head_dim;
  Rope(index_q_.data(), heads, dim, compressed_angles_, /*inverse=*/false);
  const auto factor = static_cast<float>(1.0 / std::sqrt(dim * heads));
  parallel_->For(tokens_, [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t) {
      for (int32_t h = 0; h < heads; ++h) {
        index_weights_[Size(t * heads + h)] *= factor;
        if (format_.index_row.rotated) {
          kernels::HadamardRow(index_q_.data() + (t * heads + h) * dim, dim);
        }
      }
    }
  });
  const kv::Region region{layer, Component::kC4Index};
  int32_t first = 0;  // of the group of queries whose scores fit
  int64_t used = 0;
  const auto flush = [&](int32_t end) {
    kernels::IndexerCpu({.queries = queries_.data() + first,
                         .num_queries = end - first,
                         .q_head_stride = dim,
                         .heads = heads,
                         .dim = dim,
                         .top_k = top_k_,
                         .encoding = index_encoding_},
                        *parallel_);
    first = end;
    used = 0;
  };
  for (int32_t t = 0; t < tokens_; ++t) {
    const int64_t visible = VisibleRows(t, 4);
    const int64_t scored = visible > top_k_ ? visible : 0;
    if (used + scored > static_cast<int64_t>(scores_.size())) flush(t);
    queries_[Size(t)] = {
        .q = index_q_.data() + int64_t{t} * heads * dim,
        .weights = index_weights_.data() + int64_t{t} * heads,
        .rows = PageLayout(region, inputs_->span_of_token[Size(t)]),
        .visible_rows = visible,
        .scores = scored > 0 ? scores_.data() + used : nullptr,
        .selected = selected_.data() + int64_t{t} * top_k_};
    used += scored;
  }
  flush(tokens_);
}

void Attention::ListRows(int32_t layer, int32_t ratio) {
  const int32_t window = config_.sliding_window;
  const auto listed = [&](int32_t t) {
    const int64_t raw =
        std::min<int64_t>(window, inputs_->positions[Size(t)] + 1);
    if (ratio == 0) return raw;
    const int64_t visible = VisibleRows(t, ratio);
    return raw + (ratio == 4 ? std::min<int64_t>(top_k_, visible) : visible);
  };
  row_begin_[0] = 0;
  for (int32_t t = 0; t < tokens_; ++t) {
    row_begin_[Size(t + 1)] = row_begin_[Size(t)] + listed(t);
  }
  const kv::Region window_region{layer, Component::kWindow};
  const int64_t capacity = format_.geometry.window_capacity;
  parallel_->For(tokens_, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const auto t = static_cast<int32_t>(i);
      const int32_t span = inputs_->span_of_token[Size(t)];
      const int64_t position = inputs_->positions[Size(t)];
      const int64_t first = inputs_->span_first[Size(span)];
      const std::byte* const ring =
          store_->SlotData(window_region, inputs_->slots[Size(span)]);
      const std::byte* const chunk =
          chunk_rows_.data() + inputs_->span_begin[Size(span)] * kv_row_bytes_;
      const void** out = row_pointers_.data() + row_begin_[Size(t)];
      // Ascending positions, then ascending rows: the order is part of the
      // bits, so it must not depend on where a row lies.
      for (int64_t p = std::max<int64_t>(0, position - window + 1);
           p <= position; ++p) {
        *out++ = p < first ? ring + p % capacity * kv_row_bytes_
                           : chunk + (p - first) * kv_row_bytes_;
      }
      if (ratio == 0) continue;
      const int64_t visible = VisibleRows(t, ratio);
      const auto layout = PageLayout(
          {layer, ratio == 4 ? Component::kC4 : Component::kC128}, span);
      if (ratio == 4) {
        const int64_t count = std::min<int64_t>(top_k_, visible);
        const int32_t* const selected = selected_.data() + i * top_k_;
        for (int64_t r = 0; r < count; ++r) {
          *out++ = kernels::RowAddress(layout, selected[r]);
        }
      } else {
        for (int64_t w = 0; w < visible; ++w) {
          *out++ = kernels::RowAddress(layout, w);
        }
      }
    }
  });
}

void Attention::WriteWindow(int32_t layer) {
  const kv::Region region{layer, Component::kWindow};
  const int64_t capacity = format_.geometry.window_capacity;
  for (int32_t s = 0; s < inputs_->num_spans; ++s) {
    std::byte* const ring = store_->SlotData(region, inputs_->slots[Size(s)]);
    const int64_t begin = inputs_->span_begin[Size(s)];
    const int64_t end = inputs_->span_begin[Size(s + 1)];
    for (int64_t t = std::max(begin, end - capacity); t < end; ++t) {
      std::memcpy(ring + inputs_->positions[Size(t)] % capacity * kv_row_bytes_,
                  chunk_rows_.data() + t * kv_row_bytes_, Size(kv_row_bytes_));
    }
  }
}

}  // namespace baton::model
