// A half-open run of tokens of one stream.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>

namespace everlong {

struct TokenSpan {
  int64_t begin = 0;  // first token
  int64_t end = 0;    // one past the last token

  [[nodiscard]] int64_t size() const { return end - begin; }
  [[nodiscard]] bool empty() const { return end <= begin; }
  [[nodiscard]] bool Overlaps(const TokenSpan& other) const { return begin < other.end && other.begin < end; }
  [[nodiscard]] TokenSpan Intersect(const TokenSpan& other) const {
    const int64_t first = std::max(begin, other.begin);
    return {first, std::max(first, std::min(end, other.end))};
  }
  bool operator==(const TokenSpan&) const = default;
};

// Return e.g. "[3, 5)".
inline std::string NameOf(const TokenSpan& span) {
  std::string name("[");
  return name.append(std::to_string(span.begin)).append(", ").append(std::to_string(span.end)).append(")");
}

}  // namespace everlong
