#include "folder_use.h"

#include <algorithm>
#include <span>
#include <utility>
#include <vector>

#include "everlong/graph/walker.h"
#include "folder_memories.h"

namespace everlong::fuzz {
namespace {

constexpr int64_t kMostBytes = 1 << 20;  // of a payload that is asked for
constexpr int32_t kWords[] = {0, 1, 3, 5, 8, 300};

// The first failure of several calls.
class First {
 public:
  void Add(const Status& status) {
    if (status_.ok()) status_ = status;
  }
  template <class T>
  void Add(const Result<T>& result) {
    Add(result.status());
  }
  [[nodiscard]] const Status& status() const { return status_; }

 private:
  Status status_;
};

bool IsSmall(const kv::PayloadLayout& layout) {
  return layout.layers > 0 && layout.BlockBytes(layout.page_tokens) <= kMostBytes;
}

Status ReadPayload(const os::Memory& memory) {
  First first;
  for (const PageRef& page : memory.blocks().Pages()) {
    const auto tokens = static_cast<int32_t>(page.span.size());
    std::vector<std::byte> payload(static_cast<size_t>(memory.layout().PageBytes(tokens)));
    first.Add(memory.blocks().ReadPages({&page, 1}, payload));
    const auto part = std::span(payload).first(static_cast<size_t>(memory.layout().PartBytes(tokens)));
    const auto started = memory.blocks().StartReadPages({&page, 1}, 0, 1, part);
    first.Add(started);
    if (started.ok()) first.Add((*started)->Wait());
    std::vector<float> keys(static_cast<size_t>(memory.layout().kv_heads * tokens * memory.layout().head_dim));
    first.Add(memory.blocks().ReadKeys(page, memory.layout().layers - 1, keys));
  }
  return first.status();
}

Status ReadBlocks(const os::Memory& memory) {
  First first;
  const auto infos = memory.blocks().Infos();
  first.Add(infos);
  if (!infos.ok()) return first.status();
  for (const store::BlockInfo& info : *infos) {
    first.Add(memory.blocks().Info(info.id));
    first.Add(memory.blocks().TokenIds(info.stream, info.span));
    first.Add(memory.blocks().PagesOf(info.stream, info.span));
    const auto tensors = memory.blocks().Tensors(info.id);
    first.Add(tensors);
    if (!tensors.ok()) continue;
    for (const store::TensorInfo& tensor : *tensors) first.Add(memory.blocks().ReadTensor(info.id, tensor.name));
  }
  first.Add(memory.upkeep().Stats());
  first.Add(memory.File("frame"));
  return first.status();
}

using index::IndexPart;

// Have the parts of the index that are made when they are asked for, and what they are asked by.
class Questions {
 public:
  Questions(os::Memory& memory, Asked asked, First& first) : layout_(memory.layout()) {
    const auto wants = [asked](Asked one) { return Wants(asked, one) || asked == Asked::kWalk; };
    request_.token_ids = kWords;
    if (IsSmall(layout_) && wants(Asked::kHeads)) {
      first.Add(memory.index().SetRetrievalHeads({{layout_.layers - 1, 1, layout_.kv_heads - 1}, {0, 0, 0}}));
      heads_ = Numbers(std::size(kWords) * 2 * static_cast<size_t>(layout_.head_dim));
    }
    if (IsSmall(layout_)) mean_ = Numbers(static_cast<size_t>(layout_.kv_heads * layout_.head_dim));
    for (const auto search : {index::VectorSearch::kFlat, index::VectorSearch::kHnsw, index::VectorSearch::kDnii}) {
      if (!wants(Asked::kEmbedding)) break;
      first.Add(memory.index().SetPageVectors({kEncoder, kWidth, search}));
      if (memory.index().PagesWithoutVectors().empty()) break;
    }
    if (wants(Asked::kMeaning)) first.Add(memory.index().SetMeaning(index::MeaningOptions{kPack, kWidth, 2}));
    request_.inputs["head_queries"].numbers = heads_;
    request_.inputs["mean_query"].numbers = mean_;
    request_.inputs["page_query"].numbers = page_;
    request_.inputs["meaning_query"].numbers = meaning_;
  }
  Questions(const Questions&) = delete;
  Questions& operator=(const Questions&) = delete;

  [[nodiscard]] const os::SearchRequest& By(IndexPart part) {
    request_.kinds = {part};
    return request_;
  }
  // Of several parts, narrowed, with a walk from what is found.
  [[nodiscard]] const os::SearchRequest& ByWalk() {
    request_.kinds = {IndexPart::kLexical, IndexPart::kEmbedding, IndexPart::kMeaning};
    request_.filter.tags = {"tag"};
    request_.narrow = os::NarrowRequest{{{{0, 2e9}}, {"tag 1", "tag"}}};
    request_.walk = os::WalkRequest{.policy = &*policy_, .budget = {}, .gold = {}};
    return request_;
  }

 private:
  const kv::PayloadLayout layout_;
  std::vector<float> heads_;
  std::vector<float> mean_;
  const std::vector<float> page_ = Numbers(kWidth);
  const std::vector<float> meaning_ = Numbers(std::size(kWords) * kWidth);
  const Result<graph::WalkerPolicy> policy_ = graph::WalkerPolicy::Of(
      std::vector<float>(graph::kWalkFeatures, 0.5F), std::vector<float>{0.25F}, std::vector<float>{1}, 0);
  os::SearchRequest request_;
};

Status Search(os::Memory& memory, Asked asked) {
  First first;
  Questions questions(memory, asked, first);
  constexpr std::pair<Asked, IndexPart> kParts[] = {
      {Asked::kHeads, IndexPart::kHeads},         {Asked::kLexical, IndexPart::kLexical},
      {Asked::kMeanPool, IndexPart::kMeanPool},   {Asked::kHnsw, IndexPart::kHnsw},
      {Asked::kEmbedding, IndexPart::kEmbedding}, {Asked::kMeaning, IndexPart::kMeaning}};
  for (const auto& [one, part] : kParts) {
    const bool of_keys = part == IndexPart::kHeads || part == IndexPart::kMeanPool || part == IndexPart::kHnsw;
    if (!Wants(asked, one) || (of_keys && !IsSmall(memory.layout()))) continue;
    first.Add(memory.search().Find(questions.By(part)));
    first.Add(memory.search().Rankings(questions.By(part), 3));
  }
  if (!Wants(asked, Asked::kWalk)) return first.status();
  first.Add(memory.search().Find(questions.ByWalk()));
  first.Add(memory.search().RecentPages(0, INT64_MAX, 3));
  first.Add(memory.search().RandomPages(0, INT64_MAX, 3, 1));
  return first.status();
}

Status ReadGraph(const os::Memory& memory) {
  First first;
  const auto graph = memory.graph().Read();
  first.Add(graph);
  if (!graph.ok()) return first.status();
  for (const store::GraphNode& node : graph->nodes) {
    first.Add(memory.graph().Node(node.id));
    first.Add(memory.graph().EdgesOf(node.id));
    first.Add(memory.graph().Path(graph->nodes[0].id, node.id));
  }
  first.Add(memory.graph().Nodes(store::NodeKind::kTopic));
  static_cast<void>(memory.graph().TagBuckets());
  return first.status();
}

Status Append(os::Memory& memory) {
  constexpr int64_t kTokens = 6;
  const kv::PayloadLayout layout = memory.layout();
  const int64_t bytes = layout.layers == 0 ? 0 : layout.BlockBytes(kTokens);
  if (bytes > kMostBytes) return OkStatus();
  std::vector<float> payload = Numbers(static_cast<size_t>(bytes) / 4 + 1);
  const int64_t end = memory.blocks().StreamEnd(1);
  store::BlockDraft draft;
  draft.stream = 1;
  draft.span = {end, end + kTokens};
  draft.created_at = 2e9;
  draft.tags = {"tag"};
  draft.token_ids = kWords;
  draft.payload = std::as_bytes(std::span(payload)).first(static_cast<size_t>(bytes));
  return end > INT64_MAX - kTokens ? OkStatus() : memory.blocks().Append(draft).status();
}

}  // namespace

Status Read(os::Memory& memory, Asked asked) {
  First first;
  if (Wants(asked, Asked::kPayload) && IsSmall(memory.layout())) first.Add(ReadPayload(memory));
  if (Wants(asked, Asked::kBlocks)) first.Add(ReadBlocks(memory));
  if (asked < Asked::kPayload) first.Add(Search(memory, asked));
  if (Wants(asked, Asked::kGraph)) first.Add(ReadGraph(memory));
  static_cast<void>(memory.index().TakeMessages());
  return first.status();
}

Status Write(os::Memory& memory, Asked asked, const std::filesystem::path& made) {
  First first;
  first.Add(Append(memory));
  first.Add(memory.upkeep().Flush());
  std::vector<PageRef> pages = memory.blocks().Pages();
  const std::vector<float> numbers = Numbers(kWidth);
  if (!pages.empty()) {
    const int64_t block = pages.back().block;
    const store::TensorView tensor = {"detail/more", "F32", {kWidth}, std::as_bytes(std::span(numbers))};
    first.Add(memory.blocks().PutTensors(pages.front().block, {&tensor, 1}));
    const std::string tag = "more";
    first.Add(memory.blocks().AddTags(pages.front().block, {&tag, 1}));
    const int32_t page = 0;
    static_cast<void>(memory.index().AddPageVectors(block, {&page, 1}, numbers));  // there is none, or one of them
  }
  first.Add(memory.SetAttribute("more", "x"));
  first.Add(memory.PutFile("note", std::as_bytes(std::span(numbers))));
  if (Wants(asked, Asked::kGraph)) {
    first.Add(memory.graph().Grow({}));
    first.Add(memory.graph().Tend(3));
  }
  first.Add(memory.index().Save());
  if (!pages.empty()) {
    const int64_t gone[] = {pages.front().block};
    first.Add(memory.blocks().Forget(gone));
  }
  first.Add(memory.upkeep().Compact());
  if (Wants(asked, Asked::kFork)) first.Add(memory.upkeep().Fork(made / "fork"));
  if (Wants(asked, Asked::kExport)) first.Add(memory.upkeep().Export(made / "written"));
  return first.status();
}

}  // namespace everlong::fuzz
