// An index of blocks by time (year, month, day, session) and tag, to narrow a search to a question's times and tags.
#pragma once

#include <compare>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "everlong/base/stable_vector.h"

namespace everlong::graph {

// Seconds since 1970, UTC: since <= time < before.
struct TimeRange {
  double since = 0;
  double before = 0;
  bool operator==(const TimeRange&) const = default;
};

struct TagQuery {
  std::vector<TimeRange> times;   // any of these; empty: any time
  std::vector<std::string> tags;  // as many of these as possible
  int32_t most = 10'000;          // blocks in the answer
};

// Which conditions the blocks of an answer meet, from the strictest on.
enum class NarrowedBy : uint8_t {
  kTimesAndAllTags,   // all that was asked for, also when that was only times or only tags
  kTimesAndSomeTags,  // some of the tags, in those times
  kTimes,             // the times; no block of them has any of the tags
  kTags,              // some of the tags, at any time; no block is of those times
  kNothing,           // no block meets any condition
};
std::string_view NameOf(NarrowedBy by);  // "times_and_all_tags" ...

struct Narrowed {
  NarrowedBy by = NarrowedBy::kNothing;
  std::vector<int64_t> blocks;  // ids, ascending; empty with kNothing
};

// It takes about 30 bytes for a block with four tags, and 100 bytes a tag. It keeps a 64-bit hash of a tag's name. One
// thread at a time may change it. Any number of threads may read it while none changes it.
class TagTree {
 public:
  // Add a block. Its id is at least 0 and larger than all before. `time`, in seconds since 1970, UTC, is when it
  // happened or was archived. A time that is not finite, or outside the years -9999 to 9999, counts as 0. `session`: a
  // conversation or a library.
  void Add(int64_t block, double time, int64_t session, std::span<const std::string> tags);
  // Forget a block; `tags` are those that it was added with. No answer or count of tags shows it any more. An unknown
  // block changes nothing. Its memory is used again once most blocks are forgotten.
  void Forget(int64_t block, std::span<const std::string> tags);

  // Return the blocks that meet the strictest condition of NarrowedBy that any block meets. Of more than `most` blocks
  // it keeps those with the rarest tags, and of equal ones the newest. Rarity is the sum of log(1 + blocks / blocks
  // with the tag).
  [[nodiscard]] Narrowed Narrow(const TagQuery& query) const;

  [[nodiscard]] int64_t blocks() const { return live_; }
  [[nodiscard]] bool Has(int64_t block) const { return SlotOf(block) >= 0; }
  [[nodiscard]] int64_t newest() const { return entries_.empty() ? 0 : IdOf(entries_.back()); }  // even if forgotten
  [[nodiscard]] int64_t BlocksWith(const std::string& tag) const;
  [[nodiscard]] int64_t bytes() const;  // of host memory, about

  // One session on one day.
  struct Bucket {
    int32_t year = 0;
    uint32_t month = 0;  // from 1
    uint32_t day = 0;
    int64_t session = 0;
    int64_t blocks = 0;
  };
  [[nodiscard]] std::vector<Bucket> Buckets() const;  // in order of time

 private:
  // Ascending numbers, stored as differences with 7 bits a byte.
  class Numbers {
   public:
    void Add(int32_t number);
    template <class Visit>
    void ForEach(const Visit& visit) const;
    [[nodiscard]] bool empty() const { return coded_.empty(); }
    [[nodiscard]] int64_t bytes() const { return static_cast<int64_t>(coded_.capacity()) + 16; }  // as allocated

   private:
    std::vector<uint8_t> coded_;
    int32_t next_ = 0;  // one past the newest
  };
  struct Entry {
    int64_t id = 0;  // the complement of the id once it is forgotten
    double time = 0;
  };
  [[nodiscard]] static int64_t IdOf(const Entry& entry) { return entry.id < 0 ? ~entry.id : entry.id; }
  struct Tag {
    Numbers slots;
    int32_t live = 0;
  };
  // A session on a day. In their order the days of a month, and of a year, lie side by side.
  struct SessionDay {
    int32_t day = 0;  // from 1970-01-01
    int64_t session = 0;
    auto operator<=>(const SessionDay&) const = default;
  };
  struct Scored {
    int32_t slot = 0;
    int32_t tags = 0;
    double rarity = 0;
  };

  [[nodiscard]] bool IsForgotten(int32_t slot) const { return entries_[slot].id < 0; }
  [[nodiscard]] int32_t SlotOf(int64_t block) const;  // -1: unknown or forgotten
  // Return the slots of blocks that are not forgotten, ascending: those in some range, or those with some tag.
  [[nodiscard]] std::vector<int32_t> InTimes(std::span<const TimeRange> times) const;
  [[nodiscard]] std::vector<Scored> WithTags(std::span<const std::string> tags) const;
  [[nodiscard]] std::vector<int64_t> Best(std::vector<Scored> scored, int32_t most) const;
  void Compact();

  StableVector<Entry> entries_;             // by slot, in the order of Add
  std::unordered_map<uint64_t, Tag> tags_;  // by hash of the name
  std::map<SessionDay, Numbers> days_;
  int64_t live_ = 0;
};

}  // namespace everlong::graph
