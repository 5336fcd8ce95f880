// A writer that dies at any call of a run of operations drawn at random: whoever opens the memory, or what it was
// making, finds what was acknowledged, nothing that was forgotten, no damage, and what a rebuilt index finds.
//
// EVERLONG_OS_CRASH_SEEDS says how many runs there are, EVERLONG_OS_CRASH_STRIDE that they die at every call (1), or at
// some of them. Usually these are 878 points.
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <memory>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "os_killed_at_call.h"
#include "os_memory_blocks.h"

namespace everlong::os {
namespace {

constexpr int kBefore = 12;  // blocks that the memory has at first
constexpr int kSaved = 9;    // of which its index was saved with
constexpr int kMore = 8;     // that it gets at most
constexpr int kSteps = 7;    // operations of a run, beside those that every run has
constexpr int64_t kDamaged = 5;
constexpr const char* kNewTag = "superseded";

// What a child tells: a kind, and the number of a block.
enum Told : int64_t { kAdded = 0, kForgotten = 32, kBegunToForget = 64, kTagged = 96, kDamage = 128, kMade = 160 };

int FromEnvironment(const char* name, int usual) {
  const char* const value = std::getenv(name);
  return value == nullptr ? usual : std::stoi(value);
}

// Whether a run codes blocks anew. Keys that a rebuilt index takes from those are rounded: then words alone are asked
// for.
bool Recodes(uint64_t seed) { return seed % 2 == 0; }

std::vector<Block> MakeBlocks(uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<Block> blocks;
  for (int64_t at = 0; at < kBefore + kMore; ++at) {
    blocks.push_back(RandomBlock(random, 0, 6 * at, 6, at % 3 == 0 ? "letters" : "book"));
    blocks.back().id = at + 1;
  }
  return blocks;
}

std::unique_ptr<Memory> Opened(const std::filesystem::path& folder) {
  auto memory = Memory::Open(folder, false);
  EXPECT_TRUE(memory.ok()) << memory.status().ToString();
  if (!memory.ok()) return nullptr;
  EXPECT_TRUE((*memory)->index().SetRetrievalHeads(kHeads).ok());
  return std::move(memory).value();
}

// A run of operations, in a child that may die in any of them.
class RunOfOperations {
 public:
  RunOfOperations(const std::filesystem::path& root, const std::vector<Block>& blocks, uint64_t seed, const Tell& tell)
      : root_(root),
        memory_(Opened(root / "memory")),
        blocks_(blocks),
        random_(seed),
        recodes_(Recodes(seed)),
        tell_(tell) {
    for (int64_t id = 1; id <= kBefore; ++id) live_.insert(id);
  }

  void Go() {
    std::vector<int> steps{0, 1, 2, 3, 4, 5, 6, 7, 8, 9};
    for (int more = 0; more < kSteps; ++more) steps.push_back(static_cast<int>(random_() % steps.size()));
    std::ranges::shuffle(steps, random_);
    for (const int step : steps) Do(step);
    memory_.reset();
  }

 private:
  void Do(int step) {
    switch (step) {
      case 0:
      case 1:
        return Add(1 + static_cast<int>(random_() % 3));
      case 2:
        return Forget(Some());
      case 3:
        return Supersede();
      case 4:
        return static_cast<void>(memory_->index().Save());
      case 5:
        return static_cast<void>(memory_->upkeep().Compact());
      case 6:
        return Recode();
      case 7:
        return Fork();
      case 8:
        return Import();
      default:
        return Repair();
    }
  }

  int64_t Some() { return *std::next(live_.begin(), static_cast<std::ptrdiff_t>(random_() % live_.size())); }
  void Add(int count) {
    for (; count > 0 && added_ < kMore; --count) {
      const Block& block = blocks_[static_cast<size_t>(kBefore + added_)];
      if (Append(*memory_, block).ok() && memory_->upkeep().Flush().ok()) tell_(kAdded + block.id);
      live_.insert(block.id);
      ++added_;
    }
  }
  void Forget(int64_t id) {
    tell_(kBegunToForget + id);
    if (memory_->blocks().Forget(std::vector<int64_t>{id}).ok()) tell_(kForgotten + id);
    live_.erase(id);
  }
  // An edit: the newer text comes, the older one is marked, and then it goes.
  void Supersede() {
    const int64_t older = Some();
    Add(1);
    if (memory_->blocks().AddTags(older, std::vector<std::string>{kNewTag}).ok()) tell_(kTagged + older);
    if (random_() % 2 == 0) Forget(older);
  }
  void Recode() {
    if (recodes_) static_cast<void>(memory_->upkeep().Recode(Some(), random_() % 2 == 0 ? "int8" : "bf16"));
  }
  void Fork() {
    if (memory_->upkeep().Fork(root_ / ("fork" + std::to_string(forks_))).ok()) tell_(kMade + forks_);
    ++forks_;
  }
  void Import() {
    const std::filesystem::path file = root_ / ("file" + std::to_string(forks_));
    if (!memory_->upkeep().Export(file).ok()) return;
    if (Memory::Import(file, root_ / ("fork" + std::to_string(forks_))).ok()) tell_(kMade + forks_);
    ++forks_;
  }
  // Damage a block's bytes in its segment, once, and have it dropped.
  void Repair() {
    if (!live_.contains(kDamaged)) return;
    tell_(kDamage);
    for (const auto& file : std::filesystem::directory_iterator(root_ / "memory" / "segments")) {
      std::fstream bytes(file.path(), std::ios::binary | std::ios::in | std::ios::out);
      const std::string text{std::istreambuf_iterator<char>(bytes), std::istreambuf_iterator<char>()};
      const std::vector<std::byte> payload = blocks_[kDamaged - 1].Payload();
      const std::string wanted(reinterpret_cast<const char*>(payload.data()), 64);
      const size_t at = text.find(wanted);
      if (at == std::string::npos) continue;
      bytes.clear();
      bytes.seekp(static_cast<std::streamoff>(at));
      bytes.put(static_cast<char>(text[at] ^ 1));
    }
    static_cast<void>(memory_->upkeep().Verify(true));
    if (!memory_->blocks().Info(kDamaged).ok()) live_.erase(kDamaged);
  }

  const std::filesystem::path root_;
  std::unique_ptr<Memory> memory_;
  const std::vector<Block>& blocks_;
  std::mt19937_64 random_;
  const bool recodes_;
  const Tell& tell_;
  std::set<int64_t> live_;
  int added_ = 0;
  int64_t forks_ = 0;
};

class OsOperationsCrash : public testing::TestWithParam<int> {
 protected:
  OsOperationsCrash() : root_(FolderInRam()) {}

  void Begin(uint64_t seed) {
    blocks_ = MakeBlocks(seed);
    recodes_ = Recodes(seed);
    before_ = root_.path() / ("before" + std::to_string(seed));
    const auto memory = Memory::Create(before_, TestManifest()).value();
    ASSERT_TRUE(memory->index().SetRetrievalHeads(kHeads).ok());
    for (int at = 0; at < kBefore; ++at) {
      ASSERT_TRUE(Append(*memory, blocks_[static_cast<size_t>(at)]).ok());
      if (at + 1 == kSaved) {
        ASSERT_TRUE(memory->index().Save().ok());
      }
    }
    ASSERT_TRUE(memory->index().Save().ok());
  }

  Ended DieAt(uint64_t seed, long at) {
    std::filesystem::remove_all(work_);
    std::filesystem::create_directory(work_);
    std::filesystem::copy(before_, work_ / "memory", std::filesystem::copy_options::recursive);
    return RunInChild([&](const Tell& tell) {
      KillAfterCalls(at);
      RunOfOperations(work_, blocks_, seed, tell).Go();
      ::_exit(0);
    });
  }

  // Return the ids of a memory's blocks, having checked that each is what it was, and that nothing is damaged.
  std::optional<std::vector<Block>> WholeBlocksOf(const std::filesystem::path& folder) {
    std::vector<Block> live;
    const auto opened = Memory::Open(folder, false);
    EXPECT_TRUE(opened.ok()) << opened.status().ToString();
    if (!opened.ok()) return std::nullopt;
    Memory& memory = **opened;
    const auto report = memory.upkeep().Verify(false);
    EXPECT_TRUE(report.ok()) << report.status().ToString();
    for (const store::Damage& damage : report->damage) ADD_FAILURE() << folder << ": " << damage.what;
    const std::vector<store::BlockInfo> infos = memory.blocks().Infos().value();
    for (const store::BlockInfo& info : infos) {
      const Block& block = blocks_[static_cast<size_t>(info.id - 1)];
      EXPECT_EQ(info.span, block.span);
      EXPECT_EQ(info.source, block.source);
      EXPECT_EQ(memory.blocks().TokenIds(0, block.span).value(), block.ids);
      const kv::PayloadLayout layout = memory.blocks().Layout(info.id).value();
      std::vector<std::byte> read(static_cast<size_t>(layout.BlockBytes(block.span.size())));
      EXPECT_TRUE(memory.blocks().ReadPages(block.Pages(), read, layout.codec).ok());
      if (layout.codec == kv::Codec::kFloat32) {
        EXPECT_EQ(read, block.Payload());
      }
      live.push_back(block);
    }
    return live;
  }

  void ExpectWhatARebuiltIndexFinds(const std::filesystem::path& folder, const std::vector<Block>& live) {
    const auto answers = [&] {
      std::vector<SearchResult> found;
      const auto memory = Opened(folder);
      for (const Block& block : live) {
        const Question question = QuestionFor(block, block.span.size() - 1, 3);
        SearchRequest request = question.Request();
        if (recodes_) request.inputs.clear();
        Result<SearchResult> answer = memory->search().Find(request);
        EXPECT_TRUE(answer.ok()) << folder << ": " << answer.status().ToString();
        if (!answer.ok()) return found;
        found.push_back(std::move(answer).value());
      }
      return found;
    };
    const std::vector<SearchResult> found = answers();
    std::filesystem::remove_all(folder / "index");
    const std::vector<SearchResult> rebuilt = answers();
    ASSERT_FALSE(HasFailure());
    for (size_t at = 0; at < live.size(); ++at) ExpectSame(found[at], rebuilt[at]);
  }

  static void RepairNow(const std::filesystem::path& folder) {
    const auto memory = Memory::Open(folder, false);
    ASSERT_TRUE(memory.ok()) << memory.status().ToString();
    ASSERT_TRUE((*memory)->upkeep().Verify(true).ok());
  }

  void ExpectWhatWasTold(const std::set<int64_t>& told) {
    if (told.contains(kDamage)) RepairNow(work_ / "memory");  // the repair may have been cut short
    const auto live = WholeBlocksOf(work_ / "memory");
    ASSERT_TRUE(live);
    for (int64_t id = 1; id <= kBefore + kMore; ++id) {
      const bool is_live = std::ranges::find(*live, id, &Block::id) != live->end();
      const bool may_be_gone = told.contains(kBegunToForget + id) || (id == kDamaged && told.contains(kDamage));
      if (told.contains(kForgotten + id)) {
        EXPECT_FALSE(is_live) << "block " << id << " comes back";
      }
      if ((id <= kBefore || told.contains(kAdded + id)) && !may_be_gone) {
        EXPECT_TRUE(is_live) << id << " is lost";
      }
    }
    {
      const auto memory = Memory::Open(work_ / "memory", true).value();
      for (const Block& block : *live) {
        const std::vector<std::string> tags = memory->blocks().Info(block.id)->tags;
        if (told.contains(kTagged + block.id)) {
          EXPECT_NE(std::ranges::find(tags, kNewTag), tags.end()) << block.id;
        }
      }
    }
    ExpectWhatARebuiltIndexFinds(work_ / "memory", *live);
    for (int64_t made = 0; made < 16; ++made) {
      const std::filesystem::path folder = work_ / ("fork" + std::to_string(made));
      const bool is_there = std::filesystem::exists(folder / "manifest.json");
      if (told.contains(kMade + made)) {
        EXPECT_TRUE(is_there) << folder;
      }
      if (!is_there) continue;
      if (told.contains(kDamage)) RepairNow(folder);  // it shares the file that was damaged
      if (const auto of_fork = WholeBlocksOf(folder)) ExpectWhatARebuiltIndexFinds(folder, *of_fork);
    }
  }

  const TemporaryFolder root_;
  const std::filesystem::path work_ = root_.path() / "work";
  std::filesystem::path before_;
  std::vector<Block> blocks_;
  bool recodes_ = false;
};

TEST_P(OsOperationsCrash, WhatWasToldHolds) {
  const auto seed = static_cast<uint64_t>(GetParam());
  const long stride = FromEnvironment("EVERLONG_OS_CRASH_STRIDE", 8);
  Begin(seed);
  long points = 0;
  bool died = true;
  for (long at = GetParam() % stride; died && !HasFailure(); at += stride, ++points) {
    SCOPED_TRACE("seed " + std::to_string(seed) + ", dies before call " + std::to_string(at));
    const Ended ended = DieAt(seed, at);
    died = ended.died;
    if (HasFailure()) return;
    ExpectWhatWasTold(ended.told);
  }
  EXPECT_TRUE(HasFailure() || points > 500 / stride) << points;
  RecordProperty("points", std::to_string(points));
}

INSTANTIATE_TEST_SUITE_P(Seeds, OsOperationsCrash,
                         testing::Range(1, 1 + FromEnvironment("EVERLONG_OS_CRASH_SEEDS", 8)));

}  // namespace
}  // namespace everlong::os
