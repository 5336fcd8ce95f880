#include "saved_postings.h"

#include <cstdint>
#include <string_view>
#include <utility>

#include "everlong/base/check.h"

namespace everlong::index {
namespace {

constexpr std::string_view kMagic = "everlong lexical 2\n";

struct Header {
  int64_t pages = 0;
  int64_t ids = 0;
  int64_t postings = 0;
  int64_t count_bytes = 0;
};

}  // namespace

void SavedPostingsWriter::Add(int32_t number, int32_t count) {
  numbers_.push_back(number);
  counts_.push_back(count);
}

void SavedPostingsWriter::End(int32_t id) {
  if (std::ssize(numbers_) == (ends_.empty() ? 0 : ends_.back())) return;
  ids_.push_back(id);
  ends_.push_back(std::ssize(numbers_));
}

Status SavedPostingsWriter::Commit(const IndexFile& file, std::span<const int32_t> lengths) {
  const bool small = std::ranges::all_of(counts_, [](int32_t count) { return count <= UINT8_MAX; });
  EVERLONG_ASSIGN_OR_RETURN(IndexFileWriter writer, IndexFileWriter::Create(file, kMagic));
  writer.WriteValue(Header{std::ssize(lengths), std::ssize(ids_), std::ssize(numbers_), small ? 1 : 4});
  writer.Align(alignof(int32_t));
  writer.WriteAll(lengths);
  writer.WriteAll(std::span<const int32_t>(ids_));
  writer.Align(alignof(int64_t));
  writer.WriteAll(std::span<const int64_t>(ends_));
  writer.WriteChecksumSoFar();
  writer.WriteAll(std::span<const int32_t>(numbers_));
  if (small) {
    const std::vector<uint8_t> counts(counts_.begin(), counts_.end());
    writer.WriteAll(std::span<const uint8_t>(counts));
  } else {
    writer.WriteAll(std::span<const int32_t>(counts_));
  }
  return writer.Commit();
}

Result<std::shared_ptr<const SavedPostings>> SavedPostings::Open(const FilePath& file, std::span<const SavedPage> pages,
                                                                 enum Lengths lengths) {
  EVERLONG_ASSIGN_OR_RETURN(IndexFileReader reader, IndexFileReader::OpenUnchecked(file, kMagic));
  Header header;
  EVERLONG_RETURN_IF_ERROR(reader.ReadValue(header));
  if (header.pages != std::ssize(pages)) return reader.Corrupt("of other pages");
  if (header.ids < 0 || header.postings < 0 || (header.count_bytes != 1 && header.count_bytes != 4)) {
    return reader.Corrupt("a number out of range");
  }
  const auto ids = static_cast<size_t>(header.ids);
  const auto postings = static_cast<size_t>(header.postings);
  EVERLONG_RETURN_IF_ERROR(reader.Align(alignof(int32_t)));
  EVERLONG_ASSIGN_OR_RETURN(const auto ids_of_pages, reader.ReadMapped<int32_t>(pages.size()));
  EVERLONG_ASSIGN_OR_RETURN(const auto directory, reader.ReadMapped<int32_t>(ids));
  EVERLONG_RETURN_IF_ERROR(reader.Align(alignof(int64_t)));
  EVERLONG_ASSIGN_OR_RETURN(const auto ends, reader.ReadMapped<int64_t>(ids));
  EVERLONG_RETURN_IF_ERROR(reader.CheckSoFar());
  EVERLONG_ASSIGN_OR_RETURN(const auto numbers, reader.ReadMapped<int32_t>(postings));
  std::span<const uint8_t> counts;
  std::span<const int32_t> large_counts;
  if (header.count_bytes == 1) {
    EVERLONG_ASSIGN_OR_RETURN(counts, reader.ReadMapped<uint8_t>(postings));
  } else {
    EVERLONG_ASSIGN_OR_RETURN(large_counts, reader.ReadMapped<int32_t>(postings));
  }
  if (reader.left() != 0) return reader.Corrupt("it has bytes behind its end");

  for (size_t page = 0; page < pages.size(); ++page) {
    const int64_t length = ids_of_pages[page];
    const int64_t tokens = pages[page].tokens;
    const bool fits = lengths == Lengths::kOfTokens ? length == tokens : length >= 0 && length <= 2 * tokens;
    if (!fits) return reader.Corrupt("a page of another length");
  }
  int32_t last_id = -1;
  int64_t begin = 0;
  for (size_t at = 0; at < ids; ++at) {
    const bool fits =
        directory[at] > last_id && ends[at] > begin && ends[at] <= header.postings && ends[at] - begin <= header.pages;
    if (!fits) return reader.Corrupt("an id out of range");
    last_id = directory[at];
    begin = ends[at];
  }
  if (begin != header.postings) return reader.Corrupt("postings of no id");

  std::shared_ptr<SavedPostings> opened(new SavedPostings(reader.TakeMapping()));
  opened->lengths_ = ids_of_pages;
  opened->ids_ = directory;
  opened->ends_ = ends;
  opened->numbers_ = numbers;
  opened->counts_ = counts;
  opened->large_counts_ = large_counts;
  for (size_t number = 0; number < pages.size(); ++number) {
    const int32_t ordinal = pages[number].ordinal;
    if (ordinal < 0) continue;
    std::vector<Run>& runs = opened->runs_;
    EVERLONG_CHECK(runs.empty() || ordinal >= runs.back().ordinal + runs.back().pages);
    const bool follows = !runs.empty() && std::cmp_equal(runs.back().number + runs.back().pages, number) &&
                         runs.back().ordinal + runs.back().pages == ordinal;
    if (follows) {
      ++runs.back().pages;
    } else {
      runs.push_back({static_cast<int32_t>(number), ordinal, 1});
    }
  }
  return std::shared_ptr<const SavedPostings>(std::move(opened));
}

SavedPostings::List SavedPostings::ListAt(size_t at) const {
  const int64_t begin = at == 0 ? 0 : ends_[at - 1];
  const int64_t end = ends_[at];
  if (begin < 0 || begin > end || end > std::ssize(numbers_)) return {};
  const auto first = static_cast<size_t>(begin);
  return {numbers_.subspan(first, static_cast<size_t>(end - begin)), first};
}

SavedPostings::List SavedPostings::Find(int32_t id) const {
  const auto found = std::ranges::lower_bound(ids_, id);
  return found == ids_.end() || *found != id ? List() : ListAt(static_cast<size_t>(found - ids_.begin()));
}

Result<std::vector<TokenStatistics::Frequency>> SavedPostings::LeftOut() const {
  std::vector<TokenStatistics::Frequency> left_out;
  int64_t here = 0;
  for (const Run& run : runs_) here += run.pages;
  if (here == std::ssize(lengths_)) return left_out;
  EVERLONG_RETURN_IF_ERROR(Check());
  ForEachId([&](int32_t id, const List& list) {
    int64_t pages = 0;
    ForEach(list, this->pages(), [&pages](const Posting& /*posting*/) { ++pages; });
    if (pages < std::ssize(list.numbers)) left_out.push_back({id, pages - std::ssize(list.numbers)});
  });
  return left_out;
}

std::vector<int32_t> SavedPostings::LengthsHere() const {
  std::vector<int32_t> lengths(static_cast<size_t>(pages().size()), 0);
  for (const Run& run : runs_) {
    std::ranges::copy(lengths_.subspan(static_cast<size_t>(run.number), static_cast<size_t>(run.pages)),
                      lengths.begin() + (run.ordinal - pages().first));
  }
  return lengths;
}

}  // namespace everlong::index
