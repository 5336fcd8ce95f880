// A part of the index that no library brings, written by the contract alone: pages by how far their token ids are from
// a number, with a vector of the caller's as its question.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <sstream>
#include <string>
#include <vector>

#include "everlong/index/index_file.h"
#include "everlong/index/part.h"
#include "everlong/index/part_kinds.h"

namespace everlong::os {

// The mean of a page's token ids; the question is one number, and the best page is the one whose mean is nearest.
class MeanIdPart final : public index::Part {
 public:
  // A block's tensor F32 [1], if it came with one: added to its means.
  static constexpr const char* kShift = "mean_ids/shift";
  static constexpr index::Voice kVoice{index::Evidence{10.0, 10.0}};

  explicit MeanIdPart(const index::PartContext& context) : context_(context) {}

  static index::PartKind Kind() {
    index::PartKind kind;
    kind.name = "mean_ids";
    kind.input = "mean_id";
    kind.made = index::PartKind::Made::kWhenAsked;
    kind.voice = kVoice;
    kind.make = [](const index::PartContext& context) -> Result<std::unique_ptr<index::Part>> {
      return std::unique_ptr<index::Part>(std::make_unique<MeanIdPart>(context));
    };
    return kind;
  }

  index::PartNeeds needs() const override {
    index::PartNeeds needs;
    needs.token_ids = true;
    needs.tensors = true;
    return needs;
  }

  Status Add(const index::BlockInput& block) override {
    float shift = 0;
    for (const index::BlockTensor& tensor : block.tensors) {
      if (tensor.name != kShift) continue;
      if (tensor.dtype != "F32" || tensor.bytes.size() != sizeof shift) return InvalidArgumentError("no F32 [1]");
      std::memcpy(&shift, tensor.bytes.data(), sizeof shift);
    }
    std::vector<float> means;
    for (int32_t page = 0; page < block.page_count(); ++page) {
      double sum = 0;
      for (const int32_t id : block.PageIds(page)) sum += id;
      means.push_back(static_cast<float>(sum / block.PageTokens(page)) + shift);
    }
    const std::scoped_lock lock(guard_);
    means_[block.id] = std::move(means);
    return OkStatus();
  }

  Status Forget(const index::BlockInput& block) override {
    const std::scoped_lock lock(guard_);
    means_.erase(block.id);
    return OkStatus();
  }

  bool Has(const index::BlockEntry& block) const override {
    const std::scoped_lock lock(guard_);
    return means_.contains(block.id);
  }

  Result<std::vector<index::Ranking>> Rank(const index::Query& query, const index::PageFilter& filter,
                                           int32_t k) const override {
    const std::span<const float> wanted = query.Input("mean_id");
    if (wanted.size() != 1) return InvalidArgumentError("mean_id is not one number");
    index::Ranking ranking;
    ranking.voice = kVoice;
    const std::scoped_lock lock(guard_);
    for (const index::PageRun& run : filter.runs()) {
      for (int32_t ordinal = run.first; ordinal < run.last; ++ordinal) {
        const index::PageEntry page = context_.table.page(ordinal);
        const float distance = std::abs(means_.at(page.block)[static_cast<size_t>(page.page)] - wanted[0]);
        ranking.hits.push_back({ordinal, 1 / (1 + distance)});
      }
    }
    std::ranges::stable_sort(ranking.hits, std::ranges::greater(), &index::Hit::score);
    if (std::ssize(ranking.hits) > k) ranking.hits.resize(static_cast<size_t>(k));
    ranking.unnamed = index::ScoreOfUnnamed(ranking.hits, k);
    return std::vector{std::move(ranking)};
  }

  std::string settings() const override { return "mean ids"; }

  Status Save(const index::IndexFile& file, index::BlockRun /*all*/) const override {
    EVERLONG_ASSIGN_OR_RETURN(index::IndexFileWriter writer, index::IndexFileWriter::Create(file, ""));
    std::ostringstream out;
    for (const auto& [id, means] : means_) {
      out << id << ' ' << means.size();
      for (const float mean : means) out << ' ' << std::hexfloat << mean << std::defaultfloat;
      out << '\n';
    }
    writer.WriteAll(std::span<const char>(out.str()));
    return writer.Commit();
  }

  Status Load(const FilePath& file, std::span<const index::SavedBlock> blocks, bool /*gaps*/) override {
    std::ifstream in(file.SystemPath());
    for (const index::SavedBlock& block : blocks) {
      int64_t id = 0;
      size_t count = 0;
      in >> id >> count;
      std::vector<float> means;
      for (; count > 0; --count) {
        std::string mean;
        in >> mean;
        means.push_back(std::strtof(mean.c_str(), nullptr));
      }
      if (!in.good() || id != block.id) return CorruptError("it holds other blocks than its list says");
      if (block.first_page >= 0) means_[id] = std::move(means);
    }
    ++loads;
    return OkStatus();
  }

  int64_t bytes() const override { return std::ssize(means_) * 64; }

  static inline int loads = 0;  // successful ones, in this process

 private:
  const index::PartContext& context_;
  mutable std::mutex guard_;  // of means_
  std::map<int64_t, std::vector<float>> means_;
};

// Its one line.
inline const index::IndexPart kMeanIds = index::RegisterPartKind(MeanIdPart::Kind());

}  // namespace everlong::os
