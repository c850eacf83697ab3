#include "kernels/include/sampling.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "kernels/internal/check.h"

namespace baton::kernels {
namespace {

constexpr float kMinusInfinity = -std::numeric_limits<float>::infinity();

void CheckSampling(const SamplingParams& p) {
  BATON_KERNEL_CHECK(p.logits != nullptr && p.vocab > 0, "sampling: no logits");
  BATON_KERNEL_CHECK(p.scratch != nullptr, "sampling: no scratch");
  BATON_KERNEL_CHECK(p.temperature >= 0.0, "sampling: temperature < 0 or NaN");
  BATON_KERNEL_CHECK(p.top_k >= 0, "sampling: top_k < 0");
  BATON_KERNEL_CHECK(p.top_p > 0.0 && p.top_p <= 1.0,
                     "sampling: top_p is not in (0, 1]");
  BATON_KERNEL_CHECK(p.min_p >= 0.0 && p.min_p <= 1.0,
                     "sampling: min_p is not in [0, 1]");
  BATON_KERNEL_CHECK(p.repetition_penalty > 0.0,
                     "sampling: repetition_penalty is not positive");
  BATON_KERNEL_CHECK(
      p.num_top_logprobs >= 0 && p.num_top_logprobs <= p.vocab &&
          (p.num_top_logprobs == 0 || p.top_logprobs != nullptr),
      "sampling: num_top_logprobs is not in 0..vocab or has no room");
}

// Larger value first, then the lower id.
struct Before {
  const float* logits;
  bool operator()(int32_t a, int32_t b) const {
    return logits[a] != logits[b] ? logits[a] > logits[b] : a < b;
  }
};

// Copies the logits with steps 1 and 2 applied.
void Penalize(const SamplingParams& p, std::vector<float>& logits) {
  logits.assign(p.logits, p.logits + p.vocab);
  for (float& value : logits) {
    value = std::isnan(value) ? kMinusInfinity : value;
  }
  for (int32_t i = 0; i < p.num_penalized; ++i) {
    const PenalizedToken& token = p.penalized[i];
    BATON_KERNEL_CHECK(token.id >= 0 && token.id < p.vocab,
                       "sampling: penalized id outside the vocabulary");
    float& value = logits[static_cast<size_t>(token.id)];
    double l = value;
    l = l > 0.0 ? l / p.repetition_penalty : l * p.repetition_penalty;
    l -= p.frequency_penalty * token.output_count;
    if (token.output_count > 0) {
      l -= p.presence_penalty;
    }
    value = static_cast<float>(l);
  }
  for (int32_t i = 0; i < p.num_banned; ++i) {
    BATON_KERNEL_CHECK(p.banned_ids[i] >= 0 && p.banned_ids[i] < p.vocab,
                       "sampling: banned id outside the vocabulary");
    logits[static_cast<size_t>(p.banned_ids[i])] = kMinusInfinity;
  }
}

// Un-normalised probabilities relative to the largest logit, so that any
// temperature is safe: the argument of exp is never positive.
void Weigh(const std::vector<float>& logits, float top, double temperature,
           std::vector<double>& weights) {
  weights.resize(logits.size());
  for (size_t i = 0; i < logits.size(); ++i) {
    const bool best = logits[i] == top;  // also +infinity, where top - top is
                                         // not a number
    weights[i] =
        best ? 1.0 : std::exp((double{logits[i]} - double{top}) / temperature);
  }
}

// Steps 4 and 5: the candidates are cut by zeroing the weights of the others.
void CutTopKTopP(const SamplingParams& p, SamplingScratch& s) {
  const bool cut_k = p.top_k > 0 && p.top_k < p.vocab;
  if (!cut_k && p.top_p >= 1.0) {
    return;
  }
  s.order.clear();
  for (int32_t i = 0; i < p.vocab; ++i) {
    if (s.weights[static_cast<size_t>(i)] > 0.0) {
      s.order.push_back(i);
    }
  }
  const Before before{s.logits.data()};
  if (cut_k && static_cast<size_t>(p.top_k) < s.order.size()) {
    std::nth_element(s.order.begin(), s.order.begin() + p.top_k, s.order.end(),
                     before);
    s.order.resize(static_cast<size_t>(p.top_k));
  }
  if (p.top_p < 1.0) {
    double total = 0.0;
    std::sort(s.order.begin(), s.order.end());
    for (const int32_t id : s.order) {
      total += s.weights[static_cast<size_t>(id)];
    }
    // A heap with the most probable on top: only as many are ordered as are
    // kept. The kept ones collect at the end of the array.
    const auto after = [&before](int32_t a, int32_t b) { return before(b, a); };
    std::make_heap(s.order.begin(), s.order.end(), after);
    auto end = s.order.end();
    double sum = 0.0;
    while (end != s.order.begin()) {
      std::pop_heap(s.order.begin(), end, after);
      --end;
      sum += s.weights[static_cast<size_t>(*end)];
      if (sum >= p.top_p * total) {
        break;
      }
    }
    s.order.erase(s.order.begin(), end);
  }
  // Keep exactly the ids in `order`: everything not after the last of them.
  const int32_t last =
      *std::max_element(s.order.begin(), s.order.end(), before);
  for (int32_t i = 0; i < p.vocab; ++i) {
    if (before(last, i)) {
      s.weights[static_cast<size_t>(i)] = 0.0;
    }
  }
}

int32_t Draw(const SamplingParams& p, const std::vector<double>& weights) {
  // The largest weight is 1, so step 6 compares with min_p itself.
  const auto kept = [&](double weight) {
    return weight > 0.0 && weight >= p.min_p;
  };
  double total = 0.0;
  for (const double weight : weights) {
    total += kept(weight) ? weight : 0.0;
  }
  const double target = PhiloxUniform(p.key) * total;
  double sum = 0.0;
  int32_t id = -1;
  for (int32_t i = 0; i < p.vocab; ++i) {
    const double weight = weights[static_cast<size_t>(i)];
    if (!kept(weight)) {
      continue;
    }
    sum += weight;
    id = i;  // rounding may leave target == sum at the end: the last one wins
    if (sum > target) {
      break;
    }
  }
  return id;
}

int32_t Choose(const SamplingParams& p) {
  SamplingScratch& s = *p.scratch;
  Penalize(p, s.logits);
  // max_element returns the first of equals: ties go to the lowest id.
  const auto best = std::max_element(s.logits.begin(), s.logits.end());
  if (*best == kMinusInfinity) {
    return -1;
  }
  if (p.temperature == 0.0) {
    return static_cast<int32_t>(best - s.logits.begin());
  }
  Weigh(s.logits, *best, p.temperature, s.weights);
  CutTopKTopP(p, s);
  return Draw(p, s.weights);
}

// log of the sum of exp over the raw logits; NaN counts as -infinity.
double LogSum(const float* logits, int32_t vocab) {
  float top = kMinusInfinity;
  for (int32_t i = 0; i < vocab; ++i) {
    top = logits[i] > top ? logits[i] : top;
  }
  if (std::isinf(top)) {
    return top;
  }
  double sum = 0.0;
  for (int32_t i = 0; i < vocab; ++i) {
    if (!std::isnan(logits[i])) {
      sum += std::exp(double{logits[i]} - double{top});
    }
  }
  return double{top} + std::log(sum);
}

void TopLogprobs(const SamplingParams& p, double log_sum) {
  SamplingScratch& s = *p.scratch;
  s.logits.assign(p.logits, p.logits + p.vocab);
  for (float& value : s.logits) {
    value = std::isnan(value) ? kMinusInfinity : value;
  }
  s.order.resize(static_cast<size_t>(p.vocab));
  std::iota(s.order.begin(), s.order.end(), 0);
  std::partial_sort(s.order.begin(), s.order.begin() + p.num_top_logprobs,
                    s.order.end(), Before{s.logits.data()});
  for (int32_t i = 0; i < p.num_top_logprobs; ++i) {
    const int32_t id = s.order[static_cast<size_t>(i)];
    p.top_logprobs[i] = {
        id, static_cast<float>(double{s.logits[static_cast<size_t>(id)]} -
                               log_sum)};
  }
}

}  // namespace

SamplingResult Sample(const SamplingParams& params) {
  CheckSampling(params);
  SamplingResult result;
  result.id = Choose(params);
  if (!params.want_logprob && params.num_top_logprobs == 0) {
    return result;
  }
  const double log_sum = LogSum(params.logits, params.vocab);
  if (result.id >= 0) {
    result.logprob =
        static_cast<float>(double{params.logits[result.id]} - log_sum);
  }
  if (params.num_top_logprobs > 0) {
    TopLogprobs(params, log_sum);
  }
  return result;
}

}  // namespace baton::kernels
