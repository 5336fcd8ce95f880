// Blocks that are coded anew: what they read as, who reads beside it, and a death in the middle.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "everlong/kv/recode.h"
#include "os_killed_at_call.h"
#include "os_memory_blocks.h"

namespace everlong::os {
namespace {

constexpr int kBlocks = 6;
constexpr const char* kCodec = "int8";

kv::PayloadLayout LayoutOf(const std::string& codec) {
  return {kv::ParseCodec(codec).value(), kLayers, kKvHeads, kDim, kPageTokens};
}

// What a block reads as once it has gone through these codecs, from fp32 on.
std::vector<std::byte> Coded(const Block& block, const std::vector<std::string>& codecs) {
  std::vector<std::byte> payload = block.Payload();
  kv::PayloadLayout from = LayoutOf("fp32");
  for (const std::string& codec : codecs) {
    const kv::PayloadLayout to = LayoutOf(codec);
    std::vector<std::byte> next(static_cast<size_t>(to.BlockBytes(block.span.size())));
    std::span<const std::byte> in = payload;
    std::span<std::byte> out = next;
    for (int64_t page = 0; page < to.PageCount(block.span.size()); ++page) {
      const int32_t tokens = to.PageTokens(block.span.size(), page);
      const auto in_bytes = static_cast<size_t>(from.PageBytes(tokens));
      const auto out_bytes = static_cast<size_t>(to.PageBytes(tokens));
      EXPECT_TRUE(kv::RecodePage(in.first(in_bytes), tokens, from, to, out.first(out_bytes)).ok());
      in = in.subspan(in_bytes);
      out = out.subspan(out_bytes);
    }
    payload = std::move(next);
    from = to;
  }
  return payload;
}

std::vector<std::byte> Read(const Memory& memory, const Block& block) {
  const Result<kv::PayloadLayout> layout = memory.blocks().Layout(block.id);
  EXPECT_TRUE(layout.ok()) << layout.status().ToString();
  std::vector<std::byte> out(static_cast<size_t>(layout->BlockBytes(block.span.size())));
  const Status read = memory.blocks().ReadPages(block.Pages(), out, layout->codec);
  EXPECT_TRUE(read.ok()) << read.ToString();
  return out;
}

void ExpectCoded(const Memory& memory, const Block& block, const std::vector<std::string>& codecs) {
  EXPECT_EQ(memory.blocks().Layout(block.id)->codec, LayoutOf(codecs.empty() ? "fp32" : codecs.back()).codec);
  EXPECT_EQ(Read(memory, block), Coded(block, codecs)) << "block " << block.id;
  EXPECT_EQ(memory.blocks().Info(block.id)->payload_bytes, std::ssize(Coded(block, codecs)));
  EXPECT_EQ(memory.blocks().Info(block.id)->tags.size(), codecs.empty() || codecs.back() == "fp32" ? 2U : 3U);
}

void ExpectWhole(Memory& memory) {
  const auto report = memory.upkeep().Verify(false);
  ASSERT_TRUE(report.ok()) << report.status().ToString();
  EXPECT_TRUE(report->damage.empty()) << report->damage[0].what;
}

TEST(OsRecode, BlocksOfSeveralCodecsLiveInOneMemoryInRamAndInAFolder) {
  const TemporaryFolder root;
  for (const bool in_ram : {true, false}) {
    const std::filesystem::path folder = root.path() / "memory";
    auto filled =
        Fill(Memory::Create(in_ram ? std::nullopt : std::optional(folder), TestManifest()).value(), 7, kBlocks);
    Memory& memory = *filled.memory;
    const std::vector<std::vector<std::string>> ways{{},       {"int8"},         {"int4", "bf16"},
                                                     {"k5v4"}, {"int8", "fp32"}, {"e4m3"}};
    for (size_t i = 0; i < ways.size(); ++i) {
      for (const std::string& codec : ways[i]) {
        const auto recoded = memory.upkeep().Recode(filled.blocks[i].id, codec);
        ASSERT_TRUE(recoded.ok()) << recoded.status().ToString();
        EXPECT_GT(*recoded, 0);
        EXPECT_EQ(memory.upkeep().Recode(filled.blocks[i].id, codec).value(), 0);
      }
    }
    const auto expect_all = [&](Memory& of) {
      for (size_t i = 0; i < ways.size(); ++i) ExpectCoded(of, filled.blocks[i], ways[i]);
      ExpectWhole(of);
    };
    expect_all(memory);
    ASSERT_TRUE(memory.upkeep().Compact().ok());
    expect_all(memory);
    EXPECT_LE(memory.upkeep().Stats()->dead_bytes, 4096);  // of a file with holes
    // A page's keys are those of its codec.
    const Block& block = filled.blocks[1];
    const PageRef page = block.Pages()[0];
    std::vector<float> keys(static_cast<size_t>(kKvHeads * page.span.size() * kDim));
    ASSERT_TRUE(memory.blocks().ReadKeys(page, 1, keys).ok());
    for (int32_t head = 0; head < kKvHeads; ++head) {
      for (int64_t t = 0; t < page.span.size(); ++t) {
        for (int32_t d = 0; d < kDim; ++d) {
          EXPECT_NEAR(keys[static_cast<size_t>((head * page.span.size() + t) * kDim + d)], block.Key(1, head, t)[d],
                      0.05);
        }
      }
    }
    const std::filesystem::path file = root.path() / (in_ram ? "of_ram" : "of_folder");
    ASSERT_TRUE(memory.upkeep().Export(file).ok());
    expect_all(*Memory::Import(file, std::nullopt).value());
    if (in_ram) continue;
    ASSERT_TRUE(memory.upkeep().Fork(root.path() / "fork").ok());
    expect_all(*Memory::Open(root.path() / "fork", false).value());
    filled.memory.reset();
    expect_all(*Memory::Open(folder, false).value());
  }
}

TEST(OsRecode, NoCallButRecodeChangesWhatSaysHowABlockIsCoded) {
  const Filled filled = FilledInRam(9, 3);
  Blocks& blocks = filled.memory->blocks();
  const Block& recoded = filled.blocks[0];
  const Block& plain = filled.blocks[1];
  ASSERT_TRUE(filled.memory->upkeep().Recode(recoded.id, kCodec).ok());
  const std::vector<std::string> of_recoded{"mine", "everlong:codec=int8"};
  for (const std::vector<std::string>& tags :
       {std::vector<std::string>{"mine"}, {"mine", "everlong:codec=bf16"}, {"everlong:codec=int8", "mine"}}) {
    ASSERT_TRUE(blocks.SetTags(recoded.id, tags).ok());
    EXPECT_EQ(blocks.Info(recoded.id)->tags, of_recoded);
    EXPECT_EQ(blocks.Codec(recoded.id).value(), "int8");
    EXPECT_EQ(Read(*filled.memory, recoded), Coded(recoded, {kCodec}));
    ASSERT_TRUE(blocks.SetTags(plain.id, tags).ok());
    EXPECT_EQ(blocks.Info(plain.id)->tags, std::vector<std::string>{"mine"});
    EXPECT_EQ(Read(*filled.memory, plain), plain.Payload());
  }
  for (const int64_t id : {recoded.id, plain.id}) {
    EXPECT_EQ(blocks.AddTags(id, std::vector<std::string>{"more", "everlong:codec=bf16"}).code(),
              StatusCode::kInvalidArgument);
  }
  EXPECT_EQ(blocks.Info(plain.id)->tags, std::vector<std::string>{"mine"});
  // A block that is copied with its tags is coded as the memory is.
  std::mt19937_64 random(5);
  Block copy = RandomBlock(random, 7, 0, 6);
  copy.tags = of_recoded;
  copy.id = Append(*filled.memory, copy).value();
  EXPECT_EQ(blocks.Info(copy.id)->tags, std::vector<std::string>{"mine"});
  EXPECT_EQ(Read(*filled.memory, copy), copy.Payload());
  ASSERT_TRUE(filled.memory->upkeep().Recode(recoded.id, "fp32").ok());
  EXPECT_EQ(blocks.Info(recoded.id)->tags, std::vector<std::string>{"mine"});
}

TEST(OsRecode, ARequestThatDoesNotFitIsRefusedAndChangesNothing) {
  const Filled filled = FilledInRam(8, 2);
  Upkeep& upkeep = filled.memory->upkeep();
  const Block& block = filled.blocks[0];
  EXPECT_EQ(upkeep.Recode(99, kCodec).status().code(), StatusCode::kNotFound);
  EXPECT_EQ(upkeep.Recode(block.id, "int7").status().code(), StatusCode::kInvalidArgument);
  ASSERT_TRUE(upkeep.Recode(block.id, kCodec).ok());
  // A reader who takes the block for what it was learns that it is not.
  std::vector<std::byte> out(block.Payload().size());
  EXPECT_EQ(filled.memory->blocks().ReadPages(block.Pages(), out).code(), StatusCode::kBusy);
  ExpectCoded(*filled.memory, block, {kCodec});
  ExpectCoded(*filled.memory, filled.blocks[1], {});
}

TEST(OsRecode, AReaderBesideTheWriterReadsWhatIsThereNow) {
  const TemporaryFolder root;
  const Filled filled = Fill(Memory::Create(root.path() / "memory", TestManifest()).value(), 9, kBlocks);
  const auto reader = Memory::Open(root.path() / "memory", true).value();
  // int6 and k8v4 are of one size here: only the codec tells them apart.
  std::vector<std::string> ways;
  for (const char* codec : {"int6", "k8v4", "int4"}) {
    for (const Block& block : filled.blocks) static_cast<void>(Read(*reader, block));  // into the reader's RAM
    ways.emplace_back(codec);
    for (const Block& block : filled.blocks) ASSERT_TRUE(filled.memory->upkeep().Recode(block.id, codec).ok());
    ASSERT_TRUE(filled.memory->upkeep().Compact().ok());
    for (const Block& block : filled.blocks) ExpectCoded(*reader, block, ways);
  }
}

// Code every block anew and compact, in a process that is killed before one of its calls, each in turn. After each
// death a next writer goes on. Return how often it died.
long DeathsWhileCoding(const Filled& filled, const std::filesystem::path& before, const std::filesystem::path& folder,
                       const std::string& codec) {
  long deaths = 0;
  for (; !testing::Test::HasFailure(); ++deaths) {
    SCOPED_TRACE(codec + ", dies before call " + std::to_string(deaths));
    std::filesystem::remove_all(folder);
    std::filesystem::copy(before, folder, std::filesystem::copy_options::recursive);
    const pid_t child = ::fork();
    if (child == 0) {
      KillAfterCalls(deaths);
      const auto memory = Memory::Open(folder, false).value();
      for (const Block& block : filled.blocks) {
        if (!memory->upkeep().Recode(block.id, codec).ok()) ::_exit(6);
      }
      if (!memory->upkeep().Compact().ok()) ::_exit(7);
      ::_exit(0);
    }
    int status = 0;
    EXPECT_EQ(::waitpid(child, &status, 0), child);
    const bool died = WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL;
    EXPECT_TRUE(died || (WIFEXITED(status) && WEXITSTATUS(status) == 0)) << status;

    const auto memory = Memory::Open(folder, false).value();
    ExpectWhole(*memory);
    bool coded_before = true;
    for (const Block& block : filled.blocks) {
      const bool coded = memory->blocks().Layout(block.id)->codec == LayoutOf(codec).codec;
      EXPECT_TRUE(coded_before || !coded) << "in order";
      coded_before = coded;
      ExpectCoded(*memory, block, coded ? std::vector<std::string>{codec} : std::vector<std::string>{});
      EXPECT_TRUE(memory->upkeep().Recode(block.id, codec).ok());  // the next one goes on
      ExpectCoded(*memory, block, {codec});
    }
    EXPECT_TRUE(memory->upkeep().Compact().ok());
    ExpectWhole(*memory);
    if (!died) break;
  }
  return deaths;
}

TEST(OsRecode, AWriterThatDiesLeavesEachBlockCodedOneWayOrTheOther) {
  const TemporaryFolder root;
  const std::filesystem::path before = root.path() / "before";
  const Filled filled = Fill(Memory::Create(before, TestManifest()).value(), 10, 3);
  long deaths = 0;
  for (const char* codec : {"int8", "k8v4", "int4"}) {
    deaths += DeathsWhileCoding(filled, before, root.path() / "memory", codec);
  }
  EXPECT_GE(deaths, 200);
}

}  // namespace
}  // namespace everlong::os
