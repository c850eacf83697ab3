#include "common/checkpoint/checkpoint.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <limits>

#include "common/checkpoint/inspect.h"
#include "common/testing/paths.h"
#include "common/testing/status_matchers.h"
#include "tests/common/checkpoint/tiny_checkpoint.h"

namespace baton::checkpoint {
namespace {

using ::baton::testing::SourcePath;
using ::baton::testing::StatusIs;
using ::testing::AllOf;
using ::testing::HasSubstr;
using Json = nlohmann::json;

size_t At(Role role, Encoding encoding) {
  return static_cast<size_t>(role) * kNumEncodings +
         static_cast<size_t>(encoding);
}
int32_t Modules(const WeightCensus& census, Role role, Encoding encoding) {
  return (&census.modules[0][0])[At(role, encoding)];
}

TEST(CheckpointTest, OpensTheDemoModel) {
  ASSERT_OK_AND_ASSIGN(const auto demo,
                       Checkpoint::Open(SourcePath("deploy/demo-model")));
  EXPECT_EQ(demo->files().size(), 3u);
  EXPECT_EQ(demo->census().backbone_tensors, 1594);
  EXPECT_EQ(demo->census().backbone_bytes, 20'294'736);
  EXPECT_EQ(demo->tensor_bytes(), 20'294'736);
  EXPECT_EQ(demo->census().drafter_tensors, 0);
  const WeightCensus& census = demo->census();
  // 7 layers x 16 experts x 3; 7 x (5 attention + 3 shared) + 3 indexers.
  EXPECT_EQ(Modules(census, Role::kExpert, Encoding::kNvfp4), 336);
  EXPECT_EQ(Modules(census, Role::kLinear, Encoding::kFp8BlockE8m0), 59);
  EXPECT_EQ(Modules(census, Role::kTable, Encoding::kI64), 3);
  EXPECT_EQ(census.nvfp4_projections, 336);

  const CheckpointWeights& weights = demo->weights();
  ASSERT_EQ(weights.layers.size(), 7u);
  EXPECT_EQ(weights.embed.rows, 2048);
  EXPECT_EQ(weights.embed.cols, 256);
  EXPECT_EQ(weights.embed.encoding, Encoding::kBf16);
  EXPECT_EQ(weights.hc_head.fn.size(), 4u * 1024u);
  const LayerWeights& c4 = weights.layers[2];
  EXPECT_EQ(c4.ratio, 4);
  ASSERT_TRUE(c4.attn.indexer.has_value());
  EXPECT_EQ(c4.attn.indexer->wq_b.rows, 8 * 128);
  EXPECT_EQ(c4.attn.compressor->ape.size(), 4u * 1024u);
  EXPECT_EQ(c4.attn.wo_a.rows, 256);
  EXPECT_EQ(c4.attn.wo_a.cols, 1024);
  EXPECT_EQ(c4.ffn.tid2eid.size(), 2048u * 4u);
  EXPECT_TRUE(c4.ffn.gate_bias.empty());
  const LayerWeights& c128 = weights.layers[3];
  EXPECT_FALSE(c128.attn.indexer.has_value());
  EXPECT_EQ(c128.attn.compressor->ape.size(), 128u * 512u);
  EXPECT_EQ(c128.ffn.gate_bias.size(), 16u);
  ASSERT_EQ(c128.ffn.experts.size(), 16u);
  EXPECT_EQ(c128.ffn.experts[15].w2.rows, 256);
  EXPECT_EQ(c128.ffn.experts[15].w2.cols, 64);
  EXPECT_GT(c128.ffn.experts[15].w2.global_scale, 0.0f);
  EXPECT_FALSE(weights.layers[0].attn.compressor.has_value());
  EXPECT_TRUE(demo->has_generation_config());
  EXPECT_EQ(demo->generation_config().temperature, 1.0);
}

TEST(CheckpointTest, OpensTheRandomModelOfOtherSizesAndLayout) {
  ASSERT_OK_AND_ASSIGN(
      const auto random,
      Checkpoint::Open(SourcePath("tests/data/oracle/random-model")));
  EXPECT_EQ(random->census().backbone_tensors, 259);
  EXPECT_EQ(random->census().backbone_bytes, 7'219'356);
  EXPECT_EQ(Modules(random->census(), Role::kExpert, Encoding::kBf16),
            5 * 8 * 3);
  EXPECT_EQ(random->census().nvfp4_projections, 0);
  EXPECT_FALSE(random->has_generation_config());
  EXPECT_EQ(random->generation_config().eos_token_ids.size(), 1u);
  EXPECT_EQ(random->config().num_hash_layers, 1);
}

TEST(CheckpointTest, ReadsValuesAtTheirPlaces) {
  StoredTensors tensors = TinyTensors(Encoding::kBf16, Encoding::kNvfp4);
  const float scale_2 = 0.125f;
  for (const char* const w : {"w1", "w3"}) {
    std::memcpy(
        tensors[absl::StrCat("layers.1.ffn.experts.2.", w, ".weight_scale_2")]
            .bytes.data(),
        &scale_2, sizeof(scale_2));
  }
  const uint16_t three_bf16 = 0x4040;
  std::memcpy(tensors["layers.2.attn_norm.weight"].bytes.data() + 2 * 159,
              &three_bf16, sizeof(three_bf16));
  const int64_t expert = 2;
  std::memcpy(tensors["layers.0.ffn.gate.tid2eid"].bytes.data() + 8 * 95,
              &expert, sizeof(expert));
  const TempDir dir;
  WriteTinyCheckpoint(dir, TinyConfigJson(), tensors);
  ASSERT_OK_AND_ASSIGN(const auto opened, Checkpoint::Open(dir.path()));
  const std::vector<LayerWeights>& layers = opened->weights().layers;
  EXPECT_EQ(layers[1].ffn.experts[2].w1.global_scale, 0.125f);
  EXPECT_EQ(layers[1].ffn.experts[2].w2.global_scale, 1.0f);
  EXPECT_EQ(layers[1].ffn.experts[1].w1.global_scale, 1.0f);
  EXPECT_EQ(layers[2].attn_norm.at(159), 3.0f);
  EXPECT_EQ(layers[2].attn_norm.at(158), 1.0f);
  EXPECT_EQ(layers[0].ffn.tid2eid[95], 2);
  EXPECT_TRUE(opened->census().nvfp4_is_lossless_cast());
}

TEST(CheckpointTest, DetectsEachLayoutFromTheTensors) {
  for (const Encoding linears :
       {Encoding::kF32, Encoding::kBf16, Encoding::kFp8BlockE8m0,
        Encoding::kFp8BlockF32}) {
    for (const Encoding experts :
         {Encoding::kF32, Encoding::kBf16, Encoding::kFp8BlockE8m0,
          Encoding::kFp8BlockF32, Encoding::kMxfp4, Encoding::kNvfp4}) {
      SCOPED_TRACE(
          absl::StrCat(EncodingName(linears), " / ", EncodingName(experts)));
      const TempDir dir;
      WriteTinyCheckpoint(dir, TinyConfigJson(), TinyTensors(linears, experts));
      ASSERT_OK_AND_ASSIGN(const auto opened, Checkpoint::Open(dir.path()));
      const LayerWeights& layer = opened->weights().layers[1];
      EXPECT_EQ(layer.attn.wq_b.encoding, linears);
      EXPECT_EQ(layer.ffn.shared.w2.encoding, linears);
      EXPECT_EQ(layer.ffn.experts[0].w2.encoding, experts);
      const bool plain =
          experts == Encoding::kF32 || experts == Encoding::kBf16;
      EXPECT_EQ(layer.ffn.experts[0].w2.scales == nullptr, plain);
    }
  }
}

TEST(CheckpointTest, OpensASingleFileWithoutIndex) {
  const TempDir dir;
  WriteText(dir.File("config.json"), TinyConfigJson().dump());
  WriteText(dir.File("model.safetensors"),
            ImageOf(TinyTensors(Encoding::kBf16, Encoding::kBf16)));
  EXPECT_OK(Checkpoint::Open(dir.path()));
  WriteText(dir.File("another.safetensors"), SafetensorsImage("{}", ""));
  EXPECT_THAT(Checkpoint::Open(dir.path()),
              StatusIs(absl::StatusCode::kNotFound,
                       HasSubstr("2 .safetensors files, expected an index")));
}

TEST(CheckpointTest, IgnoresAndCountsDrafterTensors) {
  StoredTensors tensors = TinyTensors(Encoding::kBf16, Encoding::kBf16);
  tensors["mtp.0.enorm.weight"] = {DType::kBf16, {160}, std::string(320, 'n')};
  const TempDir dir;
  WriteTinyCheckpoint(dir, TinyConfigJson(), tensors);
  ASSERT_OK_AND_ASSIGN(const auto opened, Checkpoint::Open(dir.path()));
  EXPECT_EQ(opened->census().drafter_tensors, 1);
  EXPECT_EQ(opened->census().drafter_bytes, 320);
}

// One way to damage the tensors of a sound checkpoint.
struct Damage {
  const char* label;
  std::function<void(StoredTensors&)> apply;
  absl::StatusCode code;
  const char* tensor;   // named by the error
  const char* message;  // part of it
};

template <typename T>
void Put(StoredTensors& tensors, const std::string& name, size_t index,
         T value) {
  StoredTensor& tensor = tensors.at(name);
  std::memcpy(tensor.bytes.data() + index * sizeof(T), &value, sizeof(T));
}

std::vector<Damage> Damages() {
  constexpr auto kWrong = absl::StatusCode::kFailedPrecondition;
  constexpr auto kLoss = absl::StatusCode::kDataLoss;
  constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
  const auto erase = [](const char* name) {
    return [name](StoredTensors& t) { CHECK_EQ(t.erase(name), 1u); };
  };
  std::vector<Damage> out = {
      {"a norm", erase("layers.2.ffn_norm.weight"), kWrong,
       "'layers.2.ffn_norm.weight'", "is missing"},
      {"a linear", erase("layers.1.attn.wq_b.weight"), kWrong,
       "'layers.1.attn.wq_b.weight'", "is missing"},
      {"an FP8 scale", erase("layers.1.attn.wq_b.scale"), kWrong,
       "'layers.1.attn.wq_b.scale'",
       "is missing: expected F8_E8M0 [2, 1] beside a weight stored as FP8"},
      {"an expert", erase("layers.0.ffn.experts.2.w2.weight"), kWrong,
       "'layers.0.ffn.experts.2.w2.weight'", "is missing"},
      {"an input scale", erase("layers.0.ffn.experts.2.w2.input_scale"), kWrong,
       "'layers.0.ffn.experts.2.w2.input_scale'", "is missing"},
      {"the gate bias", erase("layers.1.ffn.gate.bias"), kWrong,
       "'layers.1.ffn.gate.bias'", "is missing"},
      {"the routing table", erase("layers.0.ffn.gate.tid2eid"), kWrong,
       "'layers.0.ffn.gate.tid2eid'", "is missing"},
      {"the indexer", erase("layers.1.attn.indexer.weights_proj.weight"),
       kWrong, "'layers.1.attn.indexer.weights_proj.weight'", "is missing"},
      {"the head mixer", erase("hc_head_scale"), kWrong, "'hc_head_scale'",
       "is missing"},
      {"one more expert",
       [](StoredTensors& t) {
         t["layers.0.ffn.experts.3.w1.weight"] =
             t["layers.0.ffn.experts.2.w1.weight"];
       },
       kWrong, "'layers.0.ffn.experts.3.w1.weight'",
       "expected no tensor of this name"},
      {"a bias in a hash layer",
       [](StoredTensors& t) {
         t["layers.0.ffn.gate.bias"] = t["layers.1.ffn.gate.bias"];
       },
       kWrong, "'layers.0.ffn.gate.bias'", "expected no tensor of this name"},
      {"a fourth layer",
       [](StoredTensors& t) {
         t["layers.3.attn_norm.weight"] = t["layers.2.attn_norm.weight"];
       },
       kWrong, "'layers.3.attn_norm.weight'", "expected no tensor"},
      {"both scale names",
       [](StoredTensors& t) {
         t["layers.0.ffn.experts.0.w1.scale"] = {
             DType::kF8E8M0, {64, 5}, std::string(320, '\x7f')};
       },
       kWrong, "'layers.0.ffn.experts.0.w1.scale'", "expected no tensor"},
      {"a norm in F16",
       [](StoredTensors& t) { t["norm.weight"].dtype = DType::kF16; }, kWrong,
       "'norm.weight'", "is F16 [160], expected one of: F32, BF16"},
      {"a sink in BF16",
       [](StoredTensors& t) {
         t["layers.0.attn.attn_sink"] = {DType::kBf16, {4}, std::string(8, 0)};
       },
       kWrong, "'layers.0.attn.attn_sink'", "expected one of: F32"},
      {"a compressor in FP8",
       [](StoredTensors& t) {
         StoredTensor& w = t["layers.2.attn.compressor.wkv.weight"];
         w = {DType::kF8E4M3, w.shape, w.bytes.substr(0, w.bytes.size() / 2)};
       },
       kWrong, "'layers.2.attn.compressor.wkv.weight'",
       "expected one of: F32, BF16"},
      {"a linear in FP4",
       [](StoredTensors& t) {
         t["layers.0.attn.wq_a.weight"] = {
             DType::kU8, {32, 80}, std::string(32 * 80, 0)};
       },
       kWrong, "'layers.0.attn.wq_a.weight'",
       "expected one of: F32, BF16, FP8"},
      {"a transposed linear",
       [](StoredTensors& t) {
         t["layers.0.attn.wq_a.weight"].shape = {160, 32};
       },
       kWrong, "'layers.0.attn.wq_a.weight'",
       "is F8_E4M3 [160, 32] (5120 bytes), expected F8_E4M3 [32, 160]"},
      {"scales in bytes",
       [](StoredTensors& t) {
         t["layers.0.attn.wq_a.scale"].dtype = DType::kU8;
       },
       kWrong, "'layers.0.attn.wq_a.scale'",
       "is U8 [1, 2] (2 bytes), expected F8_E8M0 [1, 2]"},
      {"scales of 32 in an NVFP4 file",
       [](StoredTensors& t) {
         t["layers.0.ffn.experts.0.w1.weight_scale"] = {
             DType::kF8E4M3, {64, 5}, std::string(320, '\x38')};
       },
       kWrong, "'layers.0.ffn.experts.0.w1.weight_scale'",
       "expected F8_E4M3 [64, 10]"},
      {"w1 and w3 scaled apart",
       [](StoredTensors& t) {
         Put(t, "layers.1.ffn.experts.1.w3.weight_scale_2", 0, 2.0f);
       },
       kWrong, "'layers.1.ffn.experts.1.w3.weight_scale_2'",
       "is 2, expected 1 as w1 has"},
      {"NaN in E8M0 scales",
       [](StoredTensors& t) {
         Put(t, "layers.2.attn.wkv.scale", 1, uint8_t{255});
       },
       kLoss, "'layers.2.attn.wkv.scale'", "value 1 is NaN"},
      {"NaN in NVFP4 block scales",
       [](StoredTensors& t) {
         Put(t, "layers.2.ffn.experts.0.w2.weight_scale", 7, uint8_t{0x7f});
       },
       kLoss, "'layers.2.ffn.experts.0.w2.weight_scale'",
       "value 7 is code 0x7f"},
      {"a zero NVFP4 block scale",
       [](StoredTensors& t) {
         Put(t, "layers.2.ffn.experts.0.w2.weight_scale", 7, uint8_t{0});
       },
       kLoss, "'layers.2.ffn.experts.0.w2.weight_scale'",
       "value 7 is code 0x00"},
      {"a zero global scale",
       [](StoredTensors& t) {
         Put(t, "layers.2.ffn.experts.0.w2.weight_scale_2", 0, 0.0f);
       },
       kLoss, "'layers.2.ffn.experts.0.w2.weight_scale_2'",
       "a finite scale > 0"},
      {"NaN input scale",
       [](StoredTensors& t) {
         Put(t, "layers.2.ffn.experts.0.w2.input_scale", 0, kNan);
       },
       kLoss, "'layers.2.ffn.experts.0.w2.input_scale'", "is nan"},
      {"NaN in FP8 weights",
       [](StoredTensors& t) {
         Put(t, "layers.0.attn.wo_b.weight", 3, uint8_t{0xff});
       },
       kLoss, "'layers.0.attn.wo_b.weight'", "value 3 is NaN"},
      {"infinity in the embedding",
       [](StoredTensors& t) { Put(t, "embed.weight", 160, uint16_t{0x7f80}); },
       kLoss, "'embed.weight'", "value 160 is inf"},
      {"NaN in a norm",
       [](StoredTensors& t) {
         Put(t, "layers.0.attn.q_norm.weight", 0, uint16_t{0x7fc0});
       },
       kLoss, "'layers.0.attn.q_norm.weight'", "value 0 is nan"},
      {"NaN in a sink",
       [](StoredTensors& t) { Put(t, "layers.0.attn.attn_sink", 2, kNan); },
       kLoss, "'layers.0.attn.attn_sink'", "value 2 is nan"},
      {"NaN in a gate bias",
       [](StoredTensors& t) { Put(t, "layers.2.ffn.gate.bias", 0, kNan); },
       kLoss, "'layers.2.ffn.gate.bias'", "value 0 is nan"},
      {"NaN in a mixer",
       [](StoredTensors& t) { Put(t, "layers.2.hc_ffn_fn", 5, kNan); }, kLoss,
       "'layers.2.hc_ffn_fn'", "value 5 is nan"},
      {"an expert id of 3",
       [](StoredTensors& t) {
         Put(t, "layers.0.ffn.gate.tid2eid", 4, int64_t{3});
       },
       kLoss, "'layers.0.ffn.gate.tid2eid'",
       "value 4 is 3, expected an index in [0, 3)"},
  };
  return out;
}

TEST(CheckpointTest, RefusesEachDamageWithTheTensorsName) {
  for (const Damage& damage : Damages()) {
    SCOPED_TRACE(damage.label);
    StoredTensors tensors =
        TinyTensors(Encoding::kFp8BlockE8m0, Encoding::kNvfp4);
    damage.apply(tensors);
    const TempDir dir;
    WriteTinyCheckpoint(dir, TinyConfigJson(), tensors);
    EXPECT_THAT(Checkpoint::Open(dir.path()),
                StatusIs(damage.code, AllOf(HasSubstr(damage.tensor),
                                            HasSubstr(damage.message))));
  }
}

TEST(CheckpointTest, RefusesToFuseW1AndW3OfTwoEncodings) {
  StoredTensors tensors = TinyTensors(Encoding::kBf16, Encoding::kBf16);
  const StoredTensors native = TinyTensors(Encoding::kBf16, Encoding::kMxfp4);
  for (const char* const suffix : {".weight", ".scale"}) {
    const std::string name = absl::StrCat("layers.2.ffn.experts.1.w3", suffix);
    tensors[name] = native.at(name);
  }
  const TempDir dir;
  WriteTinyCheckpoint(dir, TinyConfigJson(), tensors);
  EXPECT_THAT(Checkpoint::Open(dir.path()),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       HasSubstr("'layers.2.ffn.experts.1.w3.weight': is "
                                 "stored as MXFP4, expected BF16")));
}

class BrokenFilesTest : public ::testing::Test {
 protected:
  BrokenFilesTest()
      : index_(WriteTinyCheckpoint(
            dir_, TinyConfigJson(),
            TinyTensors(Encoding::kBf16, Encoding::kBf16))) {}
  void WriteIndex() {
    WriteText(dir_.File("model.safetensors.index.json"), index_.dump());
  }
  absl::Status Open() { return Checkpoint::Open(dir_.path()).status(); }

  TempDir dir_;
  Json index_;
};

TEST_F(BrokenFilesTest, IsSoundBeforeItIsBroken) { EXPECT_OK(Open()); }

TEST_F(BrokenFilesTest, RefusesATruncatedShard) {
  const std::string shard = ReadText(dir_.File(TinyFiles::kSecond));
  for (const size_t kept : {size_t{0}, size_t{4}, size_t{100}, shard.size() / 2,
                            shard.size() - 1}) {
    WriteText(dir_.File(TinyFiles::kSecond), shard.substr(0, kept));
    EXPECT_THAT(Open(), StatusIs(absl::StatusCode::kDataLoss,
                                 HasSubstr(TinyFiles::kSecond)))
        << kept;
  }
}

TEST_F(BrokenFilesTest, RefusesAMissingConfig) {
  std::filesystem::remove(dir_.File("config.json"));
  EXPECT_THAT(Open(),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("config.json")));
}

TEST_F(BrokenFilesTest, RefusesAConfigThatIsNotJson) {
  WriteText(dir_.File("config.json"), "{\"vocab_size\": ");
  EXPECT_THAT(Open(), StatusIs(absl::StatusCode::kInvalidArgument,
                               HasSubstr("config.json: not valid JSON")));
}

TEST_F(BrokenFilesTest, RefusesAConfigOfOtherSizesThanTheTensors) {
  Json config = TinyConfigJson();
  config["hidden_size"] = 192;
  WriteText(dir_.File("config.json"), config.dump());
  EXPECT_THAT(Open(), StatusIs(absl::StatusCode::kFailedPrecondition,
                               HasSubstr("'embed.weight': is BF16 [48, 160]")));
}

TEST_F(BrokenFilesTest, RefusesABadGenerationConfig) {
  WriteText(dir_.File("generation_config.json"), "{\"top_p\": 2}");
  EXPECT_THAT(Open(), StatusIs(absl::StatusCode::kInvalidArgument,
                               HasSubstr("generation_config.json: 'top_p'")));
}

TEST_F(BrokenFilesTest, RefusesAnIndexThatNamesAMissingFile) {
  index_["weight_map"]["norm.weight"] = "model-00009-of-00009.safetensors";
  WriteIndex();
  EXPECT_THAT(Open(), StatusIs(absl::StatusCode::kNotFound,
                               HasSubstr("model-00009-of-00009.safetensors")));
}

TEST_F(BrokenFilesTest, RefusesIndexEntriesThatLeaveTheFolder) {
  const Json bad_names = {"../model.safetensors",
                          "/etc/passwd",
                          "sub/model.safetensors",
                          "..",
                          ".",
                          "",
                          std::string("a\0b", 3),
                          7,
                          nullptr};
  for (const Json& bad : bad_names) {
    index_["weight_map"]["norm.weight"] = bad;
    WriteIndex();
    EXPECT_THAT(Open(), StatusIs(absl::StatusCode::kInvalidArgument,
                                 AllOf(HasSubstr("'norm.weight'"),
                                       HasSubstr("a plain file name"))))
        << bad.dump();
  }
}

TEST_F(BrokenFilesTest, RefusesATensorTheIndexDoesNotList) {
  index_["weight_map"].erase("norm.weight");
  WriteIndex();
  EXPECT_THAT(Open(), StatusIs(absl::StatusCode::kFailedPrecondition,
                               HasSubstr("'norm.weight' is not listed")));
}

TEST_F(BrokenFilesTest, RefusesATensorListedForAnotherFile) {
  index_["weight_map"]["embed.weight"] = TinyFiles::kSecond;
  WriteIndex();
  EXPECT_THAT(Open(), StatusIs(absl::StatusCode::kFailedPrecondition,
                               AllOf(HasSubstr("'embed.weight'"),
                                     HasSubstr("not for this file"))));
}

TEST_F(BrokenFilesTest, RefusesAListedTensorThatIsInNoFile) {
  index_["weight_map"]["layers.0.extra"] = TinyFiles::kFirst;
  WriteIndex();
  EXPECT_THAT(Open(), StatusIs(absl::StatusCode::kFailedPrecondition,
                               HasSubstr("'layers.0.extra' is missing")));
}

TEST_F(BrokenFilesTest, RefusesAnIndexWithoutAMap) {
  for (const char* const text :
       {"[]", "{}", "{\"weight_map\": []}", "{\"weight_map\": {}}", "{"}) {
    WriteText(dir_.File("model.safetensors.index.json"), text);
    EXPECT_THAT(Open(), StatusIs(absl::StatusCode::kInvalidArgument,
                                 HasSubstr("model.safetensors.index.json")))
        << text;
  }
}

TEST_F(BrokenFilesTest, RefusesATensorListedTwice) {
  const std::string text =
      absl::StrCat("{\"weight_map\": {\"a\": \"", TinyFiles::kFirst,
                   "\", \"a\": \"", TinyFiles::kSecond, "\"}}");
  WriteText(dir_.File("model.safetensors.index.json"), text);
  EXPECT_THAT(Open(), StatusIs(absl::StatusCode::kInvalidArgument,
                               HasSubstr("key 'a' appears twice")));
}

TEST(CheckpointTest, RefusesATensorInTwoFiles) {
  StoredTensors tensors = TinyTensors(Encoding::kBf16, Encoding::kBf16);
  const TempDir dir;
  WriteTinyCheckpoint(dir, TinyConfigJson(), tensors);
  StoredTensors second;
  for (const auto& [name, tensor] : tensors) {
    if (!(name < "layers.1") || name == "embed.weight") second[name] = tensor;
  }
  WriteText(dir.File(TinyFiles::kSecond), ImageOf(second));
  EXPECT_THAT(Checkpoint::Open(dir.path()),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       AllOf(HasSubstr("'embed.weight'"),
                             HasSubstr(TinyFiles::kSecond))));
}

TEST(CensusReportTest, DescribesTheDemoModel) {
  ASSERT_OK_AND_ASSIGN(const auto demo,
                       Checkpoint::Open(SourcePath("deploy/demo-model")));
  const std::string report = CensusReport(*demo);
  for (const char* const line :
       {"files: 3\n", "tensors: 1594, 20294736 bytes\n", "layers: 7\n",
        "  ratio 0, routed by token id: 0 1\n",
        "  ratio 4, routed by token id: 2\n",
        "  ratio 128, routed by scores: 3 5\n",
        "  ratio 4, routed by scores: 4 6\n",
        "  routed experts: 336 as NVFP4\n",
        "  linears: 59 as FP8 128x128 (E8M0 scales)\n",
        "backbone: 1594 tensors, 20294736 bytes, complete\n",
        "drafter (mtp.*, not used): 0 tensors, 0 bytes\n",
        "generation defaults (generation_config.json): temperature 1, top_p 1, "
        "eos 1\n"}) {
    EXPECT_THAT(report, HasSubstr(line));
  }
  EXPECT_THAT(report,
              HasSubstr(absl::StrCat("model digest: ", HexOf(demo->digest()))));
}

}  // namespace
}  // namespace baton::checkpoint
