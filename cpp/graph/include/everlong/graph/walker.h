// The Walker: it follows a memory's graph from what a search found, and loads one page group after the other. It goes
// on until its policy stops or a budget is spent. The policy is a small network. Its features describe the place of the
// walk, the ways onward and the question, all as shares. So the same weights serve any model and any memory.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "everlong/base/status.h"

namespace everlong::graph {

// What the policy sees of one way onward. "It" is the page that the way leads to. Shares are 0 to 1; 0 if unknown.
enum class WalkFeature : uint8_t {
  // --- by the space
  kAskedWords,          // root of the share of the question's words that it has
  kAskedWordsAround,    // the same with its neighbours
  kAskedMeaning,        // share of the question's meaning
  kAskedMeaningAround,  // the same with its neighbours
  kAskedRank,           // 1 / (1 + rank) in the flat search, from rank 0; 0 where the search did not find it
  kAskedRun,            // rarity of the rarest run of the question's tokens in it: a name, or a thing with its word
  kLeftWords,           // as kAskedWords, for the part of the question that is not found yet
  kLeftMeaning,
  kSaidWords,      // as kAskedWords, for what the page before it says about the question
  kSaidWordsRank,  // 1 / (1 + rank) of it by kSaidWords, among all pages
  kSaidMeaning,    // the same by meaning
  kSaidMeaningRank,
  kSharedRun,  // rarity of the rarest run of tokens that both pages have: a name
  kTimeGap,    // log of the pages between, as a share of the log of all pages; 1 from another stream
  kSameTopic,  // 1 where the Gardener put both blocks into one topic
  kTopic,      // cosine of the question and the page's topic, if that is one of the nearest topics
  kFound,      // 1 where the flat search leads to it
  kCovered,    // share of the question's words that the loaded pages have
  // --- by the walk
  kStop,        // 1 for the choice to stop; its other features are only those of the state
  kDegree,      // share of the loads that have a way to the page
  kVisits,      // share of the loads that came from the same place as this way
  kDepth,       // edges from a start, as a share of the budget's hops
  kLoadsLeft,   // loads that are left, as a share of the budget
  kParentRank,  // kAskedRank of the page that the way comes from
  kCount
};
inline constexpr size_t kWalkFeatures = static_cast<size_t>(WalkFeature::kCount);
using WalkFeatures = std::array<float, kWalkFeatures>;
std::string_view NameOf(WalkFeature feature);  // "asked_words" ...

inline float& At(WalkFeatures& features, WalkFeature feature) { return features[static_cast<size_t>(feature)]; }
inline float At(const WalkFeatures& features, WalkFeature feature) { return features[static_cast<size_t>(feature)]; }

// The network: logit = b2 + w2 . max(0, W1 f + b1). It sums in fp64 in a fixed order, so every machine gets the same
// bits. A value type, thread-safe as one.
class WalkerPolicy {
 public:
  // inner [units, kWalkFeatures], inner_bias [units], outer [units]. kInvalidArgument on other sizes, on no units, on
  // more than kMostUnits, and on a number that is not finite.
  static Result<WalkerPolicy> Of(std::span<const float> inner, std::span<const float> inner_bias,
                                 std::span<const float> outer, float outer_bias);
  static constexpr size_t kMostUnits = 1024;

  [[nodiscard]] float Logit(const WalkFeatures& features) const;
  [[nodiscard]] size_t units() const { return outer_.size(); }

 private:
  std::vector<float> inner_;
  std::vector<float> inner_bias_;
  std::vector<float> outer_;
  float outer_bias_ = 0;
};

// A way to a page that is not loaded. It comes from a load, by its number, or from the flat search (kFromSearch).
inline constexpr int32_t kFromSearch = -1;
struct Way {
  int32_t node = 0;
  int32_t from = kFromSearch;
  WalkFeatures features = {};  // those of the space are as they were when the way was found
};

// The graph that a walk moves in. Use it from one thread at a time.
class WalkSpace {
 public:
  virtual ~WalkSpace() = default;
  // Return the ways that a walk may begin with.
  virtual Result<std::vector<Way>> Starts() = 0;
  // Load a page and what comes back with it, and return the ways onward from it. `number` counts loads from 0.
  virtual Result<std::vector<Way>> Load(const Way& way, int32_t number) = 0;
  // Return whether some load brought a page.
  [[nodiscard]] virtual bool Loaded(int32_t node) const = 0;
  // Return whether loading `node` also brings `other`.
  [[nodiscard]] virtual bool Brings(int32_t node, int32_t other) const = 0;
  // Update those features of the space that change with what was loaded.
  virtual void Refresh(Way& way) const = 0;
  // Do the same for the choice to stop.
  virtual void RefreshStop(WalkFeatures& features) const = 0;
};

struct WalkBudget {
  int32_t loads = 4;    // page groups to load
  int32_t hops = 3;     // edges in a row from what the search found
  int32_t nodes = 512;  // ways to look at in all
  bool operator==(const WalkBudget&) const = default;
};
Status Validate(const WalkBudget& budget);

// How a walk chooses one of several ways. The best: of equal ones the first. By a draw: by the softmax of the logits,
// for training. By the teacher: the best way that brings a missing page of `gold`, or the end when none is missing.
struct WalkChoice {
  enum class By : uint8_t { kBest, kDraw, kTeacher };
  By by = By::kBest;
  uint64_t seed = 0;
  std::vector<int32_t> gold;  // if there are any, every seen way says whether it is right
  bool keep_all = false;      // keep all ways of every step, not only the kShownWays best
};
inline constexpr size_t kShownWays = 5;

struct SeenWay {
  int32_t node = -1;  // -1: stop
  int32_t from = kFromSearch;
  float logit = 0;
  bool right = false;  // it brings a missing page of `gold`; for stopping: none is missing
  WalkFeatures features = {};
};
struct WalkStep {
  std::vector<SeenWay> ways;  // best first, stopping among them; always contains the taken one
  int32_t taken = 0;          // index in `ways`
};
struct WalkTrace {
  std::vector<WalkStep> steps;
  std::vector<int32_t> loads;  // nodes, in order
  std::vector<int32_t> from;   // of each: the number of the load that it came from, or kFromSearch
  int32_t looked_at = 0;       // number of ways
  bool stopped = false;        // by the policy, not by a budget
};

// Walk a space. kInvalidArgument on a budget below 1, and any error of the space.
Result<WalkTrace> Walk(const WalkerPolicy& policy, WalkSpace& space, const WalkBudget& budget,
                       const WalkChoice& choice = {});

}  // namespace everlong::graph
