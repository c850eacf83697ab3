#include <gmock/gmock.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include "baton/v1/types.pb.h"
#include "common/request/request.h"
#include "common/rpc/convert.h"
#include "common/rpc/server.h"
#include "common/rpc/status.h"
#include "common/testing/status_matchers.h"
#include "google/protobuf/util/message_differencer.h"

namespace baton::rpc {
namespace {

using ::baton::testing::StatusIs;
using ::testing::HasSubstr;
using ::testing::StartsWith;

TEST(Status, RoundTripsWithItsReason) {
  const absl::Status status = request::MakeError(
      absl::StatusCode::kResourceExhausted, "no blocks",
      {.reason = request::ErrorReason::kOverloaded, .retry_delay_ms = 40});
  const grpc::Status wire = ToGrpc(status);
  EXPECT_EQ(wire.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  const absl::Status back = FromGrpc(wire);
  EXPECT_THAT(back,
              StatusIs(absl::StatusCode::kResourceExhausted, "no blocks"));
  EXPECT_EQ(request::InfoOf(back).reason, request::ErrorReason::kOverloaded);
  EXPECT_EQ(request::InfoOf(back).retry_delay_ms, 40);
  EXPECT_TRUE(ToGrpc(absl::OkStatus()).ok());
}

TEST(Status, UnknownFromATransportIsUnavailable) {
  EXPECT_THAT(FromGrpc(grpc::Status(grpc::StatusCode::UNKNOWN, "?")),
              StatusIs(absl::StatusCode::kUnavailable));
  EXPECT_THAT(
      FromGrpc(grpc::Status(grpc::StatusCode::ABORTED, "x", "not a proto")),
      StatusIs(absl::StatusCode::kAborted));
}

TEST(Sampling, EveryFieldArrives) {
  v1::SamplingParams proto;
  proto.set_temperature(0.5F);
  proto.set_top_p(0.25F);
  proto.set_top_k(7);
  proto.set_min_p(0.125F);
  proto.set_repetition_penalty(1.5F);
  proto.set_presence_penalty(0.5F);
  proto.set_frequency_penalty(-0.5F);
  proto.set_seed(99);
  proto.set_max_tokens(12);
  proto.set_min_tokens(3);
  proto.set_ignore_eos(true);
  proto.set_n(4);
  proto.add_stop("x");
  proto.add_stop_token_ids(5);
  // A field added to the message but not here would stay unset.
  const auto* descriptor = v1::SamplingParams::descriptor();
  for (int i = 0; i < descriptor->field_count(); ++i) {
    const auto* field = descriptor->field(i);
    const auto* reflection = v1::SamplingParams::GetReflection();
    ASSERT_TRUE(field->is_repeated() ? reflection->FieldSize(proto, field) > 0
                                     : reflection->HasField(proto, field))
        << field->name() << " is not covered by this test";
  }
  const v1::SamplingParams back =
      SamplingToProto(SamplingFromProto(proto, request::SamplingParams()));
  EXPECT_TRUE(google::protobuf::util::MessageDifferencer::Equals(proto, back))
      << back.DebugString();
}

TEST(Sampling, UnsetZeroAndOneAreThreeThings) {
  request::SamplingParams defaults;
  defaults.temperature = 0.7F;
  v1::SamplingParams proto;
  EXPECT_EQ(SamplingFromProto(proto, defaults).temperature, 0.7F);
  proto.set_temperature(0);
  EXPECT_EQ(SamplingFromProto(proto, defaults).temperature, 0.0F);
  proto.set_temperature(1);
  EXPECT_EQ(SamplingFromProto(proto, defaults).temperature, 1.0F);
}

TEST(Handoff, RefusesWhatIsNotAnId) {
  v1::HandoffRef ref = HandoffToProto(HandoffId{1, 2}, 3);
  ASSERT_OK_AND_ASSIGN(const HandoffKey key, HandoffFromProto(ref));
  EXPECT_EQ(key.handoff, (HandoffId{1, 2}));
  EXPECT_EQ(key.attempt, 3);
  ref.set_attempt(0);
  EXPECT_THAT(HandoffFromProto(ref),
              StatusIs(absl::StatusCode::kInvalidArgument));
  ref = HandoffToProto(HandoffId{}, 1);
  EXPECT_THAT(HandoffFromProto(ref),
              StatusIs(absl::StatusCode::kInvalidArgument));
  ref.set_handoff_id("abc");
  EXPECT_THAT(HandoffFromProto(ref),
              StatusIs(absl::StatusCode::kInvalidArgument));
}

TEST(Server, BindsPortZeroAndRefusesATakenPort) {
  ASSERT_OK_AND_ASSIGN(const auto first,
                       Server::Start({.address = "127.0.0.1:0"}));
  EXPECT_GT(first->port(), 0);
  EXPECT_THAT(
      Server::Start({.address = first->address()}),
      StatusIs(absl::StatusCode::kUnavailable, HasSubstr(first->address())));
  EXPECT_THAT(first->address(), StartsWith("127.0.0.1:"));
}

}  // namespace
}  // namespace baton::rpc
