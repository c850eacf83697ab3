// A named thread that is always joined.
#pragma once

#include <pthread.h>

#include <functional>
#include <string>
#include <thread>
#include <utility>

namespace baton {

// Joins in Join or in the destructor; the owner makes the body return first.
class Thread final {
 public:
  Thread() = default;
  // `name` is cut to the 15 characters that Linux shows.
  Thread(std::string name, std::function<void()> body)
      : thread_([name = name.substr(0, 15), body = std::move(body)] {
          pthread_setname_np(pthread_self(), name.c_str());
          body();
        }) {}
  Thread(Thread&&) = default;
  Thread& operator=(Thread&&) = default;
  ~Thread() { Join(); }
  void Join() {
    if (thread_.joinable()) thread_.join();
  }
  bool joinable() const { return thread_.joinable(); }

 private:
  std::thread thread_;
};

}  // namespace baton
