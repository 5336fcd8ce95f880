#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include "core_arrays.h"
#include "core_bindings.h"
#include "core_errors.h"
#include "core_gil.h"
#include "core_graph.h"
#include "core_tensors.h"
#include "everlong/base/process.h"
#include "everlong/graph/names.h"
#include "everlong/index/part_kinds.h"
#include "everlong/kv/transfer_engine.h"
#include "everlong/os/memory.h"
#include "everlong/store/free_ram.h"

#ifdef EVERLONG_GPU
#include "core_gpu_index.h"
#endif

namespace everlong::bindings {
namespace {

namespace py = pybind11;
using os::Memory;
using HeadTuple = std::tuple<int32_t, int32_t, int32_t>;

// The Python object: a memory until it is closed. A call that runs in another thread during close() finishes on the
// memory it began with. The last such call releases lock and files. It is destroyed without the GIL.
class MemoryHandle {
 public:
  explicit MemoryHandle(std::unique_ptr<Memory> memory) : memory_(OwnedByThisProcess(std::move(memory))) {}

  // Run work(memory) without the GIL. ClosedError after Close, and in a fork of the process.
  template <class Work>
  auto Call(const Work& work) const {
    std::shared_ptr<Memory> memory = Share();
    return Unlocked([&] {
      const std::shared_ptr<Memory> held = std::move(memory);  // this call may be the last owner, and it has no GIL
      return work(*held);
    });
  }
  // Return the memory for an object that outlives the call.
  [[nodiscard]] std::shared_ptr<Memory> Share() const {
    if (memory_ == nullptr) RaiseNamed("ClosedError", "the memory is closed");
    if (!process_.IsThis()) {
      RaiseNamed("ClosedError", "the memory was opened by process " + std::to_string(process_.pid()) +
                                    ", of which this one is a fork: open it here");
    }
    return memory_;
  }
  void Close() {
    std::shared_ptr<Memory> closing = std::exchange(memory_, nullptr);
    Unlocked([&closing] { closing.reset(); });
  }

 private:
  std::shared_ptr<Memory> memory_;  // the GIL guards it
  OwnProcess process_;
};

std::span<const std::byte> AsBytes(std::span<const uint8_t> bytes) { return std::as_bytes(bytes); }

// Reads under way. They keep the memory alive, and Python keeps the buffers that they fill. Destroyed without the GIL.
class PendingReadsHandle {
 public:
  PendingReadsHandle(std::shared_ptr<Memory> memory, std::unique_ptr<store::PendingReads> reads)
      : memory_(std::move(memory)), reads_(std::move(reads)) {}
  void Wait() {
    RaiseIfError(Unlocked([this] { return reads_->Wait(); }));
  }

 private:
  std::shared_ptr<Memory> memory_;
  std::unique_ptr<store::PendingReads> reads_;  // destroyed first: its destructor waits
};

store::StoreOptions Options(std::optional<int64_t> host_bytes) {
  store::StoreOptions options;
  options.host_bytes = host_bytes;
  return options;
}

std::optional<std::filesystem::path> AsPath(const std::optional<std::string>& folder) {
  return folder.has_value() ? std::optional<std::filesystem::path>(*folder) : std::nullopt;
}

std::unique_ptr<MemoryHandle> Create(const std::optional<std::string>& folder, const store::Manifest& manifest,
                                     std::optional<int64_t> host_bytes) {
  auto memory = Unlocked([&] { return Memory::Create(AsPath(folder), manifest, Options(host_bytes)); });
  return std::make_unique<MemoryHandle>(ValueOrRaise(std::move(memory)));
}

std::unique_ptr<MemoryHandle> Open(const std::string& folder, bool read_only, std::optional<int64_t> host_bytes) {
  auto memory = Unlocked([&] { return Memory::Open(folder, read_only, Options(host_bytes)); });
  return std::make_unique<MemoryHandle>(ValueOrRaise(std::move(memory)));
}

std::unique_ptr<MemoryHandle> ImportFile(const std::string& file, const std::optional<std::string>& folder,
                                         std::optional<int64_t> host_bytes) {
  auto memory = Unlocked([&] { return Memory::Import(file, AsPath(folder), Options(host_bytes)); });
  return std::make_unique<MemoryHandle>(ValueOrRaise(std::move(memory)));
}

// It opens only the store, because damaged payload may not give its indexes.
store::VerifyReport Repair(const std::string& folder) {
  return ValueOrRaise(Unlocked([&]() -> Result<store::VerifyReport> {
    EVERLONG_ASSIGN_OR_RETURN(const std::unique_ptr<store::MemoryStore> opened,
                              store::MemoryStore::Open(folder, false, Options(0)));
    return opened->Verify(true);
  }));
}

Role ParseRole(const std::string& name) {
  for (const Role role : {Role::kRead, Role::kAsked, Role::kSaid}) {
    if (name == NameOf(role)) return role;
  }
  throw py::value_error("role: \"" + name + "\", expected \"read\", \"asked\" or \"said\"");
}

// No names give no roles: a search then takes its default, and a list takes all blocks.
std::optional<Roles> ParseRoles(const std::vector<std::string>& names) {
  if (names.empty()) return std::nullopt;
  Roles roles{};
  for (const std::string& name : names) roles.Add(ParseRole(name));
  return roles;
}

int64_t Append(const MemoryHandle& self, int64_t stream, int64_t begin, int64_t end, int32_t sink_tokens,
               std::string source, double created_at, std::vector<std::string> tags, const py::object& token_ids,
               const py::object& payload, const ArraysByName& tensors, const std::string& role) {
  store::BlockDraft draft;
  draft.stream = stream;
  draft.span = {begin, end};
  draft.sink_tokens = sink_tokens;
  draft.source = std::move(source);
  draft.created_at = created_at;
  draft.tags = std::move(tags);
  draft.role = ParseRole(role);
  draft.token_ids = View<int32_t>(token_ids, "token_ids");
  if (py::isinstance<kv::StagingBuffer>(payload)) {
    const auto staged = payload.cast<std::shared_ptr<kv::StagingBuffer>>();
    draft.payload = staged->bytes();
    draft.payload_owner = staged;
  } else {
    draft.payload = AsBytes(View<uint8_t>(payload, "payload"));
  }
  const std::vector<store::TensorView> views = TensorsOf(tensors);
  draft.tensors = views;
  return ValueOrRaise(self.Call([&](Memory& memory) { return memory.Append(draft); }));
}

std::map<std::string, py::array> BlockTensors(const MemoryHandle& self, int64_t block) {
  const std::vector<store::Tensor> tensors =
      ValueOrRaise(self.Call([&](Memory& memory) -> Result<std::vector<store::Tensor>> {
        EVERLONG_ASSIGN_OR_RETURN(const std::vector<store::TensorInfo> infos, memory.Tensors(block));
        std::vector<store::Tensor> read;
        for (const store::TensorInfo& info : infos) {
          EVERLONG_ASSIGN_OR_RETURN(store::Tensor tensor, memory.ReadTensor(block, info.name));
          read.push_back(std::move(tensor));
        }
        return read;
      }));
  std::map<std::string, py::array> arrays;
  for (const store::Tensor& tensor : tensors) arrays.emplace(tensor.name, ToArray(tensor));
  return arrays;
}

py::array BlockTensor(const MemoryHandle& self, int64_t block, const std::string& name) {
  return ToArray(ValueOrRaise(self.Call([&](Memory& memory) { return memory.ReadTensor(block, name); })));
}

std::map<std::string, std::pair<std::string, py::tuple>> BlockTensorShapes(const MemoryHandle& self, int64_t block) {
  const std::vector<store::TensorInfo> infos =
      ValueOrRaise(self.Call([&](Memory& memory) { return memory.Tensors(block); }));
  std::map<std::string, std::pair<std::string, py::tuple>> shapes;
  for (const store::TensorInfo& info : infos) shapes.emplace(info.name, std::pair(info.dtype, py::cast(info.shape)));
  return shapes;
}

index::KeyStorage ParseKeyStorage(const std::string& name) {
  for (const index::KeyStorage storage : index::kKeyStorages) {
    if (name == NameOf(storage)) return storage;
  }
  throw py::value_error("keys: \"" + name + "\", expected \"bf16\", \"int8\" or \"e4m3\"");
}

Result<std::shared_ptr<index::IndexDevice>> MakeIndexDevice([[maybe_unused]] int32_t device) {
#ifdef EVERLONG_GPU
  EVERLONG_ASSIGN_OR_RETURN(std::unique_ptr<index::IndexDevice> made, MakeGpuIndexDevice(device));
  return std::shared_ptr<index::IndexDevice>(std::move(made));
#else
  return NoGpuError(device);
#endif
}

void SetRetrievalHeads(const MemoryHandle& self, const std::vector<HeadTuple>& heads, int32_t coarse_from,
                       const std::string& keys, std::optional<int32_t> device, int64_t device_bytes) {
  index::HeadsOptions options{coarse_from, ParseKeyStorage(keys)};
  if (device.has_value()) {
    options.device = ValueOrRaise(MakeIndexDevice(*device));
    options.device_bytes = device_bytes;
  }
  std::vector<index::RetrievalHead> retrieval_heads;
  retrieval_heads.reserve(heads.size());
  for (const auto& [layer, query_head, kv_head] : heads) retrieval_heads.push_back({layer, query_head, kv_head});
  RaiseIfError(
      self.Call([&](Memory& memory) { return memory.SetRetrievalHeads(std::move(retrieval_heads), options); }));
}

std::vector<HeadTuple> RetrievalHeads(const MemoryHandle& self) {
  std::vector<HeadTuple> heads;
  for (const index::RetrievalHead& head : self.Call([](Memory& memory) { return memory.retrieval_heads(); })) {
    heads.emplace_back(head.layer, head.query_head, head.kv_head);
  }
  return heads;
}

void SetPageVectors(const MemoryHandle& self, std::string encoder, int32_t dimension, const std::string& search) {
  const auto named = std::ranges::find(index::kVectorSearchNames, search);
  if (named == std::end(index::kVectorSearchNames)) {
    throw py::value_error("search: \"" + search + "\", expected \"flat\", \"hnsw\" or \"dnii\"");
  }
  const auto number = static_cast<uint32_t>(named - std::begin(index::kVectorSearchNames));
  const os::PageVectorOptions options{std::move(encoder), dimension, static_cast<index::VectorSearch>(number)};
  RaiseIfError(self.Call([&](Memory& memory) { return memory.SetPageVectors(options); }));
}

void AddPageVectors(const MemoryHandle& self, int64_t block, const py::object& pages, const py::object& vectors,
                    const std::vector<std::vector<int32_t>>& terms) {
  const auto page_view = View<int32_t>(pages, "pages", 1);
  const auto vector_view = View<float>(vectors, "vectors", 2);
  RaiseIfError(self.Call([&](Memory& memory) { return memory.AddPageVectors(block, page_view, vector_view, terms); }));
}

// None, or a pack without a name, sets none.
void SetMeaning(const MemoryHandle& self, std::optional<std::string> pack, int32_t dimension, int32_t group_tokens,
                std::optional<int32_t> device, int64_t device_bytes) {
  std::optional<os::MeaningOptions> options;
  if (pack && !pack->empty()) {
    options = {*std::move(pack), dimension, group_tokens};
    if (device.has_value()) {
      options->device = ValueOrRaise(MakeIndexDevice(*device));
      options->device_bytes = device_bytes;
    }
  }
  RaiseIfError(self.Call([&](Memory& memory) { return memory.SetMeaning(options); }));
}

void AddTags(const MemoryHandle& self, int64_t block, const std::vector<std::string>& tags) {
  RaiseIfError(self.Call([&](Memory& memory) { return memory.AddTags(block, tags); }));
}

void PutTensors(const MemoryHandle& self, int64_t block, const ArraysByName& tensors) {
  const std::vector<store::TensorView> views = TensorsOf(tensors);
  RaiseIfError(self.Call([&](Memory& memory) { return memory.PutTensors(block, views); }));
}

// Return "heads", "lexical" ... or "meaning", in quotes.
std::string PartNames() {
  const std::vector<index::IndexPart> parts = index::AllIndexParts();
  std::string names;
  for (const index::IndexPart part : parts) {
    if (part != parts.front()) names += part == parts.back() ? " or " : ", ";
    names.append("\"").append(NameOf(part)).append("\"");
  }
  return names;
}

index::IndexPart ParseKind(const char* argument, const std::string& name) {
  const std::optional<index::IndexPart> part = index::ParseIndexPart(name);
  if (part.has_value()) return *part;
  throw py::value_error(std::string(argument) + ": \"" + name + "\", expected " + PartNames());
}

index::IndexParts ParseKinds(const std::vector<std::string>& names) {
  index::IndexParts kinds;
  for (const std::string& name : names) kinds |= {ParseKind("kinds", name)};
  if (kinds.empty()) throw py::value_error("kinds: none, expected at least one");
  return kinds;
}

// The core sees no shapes, and an array with two dimensions swapped has as many numbers.
void CheckHeadQueries(const MemoryHandle& self, const py::object& head_queries, size_t tokens) {
  const auto [heads, layout] = self.Call([](Memory& memory) {
    return std::pair(static_cast<py::ssize_t>(memory.retrieval_heads().size()), memory.layout());
  });
  if (heads == 0) return;  // the core reports it
  const auto array = py::reinterpret_borrow<py::array>(head_queries);
  const std::array<py::ssize_t, 3> expected = {static_cast<py::ssize_t>(tokens), heads, py::ssize_t{layout.head_dim}};
  if (std::equal(expected.begin(), expected.end(), array.shape())) return;
  const auto text = [](const py::ssize_t* shape) {
    return "[" + std::to_string(shape[0]) + ", " + std::to_string(shape[1]) + ", " + std::to_string(shape[2]) + "]";
  };
  throw py::value_error("head_queries: shape " + text(array.shape()) +
                        ", expected [tokens, heads, D] = " + text(expected.data()));
}

// Check the same for [tokens, dimension].
void CheckMeaningQuery(const MemoryHandle& self, const py::object& meaning_query) {
  const std::optional<os::MeaningOptions> options = self.Call([](Memory& memory) { return memory.meaning(); });
  if (!options) return;  // the core reports it
  const py::ssize_t columns = py::reinterpret_borrow<py::array>(meaning_query).shape(1);
  if (columns == options->dimension) return;
  throw py::value_error("meaning_query: rows of " + std::to_string(columns) + " numbers, expected " +
                        std::to_string(options->dimension));
}

// The result refers to the arrays.
os::SearchRequest RequestOf(const MemoryHandle& self, const py::object& token_ids, const py::object& head_queries,
                            const py::object& mean_query, const py::object& page_query, const py::object& meaning_query,
                            const std::vector<std::string>& kinds, int32_t max_groups, int32_t neighbours,
                            int64_t token_budget, float least_share,
                            const std::vector<std::pair<PageRef, float>>& added, int64_t stream,
                            std::optional<int64_t> resident_from, const std::vector<std::string>& sources,
                            const std::vector<std::string>& tags, std::optional<double> since,
                            std::optional<double> before, const std::vector<std::string>& roles, const WalkHandle* walk,
                            const os::NarrowRequest* narrow) {
  os::SearchRequest request;
  if (narrow != nullptr) request.narrow = *narrow;
  if (walk != nullptr) request.walk = walk->request;
  request.token_ids = View<int32_t>(token_ids, "token_ids");
  if (!head_queries.is_none()) request.head_queries = View<float>(head_queries, "head_queries", 3);
  if (!mean_query.is_none()) request.mean_query = View<float>(mean_query, "mean_query");
  if (!page_query.is_none()) request.page_query = View<float>(page_query, "page_query", 1);
  request.kinds = ParseKinds(kinds);
  if (!meaning_query.is_none()) {
    const auto rows = View<float>(meaning_query, "meaning_query", 2);
    request.inputs["meaning_query"] = rows;
    if (!rows.empty() && request.kinds.Has(index::IndexPart::kMeaning)) CheckMeaningQuery(self, meaning_query);
  }
  if (!request.head_queries.empty() && request.kinds.Has(index::IndexPart::kHeads)) {
    CheckHeadQueries(self, head_queries, request.token_ids.size());
  }
  request.max_groups = max_groups;
  request.neighbours = neighbours;
  request.token_budget = token_budget;
  request.least_share = least_share;
  for (const auto& [page, score] : added) request.added.push_back({page, score});
  request.stream = stream;
  if (resident_from.has_value()) request.resident_from = *resident_from;
  request.filter = {sources, tags, since, before, ParseRoles(roles)};
  return request;
}

// Bind a method that takes a request: the arguments of RequestOf, and those of its own.
template <class... Arguments>
auto SearchBy(os::SearchRequest (*request)(const MemoryHandle& self, Arguments...)) {
  return [request](const MemoryHandle& self, Arguments... arguments) {
    const os::SearchRequest asked = request(self, arguments...);
    return ValueOrRaise(self.Call([&](Memory& memory) { return memory.Search(asked); }));
  };
}
template <class... Arguments>
auto RankingsBy(os::SearchRequest (*request)(const MemoryHandle& self, Arguments...)) {
  return [request](const MemoryHandle& self, int32_t k, Arguments... arguments) {
    const os::SearchRequest asked = request(self, arguments...);
    return ValueOrRaise(self.Call([&](Memory& memory) { return memory.Rankings(asked, k); }));
  };
}

void ReadPages(const MemoryHandle& self, const std::vector<PageRef>& pages, const py::object& out) {
  const std::span<uint8_t> bytes = WritableView<uint8_t>(out, "out");
  RaiseIfError(self.Call([&](Memory& memory) { return memory.ReadPages(pages, std::as_writable_bytes(bytes)); }));
}

std::unique_ptr<PendingReadsHandle> StartReadPages(const MemoryHandle& self, const std::vector<PageRef>& pages,
                                                   int32_t first_layer, int32_t layers, const py::object& out) {
  const std::span<uint8_t> bytes = WritableView<uint8_t>(out, "out");
  // Take the memory before the reads begin: close() in another thread may come before they are returned.
  std::shared_ptr<Memory> memory = self.Share();
  auto reads = Unlocked([&] {
    auto started = memory->StartReadPages(pages, first_layer, layers, std::as_writable_bytes(bytes));
    if (!started.ok()) memory.reset();
    return started;
  });
  return std::make_unique<PendingReadsHandle>(std::move(memory), ValueOrRaise(std::move(reads)));
}

py::array_t<float> ReadKeys(const MemoryHandle& self, const PageRef& page, int32_t layer) {
  const kv::PayloadLayout layout = self.Call([](Memory& memory) { return memory.layout(); });
  if (page.span.empty() || page.span.size() > layout.page_tokens) throw py::value_error("page: not a page's span");
  const py::ssize_t tokens = page.span.size();
  py::array_t<float> keys({py::ssize_t{layout.kv_heads}, tokens, py::ssize_t{layout.head_dim}});
  const std::span<float> out(keys.mutable_data(), static_cast<size_t>(keys.size()));
  RaiseIfError(self.Call([&](Memory& memory) { return memory.ReadKeys(page, layer, out); }));
  return keys;
}

void PutFile(const MemoryHandle& self, const std::string& name, const py::bytes& data) {
  const std::string_view text = data;
  const auto bytes = std::as_bytes(std::span(text.data(), text.size()));
  RaiseIfError(self.Call([&](Memory& memory) { return memory.PutFile(name, bytes); }));
}

// Return the bytes of a file; None when there is no such file.
std::optional<py::bytes> File(const MemoryHandle& self, const std::string& name) {
  const Result<std::vector<std::byte>> bytes = self.Call([&](Memory& memory) { return memory.File(name); });
  if (bytes.status().code() == StatusCode::kNotFound) return std::nullopt;
  RaiseIfError(bytes.status());
  return py::bytes(reinterpret_cast<const char*>(bytes->data()), bytes->size());
}

store::NodeKind ParseNodeKind(const std::string& name) {
  const std::optional<store::NodeKind> kind = graph::ParseNodeKind(name);
  if (kind.has_value()) return *kind;
  throw py::value_error("kind: \"" + name + "\", expected \"block\", \"topic\", \"timeline\" or \"entity\"");
}

int64_t PageBytes(const MemoryHandle& self, int32_t tokens) {
  const kv::PayloadLayout layout = self.Call([](Memory& memory) { return memory.layout(); });
  if (tokens < 1 || tokens > layout.page_tokens) {
    throw py::value_error("tokens: " + std::to_string(tokens) + ", expected 1 to " +
                          std::to_string(layout.page_tokens));
  }
  return layout.PageBytes(tokens);
}

}  // namespace

void BindMemory(py::module_& module) {
  module.def("free_memory_bytes", [] { return store::FreeRamBytes(); });
  const py::release_gil_before_calling_cpp_dtor without_gil;
  py::class_<PendingReadsHandle>(module, "PendingReads", without_gil).def("wait", &PendingReadsHandle::Wait);

  constexpr size_t kReads = 0;  // the result of start_read_pages
  constexpr size_t kOut = 5;    // its last argument
  py::class_<MemoryHandle> memory(module, "Memory", without_gil);
  const auto by_request = [&memory](const char* name, const auto& method, const auto&... first) {
    memory.def(name, method, first..., py::kw_only(), py::arg("token_ids"), py::arg("head_queries") = py::none(),
               py::arg("mean_query") = py::none(), py::arg("page_query") = py::none(),
               py::arg("meaning_query") = py::none(), py::arg("kinds") = std::vector<std::string>{"heads", "lexical"},
               py::arg("max_groups") = 4, py::arg("neighbours") = 1, py::arg("token_budget") = 1024,
               py::arg("least_share") = index::kLeastShare, py::arg("added") = std::vector<std::pair<PageRef, float>>{},
               py::arg("stream") = 0, py::arg("resident_from") = py::none(),
               py::arg("sources") = std::vector<std::string>{}, py::arg("tags") = std::vector<std::string>{},
               py::arg("since") = py::none(), py::arg("before") = py::none(),
               py::arg("roles") = std::vector<std::string>{}, py::arg("walk") = nullptr, py::arg("narrow") = nullptr);
  };
  by_request("search", SearchBy(&RequestOf));
  by_request("rankings", RankingsBy(&RequestOf), py::arg("k"));
  memory.def_static("create", &Create, py::arg("folder"), py::arg("manifest"), py::arg("host_bytes") = py::none())
      .def_static("open", &Open, py::arg("folder"), py::arg("read_only") = false, py::arg("host_bytes") = py::none())
      .def_static("import_file", &ImportFile, py::arg("file"), py::arg("folder"), py::arg("host_bytes") = py::none())
      .def_static("repair", &Repair, py::arg("folder"))
      .def("append", &Append, py::kw_only(), py::arg("stream"), py::arg("begin"), py::arg("end"),
           py::arg("sink_tokens"), py::arg("source"), py::arg("created_at"), py::arg("tags"), py::arg("token_ids"),
           py::arg("payload"), py::arg("tensors") = ArraysByName{}, py::arg("role") = "read")
      .def("block_tensors", &BlockTensors, py::arg("block"))
      .def("block_tensor", &BlockTensor, py::arg("block"), py::arg("name"))
      .def("block_tensor_shapes", &BlockTensorShapes, py::arg("block"))
      .def("set_retrieval_heads", &SetRetrievalHeads, py::arg("heads"), py::arg("coarse_from") = index::kCoarseFrom,
           py::arg("keys") = "bf16", py::arg("device") = py::none(), py::arg("device_bytes") = 0)
      .def("retrieval_heads", &RetrievalHeads)
      .def("tag_buckets",
           [](const MemoryHandle& self) {
             return BucketsOf(self.Call([](Memory& memory) { return memory.TagBuckets(); }));
           })
      .def(
          "device_use",
          [](const MemoryHandle& self, const std::string& part) {
            const index::IndexPart kind = ParseKind("part", part);
            const index::DeviceUse use = self.Call([&](Memory& memory) { return memory.device_use(kind); });
            return std::pair(use.bytes, use.scans);
          },
          py::arg("part"))
      .def("set_page_vectors", &SetPageVectors, py::arg("encoder"), py::arg("dimension"), py::arg("search") = "flat")
      .def("page_lists",
           [](const MemoryHandle& self) { return self.Call([](Memory& memory) { return memory.page_lists(); }); })
      .def(
          "set_page_router",
          [](const MemoryHandle& self, const py::object& lists, const py::object& vectors, const py::object& biases) {
            const auto router = RouterOf(lists, vectors, biases);
            RaiseIfError(self.Call([&](Memory& memory) { return memory.SetPageRouter(router); }));
          },
          py::arg("lists"), py::arg("vectors"), py::arg("biases"))
      .def("add_page_vectors", &AddPageVectors, py::arg("block"), py::arg("pages"), py::arg("vectors"),
           py::arg("terms") = std::vector<std::vector<int32_t>>())
      .def("set_meaning", &SetMeaning, py::arg("pack"), py::arg("dimension") = 0, py::arg("group_tokens") = 0,
           py::arg("device") = py::none(), py::arg("device_bytes") = 0)
      .def("add_tags", &AddTags, py::arg("block"), py::arg("tags"))
      .def("put_tensors", &PutTensors, py::arg("block"), py::arg("tensors"))
      .def("blocks_without_meaning",
           [](const MemoryHandle& self) {
             return self.Call([](Memory& memory) { return memory.BlocksWithout(index::IndexPart::kMeaning); });
           })
      .def(
          "set_graph",
          [](const MemoryHandle& self, int32_t levels, double radius, double share, double growth, int64_t most_members,
             int64_t looked_at, uint64_t seed) {
            const graph::GardenerOptions options =
                GardenerOptionsOf(1, levels, radius, share, growth, most_members, looked_at, seed);
            RaiseIfError(self.Call([&](Memory& memory) { return memory.SetGraph(options); }));
          },
          py::kw_only(), py::arg("levels") = graph::GardenerOptions{}.levels, py::arg("radius") = 0.0,
          py::arg("share") = graph::GardenerOptions{}.share, py::arg("growth") = graph::GardenerOptions{}.growth,
          py::arg("most_members") = graph::GardenerOptions{}.most_members,
          py::arg("looked_at") = graph::GardenerOptions{}.looked_at, py::arg("seed") = 0)
      .def(
          "tend_graph",
          [](const MemoryHandle& self, int32_t most_blocks) {
            return ValueOrRaise(self.Call([&](Memory& memory) { return memory.TendGraph(most_blocks); }));
          },
          py::arg("most_blocks"))
      .def("graph",
           [](const MemoryHandle& self) {
             store::Graph graph = ValueOrRaise(self.Call([](Memory& memory) { return memory.Graph(); }));
             return std::pair(std::move(graph.nodes), std::move(graph.edges));
           })
      .def(
          "graph_node",
          [](const MemoryHandle& self, int64_t id) {
            return ValueOrRaise(self.Call([&](Memory& memory) { return memory.Node(id); }));
          },
          py::arg("id"))
      .def(
          "graph_nodes",
          [](const MemoryHandle& self, const std::string& kind) {
            const store::NodeKind of = ParseNodeKind(kind);
            return ValueOrRaise(self.Call([&](Memory& memory) { return memory.Nodes(of); }));
          },
          py::arg("kind"))
      .def(
          "graph_edges",
          [](const MemoryHandle& self, int64_t node) {
            return ValueOrRaise(self.Call([&](Memory& memory) { return memory.EdgesOf(node); }));
          },
          py::arg("node"))
      .def(
          "graph_path",
          [](const MemoryHandle& self, int64_t source, int64_t target) {
            return ValueOrRaise(self.Call([&](Memory& memory) { return memory.Path(source, target); }));
          },
          py::arg("source"), py::arg("target"))
      .def("save_indexes",
           [](const MemoryHandle& self) {
             RaiseIfError(self.Call([](Memory& memory) { return memory.SaveIndexes(); }));
           })
      .def("take_messages",
           [](const MemoryHandle& self) { return self.Call([](Memory& memory) { return memory.TakeMessages(); }); })
      .def("pages_without_vectors",
           [](const MemoryHandle& self) {
             return self.Call([](Memory& memory) { return memory.PagesWithoutVectors(); });
           })
      .def(
          "recent_pages",
          [](const MemoryHandle& self, int64_t stream, int64_t end, int32_t blocks, std::vector<std::string> sources,
             std::vector<std::string> tags, std::optional<double> since, std::optional<double> before,
             const std::vector<std::string>& roles) {
            const os::SearchFilter filter{std::move(sources), std::move(tags), since, before, ParseRoles(roles)};
            return ValueOrRaise(
                self.Call([&](Memory& memory) { return memory.RecentPages(stream, end, blocks, filter); }));
          },
          py::arg("stream"), py::arg("end"), py::arg("blocks"), py::kw_only(),
          py::arg("sources") = std::vector<std::string>{}, py::arg("tags") = std::vector<std::string>{},
          py::arg("since") = py::none(), py::arg("before") = py::none(), py::arg("roles") = std::vector<std::string>{})
      .def(
          "random_pages",
          [](const MemoryHandle& self, int64_t stream, int64_t end, int32_t count, uint64_t seed,
             std::vector<std::string> sources, std::vector<std::string> tags, std::optional<double> since,
             std::optional<double> before, const std::vector<std::string>& roles) {
            const os::SearchFilter filter{std::move(sources), std::move(tags), since, before, ParseRoles(roles)};
            return ValueOrRaise(
                self.Call([&](Memory& memory) { return memory.RandomPages(stream, end, count, seed, filter); }));
          },
          py::arg("stream"), py::arg("end"), py::arg("count"), py::arg("seed"), py::kw_only(),
          py::arg("sources") = std::vector<std::string>{}, py::arg("tags") = std::vector<std::string>{},
          py::arg("since") = py::none(), py::arg("before") = py::none(), py::arg("roles") = std::vector<std::string>{})
      .def(
          "pages_of",
          [](const MemoryHandle& self, int64_t stream, int64_t begin, int64_t end) {
            return ValueOrRaise(self.Call([&](Memory& memory) { return memory.PagesOf(stream, {begin, end}); }));
          },
          py::arg("stream"), py::arg("begin"), py::arg("end"))
      .def("read_pages", &ReadPages, py::arg("pages"), py::arg("out"))
      .def("start_read_pages", &StartReadPages, py::keep_alive<kReads, kOut>(), py::arg("pages"),
           py::arg("first_layer"), py::arg("layers"), py::arg("out"))
      .def("read_keys", &ReadKeys, py::arg("page"), py::arg("layer"))
      .def("page_bytes", &PageBytes, py::arg("tokens"))
      .def(
          "token_ids",
          [](const MemoryHandle& self, int64_t stream, int64_t begin, int64_t end) {
            return ToArray(
                ValueOrRaise(self.Call([&](Memory& memory) { return memory.TokenIds(stream, {begin, end}); })));
          },
          py::arg("stream"), py::arg("begin"), py::arg("end"))
      .def(
          "idf",
          [](const MemoryHandle& self, const py::object& token_ids) {
            const auto ids = View<int32_t>(token_ids, "token_ids");
            return ToArray(self.Call([&](Memory& memory) { return memory.Idf(ids); }));
          },
          py::arg("token_ids"))
      .def("pages", [](const MemoryHandle& self) { return self.Call([&](Memory& memory) { return memory.Pages(); }); })
      .def(
          "blocks",
          [](const MemoryHandle& self, std::optional<std::string> source, std::optional<std::string> tag,
             std::optional<double> since, std::optional<double> before, const std::vector<std::string>& roles) {
            const store::BlockFilter filter{std::move(source), std::move(tag), since, before, ParseRoles(roles)};
            return ValueOrRaise(self.Call([&](Memory& memory) { return memory.Blocks(filter); }));
          },
          py::kw_only(), py::arg("source") = py::none(), py::arg("tag") = py::none(), py::arg("since") = py::none(),
          py::arg("before") = py::none(), py::arg("roles") = std::vector<std::string>{})
      .def(
          "block",
          [](const MemoryHandle& self, int64_t id) {
            return ValueOrRaise(self.Call([&](Memory& memory) { return memory.Block(id); }));
          },
          py::arg("id"))
      .def(
          "forget",
          [](const MemoryHandle& self, const std::vector<int64_t>& blocks) {
            RaiseIfError(self.Call([&](Memory& memory) { return memory.Forget(blocks); }));
          },
          py::arg("blocks"))
      .def("flush",
           [](const MemoryHandle& self) { RaiseIfError(self.Call([](Memory& memory) { return memory.Flush(); })); })
      .def("compact",
           [](const MemoryHandle& self) {
             return ValueOrRaise(self.Call([](Memory& memory) { return memory.Compact(); }));
           })
      .def(
          "verify",
          [](const MemoryHandle& self, bool repair) {
            return ValueOrRaise(self.Call([&](Memory& memory) { return memory.Verify(repair); }));
          },
          py::arg("repair") = false)
      .def(
          "fork",
          [](const MemoryHandle& self, const std::string& folder) {
            RaiseIfError(self.Call([&](Memory& memory) { return memory.Fork(folder); }));
          },
          py::arg("folder"))
      .def(
          "export_file",
          [](const MemoryHandle& self, const std::string& file) {
            RaiseIfError(self.Call([&](Memory& memory) { return memory.Export(file); }));
          },
          py::arg("file"))
      .def(
          "stream_end",
          [](const MemoryHandle& self, int64_t stream) {
            return self.Call([&](Memory& memory) { return memory.StreamEnd(stream); });
          },
          py::arg("stream"))
      .def("manifest",
           [](const MemoryHandle& self) { return self.Call([&](Memory& memory) { return memory.manifest(); }); })
      .def(
          "set_attribute",
          [](const MemoryHandle& self, const std::string& key, const std::string& value) {
            RaiseIfError(self.Call([&](Memory& memory) { return memory.SetAttribute(key, value); }));
          },
          py::arg("key"), py::arg("value"))
      .def("put_file", &PutFile, py::arg("name"), py::arg("data"))
      .def("file", &File, py::arg("name"))
      .def("stats",
           [](const MemoryHandle& self) {
             return ValueOrRaise(self.Call([&](Memory& memory) { return memory.Stats(); }));
           })
      .def_property_readonly(
          "read_only",
          [](const MemoryHandle& self) { return self.Call([](Memory& memory) { return memory.read_only(); }); })
      .def("close", &MemoryHandle::Close,
           "Release lock and files. Every later call raises ClosedError; closing twice does nothing.");
}

}  // namespace everlong::bindings
