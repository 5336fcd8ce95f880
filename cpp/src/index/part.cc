#include "everlong/index/part.h"

#include <algorithm>

#include "everlong/base/check.h"

namespace everlong::index {

std::span<const float> BlockKeys::Page(int32_t page, std::span<const KeyHead> wanted, std::vector<float>& room) const {
  const std::vector<float>& keys = pages_[static_cast<size_t>(page)];
  if (std::ranges::equal(wanted, std::span(heads_).first(std::min(wanted.size(), heads_.size())))) {
    return std::span(keys).first(keys.size() / std::max<size_t>(heads_.size(), 1) * wanted.size());
  }
  const size_t size = keys.size() / heads_.size();  // of a head
  room.clear();
  for (const KeyHead& head : wanted) {
    const auto found = std::ranges::find(heads_, head);
    EVERLONG_CHECK(found != heads_.end());
    const auto of_head = std::span(keys).subspan(static_cast<size_t>(found - heads_.begin()) * size, size);
    room.insert(room.end(), of_head.begin(), of_head.end());
  }
  return room;
}

}  // namespace everlong::index
