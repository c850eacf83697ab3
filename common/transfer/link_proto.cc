#include "common/transfer/link_proto.h"

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/rpc/convert.h"

namespace baton::transfer {

namespace {

// Far more than any model has; bounds what one message can make us hold.
constexpr int kMaxPieces = 4096;
constexpr int kMaxRegions = 16384;

v1::HandoffRef Ref(HandoffId handoff, Attempt attempt) {
  return rpc::HandoffToProto(handoff, attempt);
}

// Attempt 0 is let through: it is stale, not malformed.
template <typename Message>
absl::Status ReadRef(const v1::HandoffRef& proto, Message* out) {
  ASSIGN_OR_RETURN(out->handoff, FromBytes<HandoffId>(proto.handoff_id()));
  if (proto.attempt() < 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("attempt ", proto.attempt(), ", expected >= 0"));
  }
  out->attempt = proto.attempt();
  return absl::OkStatus();
}

absl::StatusOr<kv::Region> ReadRegion(int32_t layer, int32_t component) {
  const auto last = static_cast<int32_t>(kv::Component::kC128Tail);
  if (layer < 0 || component < 1 || component > last) {
    return absl::InvalidArgumentError(
        absl::StrCat("region of layer ", layer, ", component ", component,
                     ", expected component 1 to ", last));
  }
  return kv::Region{layer, static_cast<kv::Component>(component)};
}

}  // namespace

v1::Hello ToProto(const LinkHello& hello) {
  v1::Hello proto;
  proto.set_sender(hello.sender.worker);
  proto.set_sender_incarnation(hello.sender.incarnation);
  proto.set_receiver_incarnation(hello.receiver_incarnation);
  proto.set_model_digest(BytesOf(hello.sender.model_digest));
  proto.set_state_format_hash(BytesOf(hello.sender.state_format_hash));
  proto.set_direction(v1::DIRECTION_PUSH);
  proto.set_node(hello.sender.node);
  return proto;
}

v1::Offer ToProto(const Offer& offer) {
  v1::Offer proto;
  proto.set_segment_seq(offer.segment_seq);
  *proto.mutable_handoff() = Ref(offer.handoff, offer.attempt);
  proto.set_payload_bytes(offer.payload_bytes);
  for (const Piece& piece : offer.pieces) {
    v1::Piece* const p = proto.add_pieces();
    p->set_layer(piece.region.layer);
    p->set_component(static_cast<int32_t>(piece.region.component));
    p->set_first_row(piece.rows.first);
    p->set_rows(piece.rows.count);
    p->set_stride(piece.rows.stride);
  }
  return proto;
}

v1::Seal ToProto(const Seal& seal) {
  v1::Seal proto;
  *proto.mutable_handoff() = Ref(seal.handoff, seal.attempt);
  v1::Manifest* const manifest = proto.mutable_manifest();
  manifest->set_processed_tokens(seal.manifest.processed_tokens);
  manifest->set_prompt_hash(BytesOf(seal.manifest.prompt_hash));
  manifest->set_state_format_hash(BytesOf(seal.manifest.state_format_hash));
  manifest->set_checksum_algorithm(seal.manifest.checksum_algorithm);
  for (const ManifestRegion& region : seal.manifest.regions) {
    v1::ManifestRegion* const r = manifest->add_regions();
    r->set_layer(region.region.layer);
    r->set_component(static_cast<int32_t>(region.region.component));
    r->set_rows(region.rows);
    r->set_checksum(region.checksum);
  }
  proto.mutable_last_logits()->Add(seal.last_logits.begin(),
                                   seal.last_logits.end());
  proto.set_logits_checksum(seal.logits_checksum);
  proto.set_prefill_us(seal.prefill_us);
  return proto;
}

v1::LinkAbort ToProto(const LinkAbort& abort) {
  v1::LinkAbort proto;
  *proto.mutable_handoff() = Ref(abort.handoff, abort.attempt);
  proto.set_reason(abort.reason);
  return proto;
}

v1::Query ToProto(const Query& query) {
  v1::Query proto;
  *proto.mutable_handoff() = Ref(query.handoff, query.attempt);
  return proto;
}

v1::LinkProgress ToProto(const LinkProgress& progress) {
  v1::LinkProgress proto;
  *proto.mutable_handoff() = Ref(progress.handoff, progress.attempt);
  proto.set_processed_tokens(progress.processed_tokens);
  return proto;
}

v1::Posted ToProto(const Posted& posted) {
  v1::Posted proto;
  proto.set_segment_seq(posted.segment_seq);
  return proto;
}

v1::Done ToProto(const Done& done) {
  v1::Done proto;
  proto.set_segment_seq(done.segment_seq);
  proto.set_kept(done.kept);
  return proto;
}

v1::Verdict ToProto(const Verdict& verdict) {
  v1::Verdict proto;
  *proto.mutable_handoff() = Ref(verdict.handoff, verdict.attempt);
  switch (verdict.kind) {
    case VerdictKind::kCommitted:
      proto.set_kind(v1::VERDICT_KIND_COMMITTED);
      break;
    case VerdictKind::kRejected:
      proto.set_kind(v1::VERDICT_KIND_REJECTED);
      break;
    case VerdictKind::kUnknown:
      proto.set_kind(v1::VERDICT_KIND_UNKNOWN);
      break;
  }
  proto.set_reason(
      static_cast<v1::ErrorReason>(static_cast<int>(verdict.reason)));
  proto.set_message(verdict.message);
  return proto;
}

absl::StatusOr<LinkHello> FromProto(const v1::Hello& proto) {
  if (proto.direction() != v1::DIRECTION_PUSH) {
    return absl::FailedPreconditionError(absl::StrCat(
        "direction ", static_cast<int>(proto.direction()), ", expected push"));
  }
  LinkHello hello;
  hello.sender.worker = proto.sender();
  hello.sender.incarnation = proto.sender_incarnation();
  hello.receiver_incarnation = proto.receiver_incarnation();
  hello.sender.node = proto.node();
  ASSIGN_OR_RETURN(hello.sender.model_digest,
                   rpc::DigestFromBytes(proto.model_digest(), "model_digest"));
  ASSIGN_OR_RETURN(
      hello.sender.state_format_hash,
      rpc::DigestFromBytes(proto.state_format_hash(), "state_format_hash"));
  return hello;
}

absl::StatusOr<Offer> FromProto(const v1::Offer& proto) {
  Offer offer;
  RETURN_IF_ERROR(ReadRef(proto.handoff(), &offer));
  if (proto.pieces_size() > kMaxPieces) {
    return absl::InvalidArgumentError(absl::StrCat(
        "offer of ", proto.pieces_size(), " pieces, at most ", kMaxPieces));
  }
  offer.segment_seq = proto.segment_seq();
  offer.payload_bytes = proto.payload_bytes();
  for (const v1::Piece& p : proto.pieces()) {
    Piece piece;
    ASSIGN_OR_RETURN(piece.region, ReadRegion(p.layer(), p.component()));
    piece.rows = {
        .first = p.first_row(), .count = p.rows(), .stride = p.stride()};
    offer.pieces.push_back(piece);
  }
  return offer;
}

absl::StatusOr<Seal> FromProto(const v1::Seal& proto) {
  Seal seal;
  RETURN_IF_ERROR(ReadRef(proto.handoff(), &seal));
  const v1::Manifest& manifest = proto.manifest();
  if (manifest.regions_size() > kMaxRegions) {
    return absl::InvalidArgumentError(
        absl::StrCat("manifest of ", manifest.regions_size(),
                     " regions, at most ", kMaxRegions));
  }
  seal.manifest.processed_tokens = manifest.processed_tokens();
  ASSIGN_OR_RETURN(seal.manifest.prompt_hash,
                   rpc::DigestFromBytes(manifest.prompt_hash(), "prompt_hash"));
  ASSIGN_OR_RETURN(
      seal.manifest.state_format_hash,
      rpc::DigestFromBytes(manifest.state_format_hash(), "state_format_hash"));
  seal.manifest.checksum_algorithm = manifest.checksum_algorithm();
  for (const v1::ManifestRegion& r : manifest.regions()) {
    ManifestRegion region;
    ASSIGN_OR_RETURN(region.region, ReadRegion(r.layer(), r.component()));
    region.rows = r.rows();
    region.checksum = r.checksum();
    seal.manifest.regions.push_back(region);
  }
  seal.last_logits.assign(proto.last_logits().begin(),
                          proto.last_logits().end());
  seal.logits_checksum = proto.logits_checksum();
  seal.prefill_us = proto.prefill_us();
  return seal;
}

absl::StatusOr<LinkAbort> FromProto(const v1::LinkAbort& proto) {
  LinkAbort abort;
  RETURN_IF_ERROR(ReadRef(proto.handoff(), &abort));
  abort.reason = proto.reason();
  return abort;
}

absl::StatusOr<Query> FromProto(const v1::Query& proto) {
  Query query;
  RETURN_IF_ERROR(ReadRef(proto.handoff(), &query));
  return query;
}

absl::StatusOr<LinkProgress> FromProto(const v1::LinkProgress& proto) {
  LinkProgress progress;
  RETURN_IF_ERROR(ReadRef(proto.handoff(), &progress));
  progress.processed_tokens = proto.processed_tokens();
  return progress;
}

Posted FromProto(const v1::Posted& proto) { return {proto.segment_seq()}; }

Done FromProto(const v1::Done& proto) {
  return {proto.segment_seq(), proto.kept()};
}

absl::StatusOr<Verdict> FromProto(const v1::Verdict& proto) {
  Verdict verdict;
  RETURN_IF_ERROR(ReadRef(proto.handoff(), &verdict));
  switch (proto.kind()) {
    case v1::VERDICT_KIND_COMMITTED:
      verdict.kind = VerdictKind::kCommitted;
      break;
    case v1::VERDICT_KIND_REJECTED:
      verdict.kind = VerdictKind::kRejected;
      break;
    case v1::VERDICT_KIND_UNKNOWN:
      verdict.kind = VerdictKind::kUnknown;
      break;
    default:
      return absl::InvalidArgumentError(absl::StrCat(
          "verdict kind ", static_cast<int>(proto.kind()), " is unknown"));
  }
  // Unknown numbers of a newer peer are no reason we know.
  if (v1::ErrorReason_IsValid(proto.reason())) {
    verdict.reason = static_cast<request::ErrorReason>(proto.reason());
  }
  verdict.message = proto.message();
  return verdict;
}

}  // namespace baton::transfer
