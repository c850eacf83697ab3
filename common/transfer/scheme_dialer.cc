#include "common/transfer/scheme_dialer.h"

#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace baton::transfer {

absl::StatusOr<std::unique_ptr<SenderLink>> SchemeDialer::Dial(
    const std::string& endpoint, const LinkHello& hello,
    std::shared_ptr<LinkSenderHandler> handler, absl::Time deadline) {
  LinkDialer* const dialer =
      absl::StartsWith(endpoint, "inproc:") ? in_process_ : remote_;
  if (dialer == nullptr) {
    return absl::InvalidArgumentError(absl::StrCat(
        "endpoint '", endpoint, "': no transport of this kind here"));
  }
  return dialer->Dial(endpoint, hello, std::move(handler), deadline);
}

}  // namespace baton::transfer
