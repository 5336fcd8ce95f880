// The Gardener against plain sums over the members that it names.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <random>
#include <set>
#include <vector>

#include "everlong/graph/gardener.h"
#include "everlong/graph/sums.h"

namespace everlong::graph {
namespace {

constexpr int32_t kDimension = 6;

class Garden {
 public:
  explicit Garden(GardenerOptions options = {}) {
    options.dimension = kDimension;
    options_ = options;
    gardener_ = Fresh();
  }

  void Add(int64_t block, const std::vector<float>& vector) {
    vectors_[block] = vector;
    ASSERT_TRUE(gardener_->Add(block, vector, static_cast<double>(block)).ok());
  }
  void Forget(int64_t block) {
    ASSERT_TRUE(gardener_->Forget(block).ok());
    vectors_.erase(block);
  }
  // What it says that is different, put where a store would put it.
  void Save() {
    const store::GraphChange change = gardener_->TakeChange();
    for (const store::EdgeKey& edge : change.drop_edges) EXPECT_EQ(edges_.erase({edge.from, edge.to}), 1U);
    for (const int64_t id : change.drop_nodes) {
      nodes_.erase(id);
      std::erase_if(edges_, [id](const auto& edge) { return edge.first.first == id || edge.first.second == id; });
    }
    std::erase_if(edges_, [this](const auto& edge) {
      return edge.first.first < kFirstTopic && !vectors_.contains(edge.first.first);
    });
    for (const store::GraphNode& node : change.put_nodes) nodes_[node.id] = node;
    for (const store::GraphEdge& edge : change.put_edges) edges_[{edge.from, edge.to}] = edge;
  }
  void Reopen() {
    Save();
    std::vector<store::GraphNode> nodes;
    for (const auto& [id, node] : nodes_) nodes.push_back(node);
    std::vector<store::GraphEdge> edges;
    for (const auto& [ends, edge] : edges_) edges.push_back(edge);
    auto fresh = Fresh();
    const Status restored = fresh->Restore(nodes, edges);
    ASSERT_TRUE(restored.ok()) << restored.message();
    ExpectSame(fresh->Centres(), gardener_->Centres());
    EXPECT_TRUE(fresh->TakeChange().empty());
    gardener_ = std::move(fresh);
  }

  static void ExpectSame(const std::vector<Centre>& a, const std::vector<Centre>& b) {
    ASSERT_EQ(a.size(), b.size());
    for (size_t i = 0; i < a.size(); ++i) {
      EXPECT_EQ(a[i].id, b[i].id);
      EXPECT_EQ(a[i].level, b[i].level);
      EXPECT_EQ(a[i].parent, b[i].parent);
      EXPECT_EQ(a[i].sums, b[i].sums);
      EXPECT_EQ(a[i].members, b[i].members);
      EXPECT_EQ(a[i].created_at, b[i].created_at);
      EXPECT_EQ(a[i].updated_at, b[i].updated_at);
    }
  }

  // Every block in one centre, every centre in one above, all sums bit for bit those of the blocks below in any order.
  void ExpectExact() const {
    std::map<int64_t, std::vector<int64_t>> blocks_of;  // centre -> blocks below
    std::set<int64_t> seen;
    std::set<int64_t> seen_centres;
    std::mt19937 random(1);
    for (const Centre& centre : gardener_->Centres()) {
      ASSERT_FALSE(centre.members.empty());
      for (const int64_t member : centre.members) {
        if (centre.level == 0) {
          EXPECT_TRUE(seen.insert(member).second);
          EXPECT_EQ(gardener_->CentreOf(member), centre.id);
          blocks_of[centre.id].push_back(member);
        } else {
          EXPECT_TRUE(seen_centres.insert(member).second);
          const auto& below = blocks_of[member];
          blocks_of[centre.id].insert(blocks_of[centre.id].end(), below.begin(), below.end());
        }
      }
      std::vector<int64_t> order = blocks_of[centre.id];
      std::ranges::shuffle(order, random);
      Sums sums(kDimension);
      for (const int64_t block : order) sums.Add(Sums::Of(vectors_.at(block)).value());
      EXPECT_EQ(sums, centre.sums) << "centre " << centre.id;
    }
    EXPECT_EQ(seen.size(), vectors_.size());
    Sums all(kDimension);
    for (const auto& [block, vector] : vectors_) all.Add(Sums::Of(vector).value());
    EXPECT_EQ(all, gardener_->all());
  }

  Gardener& gardener() { return *gardener_; }
  [[nodiscard]] const std::map<int64_t, std::vector<float>>& vectors() const { return vectors_; }

 private:
  std::unique_ptr<Gardener> Fresh() {
    return std::make_unique<Gardener>(options_, [this](int64_t block) -> Result<std::vector<float>> {
      const auto found = vectors_.find(block);
      if (found == vectors_.end()) return NotFoundError("no vector");
      return found->second;
    });
  }

  GardenerOptions options_;
  std::map<int64_t, std::vector<float>> vectors_;
  std::map<int64_t, store::GraphNode> nodes_;
  std::map<std::pair<int64_t, int64_t>, store::GraphEdge> edges_;
  std::unique_ptr<Gardener> gardener_;
};

std::vector<float> Around(std::mt19937& random, const std::vector<float>& mean, float spread) {
  std::normal_distribution<float> normal(0, spread);
  std::vector<float> vector = mean;
  for (float& value : vector) value += normal(random);
  return vector;
}

std::vector<float> Corner(size_t which) {
  std::vector<float> corner(kDimension, 0.0F);
  corner[which % kDimension] = which < kDimension ? 5.0F : -5.0F;
  return corner;
}

TEST(GraphSums, AreExactInAnyOrderAndBackwards) {
  std::mt19937 random(3);
  std::vector<Sums> each;
  for (int i = 0; i < 5000; ++i) {
    each.push_back(Sums::Of(Around(random, Corner(static_cast<size_t>(i % 12)), 1)).value());
  }
  Sums forwards(kDimension);
  for (const Sums& sums : each) forwards.Add(sums);
  std::ranges::shuffle(each, random);
  Sums shuffled(kDimension);
  for (const Sums& sums : each) shuffled.Add(sums);
  EXPECT_EQ(forwards, shuffled);
  std::ranges::shuffle(each, random);
  for (size_t i = 0; i < 4000; ++i) shuffled.Subtract(each[i]);
  Sums rest(kDimension);
  for (size_t i = 4000; i < each.size(); ++i) rest.Add(each[i]);
  EXPECT_EQ(shuffled, rest);
}

TEST(GraphSums, SayWhatIsTrueOfTheirVectors) {
  std::mt19937 random(4);
  std::vector<std::vector<float>> vectors;
  Sums sums(kDimension);
  for (int i = 0; i < 100; ++i) {
    vectors.push_back(Around(random, Corner(1), 2));
    sums.Add(Sums::Of(vectors.back()).value());
  }
  double square = 0;
  std::vector<double> mean(kDimension, 0.0);
  for (const auto& vector : vectors) {
    for (size_t j = 0; j < vector.size(); ++j) mean[j] += double{vector[j]} / 100;
  }
  for (const auto& vector : vectors) {
    for (size_t j = 0; j < vector.size(); ++j) square += (double{vector[j]} - mean[j]) * (double{vector[j]} - mean[j]);
  }
  EXPECT_NEAR(sums.SquaredRadius(), square / 100, 1e-5);
  for (size_t j = 0; j < mean.size(); ++j) EXPECT_NEAR(sums.Mean()[j], mean[j], 1e-6);
  EXPECT_EQ(Sums(kDimension).SquaredRadius(), 0);
}

TEST(GraphSums, RefuseWhatHasNoExactSum) {
  EXPECT_FALSE(Sums::Of(std::vector<float>{std::nanf("")}).ok());
  EXPECT_FALSE(Sums::Of(std::vector<float>{INFINITY}).ok());
  EXPECT_FALSE(Sums::Of(std::vector<float>{33}).ok());
  EXPECT_TRUE(Sums::Of(std::vector<float>{32}).ok());
}

TEST(GraphGardener, FindsTwelveTopics) {
  for (const double radius : {0.0, 2.0}) {
    Garden garden({.radius = radius, .share = 0.4});
    std::mt19937 random(5);
    int64_t block = 1;
    for (int round = 0; round < 60; ++round) {
      for (size_t topic = 0; topic < 12; ++topic) garden.Add(block++, Around(random, Corner(topic), 0.4F));
    }
    EXPECT_EQ(garden.gardener().centres(0), 12) << radius;
    garden.ExpectExact();
    for (int64_t i = 13; i < block; ++i) {
      EXPECT_EQ(garden.gardener().CentreOf(i), garden.gardener().CentreOf((i - 1) % 12 + 1));
    }
  }
}

TEST(GraphGardener, SumsAreExactThroughALongLife) {
  for (const int64_t looked_at : {int64_t{1024}, int64_t{8}}) {
    Garden garden({.radius = 1.2, .most_members = 12, .looked_at = looked_at, .seed = 7});
    std::mt19937 random(6);
    int64_t next = 1;
    for (int step = 0; step < 1500; ++step) {
      const uint64_t what = random() % 10;
      if (what < 6 || garden.vectors().empty()) {
        // Where blocks come from drifts.
        std::vector<float> mean = Corner(random() % 12);
        mean[0] += static_cast<float>(step) / 500;
        garden.Add(next++, Around(random, mean, 0.7F));
      } else if (what < 9) {
        auto which = garden.vectors().begin();
        std::advance(which, random() % garden.vectors().size());
        garden.Forget(which->first);
      } else {
        garden.Reopen();
      }
      if (step % 100 == 0) garden.ExpectExact();
      ASSERT_FALSE(HasFailure());
    }
    garden.ExpectExact();
    while (!garden.vectors().empty()) garden.Forget(garden.vectors().begin()->first);
    garden.Save();
    EXPECT_TRUE(garden.gardener().Centres().empty());
    EXPECT_EQ(garden.gardener().all(), Sums(kDimension));
  }
}

TEST(GraphGardener, IsTheSameForTheSameSeed) {
  const auto grow = [](uint64_t seed) {
    Garden garden({.most_members = 16, .looked_at = 16, .seed = seed});
    std::mt19937 random(8);
    for (int64_t block = 1; block <= 400; ++block) garden.Add(block, Around(random, Corner(random() % 12), 1.5F));
    return garden.gardener().Centres();
  };
  Garden::ExpectSame(grow(1), grow(1));
}

TEST(GraphGardener, SplitsWhatIsTooWideAndWhatIsTooFull) {
  // Too full: one blob, more of it than a centre may have.
  Garden full({.radius = 3, .most_members = 20});
  std::mt19937 random(9);
  for (int64_t block = 1; block <= 200; ++block) full.Add(block, Around(random, Corner(0), 0.1F));
  for (const Centre& centre : full.gardener().Centres()) EXPECT_LE(std::ssize(centre.members), 20);
  full.ExpectExact();
  // Too full of what nothing tells apart.
  Garden same({.radius = 3, .most_members = 20});
  for (int64_t block = 1; block <= 200; ++block) same.Add(block, Corner(0));
  for (const Centre& centre : same.gardener().Centres()) EXPECT_LE(std::ssize(centre.members), 20);
  same.ExpectExact();
}

TEST(GraphGardener, MergesTwoThatBecameOne) {
  // Two that were apart; then everything between them comes, and the far ones go.
  Garden garden({.radius = 1});
  const auto at = [](float x) { return std::vector<float>{x, 0, 0, 0, 0, 0}; };
  garden.Add(1, at(0));
  garden.Add(2, at(4));
  ASSERT_EQ(garden.gardener().centres(0), 2);
  for (int64_t i = 0; i < 40; ++i) garden.Add(3 + i, at(i % 2 == 0 ? 1.2F : 2.8F));
  garden.Forget(1);
  garden.Forget(2);
  for (int64_t i = 0; i < 200; ++i) garden.Add(50 + i, at(2.0F));
  EXPECT_EQ(garden.gardener().centres(0), 1);
  garden.ExpectExact();
}

TEST(GraphGardener, SplitAndMergeDoNotAlternate) {
  // Blocks of two blobs as far apart as the radius allows or not: after the first hundreds next to nothing changes.
  for (const float apart : {1.0F, 1.4F, 1.6F, 1.8F, 2.0F, 2.2F, 2.5F, 3.0F}) {
    Garden garden({.radius = 1});
    std::mt19937 random(10);
    std::set<int64_t> seen;
    size_t born_late = 0;
    for (int64_t block = 1; block <= 2000; ++block) {
      std::vector<float> mean(kDimension, 0.0F);
      mean[0] = block % 2 == 0 ? apart : 0;
      garden.Add(block, Around(random, mean, 0.1F));
      for (const Centre& centre : garden.gardener().Centres()) {
        if (seen.insert(centre.id).second && block > 200) ++born_late;
      }
    }
    EXPECT_LE(born_late, 4U) << apart;
    garden.ExpectExact();
  }
}

TEST(GraphGardener, RefusesWhatItCannotPlace) {
  Garden garden;
  Gardener& gardener = garden.gardener();
  EXPECT_EQ(gardener.Add(1, std::vector<float>(kDimension - 1), 0).code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(gardener.Add(1, std::vector<float>(kDimension, 100.0F), 0).code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(gardener.Add(0, std::vector<float>(kDimension), 0).code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(gardener.Add(kFirstTopic, std::vector<float>(kDimension), 0).code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(gardener.Forget(1).code(), StatusCode::kNotFound);
  EXPECT_TRUE(gardener.TakeChange().empty());
  garden.Add(1, Corner(0));
  EXPECT_EQ(gardener.Add(1, Corner(1), 0).code(), StatusCode::kAlreadyExists);
  garden.ExpectExact();
  EXPECT_FALSE(Validate({.dimension = 0}).ok());
  EXPECT_FALSE(Validate({.dimension = 1, .levels = 0}).ok());
  EXPECT_FALSE(Validate({.dimension = 1, .radius = -1}).ok());
  EXPECT_FALSE(Validate({.dimension = 1, .share = 0}).ok());
  EXPECT_FALSE(Validate({.dimension = 1, .growth = 0.5}).ok());
  EXPECT_FALSE(Validate({.dimension = 1, .most_members = 3}).ok());
}

}  // namespace
}  // namespace everlong::graph
