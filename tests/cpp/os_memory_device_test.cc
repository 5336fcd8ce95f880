// A memory whose heads are searched on a device finds what one without it does, whatever comes and goes.
#include <gtest/gtest.h>

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "everlong/os/memory.h"
#include "index_hip_host.h"
#include "os_memory_blocks.h"

namespace everlong::os {
namespace {

using hip::host::HostDevice;

constexpr int64_t kEnough = int64_t{8} << 20;

struct TwoMemories {
  std::shared_ptr<HostDevice> device = std::make_shared<HostDevice>();
  Filled on_device = FilledInRam(7);
  Filled on_host = FilledInRam(7);

  explicit TwoMemories(int64_t device_bytes = kEnough) {
    index::HeadsOptions options;
    EXPECT_TRUE(on_host.memory->index().SetRetrievalHeads(kHeads, options).ok());
    options.device = device;
    options.device_bytes = device_bytes;
    EXPECT_TRUE(on_device.memory->index().SetRetrievalHeads(kHeads, options).ok());
  }

  // Asks both for every block's last token; returns how many questions.
  int64_t ExpectTheSame(const SearchFilter& filter = {}) const {
    for (const Block& block : on_host.blocks) {
      const Question question = QuestionFor(block, block.span.size() - 1, 1.0F);
      SearchRequest request = question.Request();
      request.kinds = {IndexPart::kHeads};
      request.max_groups = 100;
      request.filter = filter;
      const auto expected = on_host.memory->search().Find(request);
      const auto got = on_device.memory->search().Find(request);
      EXPECT_TRUE(expected.ok() && got.ok());
      EXPECT_EQ(got->groups.size(), expected->groups.size());
      for (size_t i = 0; i < got->groups.size(); ++i) {
        EXPECT_EQ(got->groups[i].pages, expected->groups[i].pages);
        EXPECT_NEAR(got->groups[i].score, expected->groups[i].score, 1e-4 * expected->groups[i].score);
      }
      EXPECT_NEAR(got->top_mass, expected->top_mass, 1e-4);
    }
    return std::ssize(on_host.blocks);
  }
};

TEST(OsMemoryDeviceTest, FindsTheSameWhateverComesAndGoes) {
  TwoMemories two;
  int64_t asked = two.ExpectTheSame();
  std::mt19937_64 random(8);
  const Block late = RandomBlock(random, 5, 0, 13, "late");
  for (const Filled* filled : {&two.on_device, &two.on_host}) ASSERT_TRUE(Append(*filled->memory, late).ok());
  two.on_host.blocks.push_back(late);
  asked += two.ExpectTheSame();
  SearchFilter filter;
  filter.sources = {"letters", "late"};
  asked += two.ExpectTheSame(filter);
  const std::vector<int64_t> forgotten{2, 5, 11};
  for (const Filled* filled : {&two.on_device, &two.on_host})
    ASSERT_TRUE(filled->memory->blocks().Forget(forgotten).ok());
  asked += two.ExpectTheSame();
  EXPECT_EQ(two.on_device.memory->index().device_use(IndexPart::kHeads).scans, asked);
  EXPECT_EQ(two.on_device.memory->index().device_use(IndexPart::kHeads).bytes, two.device->held());
  EXPECT_EQ(two.device->scans, asked);
  EXPECT_TRUE(two.on_device.memory->index().TakeMessages().empty());
  EXPECT_EQ(two.on_host.memory->index().device_use(IndexPart::kHeads).scans, 0);
  ASSERT_TRUE(two.on_device.memory->index().SetRetrievalHeads({}).ok());
  EXPECT_EQ(two.device->held(), 0);
}

TEST(OsMemoryDeviceTest, SaysOnceWhyTheHostSearches) {
  TwoMemories two(1000);
  two.ExpectTheSame();
  EXPECT_EQ(two.on_device.memory->index().device_use(IndexPart::kHeads).scans, 0);
  const std::vector<std::string> messages = two.on_device.memory->index().TakeMessages();
  ASSERT_EQ(messages.size(), 1U);
  EXPECT_NE(messages[0].find("the memory in RAM: the retrieval heads are searched on the host ("), std::string::npos);
  EXPECT_NE(messages[0].find("do not fit in the 1000"), std::string::npos) << messages[0];
  EXPECT_TRUE(two.on_device.memory->index().TakeMessages().empty());
}

// The keys that a repair reads anew take the place of those that were there.
TEST(OsMemoryDeviceTest, ARepairHasNoKeysTwice) {
  const TemporaryFolder folder;
  Filled filled = Fill(Memory::Create(folder.path(), TestManifest(), {.segment_bytes = 1}).value(), 9, 12);
  index::HeadsOptions options;
  const auto device = std::make_shared<HostDevice>();
  options.device = device;
  options.device_bytes = kEnough;
  ASSERT_TRUE(filled.memory->index().SetRetrievalHeads(kHeads, options).ok());
  const int64_t held = device->held();
  ASSERT_TRUE(std::filesystem::remove(folder.path() / "segments" / "000004.kvseg"));  // of one block
  const auto report = filled.memory->upkeep().Verify(true);
  ASSERT_TRUE(report.ok()) << report.status().ToString();
  EXPECT_EQ(report->dropped, std::vector<int64_t>{4});
  EXPECT_EQ(device->held(), held);
  EXPECT_EQ(device->most_held, held);
  EXPECT_EQ(filled.memory->index().device_use(IndexPart::kHeads).bytes, held);
}

}  // namespace
}  // namespace everlong::os
