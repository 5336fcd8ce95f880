// Postings of saved pages, read where they are mapped (docs/format.md, "lexical").
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "everlong/base/file_path.h"
#include "everlong/base/first_not.h"
#include "everlong/base/status.h"
#include "everlong/index/index_file.h"
#include "everlong/index/page_filter.h"
#include "everlong/index/part.h"
#include "everlong/index/token_statistics.h"
#include "posting.h"

namespace everlong::index {

// How many ids a page has: one for each of its tokens, or, where ids are words and their tokens, two at most.
enum class Lengths : uint8_t { kOfTokens, kOfWords };

// Writes a file of postings. Ids ascend, and so do the pages of an id, which are numbered as in the file.
class SavedPostingsWriter {
 public:
  void Add(int32_t number, int32_t count);  // of the id that End names
  void End(int32_t id);                     // an id without postings is left out
  // Write all, and how many ids each page has. Replaced whole or not at all. kIoError.
  [[nodiscard]] Status Commit(const IndexFile& file, std::span<const int32_t> lengths);

 private:
  friend class SavedPostings;
  // An id, how many pages have it, and where its list ends. It begins where that of the id before ends.
  struct Entry {
    int32_t id = 0;
    int32_t pages = 0;
    int64_t end = 0;
  };
  // A list begins with fences: one behind each kGroup postings, but for the last.
  struct Fence {
    int64_t number = 0;  // of the last page in front of it
    int64_t at = 0;      // bytes in front of it, behind the fences
  };
  static constexpr int32_t kGroup = 128;
  static size_t Fences(int32_t pages) { return static_cast<size_t>(pages - 1) / kGroup; }

  std::vector<Entry> directory_;
  std::vector<std::byte> lists_;
  // Of the id that is being written.
  std::vector<Fence> fences_;
  std::vector<std::byte> numbers_;
  int32_t pages_ = 0;
  int32_t last_ = -1;
};

// A file of postings. Its directory and lengths were checked when it was opened. Its lists may be any bytes: what is
// read of damaged ones is some pages of the file with some counts, at most as often as the page has ids. Thread-safe.
class SavedPostings final : public CountedPages {
 public:
  // Map a file, whose pages are these, with ascending ordinals; those of -1 are left out. kNotFound, kIoError; kCorrupt
  // when it is damaged as far as it is read, cut short, or of other pages.
  static Result<std::shared_ptr<const SavedPostings>> Open(const FilePath& file, std::span<const SavedPage> pages,
                                                           Lengths lengths);

  // The postings of an id.
  struct List {
    int32_t pages = 0;  // that have the id; 0: none
    std::span<const std::byte> bytes;
  };
  [[nodiscard]] List Find(int32_t id) const;
  [[nodiscard]] int64_t PagesWith(int32_t id) const override { return Find(id).pages; }  // also those left out
  // Call visit(id, list) for each id, ascending.
  template <class Visit>
  void ForEachId(const Visit& visit) const {
    for (size_t at = 0; at < directory_.size(); ++at) visit(directory_[at].id, ListAt(at));
  }

  // Call visit(posting) for pages in `range`, ascending.
  template <class Visit>
  void ForEach(const List& list, PageRun range, const Visit& visit) const {
    auto run = std::ranges::upper_bound(runs_, range.first, {}, [](const Run& of) { return of.ordinal + of.pages; });
    if (run == runs_.end()) return;
    Walk(list, run->number + std::max(0, range.first - run->ordinal), [&](int32_t number, int32_t count) {
      if (number >= run->number + run->pages) {
        run =
            std::ranges::upper_bound(run, runs_.end(), number, {}, [](const Run& of) { return of.number + of.pages; });
      }
      if (run == runs_.end() || run->ordinal >= range.last) return false;
      if (number < run->number) return true;  // it is left out
      const int32_t page = run->ordinal + (number - run->number);
      if (page < range.last) visit(Posting{page, count});
      return page < range.last;
    });
  }

  // Return, of each id that pages have which were left out, how many of them have it: less than 0. kCorrupt when the
  // file does not match its checksum.
  [[nodiscard]] Result<std::vector<TokenStatistics::Frequency>> LeftOut() const;
  // Return how many ids each page has, from the first ordinal to the last; 0 where there is none.
  [[nodiscard]] std::vector<int32_t> LengthsHere() const;
  // Return the ordinals of its pages, and maybe others between them.
  [[nodiscard]] PageRun pages() const {
    return runs_.empty() ? PageRun{} : PageRun{runs_.front().ordinal, runs_.back().ordinal + runs_.back().pages};
  }
  // Read all of the file. kCorrupt unless it matches its checksum.
  [[nodiscard]] Status Check() const { return file_.Check(); }
  [[nodiscard]] int64_t bytes() const {
    return static_cast<int64_t>(runs_.capacity() * sizeof(Run));
  }  // of host memory

 private:
  using Entry = SavedPostingsWriter::Entry;
  using Fence = SavedPostingsWriter::Fence;
  // Pages of the file that follow each other there and here.
  struct Run {
    int32_t number = 0;
    int32_t ordinal = 0;
    int32_t pages = 0;
  };
  // Numbers of seven bits a byte, the lowest first. Every byte but the last has its highest bit set.
  class Numbers {
   public:
    explicit Numbers(std::span<const std::byte> bytes) : at_(bytes.data()), end_(bytes.data() + bytes.size()) {}
    // Return the next number, 0 where there is none.
    uint64_t Next() {
      if (at_ != end_ && static_cast<uint8_t>(*at_) < 128) return static_cast<uint64_t>(*at_++);
      return NextOfSeveral();
    }

   private:
    uint64_t NextOfSeveral();
    const std::byte* at_;
    const std::byte* end_;
  };

  SavedPostings(MappedIndexFile file, std::span<const int32_t> lengths, std::span<const Entry> directory,
                std::span<const std::byte> lists)
      : file_(std::move(file)), lengths_(lengths), directory_(directory), lists_(lists) {}

  [[nodiscard]] List ListAt(size_t at) const {
    const int64_t begin = at == 0 ? 0 : directory_[at - 1].end;
    return {directory_[at].pages,
            lists_.subspan(static_cast<size_t>(begin), static_cast<size_t>(directory_[at].end - begin))};
  }

  // Call visit(number, count) for pages of the file from `first` on, ascending, as long as it returns true.
  template <class Visit>
  void Walk(const List& list, int32_t first, const Visit& visit) const {
    if (list.pages == 0) return;
    const auto fences = static_cast<int32_t>(SavedPostingsWriter::Fences(list.pages));
    const auto fence = [&list](int32_t at) {
      Fence read;
      std::memcpy(&read, list.bytes.data() + static_cast<size_t>(at) * sizeof read, sizeof read);
      return read;
    };
    std::span<const std::byte> bytes = list.bytes.subspan(static_cast<size_t>(fences) * sizeof(Fence));
    const int32_t groups = FirstNot(fences, [&](int32_t at) { return fence(at).number < first; });
    int64_t number = -1;
    if (groups > 0) {
      const Fence from = fence(groups - 1);
      if (from.number < 0 || from.at < 0 || from.at > std::ssize(bytes)) return;
      number = from.number;
      bytes = bytes.subspan(static_cast<size_t>(from.at));
    }
    Numbers numbers(bytes);
    for (int32_t left = list.pages - groups * SavedPostingsWriter::kGroup; left > 0; --left) {
      const uint64_t step = numbers.Next();
      const uint64_t count = (step & 1U) == 0 ? 1 : numbers.Next();
      // What is not so is damaged.
      if (step < 2 || count < 1 ||
          step / 2 >= static_cast<uint64_t>(std::max<int64_t>(0, std::ssize(lengths_) - number)))
        return;
      number += static_cast<int64_t>(step / 2);
      if (number < first) continue;
      const auto most = static_cast<uint64_t>(lengths_[static_cast<size_t>(number)]);
      if (!visit(static_cast<int32_t>(number), static_cast<int32_t>(std::min(count, most)))) return;
    }
  }

  MappedIndexFile file_;
  std::span<const int32_t> lengths_;  // mapped, as the next ones
  std::span<const Entry> directory_;
  std::span<const std::byte> lists_;
  std::vector<Run> runs_;
};

}  // namespace everlong::index
