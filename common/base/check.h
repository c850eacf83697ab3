// CHECK macros: a broken invariant ends the process with a message. They are
// for states that a correct program cannot reach, never for bad input (style.md
// B5).
//
//   CHECK(blocks > 0) << "pool of worker " << id;
//   CHECK_EQ(rows, expected);
//   DCHECK(...)   only in builds without NDEBUG or with fault points
#pragma once

#include <sstream>

namespace baton::base_internal {

// Collects the streamed message; its destructor prints and aborts.
class CheckFailure final {
 public:
  CheckFailure(const char* file, int line, const char* condition);
  [[noreturn]] ~CheckFailure();
  std::ostream& stream() { return stream_; }

 private:
  std::ostringstream stream_;
};

// Lets the macro be an expression of type void whatever was streamed.
struct Voidify {
  void operator&(std::ostream&) const {}
};

}  // namespace baton::base_internal

#define CHECK(condition)                                                     \
  (condition) ? (void)0                                                      \
              : ::baton::base_internal::Voidify() &                          \
                    ::baton::base_internal::CheckFailure(__FILE__, __LINE__, \
                                                         #condition)         \
                        .stream()

#define BATON_CHECK_OP(op, a, b) \
  CHECK((a)op(b)) << " (" << (a) << " vs " << (b) << ") "
#define CHECK_EQ(a, b) BATON_CHECK_OP(==, a, b)
#define CHECK_NE(a, b) BATON_CHECK_OP(!=, a, b)
#define CHECK_LT(a, b) BATON_CHECK_OP(<, a, b)
#define CHECK_LE(a, b) BATON_CHECK_OP(<=, a, b)
#define CHECK_GT(a, b) BATON_CHECK_OP(>, a, b)
#define CHECK_GE(a, b) BATON_CHECK_OP(>=, a, b)
#define CHECK_OK(expr)                                             \
  do {                                                             \
    const auto& baton_check_status = (expr);                       \
    CHECK(baton_check_status.ok())                                 \
        << ::baton::base_internal::StatusText(baton_check_status); \
  } while (false)

#if !defined(NDEBUG) || defined(BATON_FAULT_POINTS)
#define DCHECK(condition) CHECK(condition)
#else
#define DCHECK(condition) CHECK(true || (condition))
#endif

namespace baton::base_internal {
// Text of an absl::Status or the status of an absl::StatusOr, without making
// this header depend on Abseil.
template <typename T>
auto StatusText(const T& s) -> decltype(s.status().ToString()) {
  return s.status().ToString();
}
template <typename T>
auto StatusText(const T& s) -> decltype(s.ToString()) {
  return s.ToString();
}
}  // namespace baton::base_internal
