// The Time -> Tag tree (the four-MI100 design, 3.4.3): blocks by year, month, day and session, and by tag. What a
// question says of times and tags leaves few of them for whatever searches next.
#pragma once

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
  std::vector<TimeRange> times;   // any of these; none: any time
  std::vector<std::string> tags;  // as many of these as there are
  int32_t most = 10'000;          // blocks that are left
};

// What it took to leave some blocks, from the hardest on.
enum class NarrowedBy : uint8_t {
  kTimesAndAllTags,   // what was asked for; of times alone, or of tags alone, too
  kTimesAndSomeTags,  // some tags are nowhere in that time
  kTimes,             // all of them are
  kTags,              // nothing is of that time: some tags at any
  kNothing,           // no block has anything of it
};
std::string_view NameOf(NarrowedBy by);  // "times_and_all_tags" ...

struct Narrowed {
  NarrowedBy by = NarrowedBy::kNothing;
  std::vector<int64_t> blocks;  // ids, ascending; none with kNothing
};

// Some 30 bytes a block with four tags, and 100 a tag. Of a tag's name a hash of 64 bits is kept. One thread at a time
// changes it; any number ask it while nobody does.
class TagTree {
 public:
  // A block whose id is at least 0, and above all before. `time` in seconds since 1970, UTC: when it happened, or was
  // archived; one that is not finite, or beyond the years -9999 to 9999, counts as 0. `session`: a conversation, or a
  // library.
  void Add(int64_t block, double time, int64_t session, std::span<const std::string> tags);
  // `tags` are those it was added with. No trace of it is left in what is asked, counts of tags among it; nothing
  // happens for one that is not here. Its room is used again once most are forgotten.
  void Forget(int64_t block, std::span<const std::string> tags);

  // Hard where something matches, soft where nothing does (NarrowedBy). Of more than `most` those stay whose tags are
  // the rarest (sum of log(1 + blocks / blocks with the tag)), of equal ones the newest.
  [[nodiscard]] Narrowed Narrow(const TagQuery& query) const;

  [[nodiscard]] int64_t blocks() const { return live_; }
  [[nodiscard]] bool Has(int64_t block) const { return SlotOf(block) >= 0; }
  [[nodiscard]] int64_t newest() const { return entries_.empty() ? 0 : IdOf(entries_.back()); }  // forgotten or not
  [[nodiscard]] int64_t BlocksWith(const std::string& tag) const;
  [[nodiscard]] int64_t bytes() const;  // of host memory, about

  // A day's session.
  struct Bucket {
    int32_t year = 0;
    uint32_t month = 0;  // from 1 on
    uint32_t day = 0;
    int64_t session = 0;
    int64_t blocks = 0;
  };
  [[nodiscard]] std::vector<Bucket> Buckets() const;  // in order of time

 private:
  // Ascending numbers as differences of 7 bits a byte.
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
    int64_t id = 0;  // its complement once it is forgotten
    double time = 0;
  };
  [[nodiscard]] static int64_t IdOf(const Entry& entry) { return entry.id < 0 ? ~entry.id : entry.id; }
  struct Tag {
    Numbers slots;
    int32_t live = 0;
  };
  using Day = std::map<int64_t, Numbers>;  // by session
  using Month = std::map<uint32_t, Day>;
  using Year = std::map<uint32_t, Month>;

  struct Scored {
    int32_t slot = 0;
    int32_t tags = 0;
    double rarity = 0;
  };

  [[nodiscard]] bool IsForgotten(int32_t slot) const { return entries_[slot].id < 0; }
  [[nodiscard]] int32_t SlotOf(int64_t block) const;  // -1: it is not here, or forgotten
  // Of blocks that are not forgotten: those in some range, ascending; those with some tag, ascending.
  [[nodiscard]] std::vector<int32_t> InTimes(std::span<const TimeRange> times) const;
  [[nodiscard]] std::vector<Scored> WithTags(std::span<const std::string> tags) const;
  [[nodiscard]] std::vector<int64_t> Best(std::vector<Scored> scored, int32_t most) const;
  void Compact();

  StableVector<Entry> entries_;             // by slot, in the order of Add
  std::unordered_map<uint64_t, Tag> tags_;  // by hash of the name
  std::map<int32_t, Year> years_;
  int64_t live_ = 0;
};

}  // namespace everlong::graph
