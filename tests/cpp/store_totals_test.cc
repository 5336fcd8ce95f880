// What a memory says that it has is kept, not counted: after any change it is what a count says.
#include <gtest/gtest.h>

#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "store_fixture.h"

namespace everlong::store {
namespace {

class StoreTotals : public StoreFolderTest {
 protected:
  static void ExpectSame(const StoreStats& kept, const StoreStats& counted) {
    EXPECT_EQ(kept.blocks, counted.blocks);
    EXPECT_EQ(kept.pages, counted.pages);
    EXPECT_EQ(kept.tokens, counted.tokens);
    EXPECT_EQ(kept.payload_bytes, counted.payload_bytes);
    EXPECT_EQ(kept.tensor_bytes, counted.tensor_bytes);
    EXPECT_EQ(kept.graph_nodes, counted.graph_nodes);
    EXPECT_EQ(kept.graph_edges, counted.graph_edges);
    EXPECT_EQ(kept.dead_bytes, counted.dead_bytes);
  }
  // Whoever opens the memory has nothing to go by, and counts.
  void ExpectCounted(const MemoryStore& store, const MemoryStore& reader) {
    EXPECT_OK(const_cast<MemoryStore&>(store).Flush());
    const StoreStats counted = Open(true)->Stats().value();
    ExpectSame(store.Stats().value(), counted);
    ExpectSame(reader.Stats().value(), counted);
  }
};

TEST_F(StoreTotals, AfterAnyChangeTheyAreWhatACountSays) {
  std::mt19937_64 random(71);
  const auto store = Create();
  const auto reader = Open(true);
  std::vector<int64_t> ids;
  const TestBlock block(1, 40);
  const auto some = [&] { return ids[random() % ids.size()]; };
  for (int step = 0; step < 120; ++step) {
    SCOPED_TRACE(step);
    const uint64_t what = ids.size() < 4 ? 0 : random() % 9;
    switch (what) {
      case 0:
      case 1:
        ids.push_back(AppendAll(*store, TestBlock(1, 1 + static_cast<int64_t>(random() % 60))).value());
        break;
      case 2: {
        const TensorView tensor{"name " + std::to_string(random() % 3), "U8", {20}, std::span(block.payload).first(20)};
        EXPECT_OK(store->PutTensors(some(), {&tensor, 1}));
        break;
      }
      case 3:
        EXPECT_OK(store->DropTensors(some(), std::vector<std::string>{"name " + std::to_string(random() % 3)}));
        break;
      case 4:
        EXPECT_OK(store->SetTags(some(), block.tags));
        break;
      case 5: {
        GraphChange change;
        for (int i = 0; i < 3; ++i) change.put_nodes.push_back(BlockNode(some()));
        change.put_edges = {{some(), some(), EdgeKind::kNext, 1, 2}, {some(), some(), EdgeKind::kPrevious, 1, 2}};
        EXPECT_OK(store->ChangeGraph(change));
        break;
      }
      case 6: {
        GraphChange change;
        change.drop_edges = {{some(), some(), EdgeKind::kNext}};
        change.drop_nodes = {some()};
        EXPECT_OK(store->ChangeGraph(change));
        break;
      }
      case 7: {
        const int64_t gone = some();
        EXPECT_OK(store->Forget(std::vector<int64_t>{gone, gone}));
        std::erase(ids, gone);
        break;
      }
      default:
        if (random() % 4 == 0) {
          EXPECT_OK(store->Compact().status());
        } else {
          EXPECT_EQ(store->Forget(std::vector<int64_t>{some(), 1 << 20}).code(), StatusCode::kNotFound);
        }
    }
    ExpectCounted(*store, *reader);
  }
  EXPECT_GT(store->Stats()->graph_edges, 0);
  EXPECT_GT(store->Stats()->tensor_bytes.size(), 1U);
}

TEST_F(StoreTotals, PagesThatAreReplacedCountOnce) {
  const auto store = Create();
  const auto reader = Open(true);
  const TestBlock block(1, 40);
  const int64_t id = AppendAll(*store, block).value();
  ExpectCounted(*store, *reader);
  EXPECT_OK(store->ReplacePages(id, block.payload, block.page_bytes, block.tags));
  ExpectCounted(*store, *reader);
}

}  // namespace
}  // namespace everlong::store
