#include "term_rows.h"

#include <algorithm>
#include <utility>

namespace everlong::index {
namespace {

// A term that names more vectors than this says little. A query's terms score at most so many vectors, too.
constexpr size_t kLongestPosting = 4096;
constexpr size_t kMostNamed = 8192;

void SortDistinct(std::vector<int32_t>& numbers) {
  std::ranges::sort(numbers);
  numbers.erase(std::unique(numbers.begin(), numbers.end()), numbers.end());
}

}  // namespace

void TermRows::Name(VectorRow row, std::vector<int32_t> terms) {
  Forget(row);
  SortDistinct(terms);
  if (terms.empty()) return;
  for (const int32_t term : terms) rows_of_term_[term].push_back(row);
  numbers_ += 2 * terms.capacity();
  terms_of_[row] = std::move(terms);
}

void TermRows::Forget(VectorRow row) {
  const auto found = terms_of_.find(row);
  if (found == terms_of_.end()) return;
  for (const int32_t term : found->second) {
    const auto posting = rows_of_term_.find(term);
    std::erase(posting->second, row);
    if (posting->second.empty()) rows_of_term_.erase(posting);
  }
  numbers_ -= 2 * found->second.capacity();
  terms_of_.erase(found);
}

std::vector<VectorRow> TermRows::Named(std::span<const int32_t> terms) const {
  std::vector<const std::vector<VectorRow>*> postings;
  for (const int32_t term : terms) {
    const auto found = rows_of_term_.find(term);
    if (found != rows_of_term_.end() && found->second.size() <= kLongestPosting) postings.push_back(&found->second);
  }
  std::ranges::sort(postings, {}, [](const auto* rows) { return rows->size(); });
  std::vector<VectorRow> named;
  for (const std::vector<VectorRow>* const rows : postings) {
    if (named.size() + rows->size() > kMostNamed) break;
    named.insert(named.end(), rows->begin(), rows->end());
  }
  SortDistinct(named);
  return named;
}

size_t TermRows::bytes() const {
  constexpr size_t kMapEntry = 4 * sizeof(int64_t);  // about, in the usual libraries
  return (rows_of_term_.size() + terms_of_.size()) * kMapEntry + numbers_ * sizeof(int32_t);
}

int64_t TermRows::words() const {
  int64_t words = 0;
  for (const auto& [row, terms] : terms_of_) words += std::ssize(terms) + 2;
  return words;
}

void TermRows::Write(IndexFileWriter& writer, const InvertedLists& lists) const {
  for (const InvertedLists::List& list : lists.lists()) {
    for (const VectorRow row : list.rows) {
      const auto found = terms_of_.find(row);
      if (found == terms_of_.end()) continue;
      writer.WriteValue(lists.id(row));
      writer.WriteValue(std::ssize(found->second));
      for (const int32_t term : found->second) writer.WriteValue(int64_t{term});
    }
  }
}

Status TermRows::Read(IndexFileReader& reader, const InvertedLists& lists, int64_t words) {
  if (reader.left() != At(words) * sizeof(int64_t)) return reader.Truncated();
  std::vector<int64_t> terms(At(words));
  EVERLONG_RETURN_IF_ERROR(reader.ReadAll(std::span(terms)));
  for (std::span<const int64_t> left = terms; !left.empty();) {
    const VectorRow row = lists.Find(left[0]);
    const int64_t own = left.size() < 2 ? 0 : left[1];
    if (row == kNoRow || own < 1 || At(own) > kMostTerms || At(own) > left.size() - 2) {
      return reader.Corrupt("its lists are invalid");
    }
    std::vector<int32_t> named;
    for (const int64_t term : left.subspan(2, At(own))) named.push_back(static_cast<int32_t>(term));
    Name(row, std::move(named));
    left = left.subspan(2 + At(own));
  }
  return OkStatus();
}

}  // namespace everlong::index
