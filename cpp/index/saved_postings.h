// Postings of saved pages, read where they are mapped (docs/format.md, "lexical").
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "everlong/base/file_path.h"
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
  std::vector<int32_t> ids_;
  std::vector<int64_t> ends_;     // of their postings
  std::vector<int32_t> numbers_;  // of all postings
  std::vector<int32_t> counts_;
};

// A file of postings. Its directory and lengths were checked when it was opened. Its postings may be any bytes: what is
// read of damaged ones is some pages of the file, with some counts that add up without overflow. Thread-safe.
class SavedPostings final : public CountedPages {
 public:
  // Map a file, whose pages are these, with ascending ordinals; those of -1 are left out. kNotFound, kIoError; kCorrupt
  // when it is damaged as far as it is read, cut short, or of other pages.
  static Result<std::shared_ptr<const SavedPostings>> Open(const FilePath& file, std::span<const SavedPage> pages,
                                                           Lengths lengths);

  // The postings of an id.
  struct List {
    std::span<const int32_t> numbers;  // of the pages that have it, in the file; none: it is not here
    size_t first = 0;                  // place of the first among all postings
  };
  [[nodiscard]] List Find(int32_t id) const;
  // Pages that are left out count, too.
  [[nodiscard]] int64_t PagesWith(int32_t id) const override { return std::ssize(Find(id).numbers); }
  // Call visit(id, list) for each id, ascending.
  template <class Visit>
  void ForEachId(const Visit& visit) const {
    for (size_t at = 0; at < ids_.size(); ++at) visit(ids_[at], ListAt(at));
  }

  // Call visit(posting) for pages in `range`, ascending. It ends at what is damaged.
  template <class Visit>
  void ForEach(const List& list, PageRun range, const Visit& visit) const {
    const std::span<const int32_t> numbers = list.numbers;
    size_t at = 0;
    auto run = std::ranges::upper_bound(runs_, range.first, {}, [](const Run& of) { return of.ordinal + of.pages; });
    for (; run != runs_.end() && run->ordinal < range.last && at < numbers.size(); ++run) {
      const int32_t first = run->number + std::max(0, range.first - run->ordinal);
      const int32_t last = run->number + std::min(run->pages, range.last - run->ordinal);
      const int32_t further = run->ordinal - run->number;
      at = static_cast<size_t>(std::lower_bound(numbers.begin() + at, numbers.end(), first) - numbers.begin());
      int32_t least = first;
      for (; at < numbers.size(); ++at) {
        const int32_t number = numbers[at];
        if (number >= last) break;
        if (number < least) return;
        least = number + 1;
        visit(Posting{number + further, CountOf(list.first + at, number)});
      }
    }
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
  // Pages of the file that follow each other there and here.
  struct Run {
    int32_t number = 0;
    int32_t ordinal = 0;
    int32_t pages = 0;
  };
  explicit SavedPostings(MappedIndexFile file) : file_(std::move(file)) {}

  // Return the list of an id. Its bounds are checked again, because the directory stays in the file: a program that
  // writes there could change it at any time.
  [[nodiscard]] List ListAt(size_t at) const;

  // Return the count of a posting, of a page of this number.
  [[nodiscard]] int32_t CountOf(size_t posting, int32_t number) const {
    if (!counts_.empty()) return counts_[posting];
    const int32_t length = std::max(0, lengths_[static_cast<size_t>(number)]);
    return std::clamp(large_counts_[posting], 0, length);
  }

  MappedIndexFile file_;
  // All of these are mapped.
  std::span<const int32_t> lengths_;
  std::span<const int32_t> ids_;
  std::span<const int64_t> ends_;
  std::span<const int32_t> numbers_;
  std::span<const uint8_t> counts_;        // either these
  std::span<const int32_t> large_counts_;  // or these
  std::vector<Run> runs_;
};

}  // namespace everlong::index
