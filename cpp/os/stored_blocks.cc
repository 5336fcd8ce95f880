#include "stored_blocks.h"

#include <algorithm>
#include <filesystem>
#include <optional>

#include "payloads.h"

namespace everlong::os {

std::string NameOf(const store::MemoryStore& store) {
  const std::optional<FilePath> folder = store.folder();
  return folder ? folder->string() : "the memory in RAM";
}

Status StoredBlocks::CheckNext(const store::BlockInfo& info) {
  const TokenSpan span = info.span;
  int64_t& end = ends_[info.stream];
  if (info.id < 1 || info.id > store::kLargestBlockId || info.stream < 0 || span.begin < end || span.empty()) {
    return CorruptError(NameOfBlock(info.id) + " cannot hold tokens " + NameOf(span) + " of stream " +
                        std::to_string(info.stream) + " behind token " + std::to_string(end));
  }
  end = span.end;
  const int64_t tokens = span.size();
  const int64_t pages = layout_.layers > 0 ? layout_.PageCount(tokens) : 0;  // with a payload
  kv::PayloadLayout own = layout_;
  const auto tag = std::ranges::find_if(info.tags, [](const std::string& of) { return of.starts_with(kCodecTag); });
  const std::string codec = tag == info.tags.end() ? "" : tag->substr(kCodecTag.size());
  const bool transformed = codec.starts_with(kTransformName);
  if (!codec.empty() && !transformed) {
    const Result<kv::Codec> parsed = kv::ParseCodec(codec);
    if (!parsed.ok()) return CorruptError(NameOfBlock(info.id) + ": " + parsed.status().message());
    own.codec = *parsed;
  }
  // The size of a transformed block depends on what it holds.
  const bool fits = transformed ? info.payload_bytes > 0 : info.payload_bytes == own.BlockBytes(tokens);
  if (info.pages == pages && fits) return OkStatus();
  return CorruptError(NameOfBlock(info.id) + " of " + std::to_string(tokens) + " tokens has " +
                      std::to_string(info.pages) + " pages and " + std::to_string(info.payload_bytes) + " bytes");
}

Status StoredBlocks::CheckTokenIds(int64_t block, TokenSpan span, std::span<const int32_t> token_ids) const {
  if (std::ssize(token_ids) != span.size()) {
    return CorruptError(NameOfBlock(block) + " of " + std::to_string(span.size()) + " tokens has " +
                        std::to_string(token_ids.size()) + " token ids");
  }
  const auto negative = std::ranges::find_if(token_ids, [](int32_t id) { return id < 0; });
  if (negative == token_ids.end()) return OkStatus();
  return CorruptError(NameOfBlock(block) + " has a token id " + std::to_string(*negative));
}

}  // namespace everlong::os
