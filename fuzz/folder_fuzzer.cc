// Any folder as a memory: refused with a reason, or used, checked and mended, with nothing outside of it touched.
//
// An input is a program: which good memory (folder_memories.h), what is done to its folder (folder_changes.h), and what
// a user then does with it. So every input is a folder that is a memory but for some changes.
#include <sys/resource.h>

#include <algorithm>
#include <array>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <system_error>
#include <vector>

#include "everlong/base/check.h"
#include "folder_changes.h"
#include "folder_use.h"

namespace everlong::fuzz {
namespace {

namespace fs = std::filesystem;

using store::MemoryStore;
using store::VerifyReport;

// Abort where what is done cannot fail: to a memory that nobody changed.
void RequireOk(const Status& status, bool whole) {
  if (whole && !status.ok()) CheckFailed(__FILE__, __LINE__, status.ToString().c_str());
}

void RequireNoDamage(const VerifyReport& report, const char* where) {
  if (report.damage.empty()) return;
  for (const store::Damage& damage : report.damage) {
    std::fprintf(stderr, "%s: block %lld: %s\n", where, static_cast<long long>(damage.block), damage.what.c_str());
  }
  CheckFailed(__FILE__, __LINE__, "no damage");
}

// What is read and written follows from what the folder holds: some kilobytes. Aborts where it was far more. No file
// becomes so large either; a size that is refused is an error like others.
class IoLimit {
 public:
  IoLimit() {
    std::signal(SIGXFSZ, SIG_IGN);
    EVERLONG_CHECK(::getrlimit(RLIMIT_FSIZE, &before_) == 0);
    rlimit limit = before_;
    limit.rlim_cur = kMost;
    EVERLONG_CHECK(::setrlimit(RLIMIT_FSIZE, &limit) == 0);
  }
  ~IoLimit() {
    ::setrlimit(RLIMIT_FSIZE, &before_);
    EVERLONG_CHECK(Bytes() - bytes_ < kMost);
  }
  IoLimit(const IoLimit&) = delete;
  IoLimit& operator=(const IoLimit&) = delete;

 private:
  static constexpr uint64_t kMost = uint64_t{1} << 28;
  // Return the bytes that this process has read and written.
  static uint64_t Bytes() {
    std::ifstream io("/proc/self/io");
    std::string name;
    uint64_t read = 0;
    uint64_t written = 0;
    io >> name >> read >> name >> written;
    return read + written;
  }

  rlimit before_ = {};
  const uint64_t bytes_ = Bytes();
};

// A reader changes nothing, and what it exports is whole.
void UseAsReader(const fs::path& folder, const fs::path& made, Asked asked, bool whole) {
  const Look before = LookAt(folder, true);
  const fs::path file = made / "read";
  {
    const auto memory = os::Memory::Open(folder, true, SmallOptions());
    RequireOk(memory.status(), whole);
    if (!memory.ok()) return RequireSame(before, LookAt(folder, true), "a reader that was refused");
    RequireOk(Read(**memory, asked), whole);
    const auto report = (*memory)->upkeep().Verify(false);
    RequireOk(report.status(), whole);
    if (whole) RequireNoDamage(*report, "a memory that nobody changed");
    if (Wants(asked, Asked::kExport)) RequireOk((*memory)->upkeep().Export(file), whole);
    if (Wants(asked, Asked::kFork)) RequireOk((*memory)->upkeep().Fork(made / "fork of a reader"), whole);
  }
  RequireSame(before, LookAt(folder, true), "a reader");
  if (!fs::exists(file)) return;
  const auto imported = os::Memory::Import(file, std::nullopt, SmallOptions());
  RequireOk(imported.status(), whole);
  if (!imported.ok()) return;
  const auto report = (*imported)->upkeep().Verify(false);
  EVERLONG_CHECK(report.ok());
  RequireNoDamage(*report, "what was imported");
}

std::set<int64_t> IdsOf(const MemoryStore& store) {
  std::set<int64_t> ids;
  const auto blocks = store.Blocks();
  if (!blocks.ok()) return ids;  // of a memory with a damaged row
  for (const store::BlockInfo& block : *blocks) ids.insert(block.id);
  return ids;
}

// A check changes nothing. A repair takes only what the check named, and leaves nothing to mend. Return whether the
// memory is whole now.
bool Repair(const fs::path& folder, bool whole) {
  const auto opened = MemoryStore::Open(folder, false, SmallOptions());
  RequireOk(opened.status(), whole);
  if (!opened.ok()) return false;
  MemoryStore& store = **opened;
  const Look before = LookAt(folder, true);
  const auto report = store.Verify(false);
  RequireSame(before, LookAt(folder, true), "a check");
  RequireOk(report.status(), whole);
  if (!report.ok()) return false;
  if (whole) RequireNoDamage(*report, "a writer's view");
  std::set<int64_t> named;
  for (const store::Damage& damage : report->damage) named.insert(damage.block);
  const std::set<int64_t> had = IdsOf(store);
  if (!store.Verify(true).ok()) return false;
  const std::set<int64_t> has = IdsOf(store);
  for (const int64_t block : had) EVERLONG_CHECK(has.contains(block) || named.contains(block));
  const auto again = store.Verify(false);
  if (again.ok()) RequireNoDamage(*again, "behind a repair");
  return again.ok();
}

// Whoever writes makes no damage.
void UseAsWriter(const fs::path& folder, const fs::path& made, Asked asked, bool sound, bool whole) {
  {
    const auto memory = os::Memory::Open(folder, false, SmallOptions());
    RequireOk(memory.status(), whole);
    if (!memory.ok()) return;
    RequireOk(Read(**memory, asked), whole);
    RequireOk(Write(**memory, asked, made), whole);
    RequireOk(Read(**memory, asked), whole);
  }
  if (!sound) return;
  const auto reader = MemoryStore::Open(folder, true, SmallOptions());
  if (!reader.ok()) return;
  const auto report = (*reader)->Verify(false);
  if (report.ok()) RequireNoDamage(*report, "behind a writer");
}

void RunOne(Choices& choices) {
  const auto& memories = GoodMemories();
  const GoodMemory& memory = memories[choices.ConsumeIntegralInRange<size_t>(0, memories.size() - 1)];
  constexpr int kRead = 1;
  constexpr int kRepair = 2;
  constexpr int kWrite = 4;
  constexpr std::array kUses = {kRead | kRepair | kWrite, kRead, kRead, kRepair, kWrite, kWrite,
                                kRepair | kWrite,         kRead};
  const int uses = kUses[choices.ConsumeIntegralInRange<size_t>(0, kUses.size() - 1)];
  const auto asked = static_cast<Asked>(choices.ConsumeIntegralInRange(0, kMostAsked));
  const fs::path folder = Scratch() / "memory";
  const fs::path outside = Scratch() / "outside";
  const fs::path made = Scratch() / "made";
  static const GoodMemory* copied = nullptr;
  if (copied != &memory) {
    fs::remove_all(outside);
    WriteFiles(outside / "memory", memory.files);
    PutBytes(outside / "file", std::string(9000, 's'));
    copied = &memory;
  }
  WriteFiles(folder, memory.files);
  fs::create_directory(made);
  const bool whole = choices.remaining_bytes() == 0;
  for (int left = 6; left > 0 && choices.remaining_bytes() > 0; --left) ChangeFolder(choices, folder, memory, outside);
  const Look before = LookAt(outside);
  {
    const IoLimit limit;
    if ((uses & kRead) != 0) UseAsReader(folder, made, asked, whole);
    const bool sound = (uses & kRepair) != 0 && Repair(folder, whole);
    if ((uses & kWrite) != 0) UseAsWriter(folder, made, asked, sound, whole);
  }
  RequireSame(before, LookAt(outside), "outside");
  std::error_code ignored;
  fs::remove_all(folder, ignored);
  fs::remove_all(made, ignored);
}

}  // namespace
}  // namespace everlong::fuzz

// What is freed is watched for a while, and where it was made is told: less of both than usual, for speed.
extern "C" const char* __asan_default_options() { return "quarantine_size_mb=16:malloc_context_size=8"; }

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  everlong::fuzz::Choices choices(data, size);
  everlong::fuzz::RunOne(choices);
  return 0;
}
