#include "saved_postings.h"

#include <string_view>
#include <utility>

#include "everlong/base/check.h"

namespace everlong::index {
namespace {

constexpr std::string_view kMagic = "everlong lexical 2\n";

struct Header {
  int64_t pages = 0;
  int64_t ids = 0;
};

void PutNumber(uint64_t number, std::vector<std::byte>& bytes) {
  for (; number >= 128; number >>= 7U) bytes.push_back(static_cast<std::byte>((number & 127U) | 128U));
  bytes.push_back(static_cast<std::byte>(number));
}

}  // namespace

void SavedPostingsWriter::Add(int32_t number, int32_t count) {
  if (pages_ > 0 && pages_ % kGroup == 0) fences_.push_back({last_, std::ssize(numbers_)});
  const bool more = count > 1;
  PutNumber((static_cast<uint64_t>(number - last_) << 1U) | (more ? 1U : 0U), numbers_);
  if (more) PutNumber(static_cast<uint64_t>(count), numbers_);
  last_ = number;
  ++pages_;
}

void SavedPostingsWriter::End(int32_t id) {
  if (pages_ == 0) return;
  const auto fences = std::as_bytes(std::span(fences_));
  lists_.insert(lists_.end(), fences.begin(), fences.end());
  lists_.insert(lists_.end(), numbers_.begin(), numbers_.end());
  directory_.push_back({id, pages_, std::ssize(lists_)});
  fences_.clear();
  numbers_.clear();
  pages_ = 0;
  last_ = -1;
}

Status SavedPostingsWriter::Commit(const IndexFile& file, std::span<const int32_t> lengths) {
  EVERLONG_ASSIGN_OR_RETURN(IndexFileWriter writer, IndexFileWriter::Create(file, kMagic));
  writer.WriteValue(Header{std::ssize(lengths), std::ssize(directory_)});
  writer.Align(alignof(int32_t));
  writer.WriteAll(lengths);
  writer.Align(alignof(Entry));
  writer.WriteAll(std::span<const Entry>(directory_));
  writer.WriteChecksumSoFar();
  writer.Write(lists_);
  return writer.Commit();
}

uint64_t SavedPostings::Numbers::NextOfSeveral() {
  uint64_t number = 0;
  for (unsigned shift = 0; shift < 63 && at_ != end_; shift += 7) {
    const auto byte = static_cast<uint64_t>(*at_++);
    number |= (byte & 127U) << shift;
    if (byte < 128) return number;
  }
  return 0;
}

Result<std::shared_ptr<const SavedPostings>> SavedPostings::Open(const FilePath& file, std::span<const SavedPage> pages,
                                                                 enum Lengths lengths) {
  EVERLONG_ASSIGN_OR_RETURN(IndexFileReader reader, IndexFileReader::OpenUnchecked(file, kMagic));
  Header header;
  EVERLONG_RETURN_IF_ERROR(reader.ReadValue(header));
  if (header.pages != std::ssize(pages)) return reader.Corrupt("of other pages");
  if (header.ids < 0) return reader.Corrupt("an id out of range");
  EVERLONG_RETURN_IF_ERROR(reader.Align(alignof(int32_t)));
  EVERLONG_ASSIGN_OR_RETURN(const auto ids_of_pages, reader.ReadMapped<int32_t>(pages.size()));
  EVERLONG_RETURN_IF_ERROR(reader.Align(alignof(Entry)));
  EVERLONG_ASSIGN_OR_RETURN(const auto directory, reader.ReadMapped<Entry>(static_cast<size_t>(header.ids)));
  EVERLONG_RETURN_IF_ERROR(reader.CheckSoFar());
  EVERLONG_ASSIGN_OR_RETURN(const auto lists, reader.ReadMapped<std::byte>(reader.left()));

  for (size_t page = 0; page < pages.size(); ++page) {
    const int64_t ids = ids_of_pages[page];
    const int64_t tokens = pages[page].tokens;
    const bool fits = lengths == Lengths::kOfTokens ? ids == tokens : ids >= 0 && ids <= 2 * tokens;
    if (!fits) return reader.Corrupt("a page of another length");
  }
  int32_t last_id = -1;
  int64_t begin = 0;
  for (const Entry& entry : directory) {
    if (entry.id <= last_id || entry.pages < 1 || entry.pages > std::ssize(pages)) {
      return reader.Corrupt("an id out of range");
    }
    // Each page takes a byte or more.
    const int64_t least = entry.pages + static_cast<int64_t>(SavedPostingsWriter::Fences(entry.pages) * sizeof(Fence));
    if (entry.end > std::ssize(lists) || entry.end < begin || entry.end - begin < least) {
      return reader.Corrupt("a list out of range");
    }
    last_id = entry.id;
    begin = entry.end;
  }
  if (begin != std::ssize(lists)) return reader.Corrupt("it has bytes behind its end");

  std::shared_ptr<SavedPostings> opened(new SavedPostings(reader.TakeMapping(), ids_of_pages, directory, lists));
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

SavedPostings::List SavedPostings::Find(int32_t id) const {
  const auto found = std::ranges::lower_bound(directory_, id, {}, &Entry::id);
  if (found == directory_.end() || found->id != id) return {};
  return ListAt(static_cast<size_t>(found - directory_.begin()));
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
    if (pages < list.pages) left_out.push_back({id, pages - list.pages});
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
