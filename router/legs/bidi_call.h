// One bidirectional call to a worker, callback API.
#pragma once

#include <grpcpp/grpcpp.h>

#include <deque>
#include <functional>
#include <memory>
#include <set>
#include <utility>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "common/base/mutex.h"
#include "common/rpc/server.h"
#include "common/rpc/status.h"

namespace baton::router::legs {

class CancellableCall {
 public:
  virtual ~CancellableCall() = default;
  virtual void Cancel() = 0;
};

// Thread-safe. Lock order: a call's lock is never held while this one is taken.
class CallCensus final {
 public:
  void Add(std::shared_ptr<CancellableCall> call) {
    MutexLock lock(&mu_);
    calls_.insert(std::move(call));
  }
  void Remove(const std::shared_ptr<CancellableCall>& call) {
    MutexLock lock(&mu_);
    calls_.erase(call);
    if (calls_.empty()) empty_.SignalAll();
  }
  int64_t size() const {
    MutexLock lock(&mu_);
    return static_cast<int64_t>(calls_.size());
  }
  void CancelAll() {
    std::set<std::shared_ptr<CancellableCall>> calls;
    {
      MutexLock lock(&mu_);
      calls = calls_;
    }
    for (const auto& call : calls) call->Cancel();
  }
  void WaitEmpty(absl::Duration limit) {
    MutexLock lock(&mu_);
    // Bounded by pieces: a wake-up may be spurious.
    for (int i = 0; i < 100 && !calls_.empty(); ++i) {
      empty_.WaitFor(&mu_, limit / 100);
    }
  }

 private:
  mutable Mutex mu_;
  CondVar empty_;
  // Holds each call until its end.
  std::set<std::shared_ptr<CancellableCall>> calls_ BATON_GUARDED_BY(mu_);
};

// Life: created by Start; the census holds it until gRPC's OnDone, the leg's
// handle as long as it wants to act. gRPC's hold (AddHold) keeps the stream
// usable from our side until `closed_`, after which nothing is started on it.
// One write and one read are outstanding at most.
template <typename Request, typename Response>
class BidiCall final
    : public grpc::ClientBidiReactor<Request, Response>,
      public CancellableCall,
      public std::enable_shared_from_this<BidiCall<Request, Response>> {
 public:
  struct Callbacks {
    // One per read. An error ends the call with it. Not called once the call
    // was let go.
    std::function<absl::Status(Response*)> on_message;
    // Last.
    std::function<void(const absl::Status&)> on_end;
  };

  BidiCall(std::shared_ptr<CallCensus> census, Callbacks callbacks)
      : census_(std::move(census)), callbacks_(std::move(callbacks)) {}

  // `start` binds this reactor to a stub's method.
  template <typename Bind>
  void Start(absl::Duration time_left, const Bind& bind) {
    context_.set_deadline(rpc::DeadlineIn(time_left));
    census_->Add(this->shared_from_this());
    bind(&context_, this);
    this->AddHold();
    this->StartCall();
  }

  void Write(Request message) BATON_EXCLUDES(mu_) {
    MutexLock lock(&mu_);
    if (closed_) return;
    writes_.push_back(std::move(message));
    if (writes_.size() == 1) this->StartWrite(&writes_.front());
  }

  void Read() BATON_EXCLUDES(mu_) {
    MutexLock lock(&mu_);
    if (closed_ || reading_) return;
    reading_ = true;
    this->StartRead(&response_);
  }

  void Cancel() override {
    context_.TryCancel();
    Close();
  }

  // Reads on to the end and tells nobody.
  void LetGo() {
    {
      MutexLock lock(&mu_);
      let_go_ = true;
    }
    Read();
  }

 private:
  void OnReadDone(bool ok) override {
    bool let_go = false;
    {
      MutexLock lock(&mu_);
      reading_ = false;
      let_go = let_go_;
    }
    if (!ok) {
      Close();
      return;
    }
    if (let_go) {
      Read();
      return;
    }
    const absl::Status status = callbacks_.on_message(&response_);
    if (!status.ok()) {
      {
        MutexLock lock(&mu_);
        local_error_ = status;
      }
      Cancel();
      return;
    }
    bool let_go_meanwhile = false;
    {
      MutexLock lock(&mu_);
      let_go_meanwhile = let_go_;
    }
    if (let_go_meanwhile) Read();
  }

  void OnWriteDone(bool ok) override {
    if (!ok) {
      Close();
      return;
    }
    MutexLock lock(&mu_);
    writes_.pop_front();
    if (!closed_ && !writes_.empty()) this->StartWrite(&writes_.front());
  }

  void OnDone(const grpc::Status& status) override {
    absl::Status end = rpc::FromGrpc(status);
    {
      MutexLock lock(&mu_);
      if (!local_error_.ok()) end = local_error_;
    }
    callbacks_.on_end(end);
    // What the callbacks hold is released here, not with the handle.
    callbacks_ = {};
    census_->Remove(this->shared_from_this());
  }

  void Close() BATON_EXCLUDES(mu_) {
    {
      MutexLock lock(&mu_);
      if (closed_) return;
      closed_ = true;
    }
    this->RemoveHold();
  }

  const std::shared_ptr<CallCensus> census_;
  Callbacks callbacks_;
  grpc::ClientContext context_;
  Response response_;

  Mutex mu_;
  std::deque<Request> writes_ BATON_GUARDED_BY(mu_);
  bool reading_ BATON_GUARDED_BY(mu_) = false;
  bool closed_ BATON_GUARDED_BY(mu_) = false;
  bool let_go_ BATON_GUARDED_BY(mu_) = false;
  absl::Status local_error_ BATON_GUARDED_BY(mu_);
};

}  // namespace baton::router::legs
