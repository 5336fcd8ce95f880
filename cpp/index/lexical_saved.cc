// The postings of LexicalIndex as a file: an id's pages as differences, most of them a byte or two.
#include <algorithm>
#include <limits>
#include <string>
#include <utility>

#include "everlong/index/index_file.h"
#include "lexical_index.h"

namespace everlong::index {
namespace {

constexpr std::string_view kMagic = "everlong lexical 1\n";

struct Header {
  int64_t pages = 0;
  int64_t ids = 0;
};

// Write seven bits a byte, the lowest first. The last byte is below 128.
void PutNumber(uint64_t number, std::vector<std::byte>& bytes) {
  for (; number >= 128; number >>= 7U) bytes.push_back(static_cast<std::byte>((number & 127U) | 128U));
  bytes.push_back(static_cast<std::byte>(number));
}

class Numbers {
 public:
  explicit Numbers(std::span<const std::byte> bytes) : bytes_(bytes) {}

  // Return the next number; a number above `most` where there is none, or none so small.
  uint64_t Next(uint64_t most) {
    uint64_t number = 0;
    for (unsigned shift = 0; shift < 63 && !bytes_.empty(); shift += 7) {
      const auto byte = static_cast<uint64_t>(bytes_.front());
      bytes_ = bytes_.subspan(1);
      number |= (byte & 127U) << shift;
      if (byte < 128) return number;
    }
    return most + 1;
  }
  [[nodiscard]] size_t left() const { return bytes_.size(); }

 private:
  std::span<const std::byte> bytes_;
};

// Call visit(page, count) for each posting of a file, and end(id) behind those of an id. Return what is wrong with the
// bytes; null for nothing.
template <class Visit, class End>
const char* ForEachPosting(std::span<const std::byte> bytes, int64_t ids, size_t pages, const Visit& visit,
                           const End& end) {
  constexpr uint64_t kMostId = std::numeric_limits<int32_t>::max();
  Numbers numbers(bytes);
  int64_t last_id = -1;
  for (int64_t at = 0; at < ids; ++at) {
    const uint64_t id_step = numbers.Next(kMostId + 1);
    const uint64_t count = numbers.Next(pages);
    if (id_step < 1 || id_step > kMostId - static_cast<uint64_t>(last_id) || count < 1 || count > pages) {
      return "an id out of range";
    }
    last_id += static_cast<int64_t>(id_step);
    uint64_t next = 0;  // the least that the next page can be
    for (uint64_t posting = 0; posting < count; ++posting) {
      const uint64_t step = numbers.Next(2 * pages + 1);
      const uint64_t times = (step & 1U) == 0 ? 1 : numbers.Next(kMostId);
      if (step < 2 || step / 2 > pages - next || times < 1 || times > kMostId) return "a page out of range";
      next += step / 2;
      visit(next - 1, times);
    }
    end(static_cast<int32_t>(last_id));
  }
  return numbers.left() == 0 ? nullptr : "it has bytes behind its end";
}

}  // namespace

Status LexicalIndex::Save(const IndexFile& file, std::span<const int32_t> kept) const {
  const PageRun range = kept.empty() ? PageRun{} : PageRun{kept.front(), kept.back() + 1};
  std::vector<int32_t> numbers(static_cast<size_t>(range.size()), -1);  // of pages of the range, in the file
  for (size_t number = 0; number < kept.size(); ++number) {
    numbers[static_cast<size_t>(kept[number] - range.first)] = static_cast<int32_t>(number);
  }
  std::vector<std::byte> bytes;
  int64_t ids = 0;
  int32_t last_id = -1;
  std::vector<std::byte> of_id;
  for (const Postings::Entry& entry : postings_.In(range)) {
    of_id.clear();
    int32_t last = -1;
    uint64_t count = 0;
    entry.list->ForEach(range, [&](const Posting& posting) {
      const int32_t number = numbers[static_cast<size_t>(posting.page - range.first)];
      if (number < 0) return;
      const bool more = posting.count > 1;
      PutNumber((static_cast<uint64_t>(number - last) << 1U) | (more ? 1U : 0U), of_id);
      if (more) PutNumber(static_cast<uint64_t>(posting.count), of_id);
      last = number;
      ++count;
    });
    if (count == 0) continue;
    PutNumber(static_cast<uint64_t>(entry.id) - static_cast<uint64_t>(int64_t{last_id}), bytes);
    PutNumber(count, bytes);
    bytes.insert(bytes.end(), of_id.begin(), of_id.end());
    last_id = entry.id;
    ++ids;
  }
  EVERLONG_ASSIGN_OR_RETURN(IndexFileWriter writer, IndexFileWriter::Create(file, kMagic));
  writer.WriteValue(Header{std::ssize(kept), ids});
  writer.Write(bytes);
  return writer.Commit();
}

Status LexicalIndex::Load(const FilePath& file, std::span<const SavedPage> pages, Lengths lengths,
                          TokenStatistics* statistics) {
  EVERLONG_ASSIGN_OR_RETURN(IndexFileReader reader, IndexFileReader::Open(file, kMagic));
  Header header;
  EVERLONG_RETURN_IF_ERROR(reader.ReadValue(header));
  if (header.pages != std::ssize(pages)) return reader.Corrupt("of other pages");
  std::vector<std::byte> bytes(reader.left());
  EVERLONG_RETURN_IF_ERROR(reader.ReadAll(std::span(bytes)));

  std::vector<int64_t> counted(pages.size(), 0);  // ids of each page
  const auto count = [&counted](size_t page, uint64_t times) { counted[page] += static_cast<int64_t>(times); };
  const char* const wrong = ForEachPosting(bytes, header.ids, pages.size(), count, [](int32_t /*id*/) {});
  if (wrong != nullptr) return reader.Corrupt(wrong);
  const int32_t here = postings_.pages();
  std::vector<int32_t> live;  // ids of each page behind those that are here
  live.reserve(pages.size());
  for (size_t page = 0; page < pages.size(); ++page) {
    const bool fits = lengths == Lengths::kOfTokens ? counted[page] == pages[page].tokens
                                                    : counted[page] <= 2 * int64_t{pages[page].tokens};
    if (!fits) return reader.Corrupt("a page of another length");
    if (pages[page].ordinal < 0) continue;
    EVERLONG_CHECK(pages[page].ordinal >= here + std::ssize(live));
    live.resize(static_cast<size_t>(pages[page].ordinal - here), 0);
    live.push_back(static_cast<int32_t>(counted[page]));
  }

  // Each id takes two bytes or more, whatever the header says.
  postings_.AddLengths(live, std::min(static_cast<size_t>(std::max<int64_t>(header.ids, 0)), bytes.size() / 2));
  std::vector<Posting> postings;
  std::vector<TokenStatistics::Frequency> frequencies;
  const auto take = [&](size_t page, uint64_t times) {
    if (pages[page].ordinal >= 0) postings.push_back({pages[page].ordinal, static_cast<int32_t>(times)});
  };
  ForEachPosting(bytes, header.ids, pages.size(), take, [&](int32_t id) {
    if (!postings.empty()) postings_.AddPostings(id, postings);
    if (statistics != nullptr && !postings.empty()) frequencies.push_back({id, std::ssize(postings)});
    postings.clear();
  });
  if (statistics != nullptr) {
    statistics->AddCounted(frequencies, std::ranges::count_if(live, [](int32_t length) { return length > 0; }));
  }
  return OkStatus();
}

}  // namespace everlong::index
