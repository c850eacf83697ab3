#include "decode_worker/output/text_renderer.h"

#include <algorithm>

#include "absl/strings/string_view.h"

namespace baton::decode_worker {

void TextRenderer::Append(int32_t id, std::string* text) {
  absl::string_view bytes = vocabulary_->TextBytes(id);
  if (limit_bytes_ >= 0) {
    const int64_t left = std::max<int64_t>(0, limit_bytes_ - bytes_);
    bytes = bytes.substr(0, static_cast<size_t>(left));
  }
  bytes_ += static_cast<int64_t>(bytes.size());
  if (!bytes.empty()) text->append(decoder_.AppendBytes(bytes));
}

}  // namespace baton::decode_worker
