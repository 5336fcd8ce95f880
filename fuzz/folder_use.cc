#include "folder_use.h"

#include <algorithm>
#include <span>
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

Status Search(os::Memory& memory) {
  First first;
  const kv::PayloadLayout layout = memory.layout();
  os::SearchRequest request;
  request.token_ids = kWords;
  std::vector<float> head_queries;
  std::vector<float> mean_query;
  if (IsSmall(layout)) {
    const std::vector<index::RetrievalHead> heads = {{layout.layers - 1, 1, layout.kv_heads - 1}, {0, 0, 0}};
    first.Add(memory.index().SetRetrievalHeads(heads));
    head_queries = Numbers(std::size(kWords) * 2 * static_cast<size_t>(layout.head_dim));
    mean_query = Numbers(static_cast<size_t>(layout.kv_heads * layout.head_dim));
    request.head_queries = head_queries;
    request.mean_query = mean_query;
  }
  for (const auto search : {index::VectorSearch::kFlat, index::VectorSearch::kHnsw, index::VectorSearch::kDnii}) {
    first.Add(memory.index().SetPageVectors({kEncoder, kWidth, search}));
    if (!memory.blocks().Pages().empty() && memory.index().PagesWithoutVectors().empty()) break;
  }
  first.Add(memory.index().SetMeaning(index::MeaningOptions{kPack, kWidth, 2}));
  const std::vector<float> page_query = Numbers(kWidth);
  request.page_query = page_query;
  const std::vector<float> meaning_query = Numbers(std::size(kWords) * kWidth);
  request.inputs["meaning_query"] = meaning_query;
  using index::IndexPart;
  for (const IndexPart part : {IndexPart::kHeads, IndexPart::kLexical, IndexPart::kMeanPool, IndexPart::kHnsw,
                               IndexPart::kEmbedding, IndexPart::kMeaning}) {
    if (layout.layers == 0 && (part == IndexPart::kHeads || part == IndexPart::kMeanPool || part == IndexPart::kHnsw)) {
      continue;
    }
    request.kinds = {part};
    first.Add(memory.search().Find(request));
    first.Add(memory.search().Rankings(request, 3));
  }
  request.kinds = {IndexPart::kLexical, IndexPart::kEmbedding, IndexPart::kMeaning};
  request.filter.tags = {"tag"};
  request.narrow = os::NarrowRequest{{{{0, 2e9}}, {"tag 1", "tag"}}};
  const auto policy = graph::WalkerPolicy::Of(std::vector<float>(graph::kWalkFeatures, 0.5F), std::vector<float>{0.25F},
                                              std::vector<float>{1}, 0);
  request.walk = os::WalkRequest{.policy = &*policy, .budget = {}, .gold = {}};
  first.Add(memory.search().Find(request));
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

Status ReadAll(os::Memory& memory) {
  First first;
  if (IsSmall(memory.layout())) first.Add(ReadPayload(memory));
  first.Add(ReadBlocks(memory));
  first.Add(Search(memory));
  first.Add(ReadGraph(memory));
  static_cast<void>(memory.index().TakeMessages());
  return first.status();
}

Status WriteAll(os::Memory& memory, const std::filesystem::path& made) {
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
  first.Add(memory.graph().Grow({}));
  first.Add(memory.graph().Tend(3));
  first.Add(memory.index().Save());
  if (!pages.empty()) {
    const int64_t gone[] = {pages.front().block};
    first.Add(memory.blocks().Forget(gone));
  }
  first.Add(memory.upkeep().Compact());
  first.Add(memory.upkeep().Fork(made / "fork"));
  first.Add(memory.upkeep().Export(made / "written"));
  first.Add(ReadAll(memory));
  return first.status();
}

}  // namespace everlong::fuzz
