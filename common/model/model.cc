#include "common/model/model.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/status_macros.h"
#include "common/model/attention.h"
#include "common/model/model_weights.h"
#include "common/model/plan.h"
#include "kernels/include/hyper_connection.h"
#include "kernels/include/moe_gate.h"
#include "kernels/include/rms_norm.h"

namespace baton::model {

namespace {

size_t Size(int64_t n) { return static_cast<size_t>(n); }

}  // namespace

struct Model::Impl {
  Impl(const checkpoint::ModelConfig& model_config,
       const ModelOptions& model_options, ModelWeights model_weights,
       kernels::Parallel* thread_pool);

  void Forward(const StepInputs& inputs, kv::KvStore* store,
               std::vector<float>* logits, StepTaps* taps);
  void Embed(const StepInputs& inputs);
  void HyperPre(const HyperWeights& weights, const uint16_t* norm,
                int32_t tokens);
  void HyperPost(int32_t tokens);
  void FeedForward(const StepInputs& inputs, const LayerLinears& weights);
  // z_ [n, D]: the final norm of the mixed streams of `rows`.
  void FinalNorm(const int32_t* rows, int32_t n);
  void Norm(float* x, const uint16_t* weight, int32_t rows);
  void TapStreams(StepTaps* taps);

  const checkpoint::ModelConfig config;
  const ModelOptions options;
  const ModelWeights weights;
  kernels::Parallel* const parallel;
  const int64_t stream_width;  // hc_mult * D
  Attention attention;

  // Workspace, first dimension max_step_tokens.
  std::vector<float> streams;          // [S, D]
  std::vector<float> x;                // [D] input of the sub-layer
  std::vector<float> y;                // [D] its output
  std::vector<float> pre, post, comb;  // [S], [S], [S, S]
  std::vector<float> hyper_workspace;
  std::vector<float> gate;            // [experts]
  std::vector<int32_t> expert_ids;    // [top_k]
  std::vector<float> expert_weights;  // [top_k]
  // ExpertsWorkspaceBytes, in 16-byte units for alignment.
  struct alignas(16) Unit {
    std::byte bytes[16];
  };
  std::vector<Unit> experts_workspace;
  std::vector<float> head_streams;  // [S, D]
  std::vector<float> z;             // [D]
};

Model::Impl::Impl(const checkpoint::ModelConfig& model_config,
                  const ModelOptions& model_options, ModelWeights model_weights,
                  kernels::Parallel* thread_pool)
    : config(model_config),
      options(model_options),
      weights(std::move(model_weights)),
      parallel(thread_pool),
      stream_width(int64_t{config.hc_mult} * config.hidden_size),
      attention(config, options, parallel) {
  const int64_t tokens = options.max_step_tokens;
  const int64_t streams_n = config.hc_mult;
  streams.resize(Size(tokens * stream_width));
  head_streams.resize(Size(tokens * stream_width));
  for (std::vector<float>* row : {&x, &y, &z}) {
    row->resize(Size(tokens * config.hidden_size));
  }
  pre.resize(Size(tokens * streams_n));
  post.resize(Size(tokens * streams_n));
  comb.resize(Size(tokens * streams_n * streams_n));
  hyper_workspace.resize(Size(
      kernels::HyperWorkspaceFloats(options.max_step_tokens, config.hc_mult)));
  gate.resize(Size(tokens * config.n_routed_experts));
  expert_ids.resize(Size(tokens * config.num_experts_per_tok));
  expert_weights.resize(Size(tokens * config.num_experts_per_tok));
  const int64_t bytes =
      kernels::ExpertsWorkspaceBytes({.tokens = options.max_step_tokens,
                                      .top_k = config.num_experts_per_tok,
                                      .num_experts = config.n_routed_experts,
                                      .dim = config.hidden_size,
                                      .hidden = config.moe_intermediate_size});
  experts_workspace.resize(Size((bytes + 15) / 16));
}

void Model::Impl::Embed(const StepInputs& inputs) {
  parallel->For(inputs.num_tokens, [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t) {
      float* const row = streams.data() + t * stream_width;
      kernels::DequantizeRow(weights.embed, inputs.token_ids[Size(t)], row);
      for (int32_t s = 1; s < config.hc_mult; ++s) {
        std::memcpy(row + int64_t{s} * config.hidden_size, row,
                    Size(config.hidden_size) * sizeof(float));
      }
    }
  });
}

void Model::Impl::Norm(float* values, const uint16_t* weight, int32_t rows) {
  kernels::RmsNormCpu({.x = values,
                       .x_row_stride = config.hidden_size,
                       .weight = weight,
                       .y = values,
                       .y_row_stride = config.hidden_size,
                       .rows = rows,
                       .dim = config.hidden_size,
                       .eps = static_cast<float>(config.rms_norm_eps)},
                      *parallel);
}

void Model::Impl::HyperPre(const HyperWeights& hyper, const uint16_t* norm,
                           int32_t tokens) {
  kernels::HyperPreCpu({.streams = streams.data(),
                        .token_stride = stream_width,
                        .fn = hyper.fn,
                        .scale = hyper.scale,
                        .base = hyper.base,
                        .tokens = tokens,
                        .hc_mult = config.hc_mult,
                        .dim = config.hidden_size,
                        .sinkhorn_iterations = config.hc_sinkhorn_iters,
                        .rms_eps = static_cast<float>(config.rms_norm_eps),
                        .hc_eps = static_cast<float>(config.hc_eps),
                        .mixed = x.data(),
                        .mixed_row_stride = config.hidden_size,
                        .pre = pre.data(),
                        .post = post.data(),
                        .comb = comb.data(),
                        .workspace = hyper_workspace.data()},
                       *parallel);
  Norm(x.data(), norm, tokens);
}

void Model::Impl::HyperPost(int32_t tokens) {
  kernels::HyperPostCpu({.y = y.data(),
                         .y_row_stride = config.hidden_size,
                         .streams = streams.data(),
                         .token_stride = stream_width,
                         .post = post.data(),
                         .comb = comb.data(),
                         .out = streams.data(),
                         .out_token_stride = stream_width,
                         .tokens = tokens,
                         .hc_mult = config.hc_mult,
                         .dim = config.hidden_size},
                        *parallel);
}

void Model::Impl::FeedForward(const StepInputs& inputs,
                              const LayerLinears& layer) {
  const int32_t tokens = inputs.num_tokens;
  const bool hash_routed = layer.tid2eid != nullptr;
  kernels::LinearCpu({.x = x.data(),
                      .x_row_stride = config.hidden_size,
                      .y = gate.data(),
                      .y_row_stride = config.n_routed_experts,
                      .tokens = tokens,
                      .weight = layer.gate},
                     *parallel);
  kernels::MoeGateRef(
      {.logits = gate.data(),
       .logits_row_stride = config.n_routed_experts,
       .bias = layer.gate_bias,
       .tid2eid = layer.tid2eid,
       .token_ids = hash_routed ? inputs.token_ids.data() : nullptr,
       .vocab = hash_routed ? config.vocab_size : 0,
       .tokens = tokens,
       .experts = config.n_routed_experts,
       .top_k = config.num_experts_per_tok,
       .scaling_factor = static_cast<float>(config.routed_scaling_factor),
       .expert_ids = expert_ids.data(),
       .weights = expert_weights.data()});
  kernels::ExpertsCpu({.x = x.data(),
                       .x_row_stride = config.hidden_size,
                       .expert_ids = expert_ids.data(),
                       .expert_weights = expert_weights.data(),
                       .experts = layer.experts.data(),
                       .shared = &layer.shared,
                       .tokens = tokens,
                       .top_k = config.num_experts_per_tok,
                       .num_experts = config.n_routed_experts,
                       .dim = config.hidden_size,
                       .hidden = config.moe_intermediate_size,
                       .limit = static_cast<float>(config.swiglu_limit),
                       .y = y.data(),
                       .y_row_stride = config.hidden_size,
                       .workspace = experts_workspace.data()},
                      *parallel);
}

void Model::Impl::FinalNorm(const int32_t* rows, int32_t n) {
  for (int32_t i = 0; i < n; ++i) {
    std::memcpy(head_streams.data() + i * stream_width,
                streams.data() + rows[i] * stream_width,
                Size(stream_width) * sizeof(float));
  }
  kernels::HyperHeadCpu({.streams = head_streams.data(),
                         .token_stride = stream_width,
                         .fn = weights.hc_head.fn,
                         .scale = weights.hc_head.scale,
                         .base = weights.hc_head.base,
                         .tokens = n,
                         .hc_mult = config.hc_mult,
                         .dim = config.hidden_size,
                         .rms_eps = static_cast<float>(config.rms_norm_eps),
                         .hc_eps = static_cast<float>(config.hc_eps),
                         .z = z.data(),
                         .z_row_stride = config.hidden_size,
                         .workspace = hyper_workspace.data()},
                        *parallel);
  Norm(z.data(), weights.norm, n);
}

void Model::Impl::TapStreams(StepTaps* taps) {
  if (taps == nullptr) return;
  std::vector<float>& hidden = taps->hidden.emplace_back();
  for (const int32_t row : taps->rows) {
    const float* const begin = streams.data() + row * stream_width;
    hidden.insert(hidden.end(), begin, begin + stream_width);
  }
}

void Model::Impl::Forward(const StepInputs& inputs, kv::KvStore* store,
                          std::vector<float>* logits, StepTaps* taps) {
  const int32_t tokens = inputs.num_tokens;
  Embed(inputs);
  TapStreams(taps);
  attention.BeginStep(inputs, store);
  for (size_t i = 0; i < weights.layers.size(); ++i) {
    const LayerLinears& layer = weights.layers[i];
    HyperPre(layer.hc_attn, layer.attn_norm, tokens);
    attention.RunLayer(static_cast<int32_t>(i), layer, x.data(), y.data());
    HyperPost(tokens);
    HyperPre(layer.hc_ffn, layer.ffn_norm, tokens);
    FeedForward(inputs, layer);
    HyperPost(tokens);
    // The last layer's streams are tapped after the final norm.
    if (i + 1 < weights.layers.size()) TapStreams(taps);
  }
  if (taps != nullptr) {
    const auto n = static_cast<int32_t>(taps->rows.size());
    FinalNorm(taps->rows.data(), n);
    taps->hidden.emplace_back(z.begin(),
                              z.begin() + int64_t{n} * config.hidden_size);
  }
  logits->resize(Size(int64_t{inputs.num_logits} * config.vocab_size));
  if (inputs.num_logits == 0) return;
  FinalNorm(inputs.logits_rows.data(), inputs.num_logits);
  kernels::LinearCpu({.x = z.data(),
                      .x_row_stride = config.hidden_size,
                      .y = logits->data(),
                      .y_row_stride = config.vocab_size,
                      .tokens = inputs.num_logits,
                      .weight = weights.head},
                     *parallel);
}

Model::Model(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Model::~Model() = default;

kv::StateGeometry Model::GeometryOf(const checkpoint::ModelConfig& config) {
  // Entries beyond the layers belong to drafters.
  const auto layers = config.compress_ratios.begin() + config.num_hidden_layers;
  return {.ratios = {config.compress_ratios.begin(), layers},
          .head_dim = config.head_dim,
          .index_head_dim = config.index_head_dim,
          .window_tokens = config.sliding_window,
          .window_capacity = config.sliding_window};
}

absl::StatusOr<std::unique_ptr<Model>> Model::Create(
    const checkpoint::Checkpoint* checkpoint, const ModelOptions& options,
    device::ThreadPool* pool) {
  const checkpoint::ModelConfig& config = checkpoint->config();
  ModelOptions effective = options;
  if (effective.max_positions == 0) {
    effective.max_positions = config.max_position_embeddings;
  }
  if (effective.policy.index_topk == 0) {
    effective.policy.index_topk = config.index_topk;
  }
  if (effective.max_step_tokens <= 0 || effective.max_step_spans <= 0 ||
      effective.max_positions < 0 || effective.policy.index_topk < 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        "model options: max_step_tokens ", effective.max_step_tokens,
        ", max_step_spans ", effective.max_step_spans, ", max_positions ",
        effective.max_positions, ", index_topk ", effective.policy.index_topk,
        "; expected all positive"));
  }
  if (effective.max_positions > config.max_position_embeddings) {
    return absl::InvalidArgumentError(
        absl::StrCat("max_positions ", effective.max_positions,
                     "; the checkpoint has ", config.max_position_embeddings));
  }
  // Capacity is a free choice of the worker, the rest is the checkpoint's.
  kv::StateGeometry geometry = GeometryOf(config);
  geometry.window_capacity = std::max(
      geometry.window_capacity, effective.format.geometry.window_capacity);
  if (effective.format.geometry != geometry) {
    kv::StateFormat expected = effective.format;
    expected.geometry = geometry;
    return absl::InvalidArgumentError(absl::StrCat(
        "state format (", effective.format.ToString(),
        ") does not fit the checkpoint; expected (", expected.ToString(), ")"));
  }
  if (config.hc_mult > kernels::kMaxStreams) {
    return absl::InvalidArgumentError(absl::StrCat(
        "hc_mult ", config.hc_mult, "; at most ", kernels::kMaxStreams));
  }
  ASSIGN_OR_RETURN(ModelWeights weights,
                   ModelWeights::FromCheckpoint(checkpoint->weights()));
  return std::unique_ptr<Model>(new Model(
      std::make_unique<Impl>(config, effective, std::move(weights), pool)));
}

absl::StatusOr<StepInputs> Model::Plan(absl::Span<const Span> spans) const {
  return PlanStep(spans, {.max_tokens = impl_->options.max_step_tokens,
                          .max_spans = impl_->options.max_step_spans,
                          .max_positions = impl_->options.max_positions,
                          .vocab_size = impl_->config.vocab_size});
}

absl::Status Model::Run(const StepInputs& inputs, kv::KvStore* store,
                        std::vector<float>* logits, StepTaps* taps) {
  CHECK(store->format() == impl_->options.format)
      << "store holds " << store->format().ToString() << ", the model computes "
      << impl_->options.format.ToString();
  if (taps != nullptr) {
    taps->hidden.clear();
    for (const int32_t row : taps->rows) {
      CHECK(row >= 0 && row < inputs.num_tokens) << "tap of row " << row;
    }
  }
  impl_->Forward(inputs, store, logits, taps);
  const int64_t vocab = impl_->config.vocab_size;
  for (int32_t i = 0; i < inputs.num_logits; ++i) {
    const float* const row = logits->data() + i * vocab;
    const float* const bad = std::find_if(
        row, row + vocab, [](float value) { return std::isnan(value); });
    if (bad != row + vocab) {
      const auto token = Size(inputs.logits_rows[Size(i)]);
      return absl::InternalError(absl::StrCat(
          "NaN logit of token id ", bad - row, " at position ",
          inputs.positions[token], " of span ", inputs.span_of_token[token]));
    }
  }
  return absl::OkStatus();
}

const checkpoint::ModelConfig& Model::config() const { return impl_->config; }
const ComputePolicy& Model::policy() const { return impl_->options.policy; }
int32_t Model::vocab_size() const { return impl_->config.vocab_size; }
int64_t Model::max_positions() const { return impl_->options.max_positions; }
int64_t Model::decode_weight_bytes() const {
  return impl_->weights.DecodeBytes(impl_->config.num_experts_per_tok);
}
int64_t Model::weight_bytes() const { return impl_->weights.TotalBytes(); }

std::vector<std::string> Model::KernelPaths() const {
  std::vector<std::string> lines;
  for (const char* const op :
       {"hyper_connection", "rms_norm", "linear", "rope", "compressor",
        "indexer", "sparse_attention", "experts"}) {
    lines.push_back(absl::StrCat(op, " any cpu simd"));
  }
  lines.push_back("moe_gate any cpu ref");
  return lines;
}

void Fork(const SequenceState& from, SequenceState* to, kv::KvStore* store) {
  const auto full = Size(from.processed / kv::kBlockTokens);
  CHECK(to->blocks.size() >= Size(kv::BlocksFor(from.processed)))
      << "a fork at " << from.processed << " positions has "
      << to->blocks.size() << " blocks";
  CHECK(std::equal(from.blocks.begin(),
                   from.blocks.begin() + static_cast<int64_t>(full),
                   to->blocks.begin()))
      << "full blocks of a fork must be the shared ones";
  if (from.processed % kv::kBlockTokens != 0) {
    CHECK(from.blocks[full] != to->blocks[full])
        << "the partly filled block of a fork must be its own";
    store->CopyBlock(from.blocks[full], to->blocks[full]);
  }
  store->CopySlot(from.slot, to->slot);
  to->processed = from.processed;
}

}  // namespace baton::model
