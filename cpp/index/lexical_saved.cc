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

}  // namespace

Status LexicalIndex::Save(const IndexFile& file, std::span<const int32_t> kept) const {
  std::vector<int32_t> numbers(static_cast<size_t>(pages()), -1);  // of pages, in the file
  for (size_t number = 0; number < kept.size(); ++number) {
    numbers[static_cast<size_t>(kept[number])] = static_cast<int32_t>(number);
  }
  std::vector<std::byte> bytes;
  int64_t ids = 0;
  int32_t last_id = -1;
  std::vector<std::byte> of_id;
  for (const Postings::Entry& entry : postings_.All()) {
    of_id.clear();
    int32_t last = -1;
    uint64_t count = 0;
    entry.list->ForEach({0, pages()}, [&](const Posting& posting) {
      const int32_t number = numbers[static_cast<size_t>(posting.page)];
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

Status LexicalIndex::Load(const FilePath& file, std::span<const SavedPage> pages) {
  EVERLONG_ASSIGN_OR_RETURN(IndexFileReader reader, IndexFileReader::Open(file, kMagic));
  Header header;
  EVERLONG_RETURN_IF_ERROR(reader.ReadValue(header));
  if (header.pages != std::ssize(pages)) return reader.Corrupt("of other pages");
  std::vector<std::byte> bytes(reader.left());
  EVERLONG_RETURN_IF_ERROR(reader.ReadAll(std::span(bytes)));
  Numbers numbers(bytes);

  std::vector<int64_t> missing;  // tokens of the pages that no id has had yet
  std::vector<int32_t> lengths;
  missing.reserve(pages.size());
  lengths.reserve(pages.size());
  for (const SavedPage& page : pages) {
    missing.push_back(page.tokens);
    if (page.ordinal < 0) continue;
    lengths.resize(static_cast<size_t>(page.ordinal), 0);
    lengths.push_back(page.tokens);
  }
  // Each id takes two bytes or more, whatever the header says.
  postings_.SetLengths(lengths, std::min(static_cast<size_t>(std::max<int64_t>(header.ids, 0)), bytes.size() / 2));
  int64_t last_id = -1;
  std::vector<Posting> postings;
  for (int64_t at = 0; at < header.ids; ++at) {
    constexpr uint64_t kMostId = std::numeric_limits<int32_t>::max();
    const uint64_t id_step = numbers.Next(kMostId + 1);
    const uint64_t count = numbers.Next(pages.size());
    if (id_step < 1 || id_step > kMostId - static_cast<uint64_t>(last_id) || count < 1 || count > pages.size()) {
      return reader.Corrupt("an id out of range");
    }
    last_id += static_cast<int64_t>(id_step);
    postings.clear();
    uint64_t next = 0;  // the least that the next page can be
    for (uint64_t posting = 0; posting < count; ++posting) {
      const uint64_t step = numbers.Next(2 * pages.size() + 1);
      const uint64_t tokens = (step & 1U) == 0 ? 1 : numbers.Next(kMostId);
      if (step < 2 || step / 2 > pages.size() - next || tokens < 1 || tokens > kMostId) {
        return reader.Corrupt("a page out of range");
      }
      next += step / 2;
      const SavedPage& page = pages[next - 1];
      missing[next - 1] -= static_cast<int64_t>(tokens);
      if (page.ordinal >= 0) postings.push_back({page.ordinal, static_cast<int32_t>(tokens)});
    }
    if (!postings.empty()) postings_.SetPostings(static_cast<int32_t>(last_id), postings);
  }
  if (numbers.left() != 0) return reader.Corrupt("it has bytes behind its end");
  for (const int64_t tokens : missing) {
    if (tokens != 0) return reader.Corrupt("a page of another length");
  }
  return OkStatus();
}

}  // namespace everlong::index
