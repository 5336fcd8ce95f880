// Every thread-safe object at once, from eight threads: worth most under ThreadSanitizer. Python has a test of the same
// kind (tests/python/core/test_threads.py).
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "base_temporary_folder.h"
#include "everlong/graph/tag_tree.h"
#include "everlong/index/neural_inverted_index.h"
#include "everlong/kv/transfer_engine.h"
#include "os_memory_blocks.h"

namespace everlong::os {
namespace {

constexpr int kThreads = 8;
constexpr int kRounds = 12;

bool IsOneOf(const Status& status, std::initializer_list<StatusCode> codes) {
  return status.ok() || std::ranges::find(codes, status.code()) != codes.end();
}

std::vector<float> RandomVectors(std::mt19937_64& random, int count) {
  std::normal_distribution<float> normal;
  std::vector<float> vectors(static_cast<size_t>(count) * kDim);
  std::ranges::generate(vectors, [&] { return normal(random); });
  return vectors;
}

class OsThreads : public testing::Test {
 protected:
  OsThreads() : memory_(Memory::Create(temporary_.path() / "memory", TestManifest()).value()) {
    EXPECT_TRUE(memory_->index().SetRetrievalHeads(kHeads).ok());
    EXPECT_TRUE(memory_->index().SetPageVectors({"encoder", kDim, index::VectorSearch::kDnii}).ok());
    EXPECT_TRUE(memory_->graph().Grow({.radius = 0.5}).ok());
    std::mt19937_64 random(1);
    first_ = RandomBlock(random, 0, 0, 10);
    first_.id = Append(*memory_, first_).value();
    const std::vector<std::string> tags{"a"};
    for (int64_t block = 1; block < 50; ++block) tree_.Add(block, static_cast<double>(block) * 1e7, 0, tags);
    vector_indexes_.push_back(index::MakeFlatIndex({.dimension = kDim}));
    vector_indexes_.push_back(index::MakeHnswIndex({.dimension = kDim, .links = 4, .exact_below = 8}));
    vector_indexes_.push_back(index::MakeNeuralInvertedIndex({.dimension = kDim, .list_vectors = 8, .exact_below = 8}));
  }

  // What each thread does, in an order of its own.
  using Call = std::function<void(std::mt19937_64& random, int thread)>;
  void Run(const std::vector<Call>& calls) {
    std::vector<std::thread> threads;
    for (int thread = 0; thread < kThreads; ++thread) {
      threads.emplace_back([&calls, thread] {
        std::mt19937_64 random(static_cast<uint64_t>(thread));
        std::vector<const Call*> order;
        for (const Call& call : calls) order.push_back(&call);
        for (int round = 0; round < kRounds; ++round) {
          std::ranges::shuffle(order, random);
          for (const Call* call : order) (*call)(random, thread);
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
  }

  void UseBlocks(std::mt19937_64& random, int thread) {
    Blocks& blocks = memory_->blocks();
    const int64_t stream = thread + 1;
    const Block block = RandomBlock(random, stream, blocks.StreamEnd(stream), 9, "source " + std::to_string(thread));
    const auto id = Append(*memory_, block);
    ASSERT_TRUE(id.ok()) << id.status().ToString();
    const auto pages = blocks.PagesOf(stream, block.span);
    ASSERT_TRUE(pages.ok()) << pages.status().ToString();
    std::vector<std::byte> out(block.Payload().size());
    EXPECT_TRUE(blocks.ReadPages(*pages, out).ok());
    EXPECT_TRUE(out == block.Payload());
    const float number = 1;
    const store::TensorView tensor{"a", "F32", {1}, std::as_bytes(std::span(&number, 1))};
    EXPECT_TRUE(blocks.PutTensors(*id, {&tensor, 1}).ok());
    EXPECT_TRUE(blocks.AddTags(*id, std::vector<std::string>{"tag"}).ok());
    EXPECT_TRUE(blocks.Info(*id).ok());
    EXPECT_FALSE(blocks.Infos()->empty());
    if (random() % 3 == 0) {
      EXPECT_TRUE(blocks.Forget(std::vector<int64_t>{*id}).ok());
    }
  }

  void UseSearch(std::mt19937_64& random, int /*thread*/) {
    const Question question = QuestionFor(first_, static_cast<int64_t>(random() % 10), 2.0F);
    SearchRequest request = question.Request();
    const std::vector<float> vector = RandomVectors(random, 1);
    request.inputs["page_query"].numbers = vector;
    request.kinds = {IndexPart::kHeads, IndexPart::kLexical, IndexPart::kEmbedding};
    EXPECT_TRUE(memory_->search().Find(request).ok());
    EXPECT_TRUE(memory_->search().Rankings(request, 3).ok());
    EXPECT_FALSE(memory_->search().Idf(question.ids).empty());
  }

  void UseIndexes(std::mt19937_64& random, int /*thread*/) {
    Indexes& indexes = memory_->index();
    for (const PageRef& page : indexes.PagesWithoutVectors()) {
      const Status added =
          indexes.AddPageVectors(page.block, std::vector<int32_t>{page.page}, RandomVectors(random, 1));
      EXPECT_TRUE(IsOneOf(added, {StatusCode::kNotFound, StatusCode::kAlreadyExists})) << added.ToString();
      break;
    }
    EXPECT_GE(indexes.page_lists()->lists().ids.size(), 0U);
    if (random() % 8 == 0) {
      EXPECT_TRUE(indexes.SetRetrievalHeads(kHeads, {.coarse_from = 8}).ok());
      EXPECT_TRUE(indexes.Save().ok());
    }
  }

  void UseRest(std::mt19937_64& random, int thread) {
    EXPECT_TRUE(memory_->graph().Tend(2).ok());
    EXPECT_TRUE(memory_->graph().Read().ok());
    EXPECT_TRUE(memory_->SetAttribute("thread", std::to_string(thread)).ok());
    EXPECT_TRUE(memory_->upkeep().Flush().ok());
    EXPECT_TRUE(memory_->upkeep().Stats().ok());
    if (random() % 8 != 0) return;
    EXPECT_TRUE(memory_->upkeep().Compact().ok());
    EXPECT_TRUE(memory_->upkeep().Verify(false)->damage.empty());
  }

  void UseVectorIndexes(std::mt19937_64& random, int thread) {
    for (const auto& index : vector_indexes_) {
      const std::vector<int64_t> ids{(int64_t{1} + thread) << 40 | static_cast<int64_t>(random() >> 30),
                                     (int64_t{100} + thread) << 40 | static_cast<int64_t>(random() >> 30)};
      EXPECT_TRUE(index->Add(ids, RandomVectors(random, 2)).ok());
      EXPECT_TRUE(index->Search(RandomVectors(random, 2), 3, {}).ok());
      EXPECT_EQ(index->Remove(std::span(ids).first(1)), 1);
      EXPECT_GT(index->size() + index->bytes(), 0);
    }
  }

  void UseTransfers(std::mt19937_64& /*random*/, int thread) {
    const std::shared_ptr<kv::StagingBuffer> buffer = engine_.Acquire(100).value();
    std::ranges::fill(buffer->bytes(), static_cast<std::byte>(thread));
    std::vector<std::byte> device(100);
    const kv::TransferSegment whole{0, 100, device.data()};
    const auto moved = engine_.ToDevice(buffer, {&whole, 1}, nullptr);
    ASSERT_TRUE(moved.ok());
    EXPECT_TRUE(engine_.Wait(*moved).ok());
    EXPECT_EQ(std::ranges::count(device, static_cast<std::byte>(thread)), 100);
  }

  const TemporaryFolder temporary_;
  Block first_;
  std::unique_ptr<Memory> memory_;
  graph::TagTree tree_;
  std::vector<std::unique_ptr<index::VectorIndex>> vector_indexes_;
  kv::TransferEngine engine_{kv::MakeWorkerCopyQueue(), kv::MakeWorkerCopyQueue(), 1 << 20};
};

TEST_F(OsThreads, EveryObjectTakesThemAtOnce) {
  const std::vector<PageRef> pages = first_.Pages();
  std::vector<std::byte> out(first_.Payload().size());
  const auto reads = memory_->blocks().StartReadPages(pages, 0, kLayers, out).value();
  Run({[this](auto& random, int thread) { UseBlocks(random, thread); },
       [this](auto& random, int thread) { UseSearch(random, thread); },
       [this](auto& random, int thread) { UseIndexes(random, thread); },
       [this](auto& random, int thread) { UseRest(random, thread); },
       [this](auto& random, int thread) { UseVectorIndexes(random, thread); },
       [this](auto& random, int thread) { UseTransfers(random, thread); },
       [&](auto& /*random*/, int /*thread*/) { EXPECT_TRUE(reads->Wait().ok()); },
       [this](auto& random, int /*thread*/) {
         EXPECT_FALSE(tree_.Narrow({.times = {{0, 1e8 * static_cast<double>(1 + random() % 5)}}}).blocks.empty());
       }});
  EXPECT_TRUE(out == first_.Payload());
  for (const auto& index : vector_indexes_) EXPECT_EQ(index->size(), kThreads * kRounds);
  EXPECT_TRUE(memory_->upkeep().Verify(false)->damage.empty());
}

}  // namespace
}  // namespace everlong::os
