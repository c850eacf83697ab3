// The tensors that a checkpoint must hold, derived from its config (model.md
// 3).
//
// A module is one linear, norm or table of the model. Its shape follows from
// the config; how it is stored (its encoding) is read from the files. The two
// together give the exact tensors: their names, dtypes and shapes.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/checkpoint/dtype.h"
#include "common/checkpoint/model_config.h"

namespace baton::checkpoint {

// How a module's values are stored. W is the module's name, K its columns.
enum class Encoding : uint8_t {
  kF32,           // W.weight F32
  kBf16,          // W.weight BF16
  kFp8BlockE8m0,  // W.weight F8_E4M3, W.scale F8_E8M0 per 128x128 tile
  kFp8BlockF32,   // W.weight F8_E4M3, W.scale F32 per 128x128 tile
  kMxfp4,         // W.weight I8 [rows, K/2], W.scale F8_E8M0 [rows, K/32]
  kNvfp4,  // W.weight U8 [rows, K/2], W.weight_scale F8_E4M3 [rows, K/16],
           // W.weight_scale_2 F32 [], W.input_scale F32 []
  kI64,    // integers, not a weight
};
inline constexpr int32_t kNumEncodings = 7;
absl::string_view EncodingName(Encoding encoding);

// What a module is, which decides the encodings it may have.
enum class Role : uint8_t {
  kExpert,  // routed expert: any but kI64
  kLinear,  // quantisable linear: FP8, BF16, F32
  kDense,   // never quantised matrix or norm: BF16, F32
  kFloat,   // genuine float32 data without ".weight": F32
  kTable,   // tid2eid: I64
};

struct Module {
  std::string name;  // "layers.0.attn.wq_a", or the tensor's name for kFloat
                     // and kTable
  Role role = Role::kLinear;
  // Logical shape: [rows, columns], or [n]. Columns are values, not bytes.
  std::vector<int64_t> shape;

  // Name of the tensor that holds the values.
  std::string WeightName() const;
};

struct TensorSpec {
  std::string name;
  DType dtype = DType::kU8;
  std::vector<int64_t> shape;

  int64_t bytes() const;
};

// embed, head, norm, hc_head_*.
std::vector<Module> TopLevelModules(const ModelConfig& config);
// One block below `prefix` ("layers.3."), e.g. of ratio 0 and routed by scores.
std::vector<Module> BlockModules(const ModelConfig& config,
                                 absl::string_view prefix, int32_t ratio,
                                 bool hash_routed);
// Top level and every layer of the backbone; drafters are not part of it.
std::vector<Module> BackboneModules(const ModelConfig& config);

// Whether a module of this role may be stored so.
bool Allowed(Role role, Encoding encoding);
// Tensors of `module` under `encoding`, the weight first. InvalidArgument when
// the encoding is not allowed, or when K is no multiple of its scale block.
absl::StatusOr<std::vector<TensorSpec>> TensorsOf(const Module& module,
                                                  Encoding encoding);

}  // namespace baton::checkpoint
