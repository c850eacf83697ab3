// Experts by groups: slots (token, choice) are sorted by expert, each group
// runs as one linear product over its tokens, and the results are added back in
// ascending expert order.
#include "kernels/internal/targets.h"
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/experts/experts_cpu.cc"
#include <algorithm>
#include <cstring>

#include "hwy/foreach_target.h"
// foreach_target.h comes first.
#include "hwy/highway.h"
#include "kernels/experts/experts_check.h"
#include "kernels/include/experts.h"
#include "kernels/internal/check.h"
#include "kernels/internal/exp-inl.h"

HWY_BEFORE_NAMESPACE();
namespace baton::kernels {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

HWY_INLINE VF ActivatePart(VF a, VF b, float weight, float limit) {
  const DF d;
  if (limit > 0.0f) {
    const VF top = hn::Set(d, limit);
    a = hn::Min(a, top);
    b = hn::Min(hn::Max(b, hn::Neg(top)), top);
  }
  const VF one = hn::Set(d, 1.0f);
  const VF gate = hn::Div(a, hn::Add(one, ExpPart(hn::Neg(a))));
  return hn::Mul(hn::Mul(gate, b), hn::Set(d, weight));
}

// a <- clamp(a) * sigmoid(a) * clamp(b) * weight, n values.
void Activate(float* a, const float* b, int64_t n, float weight, float limit) {
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    hn::StoreU(ActivatePart(hn::LoadU(DF(), a + i), hn::LoadU(DF(), b + i),
                            weight, limit),
               DF(), a + i);
  }
  if (i < n) {
    HWY_ALIGN float av[16] = {};
    HWY_ALIGN float bv[16] = {};
    const auto bytes = static_cast<size_t>(n - i) * sizeof(float);
    std::memcpy(av, a + i, bytes);
    std::memcpy(bv, b + i, bytes);
    hn::StoreU(
        ActivatePart(hn::LoadU(DF(), av), hn::LoadU(DF(), bv), weight, limit),
        DF(), av);
    std::memcpy(a + i, av, bytes);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace baton::kernels
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace baton::kernels {

HWY_EXPORT(Activate);

namespace {

constexpr int64_t kAlign = 64;
constexpr int64_t kMinParallelValues = 1 << 15;

// The workspace cut into arrays. Rows 0 .. slots - 1 are the sorted routed
// slots, rows slots .. slots + tokens - 1 the shared expert's.
struct Workspace {
  LinearParams* products;  // [2 * (num_experts + 1)]
  int32_t* order;          // [slots] sorted slot -> token * top_k + choice
  int32_t* begin;          // [num_experts + 1] first sorted slot of an expert
  float* x;                // [slots, dim] gathered inputs
  float* a;                // [rows, hidden]
  float* b;                // [rows, hidden]
  float* out;              // [rows, dim]
};

// Places the arrays; with base == null only measures. Returns the bytes.
int64_t Place(const ExpertsSizes& s, unsigned char* base, Workspace* w) {
  int64_t offset = 0;
  const auto take = [&](int64_t bytes) {
    unsigned char* at = base == nullptr ? nullptr : base + offset;
    offset += (bytes + kAlign - 1) / kAlign * kAlign;
    return static_cast<void*>(at);
  };
  const int64_t slots = int64_t{s.tokens} * s.top_k;
  const int64_t rows = slots + s.tokens;
  const int64_t products = 2 * (int64_t{s.num_experts} + 1);
  w->products = static_cast<LinearParams*>(
      take(products * static_cast<int64_t>(sizeof(LinearParams))));
  w->order = static_cast<int32_t*>(take(slots * 4));
  w->begin = static_cast<int32_t*>(take((int64_t{s.num_experts} + 1) * 4));
  w->x = static_cast<float*>(take(slots * s.dim * 4));
  w->a = static_cast<float*>(take(rows * s.hidden * 4));
  w->b = static_cast<float*>(take(rows * s.hidden * 4));
  w->out = static_cast<float*>(take(rows * s.dim * 4));
  return offset;
}

ExpertsSizes SizesOf(const ExpertsParams& p) {
  return {p.tokens, p.top_k, p.num_experts, p.dim, p.hidden};
}

// Counting sort of the slots by expert; stable, so slot order within a token.
void SortSlots(const ExpertsParams& p, Workspace& w) {
  const int64_t slots = int64_t{p.tokens} * p.top_k;
  std::fill(w.begin, w.begin + p.num_experts + 1, 0);
  for (int64_t i = 0; i < slots; ++i) {
    ++w.begin[p.expert_ids[i] + 1];
  }
  for (int32_t e = 0; e < p.num_experts; ++e) {
    w.begin[e + 1] += w.begin[e];
  }
  // begin[e] walks to the end of group e and is shifted back afterwards.
  for (int64_t i = 0; i < slots; ++i) {
    w.order[w.begin[p.expert_ids[i]]++] = static_cast<int32_t>(i);
  }
  for (int32_t e = p.num_experts; e > 0; --e) {
    w.begin[e] = w.begin[e - 1];
  }
  w.begin[0] = 0;
}

LinearParams Product(const LinearWeight& weight, const float* x,
                     int64_t x_stride, float* y, int32_t tokens) {
  LinearParams product;
  product.x = x;
  product.x_row_stride = x_stride;
  product.y = y;
  product.y_row_stride = weight.rows;
  product.tokens = tokens;
  product.weight = weight;
  return product;
}

template <typename F>
void ForEachGroup(const ExpertsParams& p, const Workspace& w, F&& f) {
  for (int32_t e = 0; e < p.num_experts; ++e) {
    const int32_t count = w.begin[e + 1] - w.begin[e];
    if (count > 0) {
      f(p.experts[e], int64_t{w.begin[e]}, count);
    }
  }
}

void ForRange(int64_t n, int64_t values_per_item, Parallel& parallel,
              RangeFunction f) {
  if (n * values_per_item < kMinParallelValues) {
    f(0, n);
  } else {
    parallel.For(n, f);
  }
}

// w1 x and w3 x of all groups.
void RunUp(const ExpertsParams& p, const Workspace& w, int64_t slots,
           Parallel& parallel) {
  int32_t products = 0;
  const auto add = [&](const ExpertWeights& expert, const float* x,
                       int64_t stride, int64_t row, int32_t count) {
    w.products[products++] =
        Product(expert.w1, x, stride, w.a + row * p.hidden, count);
    w.products[products++] =
        Product(expert.w3, x, stride, w.b + row * p.hidden, count);
  };
  ForEachGroup(p, w,
               [&](const ExpertWeights& expert, int64_t row, int32_t count) {
                 add(expert, w.x + row * p.dim, p.dim, row, count);
               });
  if (p.shared != nullptr) {
    add(*p.shared, p.x, p.x_row_stride, slots, p.tokens);
  }
  LinearBatchCpu(w.products, products, parallel);
}

void RunDown(const ExpertsParams& p, const Workspace& w, int64_t slots,
             Parallel& parallel) {
  int32_t products = 0;
  const auto add = [&](const ExpertWeights& expert, int64_t row,
                       int32_t count) {
    w.products[products++] = Product(expert.w2, w.a + row * p.hidden, p.hidden,
                                     w.out + row * p.dim, count);
  };
  ForEachGroup(p, w, add);
  if (p.shared != nullptr) {
    add(*p.shared, slots, p.tokens);
  }
  LinearBatchCpu(w.products, products, parallel);
}

// y of tokens [begin, end): sorted slots come in ascending expert order.
void SumTokens(const ExpertsParams& p, const Workspace& w, int64_t slots,
               int64_t begin, int64_t end) {
  const auto add = [&](int64_t token, int64_t row) {
    float* y = p.y + token * p.y_row_stride;
    const float* from = w.out + row * p.dim;
    for (int32_t c = 0; c < p.dim; ++c) {
      y[c] += from[c];
    }
  };
  for (int64_t t = begin; t < end; ++t) {
    float* y = p.y + t * p.y_row_stride;
    std::fill(y, y + p.dim, 0.0f);
  }
  for (int64_t i = 0; i < slots; ++i) {
    const int64_t token = w.order[i] / p.top_k;
    if (token >= begin && token < end) {
      add(token, i);
    }
  }
  for (int64_t t = begin; t < end && p.shared != nullptr; ++t) {
    add(t, slots + t);
  }
}

}  // namespace

int64_t ExpertsWorkspaceBytes(const ExpertsSizes& sizes) {
  Workspace unused;
  return Place(sizes, nullptr, &unused) + kAlign;
}

void ExpertsCpu(const ExpertsParams& p, Parallel& parallel) {
  CheckExperts(p);
  if (p.tokens == 0) {
    return;
  }
  BATON_KERNEL_CHECK(p.workspace != nullptr, "experts: no workspace");
  const auto address = reinterpret_cast<uintptr_t>(p.workspace);
  const auto aligned = (address + kAlign - 1) / kAlign * kAlign;
  Workspace w;
  Place(SizesOf(p), reinterpret_cast<unsigned char*>(aligned), &w);
  const int64_t slots = int64_t{p.tokens} * p.top_k;
  SortSlots(p, w);
  ForRange(slots, p.dim, parallel, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const int64_t token = w.order[i] / p.top_k;
      std::memcpy(w.x + i * p.dim, p.x + token * p.x_row_stride,
                  static_cast<size_t>(p.dim) * sizeof(float));
    }
  });
  RunUp(p, w, slots, parallel);
  const int64_t rows = slots + (p.shared != nullptr ? p.tokens : 0);
  ForRange(rows, p.hidden, parallel, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const float weight = i < slots ? p.expert_weights[w.order[i]] : 1.0f;
      HWY_DYNAMIC_DISPATCH(Activate)
      (w.a + i * p.hidden, w.b + i * p.hidden, p.hidden, weight, p.limit);
    }
  });
  RunDown(p, w, slots, parallel);
  ForRange(
      p.tokens, int64_t{p.dim} * (p.top_k + 1), parallel,
      [&](int64_t begin, int64_t end) { SumTokens(p, w, slots, begin, end); });
}

}  // namespace baton::kernels
#endif  // HWY_ONCE
