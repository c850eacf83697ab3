// Preconditions of operations. A violation is a bug of the caller, so the
// process ends with a message (kernels/ may not use common/base/check.h).
#pragma once

#include <cstdio>
#include <cstdlib>

namespace baton::kernels {

[[noreturn]] inline void KernelCheckFailed(const char* file, int line,
                                           const char* condition,
                                           const char* message) {
  std::fprintf(stderr, "%s:%d: kernel precondition violated: %s (%s)\n", file,
               line, message, condition);
  std::abort();
}

}  // namespace baton::kernels

#define BATON_KERNEL_CHECK(condition, message)                            \
  do {                                                                    \
    if (!(condition)) {                                                   \
      ::baton::kernels::KernelCheckFailed(__FILE__, __LINE__, #condition, \
                                          message);                       \
    }                                                                     \
  } while (false)
