#include "walk_texts.h"

#include <algorithm>
#include <cmath>

namespace everlong::os {
namespace {

constexpr size_t kWindowTokens = 24;  // the run in which a page speaks of something
constexpr size_t kAround = 16;        // tokens on either side, where it says the rest

}  // namespace

double Norm(std::span<const float> row) {
  double square = 0;
  for (const float number : row) square += double{number} * double{number};
  return std::sqrt(square);
}

double WalkTexts::Idf(int32_t id) const {
  const auto known = idf_.find(id);
  if (known != idf_.end()) return known->second;
  const double idf = state_.index.statistics().Idf(std::span(&id, 1))[0];
  return idf_[id] = idf;
}

std::vector<int32_t> WalkTexts::Surroundings(int32_t page) const {
  std::vector<int32_t> pages{page};
  for (int32_t i = 0; i < neighbours_; ++i) {
    const int32_t before = table_.Previous(pages.front());
    if (before < 0 || !filter_.Allows(before)) break;
    pages.insert(pages.begin(), before);
  }
  for (int32_t i = 0; i < neighbours_; ++i) {
    const int32_t after = table_.Next(pages.back());
    if (after < 0 || !filter_.Allows(after)) break;
    pages.push_back(after);
  }
  return pages;
}

Result<std::span<const int32_t>> WalkTexts::IdsOf(int32_t page) {
  const index::BlockEntry& block = table_.BlockOfPage(page);
  auto found = ids_.find(block.id);
  if (found == ids_.end()) {
    Result<std::vector<int32_t>> ids = state_.store->TokenIds(block.id);
    if (!ids.ok() && ids.status().code() != StatusCode::kNotFound) return ids.status();
    found = ids_.emplace(block.id, ids.ok() ? *std::move(ids) : std::vector<int32_t>()).first;  // forgotten meanwhile
  }
  const index::PageEntry entry = table_.page(page);
  const auto first = static_cast<size_t>(entry.span.begin - block.span.begin);
  const auto count = static_cast<size_t>(entry.span.size());
  if (found->second.size() < first + count) return std::span<const int32_t>();
  return std::span<const int32_t>(found->second).subspan(first, count);
}

Result<WalkTexts::Text> WalkTexts::TextOf(int32_t page) {
  Text text;
  for (const int32_t beside : Surroundings(page)) {
    EVERLONG_ASSIGN_OR_RETURN(const std::span<const int32_t> ids, IdsOf(beside));
    for (size_t at = 0; at < ids.size(); ++at) text.at.emplace_back(beside, static_cast<int32_t>(at));
    text.ids.insert(text.ids.end(), ids.begin(), ids.end());
  }
  return text;
}

std::pair<size_t, size_t> WalkTexts::Window(const Text& text, const Ids& asked) const {
  const size_t count = text.ids.size();
  const size_t width = std::min(kWindowTokens, count);
  size_t best = 0;
  double most = -1;
  for (size_t first = 0; first + width <= count; ++first) {
    Ids there;
    double sum = 0;
    for (size_t at = first; at < first + width; ++at) {
      if (asked.contains(text.ids[at]) && there.insert(text.ids[at]).second) sum += Idf(text.ids[at]);
    }
    if (sum > most) {
      most = sum;
      best = first;
    }
  }
  return {best - std::min(best, kAround), std::min(count, best + width + kAround)};
}

const store::Tensor* WalkTexts::TensorOf(int64_t block) {
  auto found = tensors_.find(block);
  if (found == tensors_.end()) {
    Result<store::Tensor> tensor = state_.store->ReadTensor(block, index::MeaningTensor(options_->pack));
    found = tensors_.emplace(block, tensor.ok() ? std::optional(*std::move(tensor)) : std::nullopt).first;
  }
  return found->second ? &*found->second : nullptr;
}

std::vector<float> WalkTexts::Vectors(const Text& text, size_t first, size_t last) {
  std::vector<float> rows;
  if (!options_) return rows;
  const auto width = static_cast<size_t>(options_->dimension);
  const int32_t group = options_->group_tokens;
  const int64_t of_page = (table_.page_tokens() + group - 1) / group;
  std::pair<int32_t, int64_t> before{-1, -1};
  for (size_t at = first; at < last; ++at) {
    const auto [page, place] = text.at[at];
    if (before == std::pair(page, int64_t{place / group})) continue;
    before = {page, place / group};
    const index::BlockEntry& block = table_.BlockOfPage(page);
    const store::Tensor* const tensor = TensorOf(block.id);
    if (tensor == nullptr) continue;
    const auto row = static_cast<size_t>((page - block.first_page) * of_page + place / group);
    if (tensor->bytes.size() < (row + 1) * width) continue;
    const auto* const numbers = reinterpret_cast<const int8_t*>(tensor->bytes.data()) + row * width;
    std::vector<float> vector(numbers, numbers + width);
    const double norm = Norm(vector);
    if (!(norm > 0)) continue;
    for (const float number : vector) rows.push_back(static_cast<float>(double{number} / norm));
  }
  return rows;
}

// Return the rarest run's score, 0 to 1: the sum of its tokens' rarities, over that of four tokens of one page alone.
float WalkTexts::SharedRun(std::span<const int32_t> text, const Ids& counted, std::span<const int32_t> page) const {
  const double one_page = std::log1p(static_cast<double>(std::max(1, table_.live_pages())));
  std::vector<double> runs(page.size() + 1, 0.0);  // ending at a token of the page, and at the one of the window
  double best = 0;
  for (const int32_t id : text) {
    const double rarity = counted.contains(id) ? Idf(id) : 0.0;
    for (size_t at = page.size(); at > 0; --at) {
      runs[at] = page[at - 1] == id ? runs[at - 1] + rarity : 0.0;
      best = std::max(best, runs[at]);
    }
  }
  return static_cast<float>(std::min(1.0, best / (4 * one_page)));
}

}  // namespace everlong::os
