#include "everlong/graph/walker.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>
#include <string>
#include <utility>

#include "everlong/base/check.h"

namespace everlong::graph {
namespace {

constexpr std::array<std::string_view, kWalkFeatures> kNames = {"asked_words",   "asked_words_around",
                                                                "asked_meaning", "asked_meaning_around",
                                                                "asked_rank",    "asked_run",
                                                                "left_words",    "left_meaning",
                                                                "said_words",    "said_words_rank",
                                                                "said_meaning",  "said_meaning_rank",
                                                                "shared_run",    "time_gap",
                                                                "same_topic",    "topic",
                                                                "found",         "covered",
                                                                "stop",          "degree",
                                                                "visits",        "depth",
                                                                "loads_left",    "parent_rank"};

bool AllFinite(std::span<const float> numbers) {
  return std::ranges::all_of(numbers, [](float number) { return std::isfinite(number); });
}

float Share(int64_t part, int64_t of) {
  return of == 0 ? 0.0F : static_cast<float>(static_cast<double>(part) / static_cast<double>(of));
}

class Walking {
 public:
  Walking(const WalkerPolicy& policy, WalkSpace& space, const WalkBudget& budget, const WalkChoice& choice)
      : policy_(policy), space_(space), budget_(budget), choice_(choice), random_(choice.seed) {}

  Result<WalkTrace> Run() {
    EVERLONG_ASSIGN_OR_RETURN(std::vector<Way> starts, space_.Starts());
    Take(std::move(starts));
    while (std::ssize(trace_.loads) < budget_.loads) {
      const std::vector<SeenWay> ways = Look();
      const size_t taken = Choose(ways);
      Keep(ways, taken);
      if (ways[taken].node < 0) {
        trace_.stopped = true;
        break;
      }
      const auto number = static_cast<int32_t>(trace_.loads.size());
      const Way way = open_[taken];
      trace_.loads.push_back(way.node);
      trace_.from.push_back(way.from);
      depth_.push_back(way.from == kFromSearch ? 0 : depth_[static_cast<size_t>(way.from)] + 1);
      rank_.push_back(At(way.features, WalkFeature::kAskedRank));
      EVERLONG_ASSIGN_OR_RETURN(std::vector<Way> onward, space_.Load(way, number));
      std::erase_if(open_, [this](const Way& open) { return space_.Loaded(open.node); });
      if (depth_.back() < budget_.hops) Take(std::move(onward));
      for (Way& open : open_) space_.Refresh(open);
    }
    return std::move(trace_);
  }

 private:
  void Take(std::vector<Way>&& ways) {
    for (Way& way : ways) {
      if (trace_.looked_at == budget_.nodes) return;
      if (space_.Loaded(way.node)) continue;
      ++trace_.looked_at;
      open_.push_back(way);
    }
  }

  // Return every open way, and at the end the choice to stop.
  std::vector<SeenWay> Look() const {
    std::vector<SeenWay> ways;
    ways.reserve(open_.size() + 1);
    const auto loads = std::ssize(trace_.loads);
    const float left = Share(budget_.loads - loads, budget_.loads);
    const bool all_found = std::ranges::all_of(choice_.gold, [this](int32_t gold) { return space_.Loaded(gold); });
    for (const Way& open : open_) {
      SeenWay way{open.node, open.from, 0, Right(open.node), open.features};
      const auto to_it = std::ranges::count_if(
          open_, [&open](const Way& other) { return other.node == open.node && other.from != kFromSearch; });
      At(way.features, WalkFeature::kDegree) = Share(to_it, loads);
      At(way.features, WalkFeature::kLoadsLeft) = left;
      if (open.from != kFromSearch) {
        const auto from = static_cast<size_t>(open.from);
        At(way.features, WalkFeature::kVisits) = Share(std::ranges::count(trace_.from, open.from), loads);
        At(way.features, WalkFeature::kDepth) = Share(depth_[from] + 1, budget_.hops);
        At(way.features, WalkFeature::kParentRank) = rank_[from];
      }
      way.logit = policy_.Logit(way.features);
      ways.push_back(way);
    }
    SeenWay end;
    end.right = !choice_.gold.empty() && all_found;
    space_.RefreshStop(end.features);
    At(end.features, WalkFeature::kStop) = 1;
    At(end.features, WalkFeature::kLoadsLeft) = left;
    end.logit = policy_.Logit(end.features);
    ways.push_back(end);
    return ways;
  }

  [[nodiscard]] bool Right(int32_t node) const {
    return std::ranges::any_of(choice_.gold,
                               [&](int32_t gold) { return !space_.Loaded(gold) && space_.Brings(node, gold); });
  }

  size_t Choose(const std::vector<SeenWay>& ways) {
    const auto best = [](const auto& of, const auto& allowed) {
      size_t found = of.size();
      for (size_t at = 0; at < of.size(); ++at) {
        if (allowed(of[at]) && (found == of.size() || of[at].logit > of[found].logit)) found = at;
      }
      return found;
    };
    if (choice_.by == WalkChoice::By::kTeacher) {
      const size_t right = best(ways, [](const SeenWay& way) { return way.right; });
      if (right < ways.size()) return right;
      // None is in sight. Go on by the way that the policy prefers, to where one may be.
      const size_t onward = best(ways, [](const SeenWay& way) { return way.node >= 0; });
      return onward < ways.size() ? onward : ways.size() - 1;
    }
    const size_t first = best(ways, [](const SeenWay&) { return true; });
    if (choice_.by == WalkChoice::By::kBest) return first;
    // Drawn by hand, because the standard's distributions differ between libraries.
    std::vector<double> sums;
    double sum = 0;
    for (const SeenWay& way : ways) {
      sum += std::exp(double{way.logit} - double{ways[first].logit});
      sums.push_back(sum);
    }
    const double drawn = static_cast<double>(random_() >> 11U) * 0x1p-53 * sum;
    const auto taken = std::ranges::upper_bound(sums, drawn) - sums.begin();
    return std::min(static_cast<size_t>(taken), ways.size() - 1);
  }

  void Keep(const std::vector<SeenWay>& ways, size_t taken) {
    std::vector<size_t> order(ways.size());
    std::iota(order.begin(), order.end(), size_t{0});
    std::ranges::stable_sort(order, [&](size_t a, size_t b) { return ways[a].logit > ways[b].logit; });
    WalkStep& step = trace_.steps.emplace_back();
    for (size_t place = 0; place < order.size(); ++place) {
      const size_t at = order[place];
      if (at == taken) step.taken = static_cast<int32_t>(step.ways.size());
      if (at == taken || place < kShownWays || choice_.keep_all) step.ways.push_back(ways[at]);
    }
  }

  const WalkerPolicy& policy_;
  WalkSpace& space_;
  const WalkBudget& budget_;
  const WalkChoice& choice_;
  std::mt19937_64 random_;
  std::vector<Way> open_;
  std::vector<int32_t> depth_;  // of each load
  std::vector<float> rank_;     // of each load
  WalkTrace trace_;
};

}  // namespace

std::string_view NameOf(WalkFeature feature) { return kNames[static_cast<size_t>(feature)]; }

Result<WalkerPolicy> WalkerPolicy::Of(std::span<const float> inner, std::span<const float> inner_bias,
                                      std::span<const float> outer, float outer_bias) {
  const size_t units = outer.size();
  if (units == 0 || units > kMostUnits) {
    return InvalidArgumentError("a policy of " + std::to_string(units) + " units, expected 1 to " +
                                std::to_string(kMostUnits));
  }
  if (inner.size() != units * kWalkFeatures || inner_bias.size() != units) {
    return InvalidArgumentError("a policy of " + std::to_string(units) + " units has " + std::to_string(inner.size()) +
                                " weights and " + std::to_string(inner_bias.size()) + " biases, expected " +
                                std::to_string(units * kWalkFeatures) + " and " + std::to_string(units));
  }
  if (!AllFinite(inner) || !AllFinite(inner_bias) || !AllFinite(outer) || !std::isfinite(outer_bias)) {
    return InvalidArgumentError("a weight of the policy is not finite");
  }
  WalkerPolicy policy;
  policy.inner_.assign(inner.begin(), inner.end());
  policy.inner_bias_.assign(inner_bias.begin(), inner_bias.end());
  policy.outer_.assign(outer.begin(), outer.end());
  policy.outer_bias_ = outer_bias;
  return policy;
}

float WalkerPolicy::Logit(const WalkFeatures& features) const {
  double logit = outer_bias_;
  for (size_t unit = 0; unit < outer_.size(); ++unit) {
    double sum = inner_bias_[unit];
    for (size_t at = 0; at < kWalkFeatures; ++at) {
      sum += double{inner_[unit * kWalkFeatures + at]} * double{features[at]};
    }
    if (sum > 0) logit += double{outer_[unit]} * sum;
  }
  return static_cast<float>(logit);
}

Status Validate(const WalkBudget& budget) {
  if (budget.loads < 1 || budget.hops < 1 || budget.nodes < 1) {
    return InvalidArgumentError("a walk of " + std::to_string(budget.loads) + " loads, " + std::to_string(budget.hops) +
                                " hops and " + std::to_string(budget.nodes) + " nodes, expected at least 1 of each");
  }
  return OkStatus();
}

Result<WalkTrace> Walk(const WalkerPolicy& policy, WalkSpace& space, const WalkBudget& budget,
                       const WalkChoice& choice) {
  EVERLONG_RETURN_IF_ERROR(Validate(budget));
  EVERLONG_CHECK(policy.units() > 0);
  return Walking(policy, space, budget, choice).Run();
}

}  // namespace everlong::graph
