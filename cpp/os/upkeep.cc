#include "everlong/os/upkeep.h"

#include <vector>

#include "everlong/kv/recode.h"
#include "memory_state.h"
#include "transform_file.h"

namespace everlong::os {

Status Upkeep::Flush() {
  // Without the turn: other threads append meanwhile, and their blocks are committed together.
  const Result<int64_t> stored = state_.store->WaitForSubmitted();
  auto writer = state_.index.TakeTurn();
  if (stored.ok()) {
    state_.submitted.erase(state_.submitted.begin(), state_.submitted.lower_bound(*stored));
    return OkStatus();
  }
  const Status flushed = state_.Flush(writer);
  return flushed.ok() ? stored.status() : flushed;
}

Result<int64_t> Upkeep::Compact() {
  state_.store->WaitForPasses();  // before the turn, so that appends go on meanwhile
  // Refused before the files of its writer are touched.
  EVERLONG_ASSIGN_OR_RETURN(auto writer, state_.TurnToWrite());
  EVERLONG_RETURN_IF_ERROR(state_.Flush(writer));
  EVERLONG_RETURN_IF_ERROR(state_.index.broken());  // the flush may have removed lost blocks
  const Status saved = writer.RemoveSavedOfForgotten();
  EVERLONG_ASSIGN_OR_RETURN(const int64_t freed, state_.store->Compact());
  EVERLONG_RETURN_IF_ERROR(writer.GiveBackForgotten());
  EVERLONG_RETURN_IF_ERROR(saved);
  return freed;
}

Result<int64_t> Upkeep::Recode(int64_t block, std::string_view codec) {
  EVERLONG_ASSIGN_OR_RETURN(const auto turn, state_.TurnToWrite());
  EVERLONG_ASSIGN_OR_RETURN(const store::BlockInfo info, state_.store->Block(block));
  EVERLONG_ASSIGN_OR_RETURN(const BlockCoding to, state_.payloads.Named(codec));
  EVERLONG_ASSIGN_OR_RETURN(const BlockCoding from, state_.payloads.CodingOf(info.tags));
  if (info.pages == 0 || from.name == to.name) return 0;
  kv::PayloadLayout plain = state_.layout;
  plain.codec = kv::Codec::kFloat32;
  std::vector<std::byte> payload;
  std::vector<int64_t> page_bytes;
  for (int32_t page = 0; page < info.pages; ++page) {
    const int32_t tokens = plain.PageTokens(info.span.size(), page);
    std::vector<std::byte> read(static_cast<size_t>(from.layout.PageBytes(tokens)));
    const PayloadRead whole{block, page, tokens, 0, plain.layers, read};
    EVERLONG_ASSIGN_OR_RETURN(const auto started, state_.payloads.Start({&whole, 1}, from.layout.codec));
    EVERLONG_RETURN_IF_ERROR(started->Wait());
    std::vector<std::byte> numbers(static_cast<size_t>(plain.PageBytes(tokens)));
    EVERLONG_RETURN_IF_ERROR(kv::RecodePage(read, tokens, from.layout, plain, numbers));
    EVERLONG_ASSIGN_OR_RETURN(const std::vector<std::byte> coded, Payloads::Encode(numbers, tokens, to));
    page_bytes.push_back(std::ssize(coded));
    payload.insert(payload.end(), coded.begin(), coded.end());
  }
  EVERLONG_RETURN_IF_ERROR(
      state_.store->ReplacePages(block, payload, page_bytes, state_.payloads.TagsOf(info.tags, to)));
  return info.payload_bytes;
}

Result<std::string> Upkeep::PutTransform(std::span<const std::byte> file) {
  EVERLONG_ASSIGN_OR_RETURN(const auto turn, state_.TurnToWrite());
  const std::string name = TransformNameOf(file);
  EVERLONG_RETURN_IF_ERROR(ParseTransform(file, state_.layout, state_.store->manifest().fingerprint.weights).status());
  EVERLONG_RETURN_IF_ERROR(state_.store->PutFile(name, file));
  EVERLONG_RETURN_IF_ERROR(state_.store->SetAttribute("transform", name));
  return name;
}

Result<store::VerifyReport> Upkeep::Verify(bool repair) {
  if (repair) EVERLONG_RETURN_IF_ERROR(state_.store->CheckWritable());
  EVERLONG_RETURN_IF_ERROR(Flush());
  Result<store::VerifyReport> report = state_.store->Verify(false);  // beside everybody
  if (repair && report.ok() && !report->damage.empty()) {
    auto writer = state_.index.TakeTurn();
    EVERLONG_RETURN_IF_ERROR(state_.Flush(writer));
    const auto growing = state_.growth.Hold();
    report = state_.store->Repair(*std::move(report));
    state_.growth.Close();  // nodes may be gone
    // Parts may hold tensors of a block that are gone now. A repair may also fail after the commit that drops blocks.
    if (report.ok() ? !report->damage.empty() : writer.HasBlocksThatAreGone()) {
      EVERLONG_RETURN_IF_ERROR(writer.Reload());
    }
  }
  EVERLONG_RETURN_IF_ERROR(report.status());
  EVERLONG_ASSIGN_OR_RETURN(const std::vector<store::Damage> saved, state_.index.VerifySaved());
  report->damage.insert(report->damage.end(), saved.begin(), saved.end());
  if (repair && !saved.empty()) {
    auto writer = state_.index.TakeTurn();
    EVERLONG_RETURN_IF_ERROR(writer.RepairSaved());
  }
  if (state_.text_alone()) return report;
  // A repair keeps the blocks: the file may come back from a fork, or be fitted again.
  EVERLONG_ASSIGN_OR_RETURN(const std::vector<store::Damage> without, state_.payloads.WithoutTables());
  report->damage.insert(report->damage.end(), without.begin(), without.end());
  return report;
}

Status Upkeep::HearForgettings() {
  if (!state_.store->read_only()) return OkStatus();
  auto writer = state_.index.TakeTurn();
  return writer.HasBlocksThatAreGone() ? writer.Reload() : OkStatus();
}

Status Upkeep::Fork(const std::filesystem::path& folder) {
  EVERLONG_ASSIGN_OR_RETURN(auto writer, state_.index.TakeSoundTurn());
  EVERLONG_RETURN_IF_ERROR(state_.Flush(writer));
  EVERLONG_RETURN_IF_ERROR(writer.Save());
  return state_.store->Fork(folder, [&writer](const FilePath& fork) { writer.CarrySaved(fork); });
}

Status Upkeep::Export(const std::filesystem::path& file) {
  EVERLONG_RETURN_IF_ERROR(Flush());
  return state_.store->Export(file);
}

Result<store::StoreStats> Upkeep::Stats() const {
  EVERLONG_ASSIGN_OR_RETURN(store::StoreStats stats, state_.store->Stats());
  if (state_.text_alone()) {  // the store counts only pages with a payload
    const auto reading = state_.index.Read();
    stats.pages += state_.index.table().live_pages();
  }
  return stats;
}

}  // namespace everlong::os
