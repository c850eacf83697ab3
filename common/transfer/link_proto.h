// Messages of a link on the wire and back. What the wire says is checked for
// shape here (ids, digests, known components, bounded lists); whether it makes
// sense is the hand-off's to judge.
#pragma once

#include "absl/status/statusor.h"
#include "baton/v1/transfer.pb.h"
#include "common/transfer/link.h"

namespace baton::transfer {

v1::Hello ToProto(const LinkHello& hello);
v1::Offer ToProto(const Offer& offer);
v1::Seal ToProto(const Seal& seal);
v1::LinkAbort ToProto(const LinkAbort& abort);
v1::Query ToProto(const Query& query);
v1::LinkProgress ToProto(const LinkProgress& progress);
v1::Posted ToProto(const Posted& posted);
v1::Done ToProto(const Done& done);
v1::Verdict ToProto(const Verdict& verdict);

// InvalidArgument, naming the field. FailedPrecondition: a direction other than
// push.
absl::StatusOr<LinkHello> FromProto(const v1::Hello& proto);
absl::StatusOr<Offer> FromProto(const v1::Offer& proto);
absl::StatusOr<Seal> FromProto(const v1::Seal& proto);
absl::StatusOr<LinkAbort> FromProto(const v1::LinkAbort& proto);
absl::StatusOr<Query> FromProto(const v1::Query& proto);
absl::StatusOr<LinkProgress> FromProto(const v1::LinkProgress& proto);
Posted FromProto(const v1::Posted& proto);
Done FromProto(const v1::Done& proto);
absl::StatusOr<Verdict> FromProto(const v1::Verdict& proto);

}  // namespace baton::transfer
