#include "common/checkpoint/model_config.h"

#include <bit>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "common/base/status_macros.h"
#include "common/checkpoint/field_reader.h"

namespace baton::checkpoint {
namespace {

using Json = nlohmann::json;

// Bounds that keep every product of two dimensions inside int32 and every
// tensor inside int64; the real model is one to three powers of two below.
constexpr int32_t kMaxWidth = 1 << 16;
constexpr int32_t kMaxHeads = 1 << 10;
constexpr int32_t kMaxHeadDim = 1 << 12;
constexpr int32_t kMaxPositions = 1 << 24;

void ReadRopeScaling(FieldReader& fields, absl::string_view what,
                     RopeScaling* out) {
  const Json* const json = fields.Require("rope_scaling");
  if (json == nullptr) return;
  FieldReader rope(*json, absl::StrCat(what, ": rope_scaling"));
  // Older files say `type`, newer ones `rope_type`.
  rope.Expect(rope.Has("type") ? "type" : "rope_type", "yarn",
              /*required=*/true);
  out->factor = rope.Number("factor", 1, 1 << 16, /*low_included=*/true);
  out->original_max_position_embeddings =
      rope.Int("original_max_position_embeddings", 1, kMaxPositions);
  out->beta_fast = rope.Number("beta_fast", 0, 1e6);
  out->beta_slow = rope.Number("beta_slow", 0, 1e6);
  if (out->beta_slow >= out->beta_fast) {
    rope.Fail("beta_slow", "expected less than beta_fast");
  }
  if (!rope.status().ok()) {
    fields.Fail("rope_scaling", absl::StrCat("in ", rope.status().message()));
  }
}

void ReadGeometry(FieldReader& f, ModelConfig* c) {
  c->vocab_size = f.Int("vocab_size", 1, kMaxPositions);
  c->hidden_size = f.Int("hidden_size", 1, kMaxWidth);
  c->num_hidden_layers = f.Int("num_hidden_layers", 1, 1024);
  c->num_attention_heads = f.Int("num_attention_heads", 1, kMaxHeads);
  c->head_dim = f.Int("head_dim", 64, kMaxHeadDim);
  c->qk_rope_head_dim = f.Int("qk_rope_head_dim", 2, kMaxHeadDim);
  c->q_lora_rank = f.Int("q_lora_rank", 1, kMaxWidth);
  c->o_groups = f.Int("o_groups", 1, kMaxHeads);
  c->o_lora_rank = f.Int("o_lora_rank", 1, kMaxHeadDim);
  c->sliding_window = f.Int("sliding_window", 1, 1 << 12);
  c->compress_ratios = f.Ints("compress_ratios", 0, 128,
                              /*single_allowed=*/false);
  c->index_n_heads = f.Int("index_n_heads", 1, kMaxHeads);
  c->index_head_dim = f.Int("index_head_dim", 32, kMaxHeadDim);
  c->index_topk = f.Int("index_topk", 1, 2048);
  c->n_routed_experts = f.Int("n_routed_experts", 1, 1 << 12);
  c->n_shared_experts = f.Int("n_shared_experts", 1, 1);
  c->num_experts_per_tok = f.Int("num_experts_per_tok", 1, 1 << 12);
  c->moe_intermediate_size = f.Int("moe_intermediate_size", 1, kMaxWidth);
  c->num_hash_layers = f.Int("num_hash_layers", 0, 1024);
  c->hc_mult = f.Int("hc_mult", 4, 4);
  c->hc_sinkhorn_iters = f.Int("hc_sinkhorn_iters", 1, 1000);
  c->max_position_embeddings =
      f.Int("max_position_embeddings", 1, kMaxPositions);
}

void ReadNumbers(FieldReader& f, absl::string_view what, ModelConfig* c) {
  c->routed_scaling_factor = f.Number("routed_scaling_factor", 0, 1e6);
  c->swiglu_limit = f.Number("swiglu_limit", 0, 1e6);
  c->hc_eps = f.Number("hc_eps", 0, 1);
  c->rms_norm_eps = f.Number("rms_norm_eps", 0, 1);
  c->rope_theta = f.Number("rope_theta", 1, 1e12);
  c->compress_rope_theta = f.Number("compress_rope_theta", 1, 1e12);
  ReadRopeScaling(f, what, &c->rope_scaling);
}

void ReadArchitecture(FieldReader& f, ModelConfig* c) {
  f.Expect("model_type", "deepseek_v4", /*required=*/true);
  f.Expect("architectures", Json::array({"DeepseekV4ForCausalLM"}),
           /*required=*/false);
  f.Expect("num_key_value_heads", 1, /*required=*/true);
  f.Expect("scoring_func", "sqrtsoftplus", /*required=*/true);
  f.Expect("topk_method", "noaux_tc", /*required=*/true);
  f.Expect("norm_topk_prob", true, /*required=*/true);
  f.Expect("hidden_act", "silu", /*required=*/false);
  f.Expect("attention_bias", false, /*required=*/false);
  f.Expect("tie_word_embeddings", false, /*required=*/false);
  // The reference's rounding points (model.md 4) are those of bfloat16.
  f.Expect("torch_dtype", "bfloat16", /*required=*/false);
  if (f.Has("num_nextn_predict_layers")) {
    c->num_nextn_predict_layers = f.Int("num_nextn_predict_layers", 0, 16);
  }
}

void ReadTokens(FieldReader& f, ModelConfig* c) {
  c->bos_token_id = f.Int("bos_token_id", 0, c->vocab_size - 1);
  c->eos_token_ids =
      f.Ints("eos_token_id", 0, c->vocab_size - 1, /*single_allowed=*/true);
}

void CheckRatios(FieldReader& f, const ModelConfig& c) {
  // Released configs append one entry per drafter block.
  constexpr int32_t kMaxDrafterEntries = 16;
  const int32_t entries = static_cast<int32_t>(c.compress_ratios.size());
  if (entries < c.num_hidden_layers ||
      entries > c.num_hidden_layers + kMaxDrafterEntries) {
    f.Fail("compress_ratios",
           absl::StrCat("has ", entries, " entries, expected ",
                        c.num_hidden_layers, " to ",
                        c.num_hidden_layers + kMaxDrafterEntries));
  }
  for (int32_t i = 0; i < entries; ++i) {
    const int32_t ratio = c.compress_ratios[static_cast<size_t>(i)];
    if (ratio != 0 && ratio != 4 && ratio != 128) {
      f.Fail("compress_ratios", absl::StrCat("entry ", i, " is ", ratio,
                                             ", expected 0, 4 or 128"));
    }
  }
}

void CheckConsistency(FieldReader& f, const ModelConfig& c) {
  CheckRatios(f, c);
  if (c.num_attention_heads % c.o_groups != 0) {
    f.Fail("o_groups",
           absl::StrCat("is ", c.o_groups, ", expected a divisor of the ",
                        c.num_attention_heads, " heads"));
  }
  if (c.head_dim % 64 != 0) {
    f.Fail("head_dim",
           absl::StrCat("is ", c.head_dim, ", expected a multiple of 64"));
  }
  if (c.qk_rope_head_dim % 2 != 0 || c.qk_rope_head_dim >= c.head_dim ||
      c.qk_rope_head_dim > c.index_head_dim) {
    f.Fail("qk_rope_head_dim",
           absl::StrCat("is ", c.qk_rope_head_dim,
                        ", expected an even number below head_dim ", c.head_dim,
                        " and at most index_head_dim ", c.index_head_dim));
  }
  if (!std::has_single_bit(static_cast<uint32_t>(c.index_head_dim))) {
    f.Fail("index_head_dim",
           absl::StrCat("is ", c.index_head_dim, ", expected a power of two"));
  }
  if (c.num_experts_per_tok > c.n_routed_experts) {
    f.Fail("num_experts_per_tok",
           absl::StrCat("is ", c.num_experts_per_tok, ", expected at most ",
                        c.n_routed_experts, " (n_routed_experts)"));
  }
  if (c.num_hash_layers > c.num_hidden_layers) {
    f.Fail("num_hash_layers",
           absl::StrCat("is ", c.num_hash_layers, ", expected at most ",
                        c.num_hidden_layers, " (num_hidden_layers)"));
  }
  if (c.rope_scaling.original_max_position_embeddings >
      c.max_position_embeddings) {
    f.Fail("rope_scaling",
           absl::StrCat("original_max_position_embeddings is ",
                        c.rope_scaling.original_max_position_embeddings,
                        ", expected at most ", c.max_position_embeddings,
                        " (max_position_embeddings)"));
  }
}

}  // namespace

absl::StatusOr<ModelConfig> ParseModelConfig(const Json& json,
                                             absl::string_view what) {
  FieldReader fields(json, what);
  ModelConfig config;
  ReadArchitecture(fields, &config);
  ReadGeometry(fields, &config);
  ReadNumbers(fields, what, &config);
  RETURN_IF_ERROR(fields.status());
  ReadTokens(fields, &config);
  CheckConsistency(fields, config);
  RETURN_IF_ERROR(fields.status());
  return config;
}

std::string CanonicalText(const ModelConfig& c) {
  std::string out;
  const auto add_int = [&out](absl::string_view key, int32_t value) {
    absl::StrAppend(&out, key, "=", value, "\n");
  };
  const auto add_ints = [&out](absl::string_view key,
                               const std::vector<int32_t>& values) {
    absl::StrAppend(&out, key, "=", absl::StrJoin(values, ","), "\n");
  };
  // 17 significant digits tell any two doubles apart.
  const auto add_number = [&out](absl::string_view key, double value) {
    absl::StrAppendFormat(&out, "%s=%.17g\n", key, value);
  };
  add_int("vocab_size", c.vocab_size);
  add_int("hidden_size", c.hidden_size);
  add_int("num_hidden_layers", c.num_hidden_layers);
  add_int("num_attention_heads", c.num_attention_heads);
  add_int("head_dim", c.head_dim);
  add_int("qk_rope_head_dim", c.qk_rope_head_dim);
  add_int("q_lora_rank", c.q_lora_rank);
  add_int("o_groups", c.o_groups);
  add_int("o_lora_rank", c.o_lora_rank);
  add_int("sliding_window", c.sliding_window);
  add_ints("compress_ratios", c.compress_ratios);
  add_int("index_n_heads", c.index_n_heads);
  add_int("index_head_dim", c.index_head_dim);
  add_int("index_topk", c.index_topk);
  add_int("n_routed_experts", c.n_routed_experts);
  add_int("n_shared_experts", c.n_shared_experts);
  add_int("num_experts_per_tok", c.num_experts_per_tok);
  add_int("moe_intermediate_size", c.moe_intermediate_size);
  add_int("num_hash_layers", c.num_hash_layers);
  add_number("routed_scaling_factor", c.routed_scaling_factor);
  add_number("swiglu_limit", c.swiglu_limit);
  add_int("hc_mult", c.hc_mult);
  add_int("hc_sinkhorn_iters", c.hc_sinkhorn_iters);
  add_number("hc_eps", c.hc_eps);
  add_number("rms_norm_eps", c.rms_norm_eps);
  add_number("rope_theta", c.rope_theta);
  add_number("compress_rope_theta", c.compress_rope_theta);
  add_number("rope_scaling.factor", c.rope_scaling.factor);
  add_int("rope_scaling.original_max_position_embeddings",
          c.rope_scaling.original_max_position_embeddings);
  add_number("rope_scaling.beta_fast", c.rope_scaling.beta_fast);
  add_number("rope_scaling.beta_slow", c.rope_scaling.beta_slow);
  add_int("max_position_embeddings", c.max_position_embeddings);
  add_int("num_nextn_predict_layers", c.num_nextn_predict_layers);
  add_int("bos_token_id", c.bos_token_id);
  add_ints("eos_token_id", c.eos_token_ids);
  return out;
}

}  // namespace baton::checkpoint
