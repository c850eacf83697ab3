// config.json of a DeepSeek-V4-Flash checkpoint, typed and checked (model.md
// 2).
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace baton::checkpoint {

// rope_scaling: YaRN, applied on compressed layers only (model.md 2, 5.5).
struct RopeScaling {
  double factor = 1;
  int32_t original_max_position_embeddings = 0;
  double beta_fast = 0;
  double beta_slow = 0;
};

// Fields carry the names of their JSON keys. A parsed config satisfies every
// rule written here.
struct ModelConfig {
  int32_t vocab_size = 0;
  int32_t hidden_size = 0;
  int32_t num_hidden_layers = 0;
  int32_t num_attention_heads = 0;  // a multiple of o_groups
  int32_t head_dim = 0;             // a multiple of 64
  int32_t qk_rope_head_dim = 0;     // even; < head_dim, <= index_head_dim
  int32_t q_lora_rank = 0;
  int32_t o_groups = 0;
  int32_t o_lora_rank = 0;     // per group
  int32_t sliding_window = 0;  // tokens, the query's own included
  // One of 0, 4, 128 per layer, then one per drafter block: the drafters'
  // entries are kept but describe no layer of the backbone.
  std::vector<int32_t> compress_ratios;
  int32_t index_n_heads = 0;
  int32_t index_head_dim = 0;  // a power of two >= 32: Hadamard, FP4 blocks
  int32_t index_topk = 0;
  int32_t n_routed_experts = 0;
  int32_t n_shared_experts = 0;     // 1
  int32_t num_experts_per_tok = 0;  // <= n_routed_experts
  int32_t moe_intermediate_size = 0;
  int32_t num_hash_layers = 0;  // the first layers choose experts by token id
  double routed_scaling_factor = 0;
  double swiglu_limit = 0;
  int32_t hc_mult = 0;  // 4
  int32_t hc_sinkhorn_iters = 0;
  double hc_eps = 0;
  double rms_norm_eps = 0;
  double rope_theta = 0;           // layers of ratio 0
  double compress_rope_theta = 0;  // layers of ratio 4 and 128
  RopeScaling rope_scaling;
  int32_t max_position_embeddings = 0;
  int32_t num_nextn_predict_layers = 0;  // drafter blocks; not trusted, unused
  int32_t bos_token_id = 0;
  std::vector<int32_t> eos_token_ids;  // at least one

  // Layer in [0, num_hidden_layers).
  int32_t ratio(int32_t layer) const {
    return compress_ratios[static_cast<size_t>(layer)];
  }
  bool hash_routed(int32_t layer) const { return layer < num_hash_layers; }
  int32_t heads_per_group() const { return num_attention_heads / o_groups; }
};

// InvalidArgument that names the key, what was found and what was expected:
// missing or mistyped keys, numbers out of range, and settings of another
// architecture (scoring_func, topk_method, hidden_act, rope type, ...). Keys
// that are not listed are accepted and ignored; quantization_config and
// expert_dtype too, since the layout is read from the tensors. `what` is put in
// front of messages.
absl::StatusOr<ModelConfig> ParseModelConfig(const nlohmann::json& json,
                                             absl::string_view what);

// One "key=value" line per field, in a fixed order, numbers in full precision:
// equal text means an equal model geometry. What the model digest covers.
std::string CanonicalText(const ModelConfig& config);

}  // namespace baton::checkpoint
