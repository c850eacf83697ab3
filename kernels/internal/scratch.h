// Scratch memory of one thread, for operations whose working set depends on
// run-time sizes. It grows to the largest request and is reused, so a warm step
// allocates nothing. One user at a time per thread: an operation takes it
// inside a chunk and does not call another operation that takes it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace baton::kernels {

// `floats` values, 64-byte aligned, content unspecified.
inline float* ThreadScratch(int64_t floats) {
  constexpr size_t kAlignFloats = 16;
  thread_local std::vector<float> scratch;
  const size_t wanted = static_cast<size_t>(floats) + kAlignFloats;
  if (scratch.size() < wanted) {
    scratch.resize(wanted);
  }
  const auto address = reinterpret_cast<uintptr_t>(scratch.data());
  const uintptr_t aligned = (address + 63u) & ~uintptr_t{63u};
  return reinterpret_cast<float*>(aligned);
}

}  // namespace baton::kernels
