#include "common/checkpoint/expected_tensors.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <set>

#include "common/testing/status_matchers.h"
#include "tests/common/checkpoint/tiny_checkpoint.h"

namespace baton::checkpoint {
namespace {

using ::baton::testing::StatusIs;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

// The released preview's config.json (model.md 2).
ModelConfig FlashConfig() {
  nlohmann::json json = nlohmann::json::parse(R"({
    "architectures": ["DeepseekV4ForCausalLM"], "model_type": "deepseek_v4",
    "hidden_size": 4096, "num_hidden_layers": 43, "vocab_size": 129280,
    "num_attention_heads": 64, "num_key_value_heads": 1, "head_dim": 512,
    "qk_rope_head_dim": 64, "q_lora_rank": 1024, "o_lora_rank": 1024,
    "o_groups": 8, "sliding_window": 128, "index_n_heads": 64,
    "index_head_dim": 128, "index_topk": 512, "n_routed_experts": 256,
    "n_shared_experts": 1, "num_experts_per_tok": 6,
    "moe_intermediate_size": 2048, "num_hash_layers": 3,
    "scoring_func": "sqrtsoftplus", "topk_method": "noaux_tc",
    "norm_topk_prob": true, "routed_scaling_factor": 1.5, "swiglu_limit": 10.0,
    "hc_mult": 4, "hc_sinkhorn_iters": 20, "hc_eps": 1e-6,
    "rms_norm_eps": 1e-6, "rope_theta": 10000, "compress_rope_theta": 160000,
    "rope_scaling": {"type": "yarn", "factor": 16, "beta_fast": 32,
      "beta_slow": 1, "original_max_position_embeddings": 65536},
    "max_position_embeddings": 1048576, "num_nextn_predict_layers": 1,
    "hidden_act": "silu", "attention_bias": false, "attention_dropout": 0.0,
    "tie_word_embeddings": false, "torch_dtype": "bfloat16",
    "bos_token_id": 0, "eos_token_id": 1, "initializer_range": 0.02,
    "use_cache": true, "transformers_version": "4.57.1",
    "quantization_config": {"quant_method": "fp8", "fmt": "e4m3",
      "activation_scheme": "dynamic", "scale_fmt": "ue8m0",
      "weight_block_size": [128, 128]}
  })");
  nlohmann::json ratios = {0, 0};
  for (int32_t layer = 2; layer < 43; ++layer) {
    ratios.push_back(layer % 2 == 0 ? 4 : 128);
  }
  ratios.push_back(0);
  json["compress_ratios"] = ratios;
  absl::StatusOr<ModelConfig> config = ParseModelConfig(json, "flash");
  CHECK_OK(config);
  return *std::move(config);
}

struct Totals {
  int64_t tensors = 0;
  int64_t bytes = 0;
  std::map<DType, int64_t> by_dtype;
  std::set<std::string> names;
};

// FP8 linears, experts as given, BF16 for the rest: the released layouts.
void Count(const std::vector<Module>& modules, Encoding experts,
           Totals* totals) {
  for (const Module& module : modules) {
    Encoding encoding = Encoding::kBf16;
    if (module.role == Role::kExpert) encoding = experts;
    if (module.role == Role::kLinear) encoding = Encoding::kFp8BlockE8m0;
    if (module.role == Role::kFloat) encoding = Encoding::kF32;
    if (module.role == Role::kTable) encoding = Encoding::kI64;
    ASSERT_OK_AND_ASSIGN(const std::vector<TensorSpec> specs,
                         TensorsOf(module, encoding));
    for (const TensorSpec& spec : specs) {
      ++totals->tensors;
      totals->bytes += spec.bytes();
      ++totals->by_dtype[spec.dtype];
      EXPECT_TRUE(totals->names.insert(spec.name).second) << spec.name;
    }
  }
}

// What a drafter block holds beyond a ratio-0 block routed by scores
// (model.md 3.4).
std::vector<Module> DrafterBlock(const ModelConfig& config,
                                 const std::string& prefix) {
  return BlockModules(config, prefix, /*ratio=*/0, /*hash_routed=*/false);
}

std::vector<Module> HeadMixer(const std::string& prefix) {
  return {{prefix + "hc_head_fn", Role::kFloat, {4, 16384}},
          {prefix + "hc_head_base", Role::kFloat, {4}},
          {prefix + "hc_head_scale", Role::kFloat, {1}}};
}

void CountPreviewDrafter(const ModelConfig& config, Totals* totals) {
  Count(DrafterBlock(config, "mtp.0."), Encoding::kMxfp4, totals);
  Count(HeadMixer("mtp.0."), Encoding::kMxfp4, totals);
  Count({{"mtp.0.enorm", Role::kDense, {4096}},
         {"mtp.0.hnorm", Role::kDense, {4096}},
         {"mtp.0.norm", Role::kDense, {4096}},
         {"mtp.0.e_proj", Role::kLinear, {4096, 4096}},
         {"mtp.0.h_proj", Role::kLinear, {4096, 4096}}},
        Encoding::kMxfp4, totals);
}

void CountDsparkDrafter(const ModelConfig& config, Totals* totals) {
  for (const char* const prefix : {"mtp.0.", "mtp.1.", "mtp.2."}) {
    Count(DrafterBlock(config, prefix), Encoding::kMxfp4, totals);
  }
  Count(HeadMixer("mtp.2."), Encoding::kMxfp4, totals);
  Count({{"mtp.0.main_proj", Role::kLinear, {4096, 12288}},
         {"mtp.0.main_norm", Role::kDense, {4096}},
         {"mtp.2.norm", Role::kDense, {4096}},
         {"mtp.2.markov_head.markov_w1", Role::kDense, {129280, 256}},
         {"mtp.2.markov_head.markov_w2", Role::kDense, {129280, 256}},
         {"mtp.2.confidence_head.proj", Role::kDense, {1, 4352}}},
        Encoding::kMxfp4, totals);
}

TEST(ExpectedTensorsTest, SumToThePublishedTotalsOfEachRelease) {
  const ModelConfig config = FlashConfig();
  struct Case {
    const char* release;
    Encoding experts;
    void (*count_drafter)(const ModelConfig&, Totals*);
    int64_t tensors;
    int64_t bytes;
  };
  // model.md 1, 3.5.
  const Case cases[] = {
      {"preview", Encoding::kMxfp4, CountPreviewDrafter, 69'187,
       159'609'485'896},
      {"0731", Encoding::kMxfp4, CountDsparkDrafter, 72'317, 166'878'536'440},
      {"preview NVFP4", Encoding::kNvfp4, CountPreviewDrafter, 135'235,
       168'266'793'544},
      {"0731 NVFP4", Encoding::kNvfp4, CountDsparkDrafter, 138'365,
       175'535'844'088},
  };
  for (const Case& c : cases) {
    SCOPED_TRACE(c.release);
    Totals totals;
    Count(BackboneModules(config), c.experts, &totals);
    c.count_drafter(config, &totals);
    EXPECT_EQ(totals.tensors, c.tensors);
    EXPECT_EQ(totals.bytes, c.bytes);
  }
}

TEST(ExpectedTensorsTest, GiveThePreviewsDTypeCensus) {
  Totals totals;
  Count(BackboneModules(FlashConfig()), Encoding::kMxfp4, &totals);
  CountPreviewDrafter(FlashConfig(), &totals);
  const std::map<DType, int64_t> expected = {
      {DType::kBf16, 433},     {DType::kF32, 417}, {DType::kF8E4M3, 375},
      {DType::kF8E8M0, 34167}, {DType::kI64, 3},   {DType::kI8, 33792}};
  EXPECT_EQ(totals.by_dtype, expected);
}

TEST(ExpectedTensorsTest, GiveTheTensorsAndBytesOfEachLayerKind) {
  const ModelConfig config = FlashConfig();
  struct Case {
    int32_t ratio;
    bool hash_routed;
    int64_t tensors;  // 0: not published
    int64_t bytes;
  };
  // model.md 3.3.
  const Case cases[] = {{0, true, 1565, 3'566'148'952},
                        {4, true, 1576, 3'596'055'640},
                        {4, false, 1576, 3'589'851'224},
                        {128, false, 1569, 3'568'596'312}};
  for (const Case& c : cases) {
    Totals totals;
    Count(BlockModules(config, "layers.9.", c.ratio, c.hash_routed),
          Encoding::kMxfp4, &totals);
    EXPECT_EQ(totals.tensors, c.tensors) << c.ratio;
    EXPECT_EQ(totals.bytes, c.bytes) << c.ratio << " " << c.hash_routed;
  }
  Totals drafter;
  CountPreviewDrafter(config, &drafter);
  EXPECT_EQ(drafter.tensors, 1575);
  EXPECT_EQ(drafter.bytes, 3'593'787'756);
}

TEST(ExpectedTensorsTest, RoundTheScaleGridUp) {
  struct Case {
    std::vector<int64_t> shape;
    std::vector<int64_t> grid;
  };
  const Case cases[] = {{{1, 1}, {1, 1}},
                        {{127, 128}, {1, 1}},
                        {{128, 129}, {1, 2}},
                        {{129, 256}, {2, 2}},
                        {{256, 257}, {2, 3}}};
  for (const Case& c : cases) {
    const Module module{"m", Role::kLinear, c.shape};
    ASSERT_OK_AND_ASSIGN(const std::vector<TensorSpec> specs,
                         TensorsOf(module, Encoding::kFp8BlockE8m0));
    ASSERT_EQ(specs.size(), 2u);
    EXPECT_EQ(specs[0].name, "m.weight");
    EXPECT_EQ(specs[1].name, "m.scale");
    EXPECT_EQ(specs[1].shape, c.grid);
  }
}

TEST(ExpectedTensorsTest, DescribeFourBitExperts) {
  const Module expert{"e", Role::kExpert, {64, 96}};
  ASSERT_OK_AND_ASSIGN(const std::vector<TensorSpec> native,
                       TensorsOf(expert, Encoding::kMxfp4));
  ASSERT_EQ(native.size(), 2u);
  EXPECT_EQ(native[0].dtype, DType::kI8);
  EXPECT_THAT(native[0].shape, ElementsAre(64, 48));
  EXPECT_THAT(native[1].shape, ElementsAre(64, 3));
  ASSERT_OK_AND_ASSIGN(const std::vector<TensorSpec> nvfp4,
                       TensorsOf(expert, Encoding::kNvfp4));
  ASSERT_EQ(nvfp4.size(), 4u);
  EXPECT_EQ(nvfp4[0].dtype, DType::kU8);
  EXPECT_EQ(nvfp4[1].name, "e.weight_scale");
  EXPECT_THAT(nvfp4[1].shape, ElementsAre(64, 6));
  EXPECT_EQ(nvfp4[2].name, "e.weight_scale_2");
  EXPECT_TRUE(nvfp4[2].shape.empty());
  EXPECT_EQ(nvfp4[2].bytes(), 4);
  EXPECT_EQ(nvfp4[3].name, "e.input_scale");
}

TEST(ExpectedTensorsTest, RefuseColumnsThatAreNoMultipleOfTheScaleBlock) {
  const Module odd{"e", Role::kExpert, {64, 40}};
  EXPECT_THAT(TensorsOf(odd, Encoding::kMxfp4),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("'e' has 40 columns, expected a multiple of "
                                 "32")));
  EXPECT_THAT(TensorsOf(odd, Encoding::kNvfp4),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("multiple of 16")));
  EXPECT_OK(TensorsOf(odd, Encoding::kBf16));
}

TEST(ExpectedTensorsTest, AllowEachRoleItsEncodingsOnly) {
  const std::map<Role, std::set<Encoding>> allowed = {
      {Role::kExpert,
       {Encoding::kF32, Encoding::kBf16, Encoding::kFp8BlockE8m0,
        Encoding::kFp8BlockF32, Encoding::kMxfp4, Encoding::kNvfp4}},
      {Role::kLinear,
       {Encoding::kF32, Encoding::kBf16, Encoding::kFp8BlockE8m0,
        Encoding::kFp8BlockF32}},
      {Role::kDense, {Encoding::kF32, Encoding::kBf16}},
      {Role::kFloat, {Encoding::kF32}},
      {Role::kTable, {Encoding::kI64}}};
  for (const auto& [role, encodings] : allowed) {
    for (int32_t i = 0; i < kNumEncodings; ++i) {
      const Encoding encoding = static_cast<Encoding>(i);
      const Module module{"m", role, {32, 32}};
      EXPECT_EQ(TensorsOf(module, encoding).ok(), encodings.contains(encoding))
          << static_cast<int32_t>(role) << " " << EncodingName(encoding);
    }
  }
}

}  // namespace
}  // namespace baton::checkpoint
