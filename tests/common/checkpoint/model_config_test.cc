#include "common/checkpoint/model_config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/checkpoint/generation_config.h"
#include "common/testing/status_matchers.h"
#include "tests/common/checkpoint/tiny_checkpoint.h"

namespace baton::checkpoint {
namespace {

using ::baton::testing::StatusIs;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using Json = nlohmann::json;

TEST(ModelConfigTest, KeepsEveryValue) {
  Json json = TinyConfigJson();
  json["some_future_key"] = {{"nested", true}};
  ASSERT_OK_AND_ASSIGN(const ModelConfig c, ParseModelConfig(json, "c"));
  EXPECT_EQ(c.vocab_size, 48);
  EXPECT_EQ(c.hidden_size, 160);
  EXPECT_EQ(c.num_hidden_layers, 3);
  EXPECT_EQ(c.num_attention_heads, 4);
  EXPECT_EQ(c.head_dim, 64);
  EXPECT_EQ(c.qk_rope_head_dim, 16);
  EXPECT_EQ(c.q_lora_rank, 32);
  EXPECT_EQ(c.o_groups, 2);
  EXPECT_EQ(c.heads_per_group(), 2);
  EXPECT_EQ(c.o_lora_rank, 32);
  EXPECT_EQ(c.sliding_window, 128);
  // The fourth entry is a drafter's.
  EXPECT_THAT(c.compress_ratios, ElementsAre(0, 4, 128, 0));
  EXPECT_EQ(c.index_n_heads, 2);
  EXPECT_EQ(c.index_head_dim, 32);
  EXPECT_EQ(c.index_topk, 8);
  EXPECT_EQ(c.n_routed_experts, 3);
  EXPECT_EQ(c.num_experts_per_tok, 2);
  EXPECT_EQ(c.moe_intermediate_size, 64);
  EXPECT_EQ(c.num_hash_layers, 1);
  EXPECT_TRUE(c.hash_routed(0));
  EXPECT_FALSE(c.hash_routed(1));
  EXPECT_EQ(c.routed_scaling_factor, 1.5);
  EXPECT_EQ(c.swiglu_limit, 10.0);
  EXPECT_EQ(c.hc_mult, 4);
  EXPECT_EQ(c.hc_sinkhorn_iters, 20);
  EXPECT_EQ(c.hc_eps, 1e-6);
  EXPECT_EQ(c.rms_norm_eps, 1e-6);
  EXPECT_EQ(c.rope_theta, 10000.0);
  EXPECT_EQ(c.compress_rope_theta, 160000.0);
  EXPECT_EQ(c.rope_scaling.factor, 4.0);
  EXPECT_EQ(c.rope_scaling.original_max_position_embeddings, 1024);
  EXPECT_EQ(c.rope_scaling.beta_fast, 32.0);
  EXPECT_EQ(c.rope_scaling.beta_slow, 1.0);
  EXPECT_EQ(c.max_position_embeddings, 4096);
  EXPECT_EQ(c.bos_token_id, 0);
  EXPECT_THAT(c.eos_token_ids, ElementsAre(1));
}

TEST(ModelConfigTest, RefusesEachMissingRequiredField) {
  for (const char* const key : {"vocab_size",
                                "hidden_size",
                                "num_hidden_layers",
                                "num_attention_heads",
                                "num_key_value_heads",
                                "head_dim",
                                "qk_rope_head_dim",
                                "q_lora_rank",
                                "o_groups",
                                "o_lora_rank",
                                "sliding_window",
                                "compress_ratios",
                                "index_n_heads",
                                "index_head_dim",
                                "index_topk",
                                "n_routed_experts",
                                "n_shared_experts",
                                "num_experts_per_tok",
                                "moe_intermediate_size",
                                "num_hash_layers",
                                "scoring_func",
                                "topk_method",
                                "norm_topk_prob",
                                "routed_scaling_factor",
                                "swiglu_limit",
                                "hc_mult",
                                "hc_sinkhorn_iters",
                                "hc_eps",
                                "rms_norm_eps",
                                "rope_theta",
                                "compress_rope_theta",
                                "rope_scaling",
                                "max_position_embeddings",
                                "model_type",
                                "bos_token_id",
                                "eos_token_id"}) {
    Json json = TinyConfigJson();
    ASSERT_EQ(json.erase(key), 1u) << key;
    EXPECT_THAT(ParseModelConfig(json, "c.json"),
                StatusIs(absl::StatusCode::kInvalidArgument,
                         AllOf(HasSubstr("c.json: "),
                               HasSubstr(absl::StrCat("'", key,
                                                      "' is "
                                                      "missing")))));
    json[key] = nullptr;  // null says nothing either
    EXPECT_FALSE(ParseModelConfig(json, "c.json").ok()) << key;
  }
}

TEST(ModelConfigTest, AcceptsTheAbsenceOfFieldsThatOnlySayNo) {
  Json json = TinyConfigJson();
  for (const char* const key :
       {"architectures", "hidden_act", "attention_bias", "tie_word_embeddings",
        "torch_dtype", "num_nextn_predict_layers"}) {
    ASSERT_EQ(json.erase(key), 1u) << key;
  }
  EXPECT_OK(ParseModelConfig(json, "c"));
}

struct BadField {
  const char* pointer;  // JSON pointer of the value to replace
  const char* value;    // JSON
  const char* message;  // part of the error
};

constexpr BadField kBadFields[] = {
    {"/model_type", "\"deepseek_v41\"", "expected \"deepseek_v4\""},
    {"/architectures", "[\"LlamaForCausalLM\"]", "DeepseekV4ForCausalLM"},
    {"/num_key_value_heads", "2", "'num_key_value_heads' is 2, expected 1"},
    {"/scoring_func", "\"sigmoid\"", "expected \"sqrtsoftplus\""},
    {"/topk_method", "\"greedy\"", "expected \"noaux_tc\""},
    {"/norm_topk_prob", "false", "expected true"},
    {"/hidden_act", "\"gelu\"", "expected \"silu\""},
    {"/attention_bias", "true", "expected false"},
    {"/tie_word_embeddings", "true", "expected false"},
    {"/torch_dtype", "\"float16\"", "expected \"bfloat16\""},
    {"/vocab_size", "0", "'vocab_size' is 0, expected an integer in [1, "},
    {"/vocab_size", "-1", "'vocab_size' is -1"},
    {"/vocab_size", "48.0", "'vocab_size' is 48.0, expected an integer"},
    {"/vocab_size", "\"48\"", "'vocab_size' is \"48\", expected an integer"},
    {"/vocab_size", "true", "'vocab_size' is true, expected an integer"},
    {"/vocab_size", "18446744073709551615", "'vocab_size' is 1844674407370955"},
    {"/vocab_size", "4294967344", "'vocab_size' is 4294967344"},
    {"/hidden_size", "65537", "'hidden_size'"},
    {"/num_hidden_layers", "0", "'num_hidden_layers' is 0"},
    {"/num_hidden_layers", "5", "'compress_ratios' has 4 entries, expected 5"},
    {"/num_attention_heads", "5",
     "'o_groups' is 2, expected a divisor of the 5"},
    {"/head_dim", "96", "'head_dim' is 96, expected a multiple of 64"},
    {"/qk_rope_head_dim", "15", "'qk_rope_head_dim' is 15"},
    {"/qk_rope_head_dim", "64", "'qk_rope_head_dim' is 64"},
    {"/q_lora_rank", "0", "'q_lora_rank' is 0"},
    {"/o_groups", "3", "'o_groups' is 3"},
    {"/o_lora_rank", "0", "'o_lora_rank' is 0"},
    {"/sliding_window", "0", "'sliding_window' is 0"},
    {"/compress_ratios", "[0, 4]", "'compress_ratios' has 2 entries"},
    {"/compress_ratios", "[]", "expected a non-empty list of integers"},
    {"/compress_ratios", "4", "expected a non-empty list of integers"},
    {"/compress_ratios/1", "8", "entry 1 is 8, expected 0, 4 or 128"},
    {"/compress_ratios/1", "\"4\"", "'compress_ratios' is \"4\""},
    {"/compress_ratios/3", "2", "entry 3 is 2, expected 0, 4 or 128"},
    {"/index_n_heads", "0", "'index_n_heads' is 0"},
    {"/index_head_dim", "48",
     "'index_head_dim' is 48, expected a power of two"},
    {"/index_topk", "2049", "'index_topk' is 2049"},
    {"/n_routed_experts", "0", "'n_routed_experts' is 0"},
    {"/n_shared_experts", "2", "'n_shared_experts' is 2"},
    {"/num_experts_per_tok", "4",
     "'num_experts_per_tok' is 4, expected at most 3"},
    {"/moe_intermediate_size", "0", "'moe_intermediate_size' is 0"},
    {"/num_hash_layers", "4", "'num_hash_layers' is 4, expected at most 3"},
    {"/num_hash_layers", "-1", "'num_hash_layers' is -1"},
    {"/routed_scaling_factor", "0", "'routed_scaling_factor' is 0"},
    {"/swiglu_limit", "-10", "'swiglu_limit' is -10"},
    {"/swiglu_limit", "\"10\"", "expected a number"},
    {"/hc_mult", "2", "'hc_mult' is 2"},
    {"/hc_sinkhorn_iters", "0", "'hc_sinkhorn_iters' is 0"},
    {"/hc_eps", "0", "'hc_eps' is 0"},
    {"/rms_norm_eps", "1.5", "'rms_norm_eps' is 1.5"},
    {"/rope_theta", "1", "'rope_theta' is 1"},
    {"/compress_rope_theta", "false", "'compress_rope_theta' is false"},
    {"/rope_scaling", "[]", "rope_scaling: expected an object"},
    {"/rope_scaling/type", "\"linear\"", "expected \"yarn\""},
    {"/rope_scaling/factor", "0.5", "'factor' is 0.5"},
    {"/rope_scaling/beta_slow", "32", "expected less than beta_fast"},
    {"/rope_scaling/beta_fast", "0", "'beta_fast' is 0"},
    {"/rope_scaling/original_max_position_embeddings", "8192",
     "is 8192, expected at most 4096"},
    {"/max_position_embeddings", "0", "'max_position_embeddings' is 0"},
    {"/num_nextn_predict_layers", "-1", "'num_nextn_predict_layers' is -1"},
    {"/bos_token_id", "48",
     "'bos_token_id' is 48, expected an integer in [0, 47]"},
    {"/eos_token_id", "48", "'eos_token_id' is 48"},
    {"/eos_token_id", "[]", "'eos_token_id' is []"},
};

TEST(ModelConfigTest, RefusesEachBadValueByName) {
  for (const BadField& bad : kBadFields) {
    Json json = TinyConfigJson();
    json[Json::json_pointer(bad.pointer)] = Json::parse(bad.value);
    SCOPED_TRACE(absl::StrCat(bad.pointer, " = ", bad.value));
    EXPECT_THAT(ParseModelConfig(json, "c.json"),
                StatusIs(absl::StatusCode::kInvalidArgument,
                         AllOf(HasSubstr("c.json"), HasSubstr(bad.message))));
  }
}

TEST(ModelConfigTest, RefusesWhatIsNoObject) {
  for (const char* const text : {"[]", "1", "null", "\"x\""}) {
    EXPECT_THAT(ParseModelConfig(Json::parse(text), "c"),
                StatusIs(absl::StatusCode::kInvalidArgument,
                         HasSubstr("expected an object")))
        << text;
  }
}

TEST(ModelConfigTest, AcceptsTheNewerSpellingsOfThirdParties) {
  Json json = TinyConfigJson();
  json["rope_scaling"].erase("type");
  json["rope_scaling"]["rope_type"] = "yarn";
  json["eos_token_id"] = {1, 7};
  ASSERT_OK_AND_ASSIGN(const ModelConfig config, ParseModelConfig(json, "c"));
  EXPECT_THAT(config.eos_token_ids, ElementsAre(1, 7));
  json["rope_scaling"].erase("rope_type");
  EXPECT_THAT(ParseModelConfig(json, "c"),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("'rope_type' is missing")));
}

TEST(ModelConfigTest, CanonicalTextChangesWithEveryField) {
  const std::string base = CanonicalText(TinyConfig());
  struct Change {
    const char* pointer;
    const char* value;
  };
  for (const Change& change : std::initializer_list<Change>{
           {"/vocab_size", "49"},
           {"/hidden_size", "192"},
           {"/num_hidden_layers", "4"},
           {"/num_attention_heads", "6"},
           {"/head_dim", "128"},
           {"/qk_rope_head_dim", "18"},
           {"/q_lora_rank", "33"},
           {"/o_groups", "4"},
           {"/o_lora_rank", "31"},
           {"/sliding_window", "127"},
           {"/compress_ratios/2", "4"},
           {"/index_n_heads", "3"},
           {"/index_head_dim", "64"},
           {"/index_topk", "9"},
           {"/n_routed_experts", "4"},
           {"/num_experts_per_tok", "1"},
           {"/moe_intermediate_size", "65"},
           {"/num_hash_layers", "2"},
           {"/routed_scaling_factor", "1.6"},
           {"/swiglu_limit", "9"},
           {"/hc_sinkhorn_iters", "19"},
           {"/hc_eps", "1.0000001e-6"},
           {"/rms_norm_eps", "1.0000001e-6"},
           {"/rope_theta", "10001"},
           {"/compress_rope_theta", "160001"},
           {"/rope_scaling/factor", "5"},
           {"/rope_scaling/beta_fast", "33"},
           {"/rope_scaling/beta_slow", "2"},
           {"/rope_scaling/original_max_position_embeddings", "1025"},
           {"/max_position_embeddings", "4097"},
           {"/num_nextn_predict_layers", "0"},
           {"/bos_token_id", "2"},
           {"/eos_token_id", "2"}}) {
    Json json = TinyConfigJson();
    json[Json::json_pointer(change.pointer)] = Json::parse(change.value);
    SCOPED_TRACE(change.pointer);
    ASSERT_OK_AND_ASSIGN(const ModelConfig config, ParseModelConfig(json, "c"));
    EXPECT_NE(CanonicalText(config), base);
  }
}

TEST(GenerationConfigTest, TakesGivenValuesAndDefaultsTheRest) {
  ASSERT_OK_AND_ASSIGN(
      const GenerationConfig given,
      ParseGenerationConfig(
          Json::parse(R"({"do_sample": false, "temperature": 0, "top_p": 0.95,
                          "eos_token_id": [1, 5], "_from_model_config": true})"),
          TinyConfig(), "g"));
  EXPECT_FALSE(given.do_sample);
  EXPECT_EQ(given.temperature, 0.0);
  EXPECT_EQ(given.top_p, 0.95);
  EXPECT_THAT(given.eos_token_ids, ElementsAre(1, 5));

  ASSERT_OK_AND_ASSIGN(
      const GenerationConfig defaults,
      ParseGenerationConfig(Json::object(), TinyConfig(), "g"));
  EXPECT_TRUE(defaults.do_sample);
  EXPECT_EQ(defaults.temperature, 1.0);
  EXPECT_EQ(defaults.top_p, 1.0);
  EXPECT_THAT(defaults.eos_token_ids, ElementsAre(1));
}

TEST(GenerationConfigTest, RefusesEachBadValueByName) {
  constexpr BadField kBad[] = {
      {"/do_sample", "1", "'do_sample' expected true or false"},
      {"/temperature", "-0.1", "'temperature' is -0.1"},
      {"/temperature", "101", "'temperature' is 101"},
      {"/top_p", "0", "'top_p' is 0"},
      {"/top_p", "1.01", "'top_p' is 1.01"},
      {"/eos_token_id", "48", "'eos_token_id' is 48"},
      {"/eos_token_id", "\"x\"", "'eos_token_id' is \"x\""},
  };
  for (const BadField& bad : kBad) {
    Json json = Json::object();
    json[Json::json_pointer(bad.pointer)] = Json::parse(bad.value);
    EXPECT_THAT(ParseGenerationConfig(json, TinyConfig(), "g.json"),
                StatusIs(absl::StatusCode::kInvalidArgument,
                         AllOf(HasSubstr("g.json"), HasSubstr(bad.message))));
  }
}

}  // namespace
}  // namespace baton::checkpoint
