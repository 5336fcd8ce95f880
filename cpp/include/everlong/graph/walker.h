// The Walker: from what a search found on through a memory's graph, one page group after the other, until the policy
// stops or a budget is spent (both designs, 2.4 and Phase 3). The policy is a small network over what is known of where
// the walk is, where it may go and what is asked, all of it in shares: the same weights serve any model and any memory.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "everlong/base/status.h"

namespace everlong::graph {

// What the policy sees of one way onward. Shares are 0..1; "its words", "its meaning": of the page that the way leads
// to. What a space cannot tell is 0.
enum class WalkFeature : uint8_t {
  // --- by the space
  kAskedWords,          // root of the share of the question's words that it has
  kAskedWordsAround,    // the same with its neighbours
  kAskedMeaning,        // share of the question's meaning
  kAskedMeaningAround,  // the same with its neighbours
  kAskedRank,           // 1 / (1 + rank) in the flat search, from 0 on; 0 where that does not name it
  kAskedRun,   // rarity of the rarest run of tokens that it has of the question: a name, or a thing with its word
  kLeftWords,  // as kAskedWords, of what is left of the question after what was found
  kLeftMeaning,
  kSaidWords,      // as kAskedWords, of what the page says that the way comes from, where it speaks of what is asked
  kSaidWordsRank,  // 1 / (1 + rank) among all pages by that
  kSaidMeaning,    // the same by meaning
  kSaidMeaningRank,
  kSharedRun,  // rarity of the rarest run of tokens that both pages have: a name
  kTimeGap,    // log of the pages between, as a share of the log of all; 1 from another stream
  kSameTopic,  // 1 where the Gardener put both blocks into one topic
  kTopic,      // cosine of the question and the topic, where it is one of the nearest
  kFound,      // 1 where the flat search leads to it
  kCovered,    // share of the question's words that what was loaded has
  // --- by the walk
  kStop,        // 1 for ending here, of which nothing else but the state is known
  kDegree,      // share of what was loaded from which a way leads to the page
  kVisits,      // share of what was loaded that came from where this way comes from
  kDepth,       // edges behind a start, as a share of the budget's hops
  kLoadsLeft,   // share of the budget
  kParentRank,  // kAskedRank of where it comes from
  kCount
};
inline constexpr size_t kWalkFeatures = static_cast<size_t>(WalkFeature::kCount);
using WalkFeatures = std::array<float, kWalkFeatures>;
std::string_view NameOf(WalkFeature feature);  // "asked_words" ...

inline float& At(WalkFeatures& features, WalkFeature feature) { return features[static_cast<size_t>(feature)]; }
inline float At(const WalkFeatures& features, WalkFeature feature) { return features[static_cast<size_t>(feature)]; }

// logit = b2 + w2 . max(0, W1 f + b1), summed in fp64 in order: the same bits on every machine. A value, thread-safe as
// one.
class WalkerPolicy {
 public:
  // inner [units, kWalkFeatures], inner_bias [units], outer [units]. kInvalidArgument on other sizes, on no units, on
  // more than kMostUnits and on a number that is not finite.
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

// A way to a page that is not loaded: from a load (its number), or by the flat search (kFromSearch).
inline constexpr int32_t kFromSearch = -1;
struct Way {
  int32_t node = 0;
  int32_t from = kFromSearch;
  WalkFeatures features = {};  // by the space, as they were when the way was found
};

// Where a walk goes. One thread at a time.
class WalkSpace {
 public:
  virtual ~WalkSpace() = default;
  // Where it may begin.
  virtual Result<std::vector<Way>> Starts() = 0;
  // Loads a page with what comes back beside it, and tells where it leads on; `number` counts loads from 0.
  virtual Result<std::vector<Way>> Load(const Way& way, int32_t number) = 0;
  // Whether a page came with some load.
  [[nodiscard]] virtual bool Loaded(int32_t node) const = 0;
  // Whether loading `node` brings `other`, too.
  [[nodiscard]] virtual bool Brings(int32_t node, int32_t other) const = 0;
  // Sets the features of the space that change with what was loaded.
  virtual void Refresh(Way& way) const = 0;
  // The same of ending here.
  virtual void RefreshStop(WalkFeatures& features) const = 0;
};

struct WalkBudget {
  int32_t loads = 4;    // of page groups
  int32_t hops = 3;     // edges in a row behind what the search found
  int32_t nodes = 512;  // ways that are looked at in all
  bool operator==(const WalkBudget&) const = default;
};
Status Validate(const WalkBudget& budget);

// How of several ways one is taken: the best, of equal ones the first; or, to learn, one drawn by softmax of the
// logits; or the best that brings a page of `gold` which is missing, and the end once none is missing.
struct WalkChoice {
  enum class By : uint8_t { kBest, kDraw, kTeacher };
  By by = By::kBest;
  uint64_t seed = 0;
  std::vector<int32_t> gold;  // what ways of a step are right is told where there are some
  bool keep_all = false;      // all ways of every step, not just the kShownWays best
};
inline constexpr size_t kShownWays = 5;

struct SeenWay {
  int32_t node = -1;  // -1: ending
  int32_t from = kFromSearch;
  float logit = 0;
  bool right = false;  // brings a page of `gold` that is missing; of ending: none is missing
  WalkFeatures features = {};
};
struct WalkStep {
  std::vector<SeenWay> ways;  // best first with the end among them, as many as are kept; the taken one always
  int32_t taken = 0;          // of `ways`
};
struct WalkTrace {
  std::vector<WalkStep> steps;
  std::vector<int32_t> loads;  // nodes, in order
  std::vector<int32_t> from;   // of each, the number of the load it comes from, or kFromSearch
  int32_t looked_at = 0;       // ways
  bool stopped = false;        // by the policy, not by a budget
};

// kInvalidArgument on a budget below 1; what the space fails with.
Result<WalkTrace> Walk(const WalkerPolicy& policy, WalkSpace& space, const WalkBudget& budget,
                       const WalkChoice& choice = {});

}  // namespace everlong::graph
