#include <algorithm>
#include <deque>
#include <limits>
#include <unordered_map>
#include <utility>

#include "everlong/index/fusion.h"

namespace everlong::index {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

// Grows groups hit by hit. Every group is a run of pages, each the table's Next of the one before.
class GroupBuilder {
 public:
  GroupBuilder(const BlockTable& table, const PageFilter& filter, int32_t neighbours, size_t max_groups,
               int64_t token_budget, float least_share)
      : table_(table),
        filter_(filter),
        neighbours_(neighbours),
        max_groups_(max_groups),
        tokens_left_(token_budget),
        least_share_(least_share) {}

  void Serve(const FusedHit& hit) {
    if (!Usable(hit.page) || table_.page(hit.page).forgotten) return;
    if (full_ && !InBestGroup(hit.page)) return;
    int64_t cost = 0;
    const std::deque<int32_t> run = Surroundings(hit.page, cost);
    if (run.empty()) return;
    const std::vector<size_t> touched = TouchedGroups(run);
    full_ = full_ || (touched.empty() && groups_.size() - merged_away_ == max_groups_);
    if (touched.empty() && full_) return;
    if (!touched.empty() && FarBelow(groups_[touched.front()].score, hit.score)) return;
    tokens_left_ -= cost;
    Merge(run, touched, hit);
  }

  // Best first: groups are numbered by their best hit, and a merged group keeps the smaller number.
  std::vector<PageGroup> Finish(std::span<const FusedHit> hits) && {
    std::unordered_map<int32_t, float> score_of;
    for (const FusedHit& hit : hits) score_of.try_emplace(hit.page, hit.score);
    std::erase_if(groups_, [](const PageGroup& group) { return group.pages.empty(); });
    for (PageGroup& group : groups_) {
      std::ranges::sort(group.pages, {}, [this](int32_t page) { return table_.page(page).span.begin; });
      for (const int32_t page : group.pages) {
        const auto hit = score_of.find(page);
        group.scores.push_back(hit == score_of.end() ? -kInfinity : hit->second);
      }
      const PageEntry& first = table_.page(group.pages.front());
      group.stream = first.stream;
      group.span = {first.span.begin, table_.page(group.pages.back()).span.end};
    }
    return std::move(groups_);
  }

 private:
  bool InBestGroup(int32_t page) const {
    const auto found = group_of_.find(page);
    return found != group_of_.end() && found->second == 0;
  }

  // A best score that is not above 0, as of a cosine, has no share. Then only equal scores are not below it.
  bool FarBelow(float best, float score) const {
    return least_share_ > 0 && score < std::min(best, least_share_ * best);
  }

  bool Usable(int32_t page) const { return page >= 0 && filter_.Allows(page); }

  // Take `page` into the run if the budget allows it. A page that is in a group already costs nothing.
  bool Afford(int32_t page, int64_t& cost) const {
    const int64_t tokens = group_of_.contains(page) ? 0 : table_.page(page).span.size();
    if (cost + tokens > tokens_left_) return false;
    cost += tokens;
    return true;
  }

  // Return `page` and its neighbours in order of time, as far as they may be taken; empty when `page` does not fit.
  std::deque<int32_t> Surroundings(int32_t page, int64_t& cost) const {
    std::deque<int32_t> run;
    if (!Afford(page, cost)) return run;
    run.push_back(page);
    bool before = true;
    bool after = true;
    for (int32_t distance = 1; distance <= neighbours_ && (before || after); ++distance) {
      if (before) {
        const int32_t previous = table_.Previous(run.front());
        before = Usable(previous) && Afford(previous, cost);
        if (before) run.push_front(previous);
      }
      if (after) {
        const int32_t next = table_.Next(run.back());
        after = Usable(next) && Afford(next, cost);
        if (after) run.push_back(next);
      }
    }
    return run;
  }

  // Return the numbers of the groups that share a page with `run` or continue it on either side.
  std::vector<size_t> TouchedGroups(const std::deque<int32_t>& run) const {
    std::vector<size_t> touched;
    const auto touch = [&](int32_t page) {
      const auto found = group_of_.find(page);
      if (found != group_of_.end()) touched.push_back(found->second);
    };
    touch(table_.Previous(run.front()));
    for (const int32_t page : run) touch(page);
    touch(table_.Next(run.back()));
    std::ranges::sort(touched);
    touched.erase(std::unique(touched.begin(), touched.end()), touched.end());
    return touched;
  }

  void Merge(const std::deque<int32_t>& run, const std::vector<size_t>& touched, const FusedHit& hit) {
    size_t target = groups_.size();
    if (touched.empty()) {
      groups_.emplace_back().score = hit.score;
    } else {
      target = touched.front();
    }
    PageGroup& group = groups_[target];
    for (size_t i = 1; i < touched.size(); ++i) {
      PageGroup& absorbed = groups_[touched[i]];
      for (const int32_t page : absorbed.pages) group_of_[page] = target;
      group.pages.insert(group.pages.end(), absorbed.pages.begin(), absorbed.pages.end());
      group.found_by |= absorbed.found_by;
      absorbed.pages.clear();
      ++merged_away_;
    }
    for (const int32_t page : run) {
      if (group_of_.try_emplace(page, target).second) group.pages.push_back(page);
    }
    group.found_by |= hit.found_by;
  }

  const BlockTable& table_;
  const PageFilter& filter_;
  int32_t neighbours_;
  size_t max_groups_;
  int64_t tokens_left_;
  float least_share_;
  std::vector<PageGroup> groups_;  // without pages once merged into another
  size_t merged_away_ = 0;
  bool full_ = false;  // a hit would have needed one group too many
  std::unordered_map<int32_t, size_t> group_of_;
};

}  // namespace

std::vector<PageGroup> MakeGroups(std::span<const FusedHit> hits, const BlockTable& table, const PageFilter& filter,
                                  int32_t neighbours, int32_t max_groups, int64_t token_budget, float least_share) {
  if (max_groups < 1 || token_budget < 1) return {};
  GroupBuilder builder(table, filter, neighbours, static_cast<size_t>(max_groups), token_budget, least_share);
  for (const FusedHit& hit : hits) builder.Serve(hit);
  return std::move(builder).Finish(hits);
}

}  // namespace everlong::index
