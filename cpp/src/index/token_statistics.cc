#include "everlong/index/token_statistics.h"

#include <algorithm>
#include <cmath>

#include "everlong/base/check.h"

namespace everlong::index {

namespace {

std::vector<int32_t> Distinct(std::span<const int32_t> token_ids) {
  std::vector<int32_t> distinct(token_ids.begin(), token_ids.end());
  std::ranges::sort(distinct);
  distinct.erase(std::unique(distinct.begin(), distinct.end()), distinct.end());
  return distinct;
}

}  // namespace

void TokenStatistics::AddPage(std::span<const int32_t> token_ids) {
  for (const int32_t id : Distinct(token_ids)) ++frequency_[id];
  ++pages_;
}

void TokenStatistics::RemovePage(std::span<const int32_t> token_ids) {
  for (const int32_t id : Distinct(token_ids)) {
    const auto found = frequency_.find(id);
    EVERLONG_CHECK(found != frequency_.end());
    if (--found->second == 0) frequency_.erase(found);
  }
  --pages_;
}

int64_t TokenStatistics::bytes() const {
  constexpr size_t kNodeBytes = 32;  // link, id and count, as they are allocated
  return static_cast<int64_t>(frequency_.size() * kNodeBytes + frequency_.bucket_count() * sizeof(void*));
}

int64_t TokenStatistics::DocumentFrequency(int32_t token_id) const {
  const auto found = frequency_.find(token_id);
  return found == frequency_.end() ? 0 : found->second;
}

std::vector<float> TokenStatistics::Idf(std::span<const int32_t> token_ids) const {
  std::vector<float> idf(token_ids.size());
  std::ranges::transform(token_ids, idf.begin(), [this](int32_t id) {
    const auto frequency = static_cast<double>(std::max<int64_t>(1, DocumentFrequency(id)));
    return static_cast<float>(std::log1p(static_cast<double>(pages_) / frequency));
  });
  return idf;
}

}  // namespace everlong::index
