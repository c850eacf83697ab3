#include "common/model/model_weights.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/status_macros.h"
#include "kernels/include/numeric.h"

namespace baton::model {

namespace {

using checkpoint::Encoding;
using kernels::LinearWeight;
using kernels::WeightEncoding;

WeightEncoding ConvertEncoding(Encoding encoding) {
  switch (encoding) {
    case Encoding::kF32:
      return WeightEncoding::kF32;
    case Encoding::kBf16:
      return WeightEncoding::kBf16;
    case Encoding::kFp8BlockE8m0:
      return WeightEncoding::kFp8BlockE8m0;
    case Encoding::kFp8BlockF32:
      return WeightEncoding::kFp8BlockF32;
    case Encoding::kMxfp4:
      return WeightEncoding::kMxfp4;
    case Encoding::kNvfp4:
      return WeightEncoding::kNvfp4;
    case Encoding::kI64:
      break;
  }
  CHECK(false) << "encoding " << static_cast<int>(encoding)
               << " is not a matrix";
  return WeightEncoding::kF32;
}

LinearWeight Convert(const checkpoint::LinearTensor& tensor) {
  return {.encoding = ConvertEncoding(tensor.encoding),
          .data = tensor.data,
          .scales = tensor.scales,
          .global_scale = tensor.global_scale,
          .rows = tensor.rows,
          .cols = tensor.cols};
}

kernels::ExpertWeights Convert(const checkpoint::SwigluWeights& weights) {
  return {.w1 = Convert(weights.w1),
          .w2 = Convert(weights.w2),
          .w3 = Convert(weights.w3)};
}

// Converts one part after another; `out` collects bytes and copied norms.
class Converter final {
 public:
  explicit Converter(ModelWeights* out) : out_(out) {}

  absl::StatusOr<const uint16_t*> Norm(const checkpoint::VectorTensor& tensor,
                                       absl::string_view name) {
    out_->small_bytes += tensor.size * checkpoint::DTypeBytes(tensor.dtype);
    if (tensor.dtype == checkpoint::DType::kBf16) {
      return reinterpret_cast<const uint16_t*>(tensor.data);
    }
    std::vector<uint16_t> bits;
    for (int32_t i = 0; i < tensor.size; ++i) {
      bits.push_back(kernels::Bf16FromF32(tensor.at(i)));
      if (kernels::F32FromBf16(bits.back()) != tensor.at(i)) {
        return absl::FailedPreconditionError(
            absl::StrCat(name, ": F32 norm weight ", tensor.at(i), " at ", i,
                         " cannot be held in bf16; expected a BF16 norm"));
      }
    }
    out_->converted_norms.push_back(std::move(bits));
    return out_->converted_norms.back().data();
  }

  const float* Floats(absl::Span<const float> values) {
    out_->small_bytes += static_cast<int64_t>(values.size()) * 4;
    return values.empty() ? nullptr : values.data();
  }

  HyperWeights Hyper(const checkpoint::HyperConnectionWeights& weights) {
    return {.fn = Floats(weights.fn),
            .base = Floats(weights.base),
            .scale = Floats(weights.scale)};
  }

  absl::StatusOr<CompressorLinears> Compressor(
      const checkpoint::CompressorWeights& weights, absl::string_view name) {
    CompressorLinears out;
    out.ape = Floats(weights.ape);
    out.wkv = Convert(weights.wkv);
    out.wgate = Convert(weights.wgate);
    ASSIGN_OR_RETURN(out.norm, Norm(weights.norm, name));
    return out;
  }

  absl::Status Attention(const checkpoint::AttentionWeights& weights,
                         const std::string& prefix, LayerLinears* out) {
    out->sink = Floats(weights.sink);
    out->wq_a = Convert(weights.wq_a);
    ASSIGN_OR_RETURN(out->q_norm, Norm(weights.q_norm, prefix + "q_norm"));
    out->wq_b = Convert(weights.wq_b);
    out->wkv = Convert(weights.wkv);
    ASSIGN_OR_RETURN(out->kv_norm, Norm(weights.kv_norm, prefix + "kv_norm"));
    out->wo_a = Convert(weights.wo_a);
    out->wo_b = Convert(weights.wo_b);
    if (weights.compressor.has_value()) {
      ASSIGN_OR_RETURN(out->compressor, Compressor(*weights.compressor,
                                                   prefix + "compressor.norm"));
    }
    if (weights.indexer.has_value()) {
      IndexerLinears indexer;
      indexer.wq_b = Convert(weights.indexer->wq_b);
      indexer.weights_proj = Convert(weights.indexer->weights_proj);
      ASSIGN_OR_RETURN(indexer.compressor,
                       Compressor(weights.indexer->compressor,
                                  prefix + "indexer.compressor.norm"));
      out->indexer = std::move(indexer);
    }
    return absl::OkStatus();
  }

  absl::StatusOr<LayerLinears> Layer(const checkpoint::LayerWeights& weights,
                                     size_t index) {
    const std::string prefix = absl::StrCat("layers.", index, ".");
    LayerLinears out;
    out.ratio = weights.ratio;
    out.hc_attn = Hyper(weights.hc_attn);
    out.hc_ffn = Hyper(weights.hc_ffn);
    ASSIGN_OR_RETURN(out.attn_norm,
                     Norm(weights.attn_norm, prefix + "attn_norm"));
    ASSIGN_OR_RETURN(out.ffn_norm, Norm(weights.ffn_norm, prefix + "ffn_norm"));
    RETURN_IF_ERROR(Attention(weights.attn, prefix + "attn.", &out));
    out.gate = Convert(weights.ffn.gate);
    out.gate_bias = Floats(weights.ffn.gate_bias);
    if (weights.hash_routed) out.tid2eid = weights.ffn.tid2eid.data();
    for (const auto& expert : weights.ffn.experts) {
      out.experts.push_back(Convert(expert));
    }
    out.shared = Convert(weights.ffn.shared);
    return out;
  }

 private:
  ModelWeights* const out_;
};

int64_t Bytes(const kernels::ExpertWeights& expert) {
  return LinearWeightBytes(expert.w1) + LinearWeightBytes(expert.w2) +
         LinearWeightBytes(expert.w3);
}

int64_t Bytes(const CompressorLinears& compressor) {
  return LinearWeightBytes(compressor.wkv) +
         LinearWeightBytes(compressor.wgate);
}

// Without the routed experts.
int64_t DenseBytes(const LayerLinears& layer) {
  int64_t bytes = 0;
  for (const LinearWeight& weight : {layer.wq_a, layer.wq_b, layer.wkv,
                                     layer.wo_a, layer.wo_b, layer.gate}) {
    bytes += LinearWeightBytes(weight);
  }
  if (layer.compressor.has_value()) bytes += Bytes(*layer.compressor);
  if (layer.indexer.has_value()) {
    bytes += LinearWeightBytes(layer.indexer->wq_b) +
             LinearWeightBytes(layer.indexer->weights_proj) +
             Bytes(layer.indexer->compressor);
  }
  return bytes + Bytes(layer.shared);
}

}  // namespace

absl::StatusOr<ModelWeights> ModelWeights::FromCheckpoint(
    const checkpoint::CheckpointWeights& weights) {
  ModelWeights out;
  Converter converter(&out);
  out.embed = Convert(weights.embed);
  out.head = Convert(weights.head);
  ASSIGN_OR_RETURN(out.norm, converter.Norm(weights.norm, "norm"));
  out.hc_head = converter.Hyper(weights.hc_head);
  for (size_t i = 0; i < weights.layers.size(); ++i) {
    ASSIGN_OR_RETURN(LayerLinears layer, converter.Layer(weights.layers[i], i));
    out.layers.push_back(std::move(layer));
  }
  return out;
}

int64_t ModelWeights::TotalBytes() const {
  int64_t bytes =
      small_bytes + LinearWeightBytes(embed) + LinearWeightBytes(head);
  for (const LayerLinears& layer : layers) {
    bytes += DenseBytes(layer);
    for (const auto& expert : layer.experts) bytes += Bytes(expert);
  }
  return bytes;
}

int64_t ModelWeights::DecodeBytes(int32_t experts_per_token) const {
  int64_t bytes = small_bytes + LinearWeightBytes(embed) / embed.rows +
                  LinearWeightBytes(head);
  for (const LayerLinears& layer : layers) {
    bytes += DenseBytes(layer) + experts_per_token * Bytes(layer.experts[0]);
  }
  return bytes;
}

}  // namespace baton::model
