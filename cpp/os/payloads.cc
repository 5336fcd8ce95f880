#include "payloads.h"

#include <algorithm>
#include <iterator>
#include <optional>
#include <utility>

#include "everlong/base/check.h"
#include "everlong/base/out_of_memory.h"
#include "everlong/kv/recode.h"
#include "transform_file.h"

namespace everlong::os {
namespace {

// Reads of transformed pages: their coded bytes, which Wait decodes.
class DecodingReads final : public store::PendingReads {
 public:
  // A page, the place of its coded bytes in `coded_`, and what decodes it.
  struct Page {
    PayloadRead read;
    std::vector<std::byte> coded;
    std::shared_ptr<const kv::Transform> transform;
  };

  // `started` fills the pages' `coded`, which keep their place.
  DecodingReads(std::vector<Page> pages, std::unique_ptr<store::PendingReads> started)
      : pages_(std::move(pages)), started_(std::move(started)) {}

  Status Wait() override {
    const std::scoped_lock waiting(guard_);
    if (answer_) return *answer_;
    answer_ = OrOutOfMemory([this]() -> Status {
      EVERLONG_RETURN_IF_ERROR(started_->Wait());
      return Decode();
    });
    return *answer_;
  }

 private:
  [[nodiscard]] Status Decode() const {
    for (size_t first = 0; first < pages_.size();) {
      size_t last = first;
      std::vector<kv::CodedPage> some;
      for (; last < pages_.size() && pages_[last].transform == pages_[first].transform; ++last) {
        const auto& [read, coded, transform] = pages_[last];
        some.push_back({coded, read.tokens, read.first_layer, read.layers, read.out});
      }
      EVERLONG_RETURN_IF_ERROR(pages_[first].transform->DecodePages(some));
      first = last;
    }
    return OkStatus();
  }

  const std::vector<Page> pages_;
  const std::unique_ptr<store::PendingReads> started_;  // it is destroyed first, and waits for what fills the pages
  std::mutex guard_;
  std::optional<Status> answer_;
};

}  // namespace

Result<BlockCoding> Payloads::Named(std::string_view name) const {
  BlockCoding coding{std::string(name), layout_, nullptr};
  if (name.starts_with(kTransformName)) {
    coding.layout.codec = kv::Codec::kFloat32;
    EVERLONG_ASSIGN_OR_RETURN(coding.transform, TransformNamed(coding.name));
    return coding;
  }
  EVERLONG_ASSIGN_OR_RETURN(coding.layout.codec, kv::ParseCodec(name));
  return coding;
}

Result<BlockCoding> Payloads::CodingOf(std::span<const std::string> tags) const {
  const auto tag = std::ranges::find_if(tags, IsCodecTag);
  if (tag == tags.end()) return Named(kv::CodecName(layout_.codec));
  return Named(std::string_view(*tag).substr(kCodecTag.size()));
}

Result<BlockCoding> Payloads::CodingOf(int64_t block) const {
  EVERLONG_ASSIGN_OR_RETURN(const store::BlockInfo info, store_.Block(block));
  Result<BlockCoding> coding = CodingOf(info.tags);
  if (coding.ok()) return coding;
  const Status& why = coding.status();
  // A name that is none, or tables that are gone, are damage of the memory.
  const bool damaged = why.code() == StatusCode::kInvalidArgument || why.code() == StatusCode::kNotFound;
  return Status(damaged ? StatusCode::kCorrupt : why.code(), "block " + std::to_string(block) + ": " + why.message());
}

std::vector<std::string> Payloads::TagsOf(std::span<const std::string> tags, const BlockCoding& coding) const {
  std::vector<std::string> now;
  std::ranges::remove_copy_if(tags, std::back_inserter(now), IsCodecTag);
  if (coding.name != kv::CodecName(layout_.codec)) now.push_back(std::string(kCodecTag) + coding.name);
  return now;
}

std::vector<std::string> Payloads::WithCodecOf(const store::BlockInfo& block, std::span<const std::string> tags) {
  std::vector<std::string> now;
  std::ranges::remove_copy_if(tags, std::back_inserter(now), IsCodecTag);
  std::ranges::copy_if(block.tags, std::back_inserter(now), IsCodecTag);
  return now;
}

Result<std::vector<BlockCoding>> Payloads::CodingsOf(std::span<const PayloadRead> reads, kv::Codec codec) const {
  std::vector<BlockCoding> codings;
  int64_t block = 0;  // ids begin at 1
  for (const PayloadRead& read : reads) {
    if (read.block == block) {
      codings.push_back(codings.back());
      continue;
    }
    block = read.block;
    EVERLONG_ASSIGN_OR_RETURN(BlockCoding coding, CodingOf(block));
    if (coding.layout.codec != codec) {
      return BusyError("block " + std::to_string(block) + " is coded as " + coding.name + ", asked for as " +
                       std::string(kv::CodecName(codec)) + ": read it as it is coded now");
    }
    codings.push_back(std::move(coding));
  }
  return codings;
}

Result<std::unique_ptr<store::PendingReads>> Payloads::Start(std::span<const PayloadRead> reads,
                                                             kv::Codec codec) const {
  EVERLONG_ASSIGN_OR_RETURN(const std::vector<BlockCoding> codings, CodingsOf(reads, codec));
  std::vector<DecodingReads::Page> coded;
  std::vector<store::PageRead> plain;
  std::map<int64_t, std::vector<int64_t>> sizes;  // of transformed blocks' pages
  for (size_t i = 0; i < reads.size(); ++i) {
    const PayloadRead& read = reads[i];
    if (codings[i].transform == nullptr) {
      plain.push_back({read.block, read.page, read.first_layer, read.layers, read.out});
      continue;
    }
    auto of_block = sizes.find(read.block);
    if (of_block == sizes.end()) {
      EVERLONG_ASSIGN_OR_RETURN(std::vector<int64_t> bytes, store_.PageBytes(read.block));
      of_block = sizes.emplace(read.block, std::move(bytes)).first;
    }
    const auto page = static_cast<size_t>(read.page);
    if (read.page < 0 || page >= of_block->second.size()) {
      return CorruptError("block " + std::to_string(read.block) + " has no page " + std::to_string(read.page));
    }
    coded.push_back({read, std::vector<std::byte>(static_cast<size_t>(of_block->second[page])), codings[i].transform});
    plain.push_back({read.block, read.page, 0, layout_.layers, coded.back().coded});  // vectors keep their place
  }
  std::unique_ptr<store::PendingReads> started = store_.StartReadPages(plain);
  if (!coded.empty()) started = std::make_unique<DecodingReads>(std::move(coded), std::move(started));
  // The rows of these pages were looked up in between: if nothing has changed by now, they were coded so.
  EVERLONG_ASSIGN_OR_RETURN(const std::vector<BlockCoding> now, CodingsOf(reads, codec));
  const auto same = [](const BlockCoding& a, const BlockCoding& b) { return a.name == b.name; };
  if (!std::ranges::equal(codings, now, same))
    return BusyError("a block was coded anew while it was read: read it again");
  return started;
}

Result<std::vector<std::byte>> Payloads::Encode(std::span<const std::byte> plain, int32_t tokens,
                                                const BlockCoding& coding) {
  if (coding.transform != nullptr) return coding.transform->EncodePage(plain, tokens);
  kv::PayloadLayout from = coding.layout;
  from.codec = kv::Codec::kFloat32;
  std::vector<std::byte> out(static_cast<size_t>(coding.layout.PageBytes(tokens)));
  EVERLONG_RETURN_IF_ERROR(kv::RecodePage(plain, tokens, from, coding.layout, out));
  return out;
}

Result<std::vector<store::Damage>> Payloads::WithoutTables() const {
  std::vector<store::Damage> damage;
  std::map<std::string, Status, std::less<>> tables;
  EVERLONG_RETURN_IF_ERROR(store_.VisitBlocks({}, [&](const store::BlockInfo& info) {
    const auto tag = std::ranges::find_if(info.tags, IsCodecTag);
    if (tag == info.tags.end()) return true;
    const std::string name = tag->substr(kCodecTag.size());
    if (!name.starts_with(kTransformName)) return true;
    if (!tables.contains(name)) tables.emplace(name, Load(name).status());
    const Status& status = tables.find(name)->second;
    if (!status.ok()) damage.push_back({info.id, "block " + std::to_string(info.id) + ": " + status.message()});
    return true;
  }));
  return damage;
}

Result<std::shared_ptr<const kv::Transform>> Payloads::Load(const std::string& name) const {
  EVERLONG_ASSIGN_OR_RETURN(const std::vector<std::byte> file, store_.File(name));
  if (name != TransformNameOf(file)) return CorruptError("the tables of the codec " + name + " are damaged");
  return ParseTransform(file, layout_, store_.manifest().fingerprint.weights);
}

Result<std::shared_ptr<const kv::Transform>> Payloads::TransformNamed(const std::string& name) const {
  const std::scoped_lock loading(guard_);
  const auto known = transforms_.find(name);
  if (known != transforms_.end()) return known->second;
  EVERLONG_ASSIGN_OR_RETURN(auto transform, Load(name));
  transforms_.emplace(name, transform);
  return transform;
}

}  // namespace everlong::os
