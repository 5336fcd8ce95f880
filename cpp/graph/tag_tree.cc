#include "everlong/graph/tag_tree.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <iterator>
#include <utility>

#include "everlong/base/check.h"
#include "everlong/base/first_not.h"

namespace everlong::graph {
namespace {

constexpr double kSecondsADay = 86'400;
constexpr double kFarthest = 253'402'300'800;  // the end of the year 9999, and as far before 1970

double InYears(double time) { return std::isfinite(time) && std::abs(time) < kFarthest ? time : 0.0; }

// FNV-1a, then mixed; 64 bits.
uint64_t HashOf(std::string_view name) {
  uint64_t hash = 0xcbf29ce484222325ULL;
  for (const char byte : name) hash = (hash ^ static_cast<uint8_t>(byte)) * 0x100000001b3ULL;
  return hash ^ (hash >> 32U);
}

// Return hashes of the distinct names that are not empty, in an order of their own.
std::vector<uint64_t> HashesOf(std::span<const std::string> names) {
  std::vector<uint64_t> hashes;
  for (const std::string& name : names) {
    if (!name.empty()) hashes.push_back(HashOf(name));
  }
  std::ranges::sort(hashes);
  hashes.erase(std::unique(hashes.begin(), hashes.end()), hashes.end());
  return hashes;
}

// Return the number of a time's day, from 1970-01-01.
int32_t DayOf(double time) {
  return static_cast<int32_t>(std::floor(std::clamp(time, -kFarthest, kFarthest) / kSecondsADay));
}

}  // namespace

std::string_view NameOf(NarrowedBy by) {
  switch (by) {
    case NarrowedBy::kTimesAndAllTags:
      return "times_and_all_tags";
    case NarrowedBy::kTimesAndSomeTags:
      return "times_and_some_tags";
    case NarrowedBy::kTimes:
      return "times";
    case NarrowedBy::kTags:
      return "tags";
    case NarrowedBy::kNothing:
      return "nothing";
  }
  return "";
}

void TagTree::Numbers::Add(int32_t number) {
  EVERLONG_CHECK(number >= next_);
  auto difference = static_cast<uint32_t>(number - next_);
  for (; difference >= 0x80U; difference >>= 7U) coded_.push_back(static_cast<uint8_t>(difference | 0x80U));
  coded_.push_back(static_cast<uint8_t>(difference));
  next_ = number + 1;
}

template <class Visit>
void TagTree::Numbers::ForEach(const Visit& visit) const {
  int32_t next = 0;
  uint32_t difference = 0;
  uint32_t shift = 0;
  for (const uint8_t byte : coded_) {
    difference |= (byte & 0x7FU) << shift;
    if ((byte & 0x80U) != 0) {
      shift += 7;
      continue;
    }
    next += static_cast<int32_t>(difference);
    visit(next++);
    difference = shift = 0;
  }
}

int32_t TagTree::SlotOf(int64_t block) const {
  const int32_t slot = FirstNot(entries_.size(), [&](int32_t at) { return IdOf(entries_[at]) < block; });
  return slot < entries_.size() && entries_[slot].id == block ? slot : -1;
}

void TagTree::Add(int64_t block, double time, int64_t session, std::span<const std::string> tags) {
  EVERLONG_CHECK(block >= 0 && (entries_.empty() || block > newest()));
  const int32_t slot = entries_.size();
  const Entry entry{block, InYears(time)};
  for (const uint64_t hash : HashesOf(tags)) {
    Tag& tag = tags_[hash];
    tag.slots.Add(slot);
    ++tag.live;
  }
  entries_.push_back(entry);
  days_[{DayOf(entry.time), session}].Add(slot);
  ++live_;
}

void TagTree::Forget(int64_t block, std::span<const std::string> tags) {
  const int32_t slot = SlotOf(block);
  if (slot < 0) return;
  entries_[slot].id = ~block;
  --live_;
  for (const uint64_t hash : HashesOf(tags)) {
    const auto found = tags_.find(hash);
    if (found != tags_.end() && --found->second.live <= 0) tags_.erase(found);
  }
  constexpr int32_t kFew = 1024;
  if (entries_.size() > kFew && live_ < entries_.size() / 2) Compact();
}

void TagTree::Compact() {
  TagTree kept;
  std::vector<int32_t> slots(static_cast<size_t>(entries_.size()), -1);  // new ones
  for (int32_t slot = 0; slot < entries_.size(); ++slot) {
    if (IsForgotten(slot)) continue;
    slots[static_cast<size_t>(slot)] = kept.entries_.size();
    kept.entries_.push_back(entries_[slot]);
  }
  const auto renumber = [&](const Numbers& from, Numbers& to) {
    from.ForEach([&](int32_t slot) {
      if (slots[static_cast<size_t>(slot)] >= 0) to.Add(slots[static_cast<size_t>(slot)]);
    });
  };
  for (const auto& [hash, tag] : tags_) {
    Tag& renumbered = kept.tags_[hash];
    renumbered.live = tag.live;
    renumber(tag.slots, renumbered.slots);
  }
  for (const auto& [at, of_session] : days_) {
    Numbers renumbered;
    renumber(of_session, renumbered);
    if (!renumbered.empty()) kept.days_[at] = std::move(renumbered);
  }
  kept.live_ = live_;
  *this = std::move(kept);
}

int64_t TagTree::BlocksWith(const std::string& tag) const {
  const auto found = tags_.find(HashOf(tag));
  return found == tags_.end() ? 0 : found->second.live;
}

std::vector<int32_t> TagTree::InTimes(std::span<const TimeRange> times) const {
  std::vector<int32_t> slots;
  for (const TimeRange& range : times) {
    if (!(range.since < range.before)) continue;
    const int32_t last = DayOf(range.before);
    for (auto at = days_.lower_bound({DayOf(range.since), INT64_MIN}); at != days_.end() && at->first.day <= last;
         ++at) {
      at->second.ForEach([&](int32_t slot) {
        const Entry& entry = entries_[slot];
        if (entry.id >= 0 && range.since <= entry.time && entry.time < range.before) slots.push_back(slot);
      });
    }
  }
  std::ranges::sort(slots);
  const auto [from, to] = std::ranges::unique(slots);
  slots.erase(from, to);
  return slots;
}

std::vector<TagTree::Scored> TagTree::WithTags(std::span<const std::string> tags) const {
  std::vector<Scored> scored;
  for (const uint64_t hash : HashesOf(tags)) {
    const auto found = tags_.find(hash);
    if (found == tags_.end()) continue;
    const Tag& tag = found->second;
    const double rarity = std::log1p(static_cast<double>(live_) / static_cast<double>(tag.live));
    std::vector<Scored> merged;
    auto before = scored.begin();
    tag.slots.ForEach([&](int32_t slot) {
      if (IsForgotten(slot)) return;
      for (; before != scored.end() && before->slot < slot; ++before) merged.push_back(*before);
      if (before != scored.end() && before->slot == slot) {
        merged.push_back({slot, before->tags + 1, before->rarity + rarity});
        ++before;
      } else {
        merged.push_back({slot, 1, rarity});
      }
    });
    merged.insert(merged.end(), before, scored.end());
    scored = std::move(merged);
  }
  return scored;
}

std::vector<int64_t> TagTree::Best(std::vector<Scored> scored, int32_t most) const {
  if (std::cmp_greater(scored.size(), most)) {
    const auto better = [this](const Scored& a, const Scored& b) {
      if (a.rarity != b.rarity) return a.rarity > b.rarity;
      const double of_a = entries_[a.slot].time;
      const double of_b = entries_[b.slot].time;
      return of_a != of_b ? of_a > of_b : a.slot > b.slot;
    };
    std::ranges::nth_element(scored, scored.begin() + most, better);
    scored.resize(static_cast<size_t>(most));
    std::ranges::sort(scored, {}, &Scored::slot);
  }
  std::vector<int64_t> ids;
  ids.reserve(scored.size());
  for (const Scored& of : scored) ids.push_back(entries_[of.slot].id);
  return ids;
}

Narrowed TagTree::Narrow(const TagQuery& query) const {
  const int32_t most = std::max(1, query.most);
  const auto wanted = static_cast<int32_t>(HashesOf(query.tags).size());
  if (query.times.empty() && wanted == 0) return {};
  std::vector<Scored> tagged = WithTags(query.tags);
  const std::vector<int32_t> timely = InTimes(query.times);
  std::vector<Scored> chosen = tagged;
  if (!query.times.empty()) {
    std::erase_if(chosen, [&](const Scored& of) { return !std::ranges::binary_search(timely, of.slot); });
    if (wanted == 0) {
      for (const int32_t slot : timely) chosen.push_back({slot, 0, 0});
    }
  }
  std::vector<Scored> whole;
  std::ranges::copy_if(chosen, std::back_inserter(whole), [&](const Scored& of) { return of.tags == wanted; });
  if (!whole.empty()) return {NarrowedBy::kTimesAndAllTags, Best(std::move(whole), most)};
  if (!chosen.empty()) return {NarrowedBy::kTimesAndSomeTags, Best(std::move(chosen), most)};
  if (!timely.empty()) {
    for (const int32_t slot : timely) chosen.push_back({slot, 0, 0});
    return {NarrowedBy::kTimes, Best(std::move(chosen), most)};
  }
  if (!tagged.empty()) return {NarrowedBy::kTags, Best(std::move(tagged), most)};
  return {};
}

int64_t TagTree::bytes() const {
  constexpr int64_t kNodeBytes = 64;  // of maps, as they are allocated
  int64_t bytes = entries_.bytes() + static_cast<int64_t>(tags_.bucket_count() * sizeof(void*));
  for (const auto& [hash, tag] : tags_) bytes += kNodeBytes + tag.slots.bytes();
  for (const auto& [at, slots] : days_) bytes += kNodeBytes + slots.bytes();
  return bytes;
}

std::vector<TagTree::Bucket> TagTree::Buckets() const {
  std::vector<Bucket> buckets;
  for (const auto& [at, slots] : days_) {
    int64_t live = 0;
    slots.ForEach([&](int32_t slot) { live += IsForgotten(slot) ? 0 : 1; });
    if (live == 0) continue;
    const std::chrono::year_month_day date{std::chrono::sys_days(std::chrono::days(at.day))};
    buckets.push_back({int{date.year()}, unsigned{date.month()}, unsigned{date.day()}, at.session, live});
  }
  return buckets;
}

}  // namespace everlong::graph
