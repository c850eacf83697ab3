// Literals of the control tokens (model.md 8.1). Ids differ between
// checkpoints, so they are always looked up by these. The bar is U+FF5C, the
// word separator U+2581.
#pragma once

#define BATON_BAR "\xEF\xBD\x9C"
#define BATON_SEP "\xE2\x96\x81"

namespace baton::chat {

inline constexpr char kBos[] =
    "<" BATON_BAR "begin" BATON_SEP "of" BATON_SEP "sentence" BATON_BAR ">";
inline constexpr char kEos[] =
    "<" BATON_BAR "end" BATON_SEP "of" BATON_SEP "sentence" BATON_BAR ">";
inline constexpr char kUser[] = "<" BATON_BAR "User" BATON_BAR ">";
inline constexpr char kAssistant[] = "<" BATON_BAR "Assistant" BATON_BAR ">";
inline constexpr char kThinkOpen[] = "<think>";
inline constexpr char kThinkClose[] = "</think>";
inline constexpr char kDsml[] = BATON_BAR "DSML" BATON_BAR;
// Not every checkpoint has these.
inline constexpr char kLatestReminder[] =
    "<" BATON_BAR "latest_reminder" BATON_BAR ">";
inline constexpr char kAction[] = "<" BATON_BAR "action" BATON_BAR ">";
inline constexpr char kQuery[] = "<" BATON_BAR "query" BATON_BAR ">";
inline constexpr char kAuthority[] = "<" BATON_BAR "authority" BATON_BAR ">";
inline constexpr char kDomain[] = "<" BATON_BAR "domain" BATON_BAR ">";
inline constexpr char kTitle[] = "<" BATON_BAR "title" BATON_BAR ">";
inline constexpr char kReadUrl[] = "<" BATON_BAR "read_url" BATON_BAR ">";

}  // namespace baton::chat

#undef BATON_BAR
#undef BATON_SEP
