// Tags in which everlong itself keeps when a block happened and what it is about.
#pragma once

#include <charconv>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <system_error>
#include <vector>

namespace everlong::graph {

inline constexpr std::string_view kOwnTag = "everlong:";                // prefix of every tag that is not a user's
inline constexpr std::string_view kHappenedTag = "everlong:happened=";  // then seconds since 1970, UTC
inline constexpr std::string_view kKeyTag = "everlong:key=";            // then a keyphrase

// Whether a number of seconds since 1970 is a moment of the years 1 to 9999. Python's datetimes hold no others.
inline bool IsMoment(double seconds) { return seconds >= -62'135'596'800.0 && seconds < 253'402'300'800.0; }

struct ToldTags {
  std::optional<double> happened;
  std::vector<std::string> tags;  // tags of the user, and keyphrases
};

inline ToldTags ToldBy(std::span<const std::string> tags) {
  ToldTags told;
  for (const std::string& tag : tags) {
    const std::string_view text = tag;
    if (text.starts_with(kHappenedTag)) {
      const std::string_view number = text.substr(kHappenedTag.size());
      double happened = 0;
      const auto [end, error] = std::from_chars(number.data(), number.data() + number.size(), happened);
      const bool is_read = error == std::errc() && end == number.data() + number.size();
      if (is_read && IsMoment(happened)) told.happened = happened;
    } else if (text.starts_with(kKeyTag)) {
      told.tags.emplace_back(text.substr(kKeyTag.size()));
    } else if (!text.starts_with(kOwnTag)) {
      told.tags.push_back(tag);
    }
  }
  return told;
}

}  // namespace everlong::graph
