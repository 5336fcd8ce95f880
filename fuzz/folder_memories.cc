#include "folder_memories.h"

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <span>

#include "everlong/base/check.h"
#include "everlong/os/memory.h"

namespace everlong::fuzz {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kTokens = 7;  // of a block: a whole page and a part of one

void Require(const Status& status) {
  if (!status.ok()) CheckFailed(__FILE__, __LINE__, status.ToString().c_str());
}

void Append(os::Memory& memory, int64_t block) {
  std::vector<int32_t> ids;
  for (int64_t i = 0; i < kTokens; ++i) ids.push_back(static_cast<int32_t>((block * 3 + i * i) % 11));
  const std::vector<float> payload =
      Numbers(static_cast<size_t>(memory.layout().BlockBytes(kTokens)) / 4, static_cast<size_t>(block));
  std::vector<int8_t> meaning(static_cast<size_t>(index::MeaningVectorsOf(kTokens, kPageTokens, 2) * kWidth));
  for (size_t i = 0; i < meaning.size(); ++i) meaning[i] = static_cast<int8_t>(i * 7 + static_cast<size_t>(block));
  const std::vector<store::TensorView> tensors = {
      {index::MeaningTensor(kPack), "I8", {std::ssize(meaning) / kWidth, kWidth}, std::as_bytes(std::span(meaning))},
      {"detail/layer.0", "F32", {std::ssize(payload)}, std::as_bytes(std::span(payload))},
      {"text/ids", "I32", {kTokens}, std::as_bytes(std::span(ids))}};
  store::BlockDraft draft;
  draft.stream = block % 2;
  draft.span = {block / 2 * kTokens, (block / 2 + 1) * kTokens};
  draft.sink_tokens = block < 2 ? 2 : 0;
  draft.source = draft.stream == 0 ? "book" : "";
  draft.created_at = 1e9 + 1e5 * static_cast<double>(block);
  draft.tags = {"tag", "tag " + std::to_string(block)};
  draft.token_ids = ids;
  draft.payload = std::as_bytes(std::span(payload));
  if (block % 3 != 2) draft.tensors = tensors;
  draft.role = static_cast<Role>(block % kRoles);
  Require(memory.blocks().Append(draft).status());
}

void AddIndexes(os::Memory& memory, index::VectorSearch search) {
  if (memory.layout().layers > 0) {
    Require(memory.index().SetRetrievalHeads({{1, 1, 0}, {0, 0, 0}}));
    os::SearchRequest means;
    const std::vector<float> query = Numbers(static_cast<size_t>(memory.layout().kv_heads * memory.layout().head_dim));
    means.inputs["mean_query"].numbers = query;
    means.kinds = {index::IndexPart::kMeanPool, index::IndexPart::kHnsw};
    Require(memory.search().Find(means).status());
  }
  Require(memory.index().SetPageVectors({kEncoder, kWidth, search}));
  for (const int64_t block : {1, 2, 3, 4, 5}) {
    const std::vector<int32_t> pages = {0, 1};
    Require(memory.index().AddPageVectors(block, pages, Numbers(2 * kWidth, static_cast<size_t>(block))));
  }
  Require(memory.index().SetMeaning(index::MeaningOptions{kPack, kWidth, 2}));
}

Files Made(const std::string& codec, index::VectorSearch search) {
  const fs::path folder = Scratch() / "made";
  store::Manifest manifest;
  manifest.fingerprint = {"weights", "rope", "tokenizer"};
  const bool text_alone = codec.empty();
  manifest.geometry = {text_alone ? 0 : 2, text_alone ? 0 : 1, text_alone ? 0 : 8, kPageTokens,
                       text_alone ? "fp32" : codec};
  manifest.attributes = {{"profile", "{\"heads\": []}"}};
  {
    auto memory = os::Memory::Create(folder, manifest, SmallOptions());
    Require(memory.status());
    for (int64_t block = 0; block < 5; ++block) Append(**memory, block);
    Require((*memory)->upkeep().Flush());
    AddIndexes(**memory, search);
    graph::GardenerOptions topics;
    topics.radius = 0.2;
    Require((*memory)->graph().Grow(topics));
    Require((*memory)->graph().Tend(10).status());
    const std::vector<std::byte> bytes(300, std::byte{7});
    for (const char* const name : {"frame", "note"}) Require((*memory)->PutFile(name, bytes));
    const int64_t gone[] = {3};
    Require((*memory)->blocks().Forget(gone));
    Require((*memory)->index().Save());
  }
  Files files = ReadFiles(folder);
  fs::remove_all(folder);
  return files;
}

Files Old(const std::string& name) {
  const std::string command = "tar -xzf tests/data/schema1/" + name + ".tar.gz -C '" + Scratch().string() + "'";
  EVERLONG_CHECK(std::system(command.c_str()) == 0);
  Files files = ReadFiles(Scratch() / name);
  fs::remove_all(Scratch() / name);
  return files;
}

}  // namespace

std::vector<float> Numbers(size_t count, size_t from) {
  std::vector<float> numbers(count);
  for (size_t i = 0; i < count; ++i) numbers[i] = static_cast<float>((i + from) * 7 % 13) / 4 - 1.5F;
  return numbers;
}

store::StoreOptions SmallOptions() { return {.segment_bytes = 1 << 16, .host_bytes = 1 << 20, .queue_bytes = 1 << 20}; }

const std::vector<GoodMemory>& GoodMemories() {
  static const std::vector<GoodMemory> memories = {
      {"fp32", Made("fp32", index::VectorSearch::kFlat)},
      {"bf16", Made("bf16", index::VectorSearch::kHnsw)},
      {"e4m3", Made("e4m3", index::VectorSearch::kDnii)},
      {"e5m2", Made("e5m2", index::VectorSearch::kFlat)},
      {"text", Made("", index::VectorSearch::kHnsw)},
      {"format 1", Old("kv")},
      {"format 1, text", Old("text")},
  };
  return memories;
}

}  // namespace everlong::fuzz
