// One DecodeService.Decode call: a callback reactor that translates, posts to
// the step loop, and writes what the request's output gives it.
#pragma once

#include <grpcpp/grpcpp.h>

#include <functional>
#include <memory>
#include <optional>

#include "absl/status/status.h"
#include "baton/v1/decode.grpc.pb.h"
#include "common/base/clock.h"
#include "common/base/mutex.h"
#include "decode_worker/output/request_output.h"
#include "decode_worker/scheduler/start_request.h"

namespace baton::decode_worker {

// What calls need from the worker. Thread-safe.
class DecodeBackend {
 public:
  virtual ~DecodeBackend() = default;
  // Validates and hands over; a refusal is an End of `output`. After an error
  // returned here nothing was handed over and the caller ends the call.
  virtual absl::Status Start(StartRequest start,
                             const std::shared_ptr<RequestOutput>& output) = 0;
  virtual void Reticket(const std::shared_ptr<RequestOutput>& output,
                        Attempt attempt) = 0;
  virtual void Cancel(const std::shared_ptr<RequestOutput>& output,
                      const absl::Status& status) = 0;
  virtual const OutputVocabulary* vocabulary() const = 0;
  virtual Clock* clock() const = 0;
};

// Never blocks; one read and one write outstanding. Owns itself until OnDone;
// callbacks of the output may come later and then do nothing.
class DecodeCall final
    : public grpc::ServerBidiReactor<v1::DecodeRequest, v1::DecodeResponse>,
      public std::enable_shared_from_this<DecodeCall> {
 public:
  // `backend` may be null while the worker is loading: the call is refused.
  static DecodeCall* Begin(DecodeBackend* backend,
                           grpc::CallbackServerContext* context);

  void OnReadDone(bool ok) override;
  void OnWriteDone(bool ok) override;
  void OnCancel() override;
  void OnDone() override;

 private:
  explicit DecodeCall(DecodeBackend* backend,
                      grpc::CallbackServerContext* context)
      : backend_(backend), context_(context) {}

  // Handle the message that was read; an error ends the call.
  absl::Status HandleMessage();
  absl::Status HandleStart();
  // Writes the next event unless a write is outstanding.
  void WriteNext();
  void Cut();
  void EndWith(const absl::Status& status) BATON_REQUIRES(mu_);
  std::shared_ptr<RequestOutput> output() const;

  DecodeBackend* const backend_;
  std::shared_ptr<DecodeCall> self_;  // until OnDone

  // Order: mu_ before the output's own lock.
  mutable Mutex mu_;
  grpc::CallbackServerContext* context_ BATON_GUARDED_BY(mu_);  // null: done
  std::shared_ptr<RequestOutput> output_ BATON_GUARDED_BY(mu_);
  bool writing_ BATON_GUARDED_BY(mu_) = false;
  bool finished_ BATON_GUARDED_BY(mu_) = false;

  v1::DecodeRequest message_;    // of the outstanding read
  v1::DecodeResponse response_;  // of the outstanding write
};

}  // namespace baton::decode_worker
