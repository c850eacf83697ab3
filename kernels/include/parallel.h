// How an operation spreads work over threads, without knowing who owns them.
//
// Operations call For() with a range; the implementation splits [0, n) into
// contiguous chunks and runs each exactly once, on any thread, in any order.
// Results never depend on the split (see README.md, "Bit contract"), so any
// implementation is right. Nothing is allocated per call.
#pragma once

#include <cstdint>
#include <memory>
#include <type_traits>
#include <utility>

namespace baton::kernels {

// Non-owning reference to a callable void(int64_t begin, int64_t end). Valid
// only while the callable lives, i.e. for the duration of the For() call.
class RangeFunction final {
 public:
  template <typename F, typename = std::enable_if_t<!std::is_same_v<
                            std::remove_cvref_t<F>, RangeFunction>>>
  RangeFunction(F&& f)  // NOLINT: implicit by design, like function_ref
      : context_(
            const_cast<void*>(static_cast<const void*>(std::addressof(f)))),
        call_([](void* context, int64_t begin, int64_t end) {
          (*static_cast<std::remove_reference_t<F>*>(context))(begin, end);
        }) {}

  void operator()(int64_t begin, int64_t end) const {
    call_(context_, begin, end);
  }

 private:
  void* context_;
  void (*call_)(void*, int64_t, int64_t);
};

// Interface; the thread pool of common/device implements it. For() blocks until
// every chunk has run. It is not re-entrant: a chunk never calls For().
class Parallel {
 public:
  virtual ~Parallel() = default;
  virtual int32_t num_threads() const = 0;
  // Runs f over [0, n) in contiguous chunks; n == 0 runs nothing.
  virtual void For(int64_t n, RangeFunction f) = 0;
};

// Runs everything on the calling thread.
class SerialParallel final : public Parallel {
 public:
  int32_t num_threads() const override { return 1; }
  void For(int64_t n, RangeFunction f) override {
    if (n > 0) {
      f(0, n);
    }
  }
};

}  // namespace baton::kernels
