// The k best of a list of scored things: larger scores first, ties by the older (smaller) id.
#pragma once

#include <algorithm>
#include <cstddef>
#include <vector>

namespace everlong::index {

// `id` maps a thing to the key that orders equal scores. k >= 0; a k above the size keeps all.
template <class Scored, class Id>
void KeepBestFirst(std::vector<Scored>& scored, size_t k, const Id& id) {
  const auto better = [&id](const Scored& a, const Scored& b) {
    return a.score != b.score ? a.score > b.score : id(a) < id(b);
  };
  const size_t kept = std::min(k, scored.size());
  std::partial_sort(scored.begin(), scored.begin() + static_cast<std::ptrdiff_t>(kept), scored.end(), better);
  scored.resize(kept);
}

}  // namespace everlong::index
